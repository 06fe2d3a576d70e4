//! Tells the gates which groups are retrying: see `gate_set`.
//!
//! Invariant: a commit adds the group of an attempt before anything that the transaction held becomes free.

use super::limits::Claimer;
use super::memory::{Backlog, Frontier};
use super::slot::{GateSlot, SessionSlot};

impl Backlog<'_> {
    /// Returns the gate of a lane, even if the lane has no slot.
    pub(super) fn gate_of(&self, instance: u32, lane: i32) -> Option<GateSlot> {
        let near = self.lanes.find(instance, lane).and_then(|slot| self.lanes[slot].gate);
        near.or_else(|| self.gates.of_lane(instance, lane))
    }

    /// Notes that an attempt does not wait any more. The group is removed if no other attempt may be waiting.
    pub(super) fn retry_left(&mut self, instance: u32, lane: i32, hash: i64, id: i64) {
        if self.gates.has_no_retrying() || hash == 0 {
            return;
        }
        if let Some(gate) = self.gate_of(instance, lane) {
            self.gates.retry_left(gate, lane, hash, id);
        }
    }
}

impl Frontier<'_> {
    /// Adds the group of an attempt that waits, or will wait after a commit, with a number above 1.
    pub fn retry_waits(&mut self, instance: u32, lane: i32, hash: i64, id: i64) {
        if let Some(gate) = self.backlog.gate_of(instance, lane).filter(|_| hash != 0) {
            self.backlog.gates.retry_waits(gate, lane, hash, id, *self.backlog.now);
        }
    }

    /// Notes that an attempt with a number above 1 was rolled back. A session that has seen its own attempt may have
    /// held the group for it.
    pub fn retry_undone(&mut self, instance: u32, lane: i32, hash: i64, id: i64) {
        self.backlog.retry_left(instance, lane, hash, id);
        if hash != 0
            && let Some(group) = self.backlog.group_slot(instance, lane, hash)
        {
            self.backlog.group_changed(group);
        }
    }

    /// Returns true if the session must read which groups of the claimer's queue are retrying, with a snapshot taken
    /// *after* this call. It hands the attempts over by [`Self::retry_waits`] and ends with
    /// [`super::GateSet::retries_end`].
    pub fn retries_begin(&mut self, instance: u32, claimer: &Claimer<'_>, session: u32) -> bool {
        if !claimer.limits.is_strict {
            return false;
        }
        let Some(gate) = self.set_gate(instance, claimer) else { return false };
        *self.backlog.now = claimer.now.max(*self.backlog.now);
        self.backlog.gates.retries_begin(gate, SessionSlot::new(session), claimer.now)
    }
}
