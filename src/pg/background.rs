//! Describes background processes of this library to the postmaster, and asks for them.
//!
//! Responsible for the description. Not responsible for what a process does (`worker`, `executor`).
//!
//! Invariant: the postmaster never restarts a process by itself, unless the process's owner sets that.

use std::ffi::{CStr, c_char, c_int};

use pgrx::pg_sys::{self, Datum};

use crate::pg::session;

/// Describes a process of this library. It starts when the server accepts writes, and the postmaster does not restart
/// it.
pub fn describe(name: &str, kind: &CStr, function: &CStr) -> pg_sys::BackgroundWorker {
    let mut worker = pg_sys::BackgroundWorker {
        bgw_flags: (pg_sys::BGWORKER_SHMEM_ACCESS | pg_sys::BGWORKER_BACKEND_DATABASE_CONNECTION) as c_int,
        bgw_start_time: pg_sys::BgWorkerStartTime::BgWorkerStart_RecoveryFinished,
        bgw_restart_time: pg_sys::BGW_NEVER_RESTART,
        ..Default::default()
    };
    copy(name.as_bytes(), &mut worker.bgw_name);
    copy(kind.to_bytes(), &mut worker.bgw_type);
    copy(b"pg_queue", &mut worker.bgw_library_name);
    copy(function.to_bytes(), &mut worker.bgw_function_name);
    worker
}

/// Copies a text to a C array. A longer text is cut.
fn copy(text: &[u8], array: &mut [c_char]) {
    array.fill(0);
    let last = array.len().saturating_sub(1);
    for (to, from) in array[..last].iter_mut().zip(text) {
        *to = c_char::from_ne_bytes([*from]);
    }
}

/// Asks the postmaster for a process, and does not wait for it. Returns a handle that tells whether the process has
/// ended; the caller's memory context owns it. `None`: the server has no free slot.
pub fn start(mut worker: pg_sys::BackgroundWorker, argument: Datum) -> Option<*mut pg_sys::BackgroundWorkerHandle> {
    worker.bgw_main_arg = argument;
    worker.bgw_notify_pid = session::pid();
    let mut handle = std::ptr::null_mut();
    // SAFETY: a complete description, and a place for the handle.
    unsafe { pg_sys::RegisterDynamicBackgroundWorker(&raw mut worker, &raw mut handle) }.then_some(handle)
}
