//! The background worker of an instance, as sessions know it.
//!
//! Responsible for its form in shared memory. Not responsible for what the worker does (`worker::database`).
//!
//! Invariant: the latch is null if there is no worker.

use pgrx::pg_sys;

/// The worker.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Worker {
    /// The worker's latch. Null: no worker.
    pub latch: *mut pg_sys::Latch,
    /// The worker's process id. 0: no worker.
    pub pid: i32,
    /// The monotonic time at which the worker wakes by itself.
    pub wakes_at: i64,
    /// The status that the worker publishes.
    pub status: WorkerStatus,
    /// The monotonic time at which a session last did the duties (`queue.maintain`). `i64::MIN`: none has.
    pub maintained_at: i64,
}

/// The status that a worker publishes for the doctor. Only `worker::database` changes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct WorkerStatus {
    /// The monotonic time at which the worker was last between two duties.
    pub at: i64,
    /// True if the worker was told to do no duties (`pg_queue.worker`).
    pub is_off: bool,
    /// The duties that have failed and pause, one bit each in the order of `duty::all::ALL`.
    pub failing: u32,
}

impl Worker {
    /// No worker.
    pub const NONE: Self = Self {
        latch: std::ptr::null_mut(),
        pid: 0,
        wakes_at: i64::MAX,
        status: WorkerStatus { at: 0, is_off: false, failing: 0 },
        maintained_at: i64::MIN,
    };

    /// Sets the latest monotonic time at which the worker wakes. Returns its latch if it would have slept longer. The
    /// caller holds the frontier's lock.
    pub fn wake_by(&mut self, at: i64) -> Option<*mut pg_sys::Latch> {
        if at < self.wakes_at {
            self.wakes_at = at;
            return Some(self.latch);
        }
        None
    }
}
