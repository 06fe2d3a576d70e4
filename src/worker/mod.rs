//! The background workers: one launcher for the server, and one worker in each database that has the extension.
//! `README.md` beside this file says how they work together.
//!
//! `launcher` and `database` are the two processes. `table` is the state that they share. `pending` is what sessions
//! tell them when a transaction ends, and `hooks` is what makes sessions do so. This file starts processes and receives
//! their signals. Not responsible for the duties: see `duty`.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys::{self, Datum, Oid};

use crate::pg::background::{self, describe};
use crate::pg::{process, raw, session};

pub mod absence;
pub mod database;
pub mod hooks;
pub mod launcher;
pub mod log_hook;
pub mod pending;
pub mod table;

/// The postmaster restarts the launcher this many seconds after any exit.
const LAUNCHER_RESTART_S: c_int = 1;

/// Registers the launcher with the postmaster. Called once, while preloading. Does nothing in binary upgrade.
pub fn register() {
    if session::is_binary_upgrade() {
        return;
    }
    let mut launcher = describe("pg_queue launcher", c"pg_queue launcher", c"pg_queue_launcher_main");
    launcher.bgw_restart_time = LAUNCHER_RESTART_S;
    // SAFETY: a complete description; called while preloading, the only time it is allowed.
    unsafe { pg_sys::RegisterBackgroundWorker(&raw mut launcher) };
}

/// Wakes the worker or the launcher if this transaction commits. Called when the extension is created.
pub fn kick_on_commit() {
    pending::look_at_commit();
}

/// Asks the postmaster for a worker in the database. Returns a handle that tells whether it has ended; the caller's
/// memory context owns it. `None`: the server has no free slot.
pub fn start(database: Oid, name: &str) -> Option<*mut pg_sys::BackgroundWorkerHandle> {
    let worker = describe(&worker_name(name), c"pg_queue worker", c"pg_queue_worker_main");
    background::start(worker, Datum::from(database))
}

/// Returns the name of a database's worker in the process list and in its application_name.
pub fn worker_name(database: &str) -> String {
    format!("pg_queue worker ({database})")
}

// ----- signals

static WAS_TERMINATED: AtomicBool = AtomicBool::new(false);

/// Handles SIGTERM as every backend does, and notes it. So the exit does not count as a failure, and between two duties
/// it is orderly.
unsafe extern "C-unwind" fn on_terminate(signal: c_int, #[cfg(feature = "from19")] info: raw::SignalInfo) {
    WAS_TERMINATED.store(true, Ordering::Relaxed);
    // SAFETY: Postgres's own handler, made to be called from a signal handler.
    unsafe {
        raw::die(
            signal,
            #[cfg(feature = "from19")]
            info,
        );
    }
}

/// Returns true if this process was told to end.
pub fn was_terminated() -> bool {
    WAS_TERMINATED.load(Ordering::Relaxed)
}

/// Installs the signal handlers. This is the first act of a background process. The signals stay blocked until
/// `process::unblock_signals`.
pub fn receive_signals() {
    process::handle_signal(libc::SIGTERM, on_terminate);
    process::handle_signal(libc::SIGHUP, raw::SignalHandlerForConfigReload);
}

/// Takes new settings and handles the server's other requests to the process. Every background process calls it between
/// two pieces of work. If there is nothing to cancel, a cancel is discarded, as in an idle session.
///
/// Errors: those that the server's requests raise, and a termination that has just arrived.
pub fn attend_to_server() {
    process::forget_cancel();
    process::check_for_interrupts();
    process::catch_up();
    session::reload_settings();
}
