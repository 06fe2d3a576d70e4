//! Who sleeps for which lane: first come, first woken.
//!
//! A session waits for at most [`LANES`] lanes at once and stands in the list of each. Being woken
//! takes it out of all lists, so that one job wakes one sleeper. Links are node numbers plus one;
//! zero is none.

use super::{Frontier, Rank};

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
    waiting: u8,
    woken: u8,
    for_refill: u8,
}

fn node(sessions: &mut [Session], link: u32) -> &mut Node {
    let n = link as usize - 1;
    &mut sessions[n / LANES].nodes[n % LANES]
}

impl Frontier<'_> {
    /// Puts a session to the end of the lists of these lanes (slot numbers). `for_refill`: it waits for
    /// the end of somebody's refill and wants to know even when that found nothing.
    pub(super) fn enlist(&mut self, session: u32, lanes: &[u32], for_refill: bool) {
        self.delist(session);
        for (k, &lane) in lanes.iter().take(LANES).enumerate() {
            let this = session * LANES as u32 + k as u32 + 1;
            let last = self.lanes[lane as usize].waiters_last;
            *node(self.sessions, this) = Node { lane_plus_one: lane + 1, prev: last, next: 0 };
            if last == 0 {
                self.lanes[lane as usize].waiters_first = this;
            } else {
                node(self.sessions, last).next = this;
            }
            self.lanes[lane as usize].waiters_last = this;
        }
        let entry = &mut self.sessions[session as usize];
        (entry.waiting, entry.woken, entry.for_refill) = (1, 0, u8::from(for_refill));
    }

    fn delist(&mut self, session: u32) {
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

    fn wake(&mut self, session: u32) -> u32 {
        self.delist(session);
        self.sessions[session as usize].woken = 1;
        session
    }

    /// Wakes the first who waits for this lane; the caller sets the latch of the session returned.
    pub(super) fn wake_first(&mut self, lane: u32) -> Option<u32> {
        let first = self.lanes[lane as usize].waiters_first;
        (first != 0).then(|| self.wake((first - 1) / LANES as u32))
    }

    /// Wakes the first who waits for the end of a refill of this lane.
    pub(super) fn wake_refill_waiter(&mut self, lane: u32) -> Option<u32> {
        let mut at = self.lanes[lane as usize].waiters_first;
        while at != 0 {
            let session = (at - 1) / LANES as u32;
            if self.sessions[session as usize].for_refill != 0 {
                return Some(self.wake(session));
            }
            at = node(self.sessions, at).next;
        }
        None
    }

    /// True once the session was woken since it began to wait.
    pub fn is_woken(&self, session: u32) -> bool {
        self.sessions[session as usize].woken != 0
    }

    /// Ends a session's wait, from whatever exit. `unused`: it was perhaps woken and has not looked for
    /// jobs since; then whoever should have the wake-up instead is returned, to have his latch set.
    pub fn stop_waiting(&mut self, session: u32, instance: u32, lanes: &[i32], unused: bool) -> Option<u32> {
        let woken = std::mem::take(&mut self.sessions[session as usize].woken) != 0;
        self.delist(session);
        if !(woken && unused) {
            return None;
        }
        lanes.iter().find_map(|&lane| {
            let slot = self.lane_slot(instance, lane)?;
            let entry = &self.lanes[slot as usize];
            (entry.len > 0 || entry.position < Rank::MAX).then(|| self.wake_first(slot))?
        })
    }

    /// Ends the wait of a session that is going away and no longer knows its lanes: they are read from
    /// its place in the lists; a wake-up it may have swallowed goes to the first waiter of any lane of
    /// the instance that has jobs.
    pub fn session_left(&mut self, session: u32, instance: u32) -> Option<u32> {
        let woken = std::mem::take(&mut self.sessions[session as usize].woken) != 0;
        self.delist(session);
        if !woken {
            return None;
        }
        let slot = (0..self.lanes.len()).find(|&slot| {
            let lane = &self.lanes[slot];
            lane.is_used()
                && lane.instance == instance
                && lane.waiters_first != 0
                && (lane.len > 0 || lane.position < Rank::MAX)
        })?;
        self.wake_first(slot as u32)
    }
}
