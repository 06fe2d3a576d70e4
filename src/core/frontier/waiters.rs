//! Knows which session sleeps for which lane. Sessions are woken in the order in which they came.
//!
//! A session waits for at most [`WAIT_LANES`] lanes and stands in the list of each. A wake-up removes it from all
//! lists, so that one job wakes one session. Links are node numbers plus one; zero is no link.
//!
//! Invariant: if a session sleeps although there is a job in a lane that is not paused, another session was woken for
//! this lane and has not stopped waiting, or is refilling it. So a session that stops waiting passes its wake-up on,
//! and the end of a refill wakes the next session. If `running` has no place for the job, `is_short` is set in the
//! head. Once there is a place again, a session was woken for some lane and has not stopped waiting. Beside a lane's
//! collector, other sessions sleep although there are jobs (`collect`).

use super::memory::Frontier;
use super::session::{Node, Session, Sleeper, WAIT_LANES};
use crate::share;

fn node(sessions: &mut [Session], link: u32) -> &mut Node {
    let n = link as usize - 1;
    &mut sessions[n / WAIT_LANES].nodes[n % WAIT_LANES]
}

impl Frontier<'_> {
    /// Adds a session to the end of a lane's list. The lane is the `nth` one that the session waits for.
    pub(super) fn enlist(&mut self, session: u32, nth: usize, lane: u32) {
        let this = session * WAIT_LANES as u32 + nth as u32 + 1;
        let last = self.lanes[lane as usize].waiters_last;
        *node(self.sessions, this) = Node { lane_plus_one: lane + 1, prev: last, next: 0 };
        if last == 0 {
            self.lanes[lane as usize].waiters_first = this;
            self.head.waited += 1;
            share::enter(self.lane_index, self.lanes[lane as usize].instance);
        } else {
            node(self.sessions, last).next = this;
        }
        self.lanes[lane as usize].waiters_last = this;
        self.sessions[session as usize].waiting = nth as u8 + 1;
    }

    /// Completes the session's entry after it has looked at all its lanes. If `for_refill` is true, the end of a refill
    /// wakes it even if the refill has found nothing.
    pub(super) fn sleep(&mut self, session: u32, for_refill: bool, linger: i64) {
        let entry = &mut self.sessions[session as usize];
        (entry.woken_for, entry.for_refill, entry.linger) = (0, u8::from(for_refill), linger);
    }

    pub(super) fn delist(&mut self, session: u32) {
        let entry = &mut self.sessions[session as usize];
        (entry.pid, entry.since) = (0, 0);
        let count = std::mem::take(&mut entry.waiting);
        for k in 0..count as usize {
            let this = self.sessions[session as usize].nodes[k];
            self.sessions[session as usize].nodes[k] = Node::default();
            let Some(lane) = this.lane_plus_one.checked_sub(1) else { continue };
            if this.prev == 0 {
                self.lanes[lane as usize].waiters_first = this.next;
            } else {
                node(self.sessions, this.prev).next = this.next;
            }
            if this.next == 0 {
                self.lanes[lane as usize].waiters_last = this.prev;
            } else {
                node(self.sessions, this.next).prev = this.prev;
            }
            if (this.prev, this.next) == (0, 0) {
                self.head.waited -= 1;
                share::leave(self.lane_index, self.lanes[lane as usize].instance);
            }
        }
    }

    pub(super) fn wake(&mut self, session: u32, lane: u32) -> u32 {
        self.delist(session);
        self.sessions[session as usize].woken_for = lane + 1;
        session
    }

    /// Wakes the first session that waits for this lane. The caller sets the latch of the returned session.
    pub(super) fn wake_first(&mut self, lane: u32) -> Option<u32> {
        let first = self.lanes[lane as usize].waiters_first;
        (first != 0).then(|| self.wake((first - 1) / WAIT_LANES as u32, lane))
    }

    /// Wakes a session that waits for this lane, because a job may be there. `None`: none waits, or it is the lane's
    /// collector's turn to wait.
    pub(super) fn wake_one(&mut self, lane: u32) -> Option<u32> {
        if self.lanes[lane as usize].collected.batch == 0 { self.wake_first(lane) } else { self.wake_collector(lane) }
    }

    /// As [`Self::wake_one`], if the session may find a job that can start.
    pub(super) fn wake_next(&mut self, lane: u32) -> Option<u32> {
        if self.lanes[lane as usize].may_have_jobs() && self.may_wake(lane) { self.wake_one(lane) } else { None }
    }

    /// True if a session may wait for this lane: another session already does, or the instance's share has room for one
    /// more lane that cannot be evicted.
    pub(super) fn may_be_waited_for(&self, lane: u32) -> bool {
        let lane = &self.lanes[lane as usize];
        let free = self.lanes.len() - self.head.waited as usize;
        lane.waiters_first != 0 || share::room(share::ALPHA, free, share::held(self.lane_index, lane.instance)) > 0
    }

    /// Wakes a session of any instance that sleeps although there is a job, because `running` had no place. Called when
    /// a place is free. Another session may take the place first, so each woken session passes this wake-up on as well.
    pub(super) fn wake_for_place(&mut self) -> Option<u32> {
        if self.head.is_short == 0 {
            return None;
        }
        self.head.is_short = 0;
        for session in 0..self.sessions.len() {
            for nth in 0..usize::from(self.sessions[session].waiting) {
                let node = self.sessions[session].nodes[nth];
                // Only the first session of its list looks at a lane.
                let lane = node.lane_plus_one.checked_sub(1).filter(|_| node.prev == 0);
                if let Some(woken) = lane.and_then(|lane| self.wake_next(lane)) {
                    self.head.is_short = 1;
                    return Some(woken);
                }
            }
        }
        None
    }

    /// Wakes the first session that waits for the end of a refill of this lane.
    pub(super) fn wake_refill_waiter(&mut self, lane: u32) -> Option<u32> {
        let mut at = self.lanes[lane as usize].waiters_first;
        while at != 0 {
            let session = (at - 1) / WAIT_LANES as u32;
            if self.sessions[session as usize].for_refill != 0 {
                return Some(self.wake(session, lane));
            }
            at = node(self.sessions, at).next;
        }
        None
    }

    /// Notes which process sleeps in this session, for [`Self::next_sleeper`]. Called after [`Self::wait`] or
    /// [`Self::collect`] has answered that the session sleeps. A wake-up, and the end of the wait, remove the note.
    pub fn note_sleeper(&mut self, session: u32, pid: i32, now: i64) {
        let entry = &mut self.sessions[session as usize];
        (entry.pid, entry.since) = (pid, now);
    }

    /// Returns the first noted sleeper of an instance whose session number is at least `from`, and the number after it.
    pub fn next_sleeper(&self, instance: u32, from: u32) -> Option<(u32, Sleeper)> {
        (from as usize..self.sessions.len()).find_map(|number| {
            let session = &self.sessions[number];
            if session.pid == 0 {
                return None;
            }
            let mut sleeper = Sleeper { pid: session.pid, since: session.since, lanes: [0; WAIT_LANES], len: 0 };
            for node in &session.nodes[..usize::from(session.waiting)] {
                let Some(lane) = node.lane_plus_one.checked_sub(1) else { continue };
                let lane = &self.lanes[lane as usize];
                if lane.instance == instance {
                    sleeper.lanes[sleeper.len] = lane.id;
                    sleeper.len += 1;
                }
            }
            (sleeper.len > 0).then_some((number as u32 + 1, sleeper))
        })
    }

    /// True if the session was woken since it began to wait.
    pub fn is_woken(&self, session: u32) -> bool {
        self.sessions[session as usize].woken_for != 0
    }

    /// Ends a session's wait. Every exit calls it, with jobs or without. If the session was woken for a lane that may
    /// still have jobs, wakes and returns the next session that waits there. The caller sets its latch.
    pub fn stop_waiting(&mut self, session: u32) -> Option<u32> {
        self.stop_collecting(session);
        self.delist(session);
        // The slot may belong to another lane now. Then no session waited for the first lane, and a superfluous wake-up
        // does no harm.
        let lane = std::mem::take(&mut self.sessions[session as usize].woken_for).checked_sub(1)?;
        // A job of a limited queue that may start now may be in another of its lanes.
        let gate = self.lanes[lane as usize].gate.checked_sub(1);
        self.wake_next(lane).or_else(|| self.wake_at_gate(gate?)).or_else(|| self.wake_for_place())
    }
}
