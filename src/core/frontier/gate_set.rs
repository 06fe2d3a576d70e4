//! The gates of limited queues, and the retrying groups of strict ones.
//!
//! A group is **retrying** while an attempt with a number above 1 may be waiting: it must run before all others of the
//! group, and only the logs know which it is. All other groups of a strict queue are served like groups with a limit of
//! 1. See docs/internals/limits.md.
//!
//! A commit that makes such an attempt adds its group *before* anything that the transaction held becomes free. A claim
//! or an end of the attempt removes the group, but only if no other attempt may be waiting. So does a turn that has
//! found none in the logs.
//!
//! Invariant: if the groups of a gate are *known*, every group in which such an attempt waits has a record. Records of
//! other groups may exist: each costs at most one turn. If a record does not fit, the gate's groups are unknown.

use super::dear::Dear;
use super::group::key_of;
use super::index::Bucket;
use super::limits::{Claimer, GATE_LANES, Gate};
use super::retries::{Retries, Retrying};
use super::slot::{GateSlot, RetryingSlot, SessionSlot, of};
use super::slots::{FreeSlots, SlotIndex, Slots, indexed_by_slot};
use crate::share;

/// If not all groups fit, the next try is this many microseconds later.
const FULL_PAUSE: i64 = 10_000_000;
/// The groups are not read anew for this many times as long as the last reading took.
const PAUSES: i64 = 16;

/// Counts of gates and of retrying groups. All zero: there are none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GatesHead {
    /// How many gates are in use.
    pub(super) used: u32,
    /// How often a gate was made or thrown away.
    pub(super) changes: u32,
    /// The monotonic time before which no gate opens that a rate has closed. 0: no rate has closed a gate.
    pub(super) opens_at: i64,
    /// How many groups are retrying.
    retrying: u32,
    retrying_slots: FreeSlots<of::Retrying>,
}

/// The gates, and the retrying groups.
pub struct GateSet<'a> {
    gates: Slots<'a, Gate>,
    retrying: Slots<'a, Retrying>,
    retrying_index: SlotIndex<'a, of::Retrying>,
    pub(super) head: &'a mut GatesHead,
}

impl<'a> GateSet<'a> {
    #[inline]
    pub(super) fn new(
        head: &'a mut GatesHead,
        gates: &'a mut [Gate],
        retrying: &'a mut [Retrying],
        retrying_index: &'a mut [Bucket],
    ) -> Self {
        Self {
            gates: Slots::new(gates),
            retrying: Slots::new(retrying),
            retrying_index: SlotIndex::new(retrying_index),
            head,
        }
    }

    // ---- gates

    pub(super) fn slots(&self) -> impl DoubleEndedIterator<Item = GateSlot> + use<> {
        self.gates.slots()
    }

    /// Returns the first gate that `is_it`.
    pub(super) fn first(&self, is_it: impl Fn(&Gate) -> bool) -> Option<GateSlot> {
        self.gates.find(is_it)
    }

    /// Returns the gate that counts a lane.
    pub(super) fn of_lane(&self, instance: u32, lane: i32) -> Option<GateSlot> {
        if self.head.used == 0 {
            return None;
        }
        self.first(|gate| gate.instance == instance && gate.len > 0 && gate.lanes().contains(&lane))
    }

    /// Returns the gate of a queue.
    pub(super) fn of_queue(&self, instance: u32, queue: i32) -> Option<GateSlot> {
        self.first(|gate| gate.len > 0 && gate.instance == instance && gate.queue == queue)
    }

    /// True if a gate has the settings of this claim.
    pub(super) fn is_as(&self, slot: GateSlot, claimer: &Claimer<'_>) -> bool {
        let gate = &self.gates[slot];
        gate.limits == claimer.limits && gate.lanes() == claimer.lanes
    }

