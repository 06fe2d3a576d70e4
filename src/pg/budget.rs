//! Limits the processor time of what another role wrote, such as a filter. After that time the computation is cancelled
//! as a statement is.
//!
//! Responsible for the timer. Not responsible for what is computed (`jsonpath`), nor for what follows (`job::publish`).
//!
//! Invariant: when the call returns, its timer has stopped, and no cancel of the timer remains for the statement around
//! it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::{cell::Cell, ffi::c_int};

use pgrx::pg_sys;

use crate::pg::{process, time, unbound};

thread_local! {
    /// The timer of this process. `None`: not registered yet.
    static TIMER: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// True if the timer has fired.
pub(super) static HAS_RUNG: AtomicBool = AtomicBool::new(false);

/// Called by Postgres in a signal handler when the timer fires.
unsafe extern "C-unwind" fn ring() {
    HAS_RUNG.store(true, Ordering::Relaxed);
    // SAFETY: flags of this process, as the handler of SIGINT sets them.
    unsafe {
        pg_sys::QueryCancelPending = 1;
        pg_sys::InterruptPending = 1;
    }
}

/// Returns the timer of this process, for limits that are not nested.
pub(super) fn timer() -> c_int {
    if let Some(timer) = TIMER.get() {
        return timer;
    }
    // SAFETY: called once in a process, which set up timers at its start. The handler is never unloaded.
    let timer = unsafe { unbound::RegisterTimeout(unbound::USER_TIMEOUT, ring) };
    TIMER.set(Some(timer));
    timer
}

/// True if the timer has fired: a cancel that was caught is the timer's.
pub fn has_rung() -> bool {
    HAS_RUNG.load(Ordering::Relaxed)
}

/// The time of the limit was used up.
pub struct Over;

/// Runs `f` for at most `budget` microseconds of processor time. If `f` is cancelled and `has_rung`, it must return
/// `None` and raise nothing. `f` may be called several times.
pub fn within<R>(budget: i64, mut f: impl FnMut() -> Option<R>) -> Result<Option<R>, Over> {
    let timer = timer();
    let began = time::processor_us();
    // On a busy machine much more time may pass by the clock than by the processor.
    let mut wait = budget;
    loop {
        HAS_RUNG.store(false, Ordering::Relaxed);
        // SAFETY: a timer of this process.
        unsafe { unbound::enable_timeout_after(timer, (wait / 1_000).clamp(1, 60_000) as c_int) };
        let result = f();
        // SAFETY: as above.
        unsafe { unbound::disable_timeout(timer, false) };
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
