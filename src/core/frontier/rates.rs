//! Rates of groups: how many more of their jobs may start, by the records of what has started (`start_set`).
//!
//! A record outlives its group's slot: it is kept until the last of its starts has expired. If there is no free record,
//! the gate stays closed until there is one, because no job may start uncounted.
//!
//! Invariant: a gate counts its records. A record is forgotten only when none of its starts counts, or with the rate.

use super::limits::Claimer;
use super::memory::Backlog;
use super::running::Running;
use super::slot::{GateSlot, RateSlot};
use super::starts::{PastStart, Rate};
use crate::share;

/// In [`Running::token`]: it counts as an open start of its queue.
pub const OF_QUEUE: u8 = 1;
/// In [`Running::token`]: it counts as an open start of its group.
pub const OF_GROUP: u8 = 2;
/// How many records are checked for expiry when one is made.
const LOOKS: u32 = 4;

impl Rate {
    /// True if the record has expired: none of its starts counts at this time.
    fn is_over(&self, period: i64, now: i64) -> bool {
        self.open == 0 && (self.sum == 0 || self.newest.last <= now.saturating_sub(period))
    }
}

impl Backlog<'_> {
    /// Returns how many more attempts of a group its rate lets start now, if they have the usual cost.
    pub(super) fn rate_room(&self, gate: GateSlot, lane: i32, group: i64) -> u32 {
        let limits = &self.gates[gate].limits;
        if limits.group_rate == 0 {
            return u32::MAX;
        }
        let known = self.starts.find(gate, lane, group);
        let left = known.map_or(limits.group_rate, |slot| self.starts.room(slot, limits, *self.now));
        self.gates[gate].jobs_in(left)
    }

    /// Returns when the next job of a group may start, because enough of its starts have expired. `None`: too many
    /// starts are open, or there is none.
    pub(super) fn rate_opens_at(&self, gate: GateSlot, lane: i32, group: i64) -> Option<i64> {
        let slot = self.starts.find(gate, lane, group)?;
        self.starts.opens_at(slot, &self.gates[gate].limits, *self.now)
    }

    /// Returns how many more records a gate may have within its share. `Err`: none before this monotonic time.
    pub(super) fn records_room(&mut self, gate: GateSlot) -> Result<u32, i64> {
        let room = |backlog: &Self| {
            let (used, size) = backlog.starts.in_use();
            share::room(share::ALPHA, size - used, backlog.gates[gate].rates)
        };
        let left = room(self);
        if left > 0 {
            return Ok(left);
        }
        if self.starts.head.free_at <= *self.now {
            self.starts.head.free_at = self.sweep_records();
            let left = room(self);
            if left > 0 {
                return Ok(left);
            }
        }
        Err(self.starts.head.free_at)
    }

    /// Frees expired records. Returns when the next one expires.
    fn sweep_records(&mut self) -> i64 {
        /// The pause before the next sweep while starts are open.
        const PAUSE: i64 = 100_000;
        let now = *self.now;
        let mut next = i64::MAX;
        for slot in self.starts.slots() {
            let rate = self.starts[slot];
            if rate.gate.is_none() || self.forget_record_if_over(slot) {
                continue;
            }
            let period = self.gates[rate.gate()].limits.period;
            let over_at = rate.newest.last.saturating_add(period);
            next = next.min(if rate.open > 0 { now.saturating_add(PAUSE) } else { over_at });
        }
        next
    }

    fn forget_record_if_over(&mut self, slot: RateSlot) -> bool {
        let rate = &self.starts[slot];
        let Some(gate) = rate.gate else { return false };
        let is_over = rate.is_over(self.gates[gate].limits.period, *self.now);
        if is_over {
            self.gates[gate].rates -= 1;
            self.starts.remove(slot);
        }
        is_over
    }

    /// Forgets the starts of a gate's groups, because these groups have no rate any more.
    pub(super) fn forget_records(&mut self, gate: GateSlot) {
        for slot in self.starts.slots() {
            if self.starts[slot].gate == Some(gate) {
                self.starts.remove(slot);
            }
        }
        self.gates[gate].rates = 0;
    }

    /// True if no start of a gate's groups counts any more.
    pub(super) fn records_are_over(&mut self, gate: GateSlot) -> bool {
        if self.gates[gate].rates > 0 {
            self.sweep_records();
        }
        self.gates[gate].rates == 0
    }

    pub(super) fn record_or_create(&mut self, gate: GateSlot, lane: i32, group: i64) -> Option<RateSlot> {
        if let Some(slot) = self.starts.find(gate, lane, group) {
            return Some(slot);
        }
        for _ in 0..LOOKS {
            if let Some(slot) = self.starts.next_to_check() {
                self.forget_record_if_over(slot);
            }
        }
        let slot = self.starts.add(gate, lane, group)?;
        let free_at = self.now.saturating_add(self.gates[gate].limits.period);
        self.starts.head.free_at = self.starts.head.free_at.min(free_at);
        self.gates[gate].rates += 1;
        Some(slot)
    }

    /// Ends an open start of this entry's group. `at`: the time at which it counts as a start. `None`: it does not
    /// count.
    pub(super) fn close_start(&mut self, gate: GateSlot, entry: &Running, at: Option<i64>) {
        let Some(slot) = self.starts.find(gate, entry.lane, entry.group) else { return };
        let rate = &mut self.starts[slot];
        rate.open = rate.open.saturating_sub(entry.cost.into());
        let period = self.gates[gate].limits.period;
        // If the job has not started, the record may expire immediately.
        let over_at = at.map_or(0, |at| at.saturating_add(period));
        self.starts.head.free_at = self.starts.head.free_at.min(over_at);
        if let Some(at) = at {
            self.starts.add_starts(slot, at, entry.cost.into(), period, *self.now);
        }
    }

    /// Enters the groups' starts from the logs, in the order of time. Returns false if there is no room for all groups.
    /// Then nothing may be claimed.
    pub(super) fn seed_records(&mut self, claimer: &Claimer<'_>, gate: GateSlot, starts: &[PastStart]) -> bool {
        let (period, now) = (self.gates[gate].limits.period, *self.now);
        starts.iter().filter(|start| claimer.lanes.contains(&start.lane)).all(|start| {
            let slot = self.record_or_create(gate, start.lane, start.group);
            slot.map(|slot| self.starts.add_starts(slot, start.at, start.count, period, now)).is_some()
        })
    }
}

#[cfg(test)]
impl Backlog<'_> {
    /// Checks the records, and that each gate counts its own.
    pub(super) fn check_rates(&self) {
        let rates = self.starts.check();
        assert_eq!(self.gates.slots().map(|gate| self.gates[gate].rates).sum::<u32>(), rates);
    }
}
