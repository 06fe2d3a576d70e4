//! Adds waiting attempts and waiting sessions to the frontier.
//!
//! Invariant: an attempt that ranks at or before P is kept. If `ready` is full, P moves before the attempt that does
//! not fit.

use super::answers::Wait;
use super::lane::{Lane, LaneSlot};
use super::memory::Frontier;
use super::ready::Ready;
use super::session::{SessionSlot, WAIT_LANES};
use crate::id;

impl Frontier<'_> {
    /// Adds a committed waiting attempt that is due. Returns a session to wake.
    pub fn push(&mut self, instance: u32, lane: i32, entry: Ready) -> Option<u32> {
        let slot = self.learn(instance, lane, entry)?;
        if self.may_wake(slot) { self.wake_one(slot) } else { None }
    }

    /// As [`Self::push`], but wakes no session. A large commit may use it for its later jobs if the first ones *in this
    /// lane* have woken a session in the same hold of the lock. A woken session that leaves jobs behind wakes the next
    /// one.
    pub fn push_quietly(&mut self, instance: u32, lane: i32, entry: Ready) {
        self.learn(instance, lane, entry);
    }

    /// True if [`Self::push`] would keep this attempt in memory. Otherwise the attempt is left to the index, where it
    /// ranks behind P, and `push` only wakes a session.
    pub fn wants(&self, instance: u32, lane: i32, entry: Ready) -> bool {
        self.running_index.find(instance, entry.id).is_some()
            || entry.place.is_indexed && self.group_slot(instance, lane, entry.group).is_some()
            || self.lane_slot(instance, lane).is_some_and(|slot| self.lanes[slot].keeps(entry.rank))
    }

    pub(super) fn learn(&mut self, instance: u32, lane: i32, entry: Ready) -> Option<LaneSlot> {
        if let Some(taken) = self.running_index.find(instance, entry.id) {
            self.running[taken].push_held = 1;
            return None;
        }
        let slot = self.lane_slot(instance, lane)?;
        if self.lanes[slot].collected.batch != 0 {
            self.count_in_batch(slot);
        }
        if entry.place.is_indexed && self.park(slot, &entry) {
            return self.has_turn(slot, &entry).then_some(slot);
        }
        if self.lanes[slot].keeps(entry.rank) {
            self.put(slot, entry);
        }
        Some(slot)
    }

    /// Removes an attempt from `ready` that was never committed. A transaction that has taken an attempt of its own
    /// gives it back on rollback. That attempt has the same rank as the committed attempt before it, and this one is
    /// pushed later.
    pub fn withdraw(&mut self, instance: u32, lane: i32, entry: Ready) {
        let Some(slot) = self.lane_slot(instance, lane) else { return };
        let mut ring = self.ring(slot);
        if let Ok(at) = ring.search(entry.rank)
            && ring.get(at).id == entry.id
        {
            ring.remove(at);
        }
    }

    /// Puts an entry into `ready`. If that is full, spills the largest entry.
    pub(super) fn put(&mut self, slot: LaneSlot, entry: Ready) {
        let mut ring = self.ring(slot);
        let at = match ring.search(entry.rank) {
            Err(at) => at,
            Ok(at) => {
                // Of two attempts of one job only the newer one lives. The same attempt may have moved.
                if id::count(entry.id) >= id::count(ring.get(at).id) {
                    ring.remove(at);
                    ring.insert(at, entry);
                }
                return;
            }
        };
        let spilled = if !ring.is_full() {
            ring.insert(at, entry);
            return;
        } else if at == ring.len() {
            entry.rank
        } else {
            let last = ring.remove(ring.len() - 1);
            ring.insert(at, entry);
            last.rank
        };
        self.lanes[slot].go_back(spilled.before());
    }

    /// Puts entries into `ready` whose ranks ascend. Those that belong into one gap move the others once.
    pub(super) fn put_all(&mut self, slot: LaneSlot, mut entries: &[Ready]) {
        while let Some(&first) = entries.first() {
            let run = self.ring(slot).insert_run(entries);
            if run == 0 {
                self.put(slot, first);
            }
            entries = &entries[run.max(1)..];
        }
    }

    /// Wakes a session that waits for this lane and returns it, if the lane may have jobs. Callers use it after a
    /// refill. A woken session wakes the next one by [`Self::stop_waiting`], so that no commit has to wake many.
    pub fn pass_on(&mut self, instance: u32, lane: i32) -> Option<u32> {
        let slot = self.lane_slot(instance, lane)?;
        self.wake_next(slot)
    }

    /// Enters a session as waiting for lanes in which `take` found nothing. Each lane comes with whether its queue is
    /// paused. The session waits for a job in any of them, and for the end of running refills there. A session that was
    /// woken must call [`Self::stop_waiting`] first. If `linger` is larger than 0, the session calls [`Self::collect`]
    /// when it is woken.
    pub fn wait(&mut self, number: u32, instance: u32, lanes: &[(i32, bool)], linger: i64) -> Wait {
        let session = SessionSlot::new(number);
        self.delist(session);
        let (mut look, mut for_refill) = (false, false);
        for (nth, &(lane, paused)) in lanes.iter().take(WAIT_LANES).enumerate() {
            let Some(slot) = self.lane_or_create(instance, lane) else {
                self.delist(session);
                return Wait::NoLane;
            };
            if !self.may_be_waited_for(slot) {
                self.delist(session);
                return Wait::NoLane;
            }
            // A session waits for this lane now, so it is not evicted while the next lanes look for a slot.
            self.enlist(session, nth, slot);
            self.lanes[slot].paused = u8::from(paused);
            if paused {
                continue;
            }
            let is_closed = self.is_closed_for_now(slot);
            if self.lanes[slot].is_read() && !is_closed {
                for_refill = true;
                look |= self.has_choice(slot);
            } else {
                look |= self.lanes[slot].may_have_jobs() && !is_closed;
            }
        }
        if look {
            self.delist(session);
            return Wait::Look;
        }
        self.sleep(session, for_refill, linger);
        self.yield_to(session);
        Wait::Sleep
    }

    pub(super) fn gate_is_closed(&self, slot: LaneSlot) -> bool {
        let gate = self.lanes[slot].gate;
        gate.is_some_and(|gate| self.gates[gate].is_closed())
    }

    pub(super) fn has_place(&self, slot: LaneSlot) -> bool {
        let Lane { instance, id, .. } = self.lanes[slot];
        self.places(instance, id) > 0
    }

    /// True if no job of this lane can start now. If the cause is a full `running`, notes it: [`Self::wake_for_place`]
    /// then wakes a session that sleeps there as soon as a place is free.
    pub(super) fn is_closed_for_now(&mut self, slot: LaneSlot) -> bool {
        if self.gate_is_closed(slot) {
            return true;
        }
        let is_short = !self.has_place(slot);
        self.head.is_short |= u8::from(is_short);
        is_short
    }

    /// True if a session waits for this lane and could start a job now.
    pub(super) fn may_wake(&mut self, slot: LaneSlot) -> bool {
        let lane = &self.lanes[slot];
        lane.waiters_first.is_some() && lane.paused == 0 && !self.is_closed_for_now(slot)
    }
}
