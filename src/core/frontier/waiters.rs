//! Knows which session sleeps for which lane. Sessions are woken in the order in which they came.
//!
//! A session waits for at most [`WAIT_LANES`] lanes and stands in the list of each. A wake-up removes it from all
//! lists, so that one job wakes one session.
//!
//! Invariant: if a session sleeps although there is a job in a lane that is not paused, another session was woken for
//! this lane and has not stopped waiting, or is refilling it. So a session that stops waiting passes its wake-up on,
//! and the end of a refill wakes the next session. If `running` has no place for the job, `is_short` is set in the
//! head. Once there is a place again, a session was woken for some lane and has not stopped waiting. Beside a lane's
//! collector, other sessions sleep although there are jobs (`collect`).

use super::lane::LaneSlot;
use super::memory::Frontier;
use super::session::{Node, NodeSlot, Session, SessionSlot, Sleeper, WAIT_LANES};
use super::slots::Slots;
use crate::share;

fn node<'s>(sessions: &'s mut Slots<'_, Session>, slot: NodeSlot) -> &'s mut Node {
    &mut sessions[slot.session()].nodes[slot.nth()]
}

impl Frontier<'_> {
    /// Adds a session to the end of a lane's list. The lane is the `nth` one that the session waits for.
    pub(super) fn enlist(&mut self, session: SessionSlot, nth: usize, lane: LaneSlot) {
        let this = NodeSlot::of(session, nth);
        let last = self.lanes[lane].waiters_last.replace(this);
        *node(&mut self.sessions, this) = Node { lane: Some(lane), prev: last, next: None };
        match last {
            Some(last) => node(&mut self.sessions, last).next = Some(this),
            None => {
                self.lanes[lane].waiters_first = Some(this);
                self.head.waited += 1;
                share::enter(self.lane_index.buckets, self.lanes[lane].instance);
            }
        }
        self.sessions[session].waiting = nth as u8 + 1;
    }

    /// Completes the session's entry after it has looked at all its lanes. If `for_refill` is true, the end of a refill
    /// wakes it even if the refill has found nothing.
    pub(super) fn sleep(&mut self, session: SessionSlot, for_refill: bool, linger: i64) {
        let entry = &mut self.sessions[session];
        (entry.woken_for, entry.for_refill, entry.linger) = (None, u8::from(for_refill), linger);
    }

    pub(super) fn delist(&mut self, session: SessionSlot) {
        let entry = &mut self.sessions[session];
        (entry.pid, entry.since) = (0, 0);
        let count = std::mem::take(&mut entry.waiting);
        for k in 0..usize::from(count) {
            let Node { lane, prev, next } = std::mem::take(&mut self.sessions[session].nodes[k]);
            let Some(lane) = lane else { continue };
            match prev {
                Some(prev) => node(&mut self.sessions, prev).next = next,
                None => self.lanes[lane].waiters_first = next,
            }
            match next {
                Some(next) => node(&mut self.sessions, next).prev = prev,
                None => self.lanes[lane].waiters_last = prev,
            }
            if prev.is_none() && next.is_none() {
                self.head.waited -= 1;
                share::leave(self.lane_index.buckets, self.lanes[lane].instance);
            }
        }
    }

    pub(super) fn wake(&mut self, session: SessionSlot, lane: LaneSlot) -> u32 {
        self.delist(session);
        self.sessions[session].woken_for = Some(lane);
        session.number()
    }

    /// Wakes the first session that waits for this lane. The caller sets the latch of the returned session.
    pub(super) fn wake_first(&mut self, lane: LaneSlot) -> Option<u32> {
        let first = self.lanes[lane].waiters_first?;
        Some(self.wake(first.session(), lane))
    }

    /// Wakes a session that waits for this lane, because a job may be there. `None`: none waits, or it is the lane's
    /// collector's turn to wait.
    pub(super) fn wake_one(&mut self, lane: LaneSlot) -> Option<u32> {
        if self.lanes[lane].collected.batch == 0 { self.wake_first(lane) } else { self.wake_collector(lane) }
    }

    /// As [`Self::wake_one`], if the session may find a job that can start.
    pub(super) fn wake_next(&mut self, lane: LaneSlot) -> Option<u32> {
        if self.lanes[lane].may_have_jobs() && self.may_wake(lane) { self.wake_one(lane) } else { None }
    }

    /// True if a session may wait for this lane: another session already does, or the instance's share has room for one
    /// more lane that cannot be evicted.
    pub(super) fn may_be_waited_for(&self, lane: LaneSlot) -> bool {
        let lane = &self.lanes[lane];
        let free = self.lanes.len() - self.head.waited as usize;
        lane.waiters_first.is_some()
            || share::room(share::ALPHA, free, share::held(self.lane_index.buckets, lane.instance)) > 0
    }

    /// Wakes a session of any instance that sleeps although there is a job, because `running` had no place. Called when
    /// a place is free. Another session may take the place first, so each woken session passes this wake-up on as well.
    pub(super) fn wake_for_place(&mut self) -> Option<u32> {
        if self.head.is_short == 0 {
            return None;
        }
        self.head.is_short = 0;
        for session in self.sessions.slots() {
            for nth in 0..usize::from(self.sessions[session].waiting) {
                let node = self.sessions[session].nodes[nth];
                // Only the first session of its list looks at a lane.
                let lane = node.lane.filter(|_| node.prev.is_none());
                if let Some(woken) = lane.and_then(|lane| self.wake_next(lane)) {
                    self.head.is_short = 1;
                    return Some(woken);
                }
            }
        }
        None
    }

    /// Wakes the first session that waits for the end of a refill of this lane.
    pub(super) fn wake_refill_waiter(&mut self, lane: LaneSlot) -> Option<u32> {
        let mut at = self.lanes[lane].waiters_first;
        while let Some(this) = at {
            if self.sessions[this.session()].for_refill != 0 {
                return Some(self.wake(this.session(), lane));
            }
            at = node(&mut self.sessions, this).next;
        }
        None
    }

    /// Notes which process sleeps in this session, for [`Self::next_sleeper`]. Called after [`Self::wait`] or
    /// [`Self::collect`] has answered that the session sleeps. A wake-up, and the end of the wait, remove the note.
    pub fn note_sleeper(&mut self, session: u32, pid: i32, now: i64) {
        let entry = &mut self.sessions[SessionSlot::new(session)];
        (entry.pid, entry.since) = (pid, now);
    }

    /// Returns the first noted sleeper of an instance whose session number is at least `from`, and the number after it.
    pub fn next_sleeper(&self, instance: u32, from: u32) -> Option<(u32, Sleeper)> {
        (from..self.sessions.len() as u32).find_map(|number| {
            let session = &self.sessions[SessionSlot::new(number)];
            if session.pid == 0 {
                return None;
            }
            let mut sleeper = Sleeper { pid: session.pid, since: session.since, lanes: [0; WAIT_LANES], len: 0 };
            for node in &session.nodes[..usize::from(session.waiting)] {
                let Some(lane) = node.lane else { continue };
                let lane = &self.lanes[lane];
                if lane.instance == instance {
                    sleeper.lanes[sleeper.len] = lane.id;
                    sleeper.len += 1;
                }
            }
            (sleeper.len > 0).then_some((number + 1, sleeper))
        })
    }

    /// True if the session was woken since it began to wait.
    pub fn is_woken(&self, session: u32) -> bool {
        self.sessions[SessionSlot::new(session)].woken_for.is_some()
    }

    /// Ends a session's wait. Every exit calls it, with jobs or without. If the session was woken for a lane that may
    /// still have jobs, wakes and returns the next session that waits there. The caller sets its latch.
    pub fn stop_waiting(&mut self, session: u32) -> Option<u32> {
        let session = SessionSlot::new(session);
        self.stop_collecting(session);
        self.delist(session);
        // The slot may belong to another lane now. Then no session waited for the first lane, and a superfluous wake-up
        // does no harm.
        let lane = self.sessions[session].woken_for.take()?;
        // A job of a limited queue that may start now may be in another of its lanes.
        let gate = self.lanes[lane].gate;
        self.wake_next(lane).or_else(|| self.wake_at_gate(gate?)).or_else(|| self.wake_for_place())
    }
}
