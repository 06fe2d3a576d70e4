//! Signals and errors of the process.
//!
//! Responsible for what interrupts a command. Not responsible for the outcome of its job (`job`).
//!
//! Invariant: the first request to end only interrupts the command, so that the job can be released in order.

use std::ffi::c_int;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::PgTryBuilder;

use crate::error::{Error, Result};
use crate::pg::{portal, process, raw, time, transaction};

static WAS_TERMINATED: AtomicBool = AtomicBool::new(false);
static WAS_CANCELLED: AtomicBool = AtomicBool::new(false);

/// Handles the first SIGTERM as a cancel, so that the job can be released in order. Handles the second one as every
/// backend does.
pub unsafe extern "C-unwind" fn on_terminate(signal: c_int, #[cfg(feature = "from19")] info: raw::SignalInfo) {
    if WAS_TERMINATED.swap(true, Ordering::Relaxed) {
        // SAFETY: Postgres's own handler, made to be called from a signal handler.
        unsafe {
            raw::die(
                signal,
                #[cfg(feature = "from19")]
                info,
            )
        };
        return;
    }
    // SAFETY: as above.
    unsafe {
        raw::StatementCancelHandler(
            signal,
            #[cfg(feature = "from19")]
            info,
        )
    };
}

/// Handles SIGINT as every backend does, and notes it.
pub unsafe extern "C-unwind" fn on_cancel(signal: c_int, #[cfg(feature = "from19")] info: raw::SignalInfo) {
    WAS_CANCELLED.store(true, Ordering::Relaxed);
    // SAFETY: Postgres's own handler, made to be called from a signal handler.
    unsafe {
        raw::StatementCancelHandler(
            signal,
            #[cfg(feature = "from19")]
            info,
        )
    };
}

/// True if this process was told to end.
pub fn was_terminated() -> bool {
    WAS_TERMINATED.load(Ordering::Relaxed)
}

/// Waits until a SIGINT that was sent has arrived, at most 100 ms, and discards it.
pub fn swallow_cancel() {
    const MAX_WAIT_US: i64 = 100_000;
    let until = time::monotonic_us() + MAX_WAIT_US;
    while !WAS_CANCELLED.load(Ordering::Relaxed) && time::monotonic_us() < until {
        std::thread::yield_now();
    }
    WAS_CANCELLED.store(false, Ordering::Relaxed);
    process::forget_cancel();
}

/// Runs `f` and catches any error and any panic. If there is one, aborts the open transaction.
pub fn attempt<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let result = PgTryBuilder::new(AssertUnwindSafe(f))
        .catch_others(|caught| Err(portal::located(Error::caught(&caught))))
        .execute();
    if result.is_err() {
        portal::cancel_no_more();
        transaction::abort_after_error();
        portal::clear_after_error();
        portal::clear();
    }
    result
}
