//! Clocks: the monotonic one for deadlines, the wall clock for times in rows. All times are in microseconds.
//!
//! Responsible for reading clocks and printing times. Not responsible for intervals (`datum::Interval`), nor for
//! sleeping (`process`).
//!
//! Invariant: no function here waits or keeps state.

use pgrx::pg_sys;

use crate::pg::{datum, raw, unbound};

/// The last `timestamptz` that Postgres accepts.
pub const LAST_TIME: i64 = 9_223_371_331_199_999_999;

/// Returns a `timestamptz`, in microseconds, as text in the session's DateStyle and time zone.
pub fn timestamp_text(at: i64) -> String {
    // SAFETY: prints a timestamptz into memory of the current context.
    unsafe {
        pgrx::direct_function_call_as_datum(pgrx::pg_sys::timestamptz_out, &[Some(at.into())])
            .map_or_else(|| at.to_string(), |text| datum::c_text(text.cast_mut_ptr()))
    }
}

/// Returns the time of a clock that is never set, in microseconds. Its zero is arbitrary.
pub fn monotonic_us() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writing; CLOCK_MONOTONIC exists on every platform Postgres runs on.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

/// Returns the processor time that this process has used, in microseconds.
pub fn processor_us() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writing; the clock exists on every platform Postgres runs on.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut now) };
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

/// Returns the wall clock in microseconds since 2000-01-01, as `timestamptz` counts.
pub fn now_us() -> i64 {
    // SAFETY: reads the clock.
    unsafe { raw::GetCurrentTimestamp() }
}

/// Returns when the server was started, as `timestamptz`. A restart of its processes after a crash is no start.
pub fn server_start_us() -> i64 {
    // SAFETY: a number that the postmaster sets before it starts a process.
    unsafe { pg_sys::PgStartTime }
}

/// Returns the commit time of the transaction that is ending, in microseconds as `timestamptz` counts.
pub fn transaction_end_us() -> i64 {
    // SAFETY: the commit has set the number. Otherwise the function reads the clock.
    unsafe { raw::GetCurrentTransactionStopTimestamp() }
}

/// Returns when statement_timeout will end this statement, as `timestamptz`. `None`: it will not.
pub fn statement_deadline_us() -> Option<i64> {
    let timeout = unbound::STATEMENT_TIMEOUT;
    // SAFETY: both read this backend's timer table. The id is one of Postgres's own.
    unsafe { unbound::get_timeout_active(timeout).then(|| unbound::get_timeout_finish_time(timeout)) }
}

/// Returns a `timestamptz` as JSON writes it: ISO 8601, with the offset of the session's time zone.
pub fn iso_time(at: i64) -> String {
    let form = crate::pg::datum::text_datum("YYYY-MM-DD\"T\"HH24:MI:SS.USTZH:TZM");
    // SAFETY: prints a timestamptz into memory of the current context.
    let text =
        unsafe { pgrx::direct_function_call_as_datum(pg_sys::timestamptz_to_char, &[Some(at.into()), Some(form)]) };
    text.map(crate::pg::datum::text).unwrap_or_default()
}

/// Converts microseconds to milliseconds of sleep, rounded up, so that the sleeper does not wake too early.
pub fn milliseconds(microseconds: i64) -> i64 {
    microseconds.max(0).saturating_add(999) / 1000
}
