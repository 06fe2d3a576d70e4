//! The session and its server: number, database, settings, encoding, timeline, NOTIFY, and the cost of a query.
//!
//! Responsible for small, safe functions over single calls of Postgres. Not responsible for the process (`process`),
//! the open transaction (`transaction`), nor the user (`role`).
//!
//! Invariant: nothing here keeps state of its own. A function that can raise a Postgres error says so.

use std::ffi::{CStr, c_int};

use pgrx::{PgSqlErrorCode, pg_sys};

use crate::error::Result;
use crate::pg::{datum, raw, syscache, transaction};

/// Returns Postgres's hash of a text. It is the same on all servers of one byte order. Raises nothing.
pub fn hash(text: &str) -> i64 {
    // SAFETY: reads `text.len()` bytes, and raises nothing.
    unsafe { raw::hash_bytes_extended(text.as_ptr(), text.len() as i32, 0) as i64 }
}

/// Returns this session's number. It counts from 0 and is below `shmem::layout::max_sessions`.
pub fn session() -> u32 {
    // SAFETY: a plain global of this backend, set before any code of the extension can run in it.
    #[cfg(not(feature = "from17"))]
    let number = unsafe { pg_sys::MyBackendId } - 1;
    // SAFETY: as above.
    #[cfg(feature = "from17")]
    let number = unsafe { pg_sys::MyProcNumber };
    u32::try_from(number).unwrap_or(0)
}

/// True if the client has not said goodbye: the connection broke, or the server ends the session. It is known when the
/// process exits.
pub fn has_broken() -> bool {
    use pg_sys::SessionEndType::{DISCONNECT_CLIENT_EOF, DISCONNECT_FATAL, DISCONNECT_KILLED};
    // SAFETY: a plain global of this backend.
    let cause = unsafe { pg_sys::pgStatSessionEndCause };
    matches!(cause, DISCONNECT_CLIENT_EOF | DISCONNECT_FATAL | DISCONNECT_KILLED)
}

/// Returns this process's id.
pub fn pid() -> i32 {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::MyProcPid }
}

/// Returns the database to which this session is connected. Invalid in the launcher.
pub fn database() -> pg_sys::Oid {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::MyDatabaseId }
}

/// True if the server is in recovery, which includes standbys.
pub fn in_recovery() -> bool {
    // SAFETY: reads shared memory.
    unsafe { raw::RecoveryInProgress() }
}

/// True if the server runs only for pg_upgrade.
pub fn is_binary_upgrade() -> bool {
    // SAFETY: a plain global that the postmaster sets before anything else runs.
    unsafe { pg_sys::IsBinaryUpgrade }
}

/// True if the script of an extension is running.
pub fn is_in_extension_script() -> bool {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::creating_extension }
}

/// True if the script of this extension is running. Must run in a transaction.
pub fn is_in_our_script() -> bool {
    // SAFETY: a plain global of this backend, which is set while the script of an extension runs.
    is_in_extension_script() && syscache::is_our_extension(unsafe { pg_sys::CurrentExtensionObject })
}

/// Returns the session's `application_name`. Empty: it is not set.
pub fn application_name() -> String {
    // SAFETY: a setting's value, a C string once the server runs.
    unsafe {
        let name = pg_sys::application_name;
        if name.is_null() { String::new() } else { datum::c_text(name) }
    }
}

/// Returns the number that this server's data directory got from initdb. Copies of the directory have the same number.
pub fn system_identifier() -> i64 {
    // SAFETY: reads a number that the server has read at its start.
    unsafe { pg_sys::GetSystemIdentifier() }.cast_signed()
}

/// Returns the subscription whose changes this process applies. `None`: it is no worker of logical replication.
pub fn subscription() -> Option<pg_sys::Oid> {
    // SAFETY: a plain global of this backend.
    #[cfg(not(feature = "from19"))]
    let origin = unsafe { pg_sys::replorigin_session_origin };
    // SAFETY: as above.
    #[cfg(feature = "from19")]
    let origin = unsafe { pg_sys::replorigin_xact_state.origin };
    if origin == 0 {
        return None;
    }
    let mut name = std::ptr::null_mut();
    // SAFETY: looks the origin up, and allocates its name if it is found.
    let is_found = unsafe { pg_sys::replorigin_by_oid(origin, true, &raw mut name) };
    // SAFETY: a C string, as the call says.
    let name = if is_found { unsafe { datum::c_text(name) } } else { return None };
    // Postgres names the origin `pg_SUBSCRIPTION`, and while a table is copied `pg_SUBSCRIPTION_TABLE`.
    name.strip_prefix("pg_")?.split('_').next()?.parse::<u32>().ok().map(pg_sys::Oid::from)
}

/// True if the subscription has copied this table and streams its changes.
pub fn is_streamed(subscription: pg_sys::Oid, table: pg_sys::Oid) -> bool {
    const READY: u8 = b'r';
    let mut lsn = 0;
    // SAFETY: a look-up in the catalogs, under the guard of the caller's function. The position is valid for writing.
    unsafe { raw::GetSubscriptionRelState(subscription, table, &raw mut lsn) as u8 == READY }
}

/// True if the transaction is read only.
pub fn is_read_only() -> bool {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::XactReadOnly }
}

