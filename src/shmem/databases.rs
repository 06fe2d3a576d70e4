//! The databases of the server as the launcher sees them: one entry each in shared memory.
//!
//! Responsible for the layout of an entry. Not responsible for its changes (`worker::table`), nor for the lock
//! (`launcher`).
//!
//! Invariant: an entry is read and changed only under the launcher's lock.

use pgrx::pg_sys;

/// A database as the launcher sees it. Only `worker::table` changes it, under the launcher's lock.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Database {
    /// The database. Invalid: the slot is free.
    pub oid: pg_sys::Oid,
    /// The state of its worker.
    pub state: DatabaseState,
    /// The worker's process id, from its first act to its last. 0: no worker.
    pub pid: i32,
    /// The worker's latch. Null if `pid` is 0.
    pub latch: *mut pg_sys::Latch,
    /// The monotonic time at which `state` was set.
    pub since: i64,
    /// The monotonic time before which no worker is started.
    pub retry_at: i64,
    /// How many workers, one after the other, died soon after their start.
    pub deaths: u32,
    /// How many open transactions need the database to be without a worker.
    pub blockers: u32,
    /// True if the worker must look again for the extension.
    pub must_look: bool,
    /// True if the worker must leave. It is restarted if the database still needs one.
    pub must_leave: bool,
    /// True if the server had no slot for the worker at the launcher's last try.
    pub is_short: bool,
}

/// The state of a database's worker. The drawing is in `src/worker/README.md`.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DatabaseState {
    /// No worker runs. The launcher may start one.
    Idle = 0,
    /// The launcher has asked for a worker, which has not yet found the extension.
    Starting,
    /// The worker has found the extension and does its duties.
    Running,
    /// A worker has looked, found no extension and left.
    NoExtension,
    /// A command needs the database to be without connections. No worker may start.
    Blocked,
}
