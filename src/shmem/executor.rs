//! The executors of the server: the layout of a slot.
//!
//! Responsible for the layout. Not responsible for the lock (`executors`), nor for changes (`executor::table`).
//!
//! Invariant: a slot is read and changed only under the executors' lock.

use pgrx::pg_sys::{self, Oid};

/// What an executor is doing.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// The slot is free.
    #[default]
    Free = 0,
    /// A process was asked for and has not connected yet.
    Starting,
    /// The process waits for something to do.
    Idle,
    /// The process was told of a queue and has not claimed yet.
    Looking,
    /// The process runs a job, or looks by itself for the queue's next job.
    Running,
    /// The process ended before it connected.
    Failed,
}

/// A slot. All bytes zero: it is free.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Executor {
    pub state: State,
    /// True if the process must leave when it runs no job.
    pub must_leave: bool,
    /// True if another process has cancelled the statement. The signal was sent, but may not have arrived.
    pub is_signalled: bool,
    /// True if something has changed that the database's worker has not seen.
    pub has_news: bool,
    /// True if the worker waits for the process's answer.
    pub is_awaited: bool,
    /// The process id. 0: the process has not begun.
    pub pid: i32,
    pub database: Oid,
    pub instance: u32,
    /// The role as which the process is connected.
    pub role: Oid,
    /// A lane of the queue that the process serves.
    pub lane: i32,
    /// The number of the slot's start. A process that comes too late finds another number.
    pub start: u32,
    /// The attempt that runs. 0: none.
    pub attempt: i64,
    pub job_id: i64,
    /// The monotonic time since when the slot is in this state.
    pub since: i64,
    /// The monotonic time at which the process was told of the lane, or asked for. 0: it has found a job since, or
    /// looks by itself.
    pub told_at: i64,
    /// The monotonic time at which the process was signalled.
    pub signalled_at: i64,
    pub latch: Latch,
}

/// The address of a latch. Null at the start.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Latch(pub *mut pg_sys::Latch);

impl Default for Latch {
    fn default() -> Self {
        Self(std::ptr::null_mut())
    }
}

/// The data for all executors together.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Head {
    /// The number of starts.
    pub starts: u32,
    /// How many starts have failed.
    pub failures: u32,
    /// The monotonic time since when no process could be started. 0: the last start succeeded.
    pub short_since: i64,
    /// How many processes there were when the server had no slot for another one, and the monotonic time of that. Time
    /// 0: the server has had a slot since.
    pub room: u32,
    pub room_at: i64,
    /// The monotonic time at which the last process left. The server may not have freed its slot yet.
    pub left_at: i64,
    /// How many jobs were dispatched to a process, and the sum of the delays until it ran them, in microseconds.
    pub dispatches: i64,
    pub dispatch_us: i64,
    /// The last role as which no process could connect.
    pub refused: Refused,
    /// The queue that has jobs but no process.
    pub starving: Starving,
}

/// A role as which no process can connect to a database, and since when. All zero: there is none.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Refused {
    pub database: Oid,
    pub role: Oid,
    pub since: i64,
}

/// A queue that has jobs but no process, by its database and a lane, and when that was seen. It gets the next process.
/// All zero: there is none.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Starving {
    pub database: Oid,
    pub lane: i32,
    pub at: i64,
}
