//! Who sleeps for which lane: first come, first woken.
//!
//! A session waits for at most [`LANES`] lanes at once and stands in the list of each. Being woken
//! takes it out of all lists, so that one job wakes one sleeper. Links are node numbers plus one;
//! zero is none.
//!
//! Invariant: where somebody sleeps although there is a job (and the lane is not paused), somebody else
//! was woken for this lane and has not stopped waiting, or is refilling it. So whoever stops waiting hands
//! on the wake-up in the lane it was for, and whoever ends a refill passes on, however it ended.

use super::Frontier;

/// How many lanes one session can wait for at once.
pub const LANES: usize = 8;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    lane_plus_one: u32,
    prev: u32,
    next: u32,
}

/// What a session is doing here; all zero is nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Session {
    nodes: [Node; LANES],
    /// The lane for which it was woken, slot plus one; 0: it was not woken since it began to wait.
    woken_for: u32,
    waiting: u8,
    for_refill: u8,
}

fn node(sessions: &mut [Session], link: u32) -> &mut Node {
    let n = link as usize - 1;
    &mut sessions[n / LANES].nodes[n % LANES]
}

impl Frontier<'_> {
    /// Puts a session to the end of a lane's list, as the `nth` lane that it waits for.
    pub(super) fn enlist(&mut self, session: u32, nth: usize, lane: u32) {
        let this = session * LANES as u32 + nth as u32 + 1;
        let last = self.lanes[lane as usize].waiters_last;
        *node(self.sessions, this) = Node { lane_plus_one: lane + 1, prev: last, next: 0 };
        if last == 0 {
            self.lanes[lane as usize].waiters_first = this;
        } else {
            node(self.sessions, last).next = this;
        }
        self.lanes[lane as usize].waiters_last = this;
        self.sessions[session as usize].waiting = 1;
    }

    /// Ends the preparations: the session has looked at all its lanes. `for_refill`: it wants to know of the
    /// end of somebody's refill even when that found nothing.
    pub(super) fn sleep(&mut self, session: u32, for_refill: bool) {
        let entry = &mut self.sessions[session as usize];
        (entry.woken_for, entry.for_refill) = (0, u8::from(for_refill));
    }

    pub(super) fn delist(&mut self, session: u32) {
        if self.sessions[session as usize].waiting == 0 {
            return;
        }
        self.sessions[session as usize].waiting = 0;
        for k in 0..LANES {
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
        }
    }

    fn wake(&mut self, session: u32, lane: u32) -> u32 {
        self.delist(session);
        self.sessions[session as usize].woken_for = lane + 1;
        session
    }

    /// Wakes the first who waits for this lane; the caller sets the latch of the session returned.
    pub(super) fn wake_first(&mut self, lane: u32) -> Option<u32> {
        let first = self.lanes[lane as usize].waiters_first;
        (first != 0).then(|| self.wake((first - 1) / LANES as u32, lane))
    }

    /// Wakes the first who waits for this lane if it would not be in vain.
    pub(super) fn wake_next(&mut self, lane: u32) -> Option<u32> {
        if self.has_something(lane) && self.lanes[lane as usize].paused == 0 { self.wake_first(lane) } else { None }
    }

    /// Wakes the first who waits for the end of a refill of this lane.
    pub(super) fn wake_refill_waiter(&mut self, lane: u32) -> Option<u32> {
        let mut at = self.lanes[lane as usize].waiters_first;
        while at != 0 {
            let session = (at - 1) / LANES as u32;
            if self.sessions[session as usize].for_refill != 0 {
                return Some(self.wake(session, lane));
            }
            at = node(self.sessions, at).next;
        }
        None
    }

    /// True once the session was woken since it began to wait.
    pub fn is_woken(&self, session: u32) -> bool {
        self.sessions[session as usize].woken_for != 0
    }

    /// Ends a session's wait, from whatever exit, with jobs or without. If it was woken for a lane that
    /// (still) may have jobs, the next who waits there is returned, to have his latch set.
    pub fn stop_waiting(&mut self, session: u32) -> Option<u32> {
        self.delist(session);
        // The slot may be another lane's by now; then nobody waited, and to wake somebody does no harm.
        let lane = std::mem::take(&mut self.sessions[session as usize].woken_for).checked_sub(1)?;
        // What a limited queue lets start may be in another of its lanes.
        let gate = self.lanes[lane as usize].gate.checked_sub(1);
        self.wake_next(lane).or_else(|| self.wake_at_gate(gate?))
    }
}
