//! The slot of a session that may wait.

/// How many lanes one session can wait for at the same time.
pub const WAIT_LANES: usize = 64;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Node {
    pub(super) lane_plus_one: u32,
    pub(super) prev: u32,
    pub(super) next: u32,
}

/// The wait of one session. All zero: the session does not wait.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Session {
    pub(super) nodes: [Node; WAIT_LANES],
    /// The slot of the lane for which the session was woken, plus one. 0: it was not woken since it began to wait.
    pub(super) woken_for: u32,
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

impl Default for Session {
    fn default() -> Self {
        Self {
            nodes: [Node::default(); WAIT_LANES],
            woken_for: 0,
            waiting: 0,
            for_refill: 0,
            linger: 0,
            pid: 0,
            since: 0,
        }
    }
}
