//! The background workers: one launcher for the server, and one worker in each database that has the
//! extension. How they work together is told in `README.md` beside this file.
//!
//! `launcher` and `database` are the two processes; `table` is what they agree by; `pending` is what
//! sessions tell them when a transaction ends. This file starts processes and receives their signals.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, Oid};

use crate::sys;

mod database;
mod launcher;
pub mod pending;
pub mod table;

/// Seconds after which the postmaster starts the launcher again, however it has ended.
const LAUNCHER_RESTART: c_int = 1;

/// Has the postmaster run the launcher. Called once, while preloading; does nothing in binary upgrade.
pub fn register() {
    if sys::is_binary_upgrade() {
        return;
    }
    let mut launcher = describe("pg_queue launcher", c"pg_queue launcher", c"pg_queue_launcher_main");
    launcher.bgw_restart_time = LAUNCHER_RESTART;
    // SAFETY: a complete description; called while preloading, the only time it is allowed.
    unsafe { pg_sys::RegisterBackgroundWorker(&raw mut launcher) };
}

/// To be called where the extension is created: if this transaction commits, its worker comes at once.
pub fn kick_on_commit() {
    pending::look();
}

/// A process of this library that starts when the server takes writes, and never again by itself.
fn describe(name: &str, kind: &CStr, function: &CStr) -> pg_sys::BackgroundWorker {
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

/// Copies a text to a C array, cut where the array ends.
fn copy(text: &[u8], array: &mut [c_char]) {
    array.fill(0);
    let last = array.len().saturating_sub(1);
    for (to, from) in array[..last].iter_mut().zip(text) {
        *to = c_char::from_ne_bytes([*from]);
    }
}

/// Asks the postmaster for a worker in the database. The handle, which the caller's memory context
/// owns, tells what becomes of it; `None`: the server has no free slot.
fn start(database: Oid, name: &str) -> Option<*mut pg_sys::BackgroundWorkerHandle> {
    let mut worker = describe(&worker_name(name), c"pg_queue worker", c"pg_queue_worker_main");
    worker.bgw_main_arg = Datum::from(database);
    worker.bgw_notify_pid = sys::pid();
    let mut handle = std::ptr::null_mut();
    // SAFETY: a complete description, and a place for the handle.
    unsafe { pg_sys::RegisterDynamicBackgroundWorker(&raw mut worker, &raw mut handle) }.then_some(handle)
}

/// How the worker of a database is called in the process list and in its sessions' application_name.
fn worker_name(database: &str) -> String {
    format!("pg_queue worker ({database})")
}

// ----- signals

static WAS_TERMINATED: AtomicBool = AtomicBool::new(false);

/// SIGTERM, as in every backend, but remembered: the end is then not taken for a failure, and between
/// two duties it is an orderly one.
unsafe extern "C-unwind" fn on_terminate(signal: c_int) {
    WAS_TERMINATED.store(true, Ordering::Relaxed);
    // SAFETY: Postgres's own handler, made to be called from a signal handler.
    unsafe { sys::raw::die(signal) };
}

/// Whether this process was told to end.
fn was_terminated() -> bool {
    WAS_TERMINATED.load(Ordering::Relaxed)
}

/// Installs the signal handlers and lets signals in; the first act of a background process.
fn receive_signals() {
    sys::handle_signal(libc::SIGTERM, on_terminate);
    sys::handle_signal(libc::SIGHUP, sys::raw::SignalHandlerForConfigReload);
}

/// What every background process does between two pieces of work: takes new settings and whatever else
/// the server asks of it. A cancel while there is nothing to cancel is forgotten, as in an idle session.
/// Errors: whatever the server's requests raise; termination when it came just now.
fn attend_to_server() {
    sys::forget_cancel();
    sys::check_for_interrupts();
    sys::catch_up();
    sys::reload_settings();
}