    /// Gives a gate the settings of this claim. It counts nothing yet. The caller forgets its groups first.
    pub(super) fn set(&mut self, slot: GateSlot, instance: u32, claimer: &Claimer<'_>) {
        let gate = &mut self.gates[slot];
        (gate.opens_at, gate.dear, gate.usual_cost) = (0, Dear::default(), 0);
        (gate.instance, gate.queue, gate.limits, gate.running) = (instance, claimer.queue, claimer.limits, 0);
        let count = claimer.lanes.len().min(GATE_LANES);
        gate.len = count as u32;
        gate.lanes[..count].copy_from_slice(&claimer.lanes[..count]);
    }

    /// Frees the slot of a gate that has no groups, no records and no retrying groups.
    pub(super) fn remove(&mut self, slot: GateSlot) {
        self.gates[slot] = Gate::default();
        self.head.used -= 1;
    }

    /// Notes until when a rate keeps a gate closed for sleeping sessions.
    pub(super) fn close_until(&mut self, slot: GateSlot, opens_at: i64) {
        self.gates[slot].opens_at = opens_at;
        if self.head.opens_at == 0 || opens_at < self.head.opens_at {
            self.head.opens_at = opens_at;
        }
    }

    /// Computes anew when the first gate opens that a rate has closed.
    pub(super) fn find_opening(&mut self) {
        self.head.opens_at = self.gates.iter().map(|gate| gate.opens_at).filter(|&at| at != 0).min().unwrap_or(0);
    }

    // ---- retrying groups

    /// True if no group is retrying.
    pub(super) fn has_no_retrying(&self) -> bool {
        self.head.retrying == 0
    }

    fn retrying_slot(&self, gate: GateSlot, lane: i32, hash: i64) -> Option<RetryingSlot> {
        if self.gates[gate].retries.count == 0 {
            return None;
        }
        self.retrying_index.find(gate.number(), key_of(lane, hash))
    }

    /// True if an attempt that must run before all others of the group may be waiting.
    pub(super) fn is_retrying(&self, gate: GateSlot, lane: i32, hash: i64) -> bool {
        let gate_now = &self.gates[gate];
        gate_now.limits.is_strict && (!gate_now.retries.is_known || self.retrying_slot(gate, lane, hash).is_some())
    }

    /// Adds the group of an attempt that waits, or will wait after a commit, with a number above 1.
    pub(super) fn retry_waits(&mut self, gate: GateSlot, lane: i32, hash: i64, id: i64, now: i64) {
        let Retries { is_known, reader, count, .. } = self.gates[gate].retries;
        if !(is_known || reader.is_some()) || !self.gates[gate].limits.is_strict {
            return;
        }
        if let Some(slot) = self.retrying_slot(gate, lane, hash) {
            let group = &mut self.retrying[slot];
            group.is_shared |= u8::from((group.lane, group.hash) != (lane, hash));
            group.id = if group.id == id { id } else { 0 };
            group.is_unread = 1;
            return;
        }
        let free = self.retrying.len() - self.head.retrying as usize;
        if share::room(share::ALPHA, free, count) == 0 {
            self.forget_retries(gate);
            self.gates[gate].retries.reads_at = now.saturating_add(FULL_PAUSE);
            return;
        }
        let Some(slot) = self.head.retrying_slots.take(&mut self.retrying) else { return };
        let key = key_of(lane, hash);
        let new = Retrying { key, hash, id, lane, gate: Some(gate), is_unread: 1, ..Retrying::default() };
        self.retrying[slot] = new;
        self.retrying_index.insert(gate.number(), key, slot);
        self.head.retrying += 1;
        self.gates[gate].retries.count += 1;
    }

    /// Notes that an attempt does not wait any more. The group is removed if no other attempt may be waiting.
    pub(super) fn retry_left(&mut self, gate: GateSlot, lane: i32, hash: i64, id: i64) {
        if let Some(slot) = self.retrying_slot(gate, lane, hash)
            && self.retrying[slot].id == id
        {
            self.forget_retrying(slot);
        }
    }

    fn forget_retrying(&mut self, slot: RetryingSlot) {
        let group = self.retrying[slot];
        self.retrying_index.remove(group.gate().number(), group.key);
        self.gates[group.gate()].retries.count -= 1;
        self.retrying[slot] = Retrying::default();
        self.head.retrying_slots.give(&mut self.retrying, slot);
        self.head.retrying -= 1;
    }