/// Returns the name of this database's encoding. `None`: it is UTF8.
pub fn other_encoding() -> Option<String> {
    // SAFETY: plain look-ups; the name is a static C string.
    unsafe {
        let encoding = pg_sys::GetDatabaseEncoding();
        (encoding != pg_sys::pg_enc::PG_UTF8 as c_int)
            .then(|| CStr::from_ptr(pg_sys::GetDatabaseEncodingName()).to_string_lossy().into_owned())
    }
}

/// Reads other sessions' messages about changed definitions.
pub fn accept_invalidations() {
    // SAFETY: allowed at any time in a transaction.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Sends a NOTIFY when the transaction commits. Can raise: a payload has to be shorter than 8000 bytes.
pub fn notify(channel: &CStr, payload: &CStr) {
    // SAFETY: copies both strings; an error becomes an unwinding at the guard.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| raw::Async_Notify(channel.as_ptr(), payload.as_ptr())) };
}

/// Reads the settings files again if SIGHUP has arrived. Must be called between two transactions.
pub fn reload_settings() {
    // SAFETY: a flag that a signal handler of this process sets. Called between two transactions.
    unsafe {
        if pg_sys::ConfigReloadPending != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
}

/// Sets a setting for this process. The value takes precedence over every other source. Can raise.
pub fn set_option(name: &CStr, value: &CStr) {
    // SAFETY: C strings that are copied.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}

/// Sets a setting for this session with the rights of the current user, as SET does. Can raise. Must run in a
/// transaction.
pub fn set_as_user(name: &CStr, value: &CStr) {
    // SAFETY: C strings that are copied.
    unsafe {
        let context = if pg_sys::superuser() { pg_sys::GucContext::PGC_SUSET } else { pg_sys::GucContext::PGC_USERSET };
        pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), context, pg_sys::GucSource::PGC_S_SESSION);
    }
}

/// Makes this transaction's commit return before it is durable.
pub fn commit_without_waiting() {
    // SAFETY: C strings that are copied. The end of the transaction restores the previous value.
    unsafe {
        pg_sys::set_config_option(
            c"synchronous_commit".as_ptr(),
            c"off".as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_LOCAL,
            true,
            0,
            false,
        );
    }
}

/// Runs `f`, which only reads, in a subtransaction, and hardly waits for a lock. Returns the error 55P03 if another
/// session keeps one. Emptying a segment takes a lock for some milliseconds, longer on a busy server.
pub fn without_waiting<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    with_settings(&[(c"lock_timeout", c"100ms")], || {
        transaction::in_subtransaction_passing(f, |code| code == PgSqlErrorCode::ERRCODE_QUERY_CANCELED)
    })
}

/// Runs `f` with other settings, as a function with SET clauses does. If `f` raises an error, the rollback restores
/// them. Can raise if Postgres refuses a value.
pub fn with_settings<R>(settings: &[(&CStr, &CStr)], f: impl FnOnce() -> R) -> R {
    // SAFETY: C strings that are copied. Levels are left in the reverse order of entering.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        for (name, value) in settings {
            pg_sys::set_config_option(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
        }
        let result = f();
        pg_sys::AtEOXact_GUC(true, level);
        result
    }
}

/// True if a setting of this name exists, or if an extension could define it when it is loaded.
pub fn is_setting(name: &str) -> bool {
    let Ok(c_name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: a look-up, which returns null for an unknown name.
    name.contains('.') || unsafe { !pg_sys::GetConfigOption(c_name.as_ptr(), true, false).is_null() }
}

/// Plans a query, and returns its total cost and whether JIT would compile it. Locks its tables. Can raise.
pub fn plan(query: &CStr) -> (f64, bool) {
    // SAFETY: within SPI, which frees the plan when it ends. A SELECT has one planned statement. A list without one
    // leaves the cost at 0.
    unsafe {
        pg_sys::SPI_connect();
        let plan = pg_sys::SPI_prepare(query.as_ptr(), 0, std::ptr::null_mut());
        let cached = if plan.is_null() { std::ptr::null_mut() } else { pg_sys::SPI_plan_get_cached_plan(plan) };
        let mut found = (0.0, false);
        if !cached.is_null() {
            if let Some(statement) = datum::list((*cached).stmt_list).next().map(|s| s.cast::<pg_sys::PlannedStmt>()) {
                found =
                    ((*(*statement).planTree).total_cost, (*statement).jitFlags & pg_sys::PGJIT_PERFORM as i32 != 0);
            }
            // The plan is not kept, so no resource owner counts it.
            pg_sys::ReleaseCachedPlan(cached, std::ptr::null_mut());
        }
        pg_sys::SPI_finish();
        found
    }
}

/// True if the postmaster is loading the libraries of `shared_preload_libraries`.
pub fn is_preloading() -> bool {
    // SAFETY: a plain global that the postmaster sets while it preloads.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress }
}

/// Reserves a prefix of settings: Postgres then refuses undefined settings with this prefix.
pub fn reserve_prefix(prefix: &CStr) {
    // SAFETY: a C string. The function only reads it.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) }
}

/// Returns the timeline that this primary writes. Must not be called in recovery.
pub fn timeline() -> i32 {
    // SAFETY: reads shared memory. Not in recovery, because verbs that write refuse earlier there.
    unsafe { pg_sys::GetWALInsertionTimeLine() as i32 }
}
