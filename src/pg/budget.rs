//! A bound on the processor time of what another role wrote, such as a filter: when the time is over, the computation
//! is cancelled as a statement is.
//!
//! Responsible for the timer. Not responsible for what is computed (`jsonpath`), nor for what follows (`job::publish`).
//!
//! Invariant: when the call is over, so is the timer, and no cancel of it is left for the statement around it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::{cell::Cell, ffi::c_int};

use pgrx::pg_sys;

use crate::pg::{process, raw, time};

/// From USER_TIMEOUT of timeout.h on, in 14 to 18; Postgres chooses a free one behind it.
const USER_TIMEOUT: c_int = 13;

thread_local! {
    /// The timer of this process, once it has one.
    static TIMER: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// Whether the timer has rung.
static HAS_RUNG: AtomicBool = AtomicBool::new(false);

/// Is called by Postgres, in a signal handler, when the time is over.
unsafe extern "C-unwind" fn ring() {
    HAS_RUNG.store(true, Ordering::Relaxed);
    // SAFETY: flags of this process, as the handler of SIGINT sets them.
    unsafe {
        pg_sys::QueryCancelPending = 1;
        pg_sys::InterruptPending = 1;
    }
}

fn timer() -> c_int {
    if let Some(timer) = TIMER.get() {
        return timer;
    }
    // SAFETY: once in a process, in which timers were set up at its start; the handler is never unloaded.
    let timer = unsafe { raw::RegisterTimeout(USER_TIMEOUT, ring) };
    TIMER.set(Some(timer));
    timer
}

/// Whether a cancel that was caught is that of the timer.
pub fn has_rung() -> bool {
    HAS_RUNG.load(Ordering::Relaxed)
}

/// The time was over.
pub struct Over;

/// Runs `f`, for so many microseconds of processor time at most. When it is cancelled and `has_rung`, `f` returns
/// `None` and raises nothing; it may be called several times.
pub fn within<R>(budget: i64, mut f: impl FnMut() -> Option<R>) -> Result<Option<R>, Over> {
    let timer = timer();
    let began = time::processor_us();
    // On a busy machine the time by the clock may be over long before that of the processor.
    let mut wait = budget;
    loop {
        HAS_RUNG.store(false, Ordering::Relaxed);
        // SAFETY: a timer of this process.
        unsafe { raw::enable_timeout_after(timer, (wait / 1_000).clamp(1, 60_000) as c_int) };
        let result = f();
        // SAFETY: as above.
        unsafe { raw::disable_timeout(timer, false) };
        if !HAS_RUNG.swap(false, Ordering::Relaxed) {
            return Ok(result);
        }
        process::forget_cancel();
        if result.is_some() {
            return Ok(result);
        }
        if time::processor_us() - began >= budget {
            return Err(Over);
        }
        wait *= 4;
    }
}
