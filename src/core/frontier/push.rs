//! Adds waiting attempts and waiting sessions to the frontier.
//!
//! Invariant: an attempt that ranks at or before P is kept. If `ready` is full, P moves before the attempt that does
//! not fit.

use super::answers::Wait;
use super::lane::Lane;
use super::memory::Frontier;
use super::ready::Ready;
use super::session::WAIT_LANES;
use super::slot::{LaneSlot, SessionSlot};

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
        let backlog = &self.backlog;
        self.running.find(instance, entry.id).is_some()
            || entry.place.is_indexed && backlog.group_slot(instance, lane, entry.group).is_some()
            || backlog.lanes.find(instance, lane).is_some_and(|slot| {
                backlog.lanes[slot].keeps(entry.rank) || entry.place.is_indexed && backlog.has_fair_shares(slot)
            })
    }

    fn learn(&mut self, instance: u32, lane: i32, entry: Ready) -> Option<LaneSlot> {
        if self.running.hold_push(instance, entry.id) {
            return None;
        }
        let backlog = &mut self.backlog;
        let slot = backlog.lanes.find(instance, lane)?;
        let known = &mut backlog.lanes[slot];
        if known.collected.batch != 0 {
            known.count_in_batch(*backlog.now);
        }
        if entry.place.is_indexed && backlog.park(slot, &entry) {
            return backlog.has_turn(slot, &entry).then_some(slot);
        }
        if backlog.lanes[slot].keeps(entry.rank) {
            backlog.lanes.put(slot, entry);
        }
        Some(slot)
    }

    /// Removes an attempt from `ready` that was never committed. A transaction that has taken an attempt of its own
    /// gives it back on rollback. That attempt has the same rank as the committed attempt before it, and this one is
    /// pushed later.
    pub fn withdraw(&mut self, instance: u32, lane: i32, entry: Ready) {
        if let Some(slot) = self.backlog.lanes.find(instance, lane) {
            self.backlog.lanes.remove_attempt(slot, &entry);
            // If it belonged to an earlier batch, the next one begins later than it could: a call waits no longer.
            let collected = &mut self.backlog.lanes[slot].collected;
            collected.count = collected.count.saturating_sub(1);
        }
    }

    /// Wakes a session that waits for this lane and returns it, if the lane may have jobs. Callers use it after a
    /// refill. A woken session wakes the next one by [`Self::stop_waiting`], so that no commit has to wake many.
    pub fn pass_on(&mut self, instance: u32, lane: i32) -> Option<u32> {
        let slot = self.backlog.lanes.find(instance, lane)?;
        self.wake_next(slot)
    }

    /// Enters a session as waiting for lanes in which `take` found nothing. Each lane comes with whether its queue is
    /// paused. The session waits for a job in any of them, and for the end of running refills there. A session that was
    /// woken must call [`Self::stop_waiting`] first. If `linger` is larger than 0, the session calls [`Self::collect`]
    /// when it is woken.
    pub fn wait(&mut self, number: u32, instance: u32, lanes: &[(i32, bool)], linger: i64) -> Wait {
        let session = SessionSlot::new(number);
        self.sessions.delist(&mut self.backlog.lanes, session);
        let (mut look, mut for_refill) = (false, false);
        for (nth, &(lane, paused)) in lanes.iter().take(WAIT_LANES).enumerate() {
            let slot = self.backlog.lane_or_create(instance, lane);
            let Some(slot) = slot.filter(|&slot| self.backlog.lanes.may_be_waited_for(slot)) else {
                self.sessions.delist(&mut self.backlog.lanes, session);
                return Wait::NoLane;
            };
            // A session waits for this lane now, so it is not evicted while the next lanes look for a slot.
            self.sessions.enlist(&mut self.backlog.lanes, session, nth, slot);
            self.backlog.lanes[slot].paused = u8::from(paused);
            if paused {
                continue;
            }
            let is_closed = self.is_closed_for_now(slot);
            let lane = &self.backlog.lanes[slot];
            if lane.is_read() && !is_closed {
                for_refill = true;
                look |= self.backlog.has_choice(slot);
            } else {
                look |= lane.may_have_jobs() && !is_closed;
            }
        }
        if look {
            self.sessions.delist(&mut self.backlog.lanes, session);
            return Wait::Look;
        }
        self.sessions.sleep(session, for_refill, linger);
        self.sessions.yield_to(&mut self.backlog.lanes, session);
        Wait::Sleep
    }

    pub(super) fn has_place(&self, slot: LaneSlot) -> bool {
        let Lane { instance, id, .. } = self.backlog.lanes[slot];
        self.running.places(instance, id) > 0
    }

    /// True if no job of this lane can start now. If the cause is a full `running`, notes it: [`Self::wake_for_place`]
    /// then wakes a session that sleeps there as soon as a place is free.
    pub(super) fn is_closed_for_now(&mut self, slot: LaneSlot) -> bool {
        if self.backlog.gate_is_closed(slot) {
            return true;
        }
        let is_short = !self.has_place(slot);
        self.sessions.head.is_short |= u8::from(is_short);
        is_short
    }

    /// True if a session waits for this lane and could start a job now.
    pub(super) fn may_wake(&mut self, slot: LaneSlot) -> bool {
        let lane = &self.backlog.lanes[slot];
        lane.waiters_first.is_some() && lane.paused == 0 && !self.is_closed_for_now(slot)
    }
}
