//! Says which session is woken, and when a wake-up is passed on.
//!
//! Responsible for the choice. Not responsible for the lists of sessions (`session_set`).
//!
//! Invariant: if a session sleeps although there is a job in a lane that is not paused, another session was woken for
//! this lane and has not stopped waiting, or is refilling it. So a session that stops waiting passes its wake-up on,
//! and the end of a refill wakes the next session. If `running` has no place for the job, `is_short` is set in the
//! head. Once there is a place again, a session was woken for some lane and has not stopped waiting. Beside a lane's
//! collector, other sessions sleep although there are jobs (`collect`).

use super::memory::Frontier;
use super::session::Sleeper;
use super::slot::{LaneSlot, SessionSlot};

impl Frontier<'_> {
    /// Wakes a session that waits for this lane, because a job may be there. `None`: none waits, or it is the lane's
    /// collector's turn to wait.
    pub(super) fn wake_one(&mut self, lane: LaneSlot) -> Option<u32> {
        if self.backlog.lanes[lane].collected.batch == 0 {
            self.sessions.wake_first(&mut self.backlog.lanes, lane)
        } else {
            self.wake_collector(lane)
        }
    }

    /// As [`Self::wake_one`], if the session may find a job that can start.
    pub(super) fn wake_next(&mut self, lane: LaneSlot) -> Option<u32> {
        if self.backlog.lanes[lane].may_have_jobs() && self.may_wake(lane) { self.wake_one(lane) } else { None }
    }

    /// Wakes a session of any instance that sleeps although there is a job, because `running` had no place. Called when
    /// a place is free. Another session may take the place first, so each woken session passes this wake-up on as well.
    pub(super) fn wake_for_place(&mut self) -> Option<u32> {
        if self.sessions.head.is_short == 0 {
            return None;
        }
        self.sessions.head.is_short = 0;
        for session in self.sessions.slots() {
            for nth in 0..usize::from(self.sessions[session].waiting) {
                let node = self.sessions[session].nodes[nth];
                // Only the first session of its list looks at a lane.
                let lane = node.lane.filter(|_| node.prev.is_none());
                if let Some(woken) = lane.and_then(|lane| self.wake_next(lane)) {
                    self.sessions.head.is_short = 1;
                    return Some(woken);
                }
            }
        }
        None
    }

    /// Returns the first noted sleeper of an instance whose session number is at least `from`, and the number after it.
    pub fn next_sleeper(&self, instance: u32, from: u32) -> Option<(u32, Sleeper)> {
        self.sessions.next_sleeper(&self.backlog.lanes, instance, from)
    }

    /// Ends a session's wait. Every exit calls it, with jobs or without. If the session was woken for a lane that may
    /// still have jobs, wakes and returns the next session that waits there. The caller sets its latch.
    pub fn stop_waiting(&mut self, session: u32) -> Option<u32> {
        let session = SessionSlot::new(session);
        self.sessions.stop_collecting(&mut self.backlog.lanes, session);
        self.sessions.delist(&mut self.backlog.lanes, session);
        // The slot may belong to another lane now. Then no session waited for the first lane, and a superfluous wake-up
        // does no harm.
        let lane = self.sessions[session].woken_for.take()?;
        // A job of a limited queue that may start now may be in another of its lanes.
        let gate = self.backlog.lanes[lane].gate;
        self.wake_next(lane).or_else(|| self.wake_at_gate(gate?)).or_else(|| self.wake_for_place())
    }
}
