//! The executors of the server: the layout of a slot.
//!
//! Responsible for the layout. Not responsible for the lock (`executors`), nor for changes (`executor::table`).
//!
//! Invariant: a slot is read and changed under the executors' lock only.

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
    /// It waits for something to do.
    Idle,
    /// It was told of a queue and has not claimed yet.
    Looking,
    /// It runs a job, or looks by itself for the next one of the queue.
    Running,
    /// The process ended before it had connected.
    Failed,
}

/// A slot. All zero: it is free.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Executor {
    pub state: State,
    /// It must leave as soon as it runs no job.
    pub must_leave: bool,
    /// The statement was cancelled by another process: the signal is sent, and may not have arrived yet.
    pub is_signalled: bool,
    /// Something has happened that the worker of the database has not seen.
    pub has_news: bool,
    /// The worker waits for what it finds.
    pub is_awaited: bool,
    /// 0: the process has not begun.
    pub pid: i32,
    pub database: Oid,
    pub instance: u32,
    /// As which role it is connected.
    pub role: Oid,
    /// A lane of the queue that it serves.
    pub lane: i32,
    /// Which start of the slot it is: a process that comes too late finds another number.
    pub start: u32,
    /// The attempt that it runs; 0: none.
    pub attempt: i64,
    pub job_id: i64,
    /// The monotonic time since when it is in this state.
    pub since: i64,
    /// The monotonic time at which it was told of the lane, or asked for; 0: it has found a job since, or looks by
    /// itself.
    pub told_at: i64,
    /// The monotonic time at which it was signalled.
    pub signalled_at: i64,
    pub latch: Latch,
}

/// The address of a latch; null at the start.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Latch(pub *mut pg_sys::Latch);

impl Default for Latch {
    fn default() -> Self {
        Self(std::ptr::null_mut())
    }
}

/// What concerns all executors.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Head {
    /// The number of starts.
    pub starts: u32,
    /// How many of them have failed.
    pub failures: u32,
    /// The monotonic time since when no process could be started; 0: the last start went well.
    pub short_since: i64,
    /// How many processes there were when the server had no slot for another one, and the monotonic time of that; 0: it
    /// had.
    pub room: u32,
    pub room_at: i64,
    /// The monotonic time at which a process left last: the server may not have freed its slot by then.
    pub left_at: i64,
    /// How many jobs a process was told of or started for, and how long that took, in microseconds, all together.
    pub dispatches: i64,
    pub dispatch_us: i64,
    /// The last role as which no process could connect.
    pub refused: Refused,
    /// The queue that has jobs and no process.
    pub starving: Starving,
}

/// A role as which no process can connect, in a database, and since when. All zero: there is none.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Refused {
    pub database: Oid,
    pub role: Oid,
    pub since: i64,
}

/// A queue, by its database and a lane, that has jobs and no process, and when that was seen: it gets the next one. All
/// zero: there is none.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Starving {
    pub database: Oid,
    pub lane: i32,
    pub at: i64,
}
