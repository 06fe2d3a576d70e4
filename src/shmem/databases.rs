//! The databases of the server as the launcher sees them: one entry each in shared memory.
//!
//! Responsible for the layout of an entry. Not responsible for its changes (`worker::table`), nor for the lock
//! (`launcher`).
//!
//! Invariant: an entry is read and changed under the launcher's lock only.

use pgrx::pg_sys;

/// A database as the launcher sees it. Only `worker::table` changes it, under the launcher's lock.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Database {
    /// The database. Invalid if the slot is free.
    pub oid: pg_sys::Oid,
    /// What the launcher knows of its worker.
    pub state: DatabaseState,
    /// The worker's process id, from its first act to its last; 0 if there is none.
    pub pid: i32,
    /// The worker's latch; null if `pid` is 0.
    pub latch: *mut pg_sys::Latch,
    /// The monotonic time at which `state` was set.
    pub since: i64,
    /// The monotonic time before which no worker is started.
    pub retry_at: i64,
    /// How many workers in a row have died soon after their start.
    pub deaths: u32,
    /// How many transactions need the database to be without a worker.
    pub blockers: u32,
    /// Whether the worker must look again for the extension.
    pub must_look: bool,
    /// Whether the worker must leave. It is started again if the database still needs one.
    pub must_leave: bool,
    /// Whether the server had no slot for the worker when the launcher last tried to start it.
    pub is_short: bool,
}

/// The state of a database's worker. The drawing is in `src/worker/README.md`.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DatabaseState {
    /// No worker; the launcher may start one.
    Idle = 0,
    /// The launcher has asked for a worker, which has not yet found the extension.
    Starting,
    /// The worker has found the extension and does its duties.
    Running,
    /// The worker has looked, found no extension and left.
    NoExtension,
    /// A command needs the database to be without connections: no worker may start.
    Blocked,
}
