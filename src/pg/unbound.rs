//! Declares what the bindings lack of Postgres.
//!
//! Responsible for the declarations. Not responsible for safety, which each caller in `pg` explains.
//!
//! Invariant: names, types, layouts and values are those of Postgres's headers, with the same names. A test of `xtask`
//! makes C of this file, and a compiler compares that with the headers of a major.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, reason = "names of Postgres")]

use std::ffi::{c_char, c_int};

use pgrx::pg_sys::{SockAddr, TimestampTz};

// elog.h
unsafe extern "C-unwind" {
    pub fn errstart(level: c_int, domain: *const c_char) -> bool;
    pub fn errcode(code: c_int) -> c_int;
    pub fn errmsg(format: *const c_char, ...) -> c_int;
    pub fn errdetail(format: *const c_char, ...) -> c_int;
    pub fn errhint(format: *const c_char, ...) -> c_int;
    pub fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
}

// timeout.h
pub type TimeoutId = c_int;
pub type timeout_handler_proc = unsafe extern "C-unwind" fn();
pub const STATEMENT_TIMEOUT: TimeoutId = 3;
/// Postgres chooses a free timer with this number or a larger one.
#[cfg(not(feature = "from17"))]
pub const USER_TIMEOUT: TimeoutId = 12;
#[cfg(feature = "from17")]
pub const USER_TIMEOUT: TimeoutId = 13;
unsafe extern "C-unwind" {
    pub fn RegisterTimeout(timeout: TimeoutId, handler: timeout_handler_proc) -> TimeoutId;
    pub fn enable_timeout_after(timeout: TimeoutId, milliseconds: c_int);
    pub fn disable_timeout(timeout: TimeoutId, keep_indicator: bool);
    pub fn get_timeout_active(timeout: TimeoutId) -> bool;
    pub fn get_timeout_finish_time(timeout: TimeoutId) -> TimestampTz;
}

// libpq.h, libpq-be.h and pqcomm.h
pub type ProtocolVersion = u32;
#[repr(C)]
pub struct PQcommMethods {
    pub comm_reset: unsafe extern "C-unwind" fn(),
    pub flush: unsafe extern "C-unwind" fn() -> c_int,
    pub flush_if_writable: unsafe extern "C-unwind" fn() -> c_int,
    pub is_send_pending: unsafe extern "C-unwind" fn() -> bool,
    pub putmessage: unsafe extern "C-unwind" fn(kind: c_char, text: *const c_char, length: usize) -> c_int,
    pub putmessage_noblock: unsafe extern "C-unwind" fn(kind: c_char, text: *const c_char, length: usize),
}
/// The beginning of it. The remaining fields are NULL or false without a client: no TLS, no GSSAPI and no line of
/// pg_hba.conf.
#[repr(C)]
pub struct Port {
    pub sock: c_int,
    pub noblock: bool,
    pub proto: ProtocolVersion,
    pub laddr: SockAddr,
    pub raddr: SockAddr,
    pub remote_host: *mut c_char,
    pub remote_hostname: *mut c_char,
    pub remote_hostname_resolv: c_int,
    pub remote_hostname_errcode: c_int,
    pub remote_port: *mut c_char,
    #[cfg(not(feature = "from17"))]
    pub canAcceptConnections: c_int,
    #[cfg(feature = "from18")]
    pub local_host: [c_char; 64],
    pub database_name: *mut c_char,
    pub user_name: *mut c_char,
}
unsafe extern "C" {
    pub static mut PqCommMethods: *const PQcommMethods;
    pub static mut FrontendProtocol: ProtocolVersion;
    pub static mut FeBeWaitSet: *mut pgrx::pg_sys::WaitEventSet;
}
/// The place of the client's socket in `FeBeWaitSet`.
pub const FE_BE_WAIT_SET_SOCKET_POS: c_int = 0;
unsafe extern "C-unwind" {
    pub fn pq_check_connection() -> bool;
}

// miscadmin.h (pidfile.h) and lwlocknames.h
/// The line of the status in postmaster.pid, counted from 1.
pub const LOCK_FILE_LINE_PM_STATUS: usize = 8;
/// The place of AddinShmemInitLock in `MainLWLockArray`.
pub const ADDIN_SHMEM_INIT_LOCK: usize = 21;
