//! Counts how many jobs of each group have started within a sliding period, for a rate per group.
//!
//! As in [`super::window`], starts close to each other are kept as one span with the time of the last of them. A start
//! counts from the taking of the job until one period after the commit or rollback of its claim. Each group has its
//! newest starts in its record and the older ones in nodes of a pool that all groups share. If more than half of the
//! pool is in use, a start may count for an eighth of the period too long. If the pool is full, it may count for a
//! whole period too long.
//!
//! A record outlives its group's slot: it is kept until the last of its starts has expired. If there is no free record,
//! the gate stays closed until there is one, because no job may start uncounted.
//!
//! Invariant: never do more jobs of one group than the limit start within any period. A node is in the list of one
//! record or in the free list.

use super::group::key_of;
use super::limits::{Claimer, GateSlot};
use super::memory::Frontier;
use super::running::{Running, RunningSlot};
use super::starts::{PastStart, Rate, RateSlot, Starts};
use super::window::{self, Span};
use crate::share;

/// The grain while the pool has room, and when it is short.
const FINE: Grain = Grain { parts: window::PART, apart: window::APART };
const COARSE: Grain = Grain { parts: 8, apart: 2 };

struct Grain {
    parts: i64,
    apart: u32,
}

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

impl Frontier<'_> {
    fn rate_slot(&self, gate: GateSlot, lane: i32, group: i64) -> Option<RateSlot> {
        if self.head.rates == 0 {
            return None;
        }
        self.rate_index.find(gate.number(), key_of(lane, group))
    }

    /// Returns the spans of a record, the oldest first.
    fn spans(&self, rate: &Rate) -> impl Iterator<Item = Span> {
        let mut next = rate.older.0;
        let older = std::iter::from_fn(move || {
            let node = &self.starts[next?];
            next = node.next;
            Some(node.span)
        });
        older.take(rate.len as usize).chain((rate.sum > 0).then_some(rate.newest))
    }

    /// Returns how many more attempts of a group its rate lets start now.
    pub(super) fn rate_room(&self, gate: GateSlot, lane: i32, group: i64) -> u32 {
        let limits = self.gates[gate].limits;
        if limits.group_rate == 0 {
            return u32::MAX;
        }
        let Some(slot) = self.rate_slot(gate, lane, group) else { return limits.group_rate };
        let rate = self.rates[slot];
        let from = self.head.now.saturating_sub(limits.period);
        let expired: u32 = self.spans(&rate).take_while(|span| span.last <= from).map(|span| span.count).sum();
        limits.group_rate.saturating_sub((rate.sum - expired).saturating_add(rate.open))
    }

    /// Returns when the oldest counting start of a group expires. `None`: all starts are open, or there is none.
    pub(super) fn rate_opens_at(&self, gate: GateSlot, lane: i32, group: i64) -> Option<i64> {
        let period = self.gates[gate].limits.period;
        let rate = self.rates[self.rate_slot(gate, lane, group)?];
        let from = self.head.now.saturating_sub(period);
        self.spans(&rate).find(|span| span.last > from).map(|span| span.last.saturating_add(period))
    }

    /// Returns how many more records a gate may have within its share. `Err`: none before this monotonic time.
    pub(super) fn rates_room(&mut self, gate: GateSlot) -> Result<u32, i64> {
        let room = |frontier: &Self| {
            let free = frontier.rates.len() - frontier.head.rates as usize;
            share::room(share::ALPHA, free, frontier.gates[gate].rates)
        };
        let left = room(self);
        if left > 0 {
            return Ok(left);
        }
        if self.head.rates_free_at <= self.head.now {
            self.head.rates_free_at = self.sweep_rates();
            let left = room(self);
            if left > 0 {
                return Ok(left);
            }
        }
        Err(self.head.rates_free_at)
    }

    /// Frees expired records. Returns when the next one expires.
    fn sweep_rates(&mut self) -> i64 {
        /// The pause before the next sweep while starts are open.
        const PAUSE: i64 = 100_000;
        let now = self.head.now;
        let mut next = i64::MAX;
        for slot in self.head.rate_slots.used_from(0) {
            let rate = self.rates[slot];
            if rate.gate.is_none() || self.forget_rate_if_over(slot) {
                continue;
            }
            let period = self.gates[rate.gate()].limits.period;
            let over_at = rate.newest.last.saturating_add(period);
            next = next.min(if rate.open > 0 { now.saturating_add(PAUSE) } else { over_at });
        }
        next
    }

    fn forget_rate_if_over(&mut self, slot: RateSlot) -> bool {
        let rate = self.rates[slot];
        let Some(gate) = rate.gate else { return false };
        let is_over = rate.is_over(self.gates[gate].limits.period, self.head.now);
        if is_over {
            self.forget_rate(slot);
        }
        is_over
    }

    fn forget_rate(&mut self, slot: RateSlot) {
        while self.rates[slot].len > 0 {
            self.forget_oldest(slot);
        }
        let rate = self.rates[slot];
        self.rate_index.remove(rate.gate().number(), rate.key);
        self.gates[rate.gate()].rates -= 1;
        self.rates[slot] = Rate::default();
        self.head.rate_slots.give(&mut self.rates, slot);
        self.head.rates -= 1;
    }

    /// Gives the oldest of the older starts back to the pool.
    fn forget_oldest(&mut self, slot: RateSlot) {
        let rate = &mut self.rates[slot];
        let Some(node) = rate.older.0 else { return };
        let Starts { span, next } = self.starts[node];
        rate.sum -= span.count;
        rate.len -= 1;
        rate.older = if rate.len == 0 { (None, None) } else { (next, rate.older.1) };
        self.head.start_slots.give(&mut self.starts, node);
        self.head.starts -= 1;
    }

    /// Forgets the starts of a gate's groups, because these groups have no rate any more.
    pub(super) fn drop_rates(&mut self, gate: GateSlot) {
        if self.gates[gate].rates == 0 {
            return;
        }
        for slot in self.head.rate_slots.used_from(0) {
            if self.rates[slot].gate == Some(gate) {
                self.forget_rate(slot);
            }
        }
        for n in self.head.running_slots.used_from(0) {
            let entry = &mut self.running[n];
            if entry.gate == Some(gate) {
                entry.token &= !OF_GROUP;
            }
        }
    }

    /// True if no start of a gate's groups counts any more.
    pub(super) fn rates_are_over(&mut self, gate: GateSlot) -> bool {
        if self.gates[gate].rates > 0 {
            self.sweep_rates();
        }
        self.gates[gate].rates == 0
    }

    fn rate_or_create(&mut self, gate: GateSlot, lane: i32, group: i64) -> Option<RateSlot> {
        if let Some(slot) = self.rate_slot(gate, lane, group) {
            return Some(slot);
        }
        let known = self.head.rate_slots.ever_used();
        for _ in 0..LOOKS.min(known) {
            let hand = (self.head.rates_hand + 1) % known;
            self.head.rates_hand = hand;
            self.forget_rate_if_over(RateSlot::new(hand));
        }
        let slot = self.head.rate_slots.take(&mut self.rates)?;
        let free_at = self.head.now.saturating_add(self.gates[gate].limits.period);
        self.head.rates_free_at = self.head.rates_free_at.min(free_at);
        let key = key_of(lane, group);
        self.rates[slot] = Rate { key, gate: Some(gate), ..Rate::default() };
        self.rate_index.insert(gate.number(), key, slot);
        self.head.rates += 1;
        self.gates[gate].rates += 1;
        Some(slot)
    }

    /// Counts an open start of an entry's group. The caller must have made sure that there is room for a record.
    pub(super) fn open_start(&mut self, gate: GateSlot, slot: RunningSlot) {
        let Running { lane, group, .. } = self.running[slot];
        if group != 0
            && self.gates[gate].limits.group_rate > 0
            && let Some(rate) = self.rate_or_create(gate, lane, group)
        {
            self.rates[rate].open += 1;
            self.running[slot].token |= OF_GROUP;
        }
    }

    /// Ends an open start of this entry's group. `at`: the time at which it counts as a start. `None`: it does not
    /// count.
    pub(super) fn close_start(&mut self, gate: GateSlot, entry: &Running, at: Option<i64>) {
        let Some(slot) = self.rate_slot(gate, entry.lane, entry.group) else { return };
        let rate = &mut self.rates[slot];
        rate.open = rate.open.saturating_sub(1);
        // If the job has not started, the record may expire immediately.
        let over_at = at.map_or(0, |at| at.saturating_add(self.gates[gate].limits.period));
        self.head.rates_free_at = self.head.rates_free_at.min(over_at);
        if let Some(at) = at {
            self.add_starts(gate, slot, at, 1);
        }
    }

    /// Adds starts of a group.
    fn add_starts(&mut self, gate: GateSlot, slot: RateSlot, at: i64, count: u32) {
        let period = self.gates[gate].limits.period;
        let from = self.head.now.saturating_sub(period);
        while let Some(node) = self.rates[slot].older.0
            && self.starts[node].span.last <= from
        {
            self.forget_oldest(slot);
        }
        let grain = if self.head.starts as usize * 2 < self.starts.len() { FINE } else { COARSE };
        let rate = self.rates[slot];
        // Callbacks need not run in the order of the commits.
        let at = at.max(rate.newest.last);
        let is_first = rate.sum == 0 || rate.len == 0 && rate.newest.last <= from;
        let is_close = at - rate.newest.first <= period / grain.parts && rate.len + 1 >= grain.apart;
        if is_first {
            self.rates[slot].sum = 0;
        } else if is_close || !self.age_newest(slot) {
            let rate = &mut self.rates[slot];
            rate.newest.last = at;
            rate.newest.count = rate.newest.count.saturating_add(count);
            rate.sum = rate.sum.saturating_add(count);
            return;
        }
        let rate = &mut self.rates[slot];
        rate.newest = Span { first: at, last: at, count };
        rate.sum = rate.sum.saturating_add(count);
    }

    /// Moves the newest starts of a record to a node of the pool. Returns false if no node is free.
    fn age_newest(&mut self, slot: RateSlot) -> bool {
        let Some(node) = self.head.start_slots.take(&mut self.starts) else { return false };
        self.head.starts += 1;
        let rate = &mut self.rates[slot];
        self.starts[node] = Starts { span: rate.newest, next: None };
        match rate.older.1.replace(node) {
            Some(last) => self.starts[last].next = Some(node),
            None => rate.older.0 = Some(node),
        }
        rate.len += 1;
        true
    }

    /// Enters the groups' starts from the logs, in the order of time. Returns false if there is no room for all groups.
    /// Then nothing may be claimed.
    pub(super) fn seed_rates(&mut self, claimer: &Claimer<'_>, gate: GateSlot, starts: &[PastStart]) -> bool {
        starts.iter().filter(|start| claimer.lanes.contains(&start.lane)).all(|start| {
            let slot = self.rate_or_create(gate, start.lane, start.group);
            slot.map(|slot| self.add_starts(gate, slot, start.at, start.count)).is_some()
        })
    }

    /// Returns how many lanes are in memory, and for how many there is room.
    pub fn lanes_in_use(&self) -> (usize, usize) {
        (self.head.lanes as usize, self.lanes.len())
    }

    /// Returns how many attempts are taken, and for how many there is room.
    pub fn running_in_use(&self) -> (usize, usize) {
        (self.head.running as usize, self.running.len())
    }

    /// Returns how many groups have a record of starts, and for how many there is room.
    pub fn rates_in_use(&self) -> (usize, usize) {
        (self.head.rates as usize, self.rates.len())
    }
}

#[cfg(test)]
impl Frontier<'_> {
    /// Checks that each node is in exactly one list, and that the sums are right.
    pub(super) fn check_rates(&self) {
        let (mut rates, mut nodes) = (0, 0);
        for slot in self.rates.slots().filter(|&slot| self.rates[slot].gate.is_some()) {
            let rate = &self.rates[slot];
            assert_eq!(self.rate_index.find(rate.gate().number(), rate.key), Some(slot));
            assert_eq!(self.spans(rate).map(|span| span.count).sum::<u32>(), rate.sum);
            assert!(self.spans(rate).is_sorted_by_key(|span| span.last));
            assert!(self.spans(rate).all(|span| span.count > 0 && span.first <= span.last));
            rates += 1;
            nodes += rate.len;
        }
        let free = self.head.start_slots.listed(&self.starts).len() as u32;
        assert_eq!((self.head.rates, self.head.starts), (rates, nodes));
        assert_eq!(self.head.start_slots.ever_used(), nodes + free);
        assert_eq!(self.gates.iter().map(|gate| gate.rates).sum::<u32>(), rates);
    }
}