    /// Forgets what a gate knows. A session that is reading reads for nothing.
    pub(super) fn forget_retries(&mut self, gate: GateSlot) {
        let retries = &mut self.gates[gate].retries;
        (retries.is_known, retries.reader) = (false, None);
        if retries.count > 0 {
            for slot in self.head.retrying_slots.used_from(0) {
                if self.retrying[slot].gate == Some(gate) {
                    self.forget_retrying(slot);
                }
            }
        }
    }

    /// Forgets what the gates of an instance know, because attempts may have come that no callback has reported.
    pub(super) fn forget_all_retries(&mut self, instance: u32) {
        for slot in self.gates.slots() {
            if self.gates[slot].len > 0 && self.gates[slot].instance == instance {
                self.forget_retries(slot);
            }
        }
    }

    /// Notes that a session begins to read a group from the logs.
    pub(super) fn retrying_is_read(&mut self, gate: GateSlot, lane: i32, hash: i64) {
        if let Some(slot) = self.retrying_slot(gate, lane, hash) {
            self.retrying[slot].is_unread = 0;
        }
    }

    /// Notes that a session has found no attempt that must run first. Returns false if one was added meanwhile.
    pub(super) fn retrying_is_over(&mut self, gate: GateSlot, lane: i32, hash: i64) -> bool {
        let Some(slot) = self.retrying_slot(gate, lane, hash) else { return true };
        let Retrying { is_unread, is_shared, .. } = self.retrying[slot];
        if is_unread == 0 && is_shared == 0 {
            self.forget_retrying(slot);
        }
        is_unread == 0
    }

    // ---- reading all of them

    /// Begins to read which groups of a gate are retrying. Returns false if the session must not.
    pub(super) fn retries_begin(&mut self, gate: GateSlot, session: SessionSlot, now: i64) -> bool {
        let retries = &mut self.gates[gate].retries;
        if retries.is_known || retries.reader.is_some() || now < retries.reads_at {
            return false;
        }
        (retries.reader, retries.began_at) = (Some(session), now);
        true
    }

    /// Ends the reading. The groups are known if the session `has_all`, and nothing was forgotten meanwhile.
    pub fn retries_end(&mut self, instance: u32, queue: i32, session: u32, has_all: bool, now: i64) {
        let Some(gate) = self.of_queue(instance, queue) else { return };
        let retries = &mut self.gates[gate].retries;
        if retries.reader != Some(SessionSlot::new(session)) {
            return;
        }
        let took = now.saturating_sub(retries.began_at).max(0);
        retries.reads_at = now.saturating_add(took.saturating_mul(PAUSES));
        if has_all {
            (retries.is_known, retries.reader) = (true, None);
        } else {
            self.forget_retries(gate);
        }
    }

    /// Ends the reading of a session that is going away.
    pub fn retries_abandon(&mut self, session: u32) {
        let reader = Some(SessionSlot::new(session));
        if let Some(gate) = self.first(|gate| gate.retries.reader == reader) {
            self.forget_retries(gate);
        }
    }
}

indexed_by_slot!(GateSet, GateSlot, gates: Gate);

#[cfg(test)]
impl GateSet<'_> {
    /// Checks the counts of retrying groups and their free list.
    pub(super) fn check_retrying(&self) {
        let used: Vec<RetryingSlot> =
            self.retrying.slots().filter(|&slot| self.retrying[slot].gate.is_some()).collect();
        for &slot in &used {
            let group = self.retrying[slot];
            assert_eq!(self.retrying_index.find(group.gate().number(), group.key), Some(slot));
        }
        let free = self.head.retrying_slots.listed(&self.retrying).len();
        assert_eq!(self.head.retrying as usize, used.len());
        assert_eq!(self.head.retrying_slots.ever_used() as usize, used.len() + free);
        assert_eq!(self.gates.iter().map(|gate| gate.retries.count as usize).sum::<usize>(), used.len());
    }
}
