//! Declares functions of Postgres that the bindings lack, or offer only behind a guard that costs more than the
//! function.
//!
//! Responsible for the declarations only. Not responsible for safety, which each caller in `pg` explains, nor for the
//! functions that are called for every row (`unguarded`).
//!
//! Invariant: each signature is that of PostgreSQL 14 to 18.

use std::ffi::{c_char, c_int};

use pgrx::pg_sys;

unsafe extern "C-unwind" {
    pub fn errstart(level: c_int, domain: *const c_char) -> bool;
    pub fn errcode(code: c_int) -> c_int;
    pub fn errmsg(format: *const c_char, ...) -> c_int;
    pub fn errdetail(format: *const c_char, ...) -> c_int;
    pub fn errhint(format: *const c_char, ...) -> c_int;
    pub fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
    pub fn errhidestmt(hide: bool) -> c_int;
    pub fn geterrcode() -> c_int;
    pub fn geterrposition() -> c_int;
    pub fn check_log_duration(milliseconds: *mut c_char, was_logged: bool) -> c_int;
    pub fn GetCommandLogLevel(statement: *mut pg_sys::Node) -> c_int;
    pub fn pq_check_connection() -> bool;
    pub fn nextval_internal(sequence: pg_sys::Oid, check_permissions: bool) -> i64;
    pub fn find_inheritance_children(parent: pg_sys::Oid, mode: pg_sys::LOCKMODE) -> *mut pg_sys::List;
    pub fn GetSubscriptionRelState(
        subscription: pg_sys::Oid,
        table: pg_sys::Oid,
        lsn: *mut pg_sys::XLogRecPtr,
    ) -> c_char;
    pub fn Async_Notify(channel: *const c_char, payload: *const c_char);
    pub fn hash_bytes_extended(bytes: *const u8, length: c_int, seed: u64) -> u64;
    pub fn get_timeout_active(timeout: c_int) -> bool;
    pub fn RegisterTimeout(timeout: c_int, handler: unsafe extern "C-unwind" fn()) -> c_int;
    pub fn enable_timeout_after(timeout: c_int, milliseconds: c_int);
    pub fn disable_timeout(timeout: c_int, keep_indicator: bool);
    pub fn get_timeout_finish_time(timeout: c_int) -> pg_sys::TimestampTz;
}

unsafe extern "C" {
    pub static max_prepared_xacts: c_int;
}

#[cfg(feature = "pg14")]
unsafe extern "C" {
    pub static autovacuum_max_workers: c_int;
}

// The bindings have these functions behind a guard, which costs more than a function that raises nothing. Or they have
// them as a Rust function, which cannot be a signal handler.
unsafe extern "C-unwind" {
    pub fn GetCurrentTimestamp() -> pg_sys::TimestampTz;
    pub fn GetCurrentTransactionStopTimestamp() -> pg_sys::TimestampTz;
    pub fn GetCurrentSubTransactionId() -> pg_sys::SubTransactionId;
    pub fn GetTopTransactionIdIfAny() -> pg_sys::TransactionId;
    pub fn RecoveryInProgress() -> bool;
    pub fn GetUserId() -> pg_sys::Oid;
    pub fn GetUserIdAndSecContext(user: *mut pg_sys::Oid, context: *mut c_int);
    pub fn SetUserIdAndSecContext(user: pg_sys::Oid, context: c_int);
    pub fn NewGUCNestLevel() -> c_int;
    pub fn AtEOXact_GUC(is_commit: bool, level: c_int);
    pub fn set_config_option(
        name: *const c_char,
        value: *const c_char,
        context: pg_sys::GucContext::Type,
        source: pg_sys::GucSource::Type,
        action: pg_sys::GucAction::Type,
        change: bool,
        level: c_int,
        is_reload: bool,
    ) -> c_int;
    pub fn LWLockAcquire(lock: *mut pg_sys::LWLock, mode: pg_sys::LWLockMode::Type) -> bool;
    pub fn LWLockRelease(lock: *mut pg_sys::LWLock);
    pub fn die(signal: c_int);
    pub fn StatementCancelHandler(signal: c_int);
    pub fn SignalHandlerForConfigReload(signal: c_int);
    pub fn standard_ProcessUtility(
        planned: *mut pg_sys::PlannedStmt,
        query: *const c_char,
        read_only_tree: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        params: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        receiver: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
}
