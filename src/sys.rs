//! The unsafe fence: small, safe functions over raw calls of Postgres and the operating system.
//!
//! Nothing here keeps state. A function that can raise a Postgres error says so.

use std::ffi::{CStr, c_int};

use pgrx::pg_sys;

/// Functions of Postgres that the bindings leave out.
pub mod raw {
    use std::ffi::{c_char, c_int};

    use pgrx::pg_sys;

    unsafe extern "C-unwind" {
        pub fn errstart(level: c_int, domain: *const c_char) -> bool;
        pub fn errcode(code: c_int) -> c_int;
        pub fn errmsg(format: *const c_char, ...) -> c_int;
        pub fn errdetail(format: *const c_char, ...) -> c_int;
        pub fn errhint(format: *const c_char, ...) -> c_int;
        pub fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
        pub fn nextval_internal(sequence: pg_sys::Oid, check_permissions: bool) -> i64;
        pub fn Async_Notify(channel: *const c_char, payload: *const c_char);
        pub fn get_timeout_active(timeout: c_int) -> bool;
        pub fn get_timeout_finish_time(timeout: c_int) -> pg_sys::TimestampTz;
    }
}

/// Microseconds of a clock that no one sets.
pub fn monotonic_us() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writing; CLOCK_MONOTONIC exists on every platform Postgres runs on.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

/// The wall clock, in microseconds as `timestamptz` counts them.
pub fn now_us() -> i64 {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// This session's number, from 0, below the number of sessions in shared memory.
pub fn session() -> u32 {
    // SAFETY: a plain global of this backend, set before any of our code can run in it.
    #[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
    let number = unsafe { pg_sys::MyBackendId } - 1;
    // SAFETY: as above.
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    let number = unsafe { pg_sys::MyProcNumber };
    u32::try_from(number).unwrap_or(0)
}

/// This process's id.
pub fn pid() -> i32 {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::MyProcPid }
}

/// The database this session is connected to; invalid in the launcher.
pub fn database() -> pg_sys::Oid {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::MyDatabaseId }
}

/// Whether the server is recovering or a standby.
pub fn in_recovery() -> bool {
    // SAFETY: reads shared memory.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Whether the transaction may not write.
pub fn is_read_only() -> bool {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::XactReadOnly }
}

/// Whether the transaction reads by one snapshot from its begin to its end.
pub fn uses_one_snapshot() -> bool {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as c_int }
}

/// Whether the transaction has written something.
pub fn has_xid() -> bool {
    // SAFETY: reads this backend's transaction state.
    unsafe { pg_sys::GetTopTransactionIdIfAny() != pg_sys::TransactionId::from(0) }
}

/// When statement_timeout will strike, as `timestamptz`; `None` when it will not.
pub fn statement_deadline_us() -> Option<i64> {
    /// STATEMENT_TIMEOUT in timeout.h, the same in 14 to 18.
    const STATEMENT_TIMEOUT: c_int = 3;
    let timeout = STATEMENT_TIMEOUT;
    // SAFETY: both read this backend's timer table; the id is one of Postgres's own.
    unsafe { raw::get_timeout_active(timeout).then(|| raw::get_timeout_finish_time(timeout)) }
}

/// Raises an error when this session was cancelled or terminated.
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
}

/// Reads what other sessions have said about changed definitions.
pub fn accept_invalidations() {
    // SAFETY: allowed at any time in a transaction.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Sleeps until this session's latch is set or the time is over, and resets the latch. Cancel and
/// termination end it by an error; the postmaster's death ends the process.
pub fn sleep(milliseconds: i64) {
    let events = (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as c_int;
    // SAFETY: MyLatch is this backend's own latch, always valid while it runs.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events, milliseconds.max(0), pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    check_for_interrupts();
}

/// Sends NOTIFY at commit. Can raise: a payload is at most 8000 bytes.
pub fn notify(channel: &CStr, payload: &CStr) {
    // SAFETY: copies both strings; an error becomes an unwinding at the guard.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| raw::Async_Notify(channel.as_ptr(), payload.as_ptr())) };
}

/// Raises a Postgres error from outside any Rust guard.
///
/// # Safety
/// The pointers are null (detail, hint) or C strings that outlive the call in Postgres's memory; no
/// frame between the caller's and Postgres's holds anything that must be dropped.
pub unsafe fn raise(code: [u8; 5], message: *const i8, detail: *const i8, hint: *const i8) -> ! {
    /// ERROR in elog.h.
    const ERROR: c_int = 21;
    let packed = code.iter().rev().fold(0, |all, c| (all << 6) | ((c_int::from(*c) - 0x30) & 0x3f));
    // SAFETY: the order of calls that ereport() expands to; formats are constant, arguments are C strings.
    unsafe {
        raw::errstart(ERROR, std::ptr::null());
        raw::errcode(packed);
        raw::errmsg(c"%s".as_ptr(), message);
        if !detail.is_null() {
            raw::errdetail(c"%s".as_ptr(), detail);
        }
        if !hint.is_null() {
            raw::errhint(c"%s".as_ptr(), hint);
        }
        raw::errfinish(c"pg_queue".as_ptr(), 0, c"".as_ptr());
    }
    unreachable!("errfinish does not return")
}

/// The text of a C string of Postgres, lossily.
///
/// # Safety
/// `text` is a valid C string.
pub unsafe fn text(text: *const i8) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
