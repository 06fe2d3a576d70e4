//! Limits how long a call may take, by the clock. After that time the call is cancelled as a statement is.
//!
//! Responsible for the cancel. Not responsible for the error that the caller raises then, nor for the timer and for
//! limits of processor time (`budget`).
//!
//! Invariant: when `within` returns, its timer has stopped, and no cancel of the timer remains for the statement around
//! it.

use std::ffi::c_int;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;

use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, PgTryBuilder};

pub use crate::pg::budget::Over;
use crate::pg::budget::{HAS_RUNG, has_rung, timer};
use crate::pg::{process, unbound};

/// Runs `f` for at most this time. Returns `Over` if the timer has cancelled it. Then the caller must raise
/// an error, because nothing that `f` has begun was undone. Raises all other errors of `f`. `f` must not set another
/// limit, here or in `budget`.
pub fn within<R>(microseconds: i64, f: impl FnOnce() -> R) -> Result<R, Over> {
    let timer = timer();
    HAS_RUNG.store(false, Ordering::Relaxed);
    let milliseconds = (microseconds / 1_000).clamp(1, i64::from(c_int::MAX));
    // SAFETY: a timer of this process.
    unsafe { unbound::enable_timeout_after(timer, milliseconds as c_int) };
    let is_ours = |caught: &CaughtError| {
        matches!(caught, CaughtError::PostgresError(report)
            if report.sql_error_code() == PgSqlErrorCode::ERRCODE_QUERY_CANCELED)
            && has_rung()
    };
    PgTryBuilder::new(AssertUnwindSafe(|| Ok(f())))
        .catch_others(|caught| if is_ours(&caught) { Err(Over) } else { caught.rethrow() })
        .finally(|| {
            // SAFETY: as above.
            unsafe { unbound::disable_timeout(timer, false) };
            // It may have fired too late to cancel anything.
            if has_rung() {
                process::forget_cancel();
            }
        })
        .execute()
}
