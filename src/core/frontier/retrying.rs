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
use super::index;
use super::limits::{Claimer, Gate};
use super::memory::Frontier;
use super::retries::{Retries, Retrying};
use crate::share;

/// If not all groups fit, the next try is this many microseconds later.
const FULL_PAUSE: i64 = 10_000_000;
/// The groups are not read anew for this many times as long as the last reading took.
const PAUSES: i64 = 16;

impl Frontier<'_> {
    fn gate_near(&self, instance: u32, lane: i32) -> Option<u32> {
        let near = self.lane_slot(instance, lane).and_then(|slot| self.lanes[slot as usize].gate.checked_sub(1));
        near.or_else(|| self.gate_of(instance, lane))
    }

    fn retrying_slot(&self, gate: u32, lane: i32, hash: i64) -> Option<u32> {
        if self.gates[gate as usize].retries.count == 0 {
            return None;
        }
        index::find(self.retrying_index, gate, key_of(lane, hash))
    }

    /// True if an attempt that must run before all others of the group may be waiting.
    pub(super) fn is_retrying(&self, gate: u32, lane: i32, hash: i64) -> bool {
        let gate_now = &self.gates[gate as usize];
        gate_now.limits.is_strict && (!gate_now.retries.is_known || self.retrying_slot(gate, lane, hash).is_some())
    }

    /// Adds the group of an attempt that waits, or will wait after a commit, with a number above 1.
    pub fn retry_waits(&mut self, instance: u32, lane: i32, hash: i64, id: i64) {
        let Some(gate) = self.gate_near(instance, lane).filter(|_| hash != 0) else { return };
        let Retries { is_known, reader, count, .. } = self.gates[gate as usize].retries;
        if !(is_known || reader != 0) || !self.gates[gate as usize].limits.is_strict {
            return;
        }
        if let Some(slot) = self.retrying_slot(gate, lane, hash) {
            let group = &mut self.retrying[slot as usize];
            group.is_shared |= u8::from((group.lane, group.hash) != (lane, hash));
            group.id = if group.id == id { id } else { 0 };
            group.is_unread = 1;
            return;
        }
        let free = self.retrying.len() - self.head.retrying as usize;
        if share::room(share::ALPHA, free, count) == 0 {
            self.forget_retries(gate);
            self.gates[gate as usize].retries.reads_at = self.head.now.saturating_add(FULL_PAUSE);
            return;
        }
        let groups = &self.retrying;
        let Some(slot) = self.head.retrying_slots.take(groups.len(), |slot| groups[slot as usize].next) else { return };
        let key = key_of(lane, hash);
        let new = Retrying { key, hash, id, lane, gate: gate + 1, is_unread: 1, ..Retrying::default() };
        self.retrying[slot as usize] = new;
        index::insert(self.retrying_index, gate, key, slot);
        self.head.retrying += 1;
        self.gates[gate as usize].retries.count += 1;
    }

    /// Notes that an attempt does not wait any more. The group is removed if no other attempt may be waiting.
    pub(super) fn retry_left(&mut self, instance: u32, lane: i32, hash: i64, id: i64) {
        if self.head.retrying == 0 || hash == 0 {
            return;
        }
        if let Some(gate) = self.gate_near(instance, lane)
            && let Some(slot) = self.retrying_slot(gate, lane, hash)
            && self.retrying[slot as usize].id == id
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

    fn forget_retrying(&mut self, slot: u32) {
        let group = self.retrying[slot as usize];
        index::remove(self.retrying_index, group.gate - 1, group.key);
        self.gates[group.gate as usize - 1].retries.count -= 1;
        self.retrying[slot as usize] = Retrying { next: self.head.retrying_slots.give(slot), ..Retrying::default() };
        self.head.retrying -= 1;
    }

    /// Forgets what a gate knows. A session that is reading reads for nothing.
    pub(super) fn forget_retries(&mut self, gate: u32) {
        let retries = &mut self.gates[gate as usize].retries;
        (retries.is_known, retries.reader) = (false, 0);
        if retries.count > 0 {
            for slot in 0..self.head.retrying_slots.fresh() {
                if self.retrying[slot as usize].gate == gate + 1 {
                    self.forget_retrying(slot);
                }
            }
        }
    }

    /// Forgets what the gates of an instance know, because attempts may have come that no callback has reported.
    pub(super) fn forget_all_retries(&mut self, instance: u32) {
        for gate in 0..self.gates.len() {
            if self.gates[gate].len > 0 && self.gates[gate].instance == instance {
                self.forget_retries(gate as u32);
            }
        }
    }

    // ---- turns

    /// Notes that a session begins to read a group from the logs.
    pub(super) fn retrying_is_read(&mut self, gate: u32, lane: i32, hash: i64) {
        if let Some(slot) = self.retrying_slot(gate, lane, hash) {
            self.retrying[slot as usize].is_unread = 0;
        }
    }

    /// Notes that a session has found no attempt that must run first. Returns false if one was added meanwhile.
    pub(super) fn retrying_is_over(&mut self, gate: u32, lane: i32, hash: i64) -> bool {
        let Some(slot) = self.retrying_slot(gate, lane, hash) else { return true };
        let Retrying { is_unread, is_shared, .. } = self.retrying[slot as usize];
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
        let retries = &mut self.gates[gate as usize].retries;
        if retries.is_known || retries.reader != 0 || claimer.now < retries.reads_at {
            return false;
        }
        (retries.reader, retries.began_at) = (session + 1, claimer.now);
        true
    }

    /// Ends the reading. The groups are known if the session `has_all`, and nothing was forgotten meanwhile.
    pub fn retries_end(&mut self, instance: u32, queue: i32, session: u32, has_all: bool, now: i64) {
        let is_it = |gate: &Gate| gate.len > 0 && gate.instance == instance && gate.queue == queue;
        let Some(gate) = self.gates.iter().position(is_it) else { return };
        let retries = &mut self.gates[gate].retries;
        if retries.reader != session + 1 {
            return;
        }
        let took = now.saturating_sub(retries.began_at).max(0);
        retries.reads_at = now.saturating_add(took.saturating_mul(PAUSES));
        if has_all {
            (retries.is_known, retries.reader) = (true, 0);
        } else {
            self.forget_retries(gate as u32);
        }
    }

    /// Ends the reading of a session that is going away.
    pub fn retries_abandon(&mut self, session: u32) {
        if let Some(gate) = self.gates.iter().position(|gate| gate.retries.reader == session + 1) {
            self.forget_retries(gate as u32);
        }
    }

    /// True if the retrying groups of a queue's gate are known.
    pub fn knows_retries(&self, instance: u32, lane: i32) -> bool {
        self.gate_near(instance, lane).is_some_and(|gate| self.gates[gate as usize].retries.is_known)
    }
}

#[cfg(test)]
impl Frontier<'_> {
    /// Checks the counts and the free list.
    pub(super) fn check_retrying(&self) {
        let used: Vec<u32> =
            (0..self.retrying.len() as u32).filter(|&slot| self.retrying[slot as usize].gate != 0).collect();
        for &slot in &used {
            let Retrying { gate, key, .. } = self.retrying[slot as usize];
            assert_eq!(index::find(self.retrying_index, gate - 1, key), Some(slot));
        }
        let free = self.head.retrying_slots.listed(|slot| self.retrying[slot as usize].next).len();
        assert_eq!(self.head.retrying as usize, used.len());
        assert_eq!(self.head.retrying_slots.fresh() as usize, used.len() + free);
        assert_eq!(self.gates.iter().map(|gate| gate.retries.count as usize).sum::<usize>(), used.len());
    }
}
