//! The slot of a session that may wait.

use super::slot::{LaneSlot, NodeSlot, SessionSlot, of};
use super::slots::Entry;

/// How many lanes one session can wait for at the same time.
pub const WAIT_LANES: usize = 64;

impl NodeSlot {
    /// Returns the node with which a session waits for the `nth` one of its lanes.
    #[inline]
    pub(super) fn of(session: SessionSlot, nth: usize) -> Self {
        Self::new(session.number() * WAIT_LANES as u32 + nth as u32)
    }

    /// Returns its session.
    #[inline]
    pub(super) fn session(self) -> SessionSlot {
        SessionSlot::new(self.number() / WAIT_LANES as u32)
    }

    /// Returns which one of its session's nodes it is.
    #[inline]
    pub(super) fn nth(self) -> usize {
        self.number() as usize % WAIT_LANES
    }
}

/// The place of a session in the list of a lane.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Node {
    pub(super) lane: Option<LaneSlot>,
    pub(super) prev: Option<NodeSlot>,
    pub(super) next: Option<NodeSlot>,
}

/// The wait of one session. All zero: the session does not wait.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Session {
    pub(super) nodes: [Node; WAIT_LANES],
    /// The lane for which the session was woken. `None`: it was not woken since it began to wait.
    pub(super) woken_for: Option<LaneSlot>,
    /// How many lanes it waits for.
    pub(super) waiting: u8,
    /// 1: the end of a refill wakes it, even if the refill has found nothing.
    pub(super) for_refill: u8,
    /// How long it waits for a batch after the batch's first job has come, in microseconds. 0: it takes the first job.
    pub(super) linger: i64,
    /// The process that sleeps, and since when, in monotonic microseconds. 0: it does not wait for jobs.
    pub(super) pid: i32,
    pub(super) since: i64,
}

/// A session that sleeps until there is a job.
#[derive(Clone, Copy, Debug)]
pub struct Sleeper {
    /// Its process.
    pub pid: i32,
    /// Since when it has slept, in monotonic microseconds.
    pub since: i64,
    /// Its lanes. The first `len` are set.
    pub(super) lanes: [i32; WAIT_LANES],
    pub(super) len: usize,
}

impl Sleeper {
    /// Returns the lanes for which it waits.
    pub fn lanes(&self) -> &[i32] {
        &self.lanes[..self.len]
    }
}

impl Entry for Session {
    type Of = of::Session;
}

impl Default for Session {
    fn default() -> Self {
        Self {
            nodes: [Node::default(); WAIT_LANES],
            woken_for: None,
            waiting: 0,
            for_refill: 0,
            linger: 0,
            pid: 0,
            since: 0,
        }
    }
}
