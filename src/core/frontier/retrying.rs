//! The retrying groups of strict queues. A group is **retrying** while an attempt with a number above 1 may be waiting:
//! it must run before all others of the group, and only the logs know which it is. All other groups of a strict queue
//! are served like groups with a limit of 1. See docs/internals/limits.md.
//!
//! A commit that makes such an attempt adds its group *before* anything that the transaction held becomes free. A claim
//! or an end of the attempt removes the group, but only if no other attempt may be waiting. So does a turn that has
//! found none in the logs.
//!
//! Invariant: if the groups of a gate are *known*, every group in which such an attempt waits has a record. Records of
//! other groups may exist: each costs at most one turn. If a record does not fit, the gate's groups are unknown.

use super::group::key_of;
use super::limits::{Claimer, Gate, GateSlot};
use super::memory::Frontier;
use super::retries::{Retries, Retrying, RetryingSlot};
use super::session::SessionSlot;
use crate::share;

/// If not all groups fit, the next try is this many microseconds later.
const FULL_PAUSE: i64 = 10_000_000;
/// The groups are not read anew for this many times as long as the last reading took.
const PAUSES: i64 = 16;

impl Frontier<'_> {
    fn gate_near(&self, instance: u32, lane: i32) -> Option<GateSlot> {
        let near = self.lane_slot(instance, lane).and_then(|slot| self.lanes[slot].gate);
        near.or_else(|| self.gate_of(instance, lane))
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
    pub fn retry_waits(&mut self, instance: u32, lane: i32, hash: i64, id: i64) {
        let Some(gate) = self.gate_near(instance, lane).filter(|_| hash != 0) else { return };
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
            self.gates[gate].retries.reads_at = self.head.now.saturating_add(FULL_PAUSE);
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
    pub(super) fn retry_left(&mut self, instance: u32, lane: i32, hash: i64, id: i64) {
        if self.head.retrying == 0 || hash == 0 {
            return;
        }
        if let Some(gate) = self.gate_near(instance, lane)
            && let Some(slot) = self.retrying_slot(gate, lane, hash)
            && self.retrying[slot].id == id
        {
            self.forget_retrying(slot);
        }
    }

    /// Notes that an attempt with a number above 1 was rolled back. A session that has seen its own attempt may have
    /// held the group for it.
    pub fn retry_undone(&mut self, instance: u32, lane: i32, hash: i64, id: i64) {
        self.retry_left(instance, lane, hash, id);
        if hash != 0
            && let Some(group) = self.group_slot(instance, lane, hash)
        {
            self.group_changed(group);
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
        for gate in self.gates.slots() {
            if self.gates[gate].len > 0 && self.gates[gate].instance == instance {
                self.forget_retries(gate);
            }
        }
    }

    // ---- turns

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

    /// Returns true if the session must read which groups of the claimer's queue are retrying, with a snapshot taken
    /// *after* this call. It hands the attempts over by [`Self::retry_waits`] and ends with [`Self::retries_end`].
    pub fn retries_begin(&mut self, instance: u32, claimer: &Claimer<'_>, session: u32) -> bool {
        if !claimer.limits.is_strict {
            return false;
        }
        let Some(gate) = self.set_gate(instance, claimer) else { return false };
        self.head.now = self.head.now.max(claimer.now);
        let retries = &mut self.gates[gate].retries;
        if retries.is_known || retries.reader.is_some() || claimer.now < retries.reads_at {
            return false;
        }
        (retries.reader, retries.began_at) = (Some(SessionSlot::new(session)), claimer.now);
        true
    }

    /// Ends the reading. The groups are known if the session `has_all`, and nothing was forgotten meanwhile.
    pub fn retries_end(&mut self, instance: u32, queue: i32, session: u32, has_all: bool, now: i64) {
        let is_it = |gate: &Gate| gate.len > 0 && gate.instance == instance && gate.queue == queue;
        let Some(gate) = self.gates.find(is_it) else { return };
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
        if let Some(gate) = self.gates.find(|gate| gate.retries.reader == Some(SessionSlot::new(session))) {
            self.forget_retries(gate);
        }
    }

    /// True if the retrying groups of a queue's gate are known.
    pub fn knows_retries(&self, instance: u32, lane: i32) -> bool {
        self.gate_near(instance, lane).is_some_and(|gate| self.gates[gate].retries.is_known)
    }
}

#[cfg(test)]
impl Frontier<'_> {
    /// Checks the counts and the free list.
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
