//! Roles: the user, memberships, ownership; running with the rights of a table's owner.
//!
//! Responsible for asking Postgres about roles, for borrowing rights and for running a GRANT. Not responsible for what
//! users may do with queues (`catalog::permission`), nor for which privileges are granted (`catalog::grants`).
//!
//! Invariant: the user and the security context are restored on every way out.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};

use pgrx::{pg_guard, pg_sys};

use crate::error::{Error, Result};
use crate::pg::{datum, raw, syscache};

/// Returns the name of the role that began the session, or that SET SESSION AUTHORIZATION has set. Empty: the role was
/// dropped. Must run in a transaction.
pub fn session_role() -> String {
    // SAFETY: reads this backend's state.
    role_name(unsafe { pg_sys::GetSessionUserId() }).unwrap_or_default()
}

/// True if the current user owns the database, by membership or as superuser. False if the database does not exist.
/// Must run in a transaction.
pub fn owns_database(database: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::DATABASEOID;
    syscache::by_oid(cache, database, |row: &pg_sys::FormData_pg_database| row.datdba)
        // SAFETY: looks at roles.
        .is_some_and(|owner| unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), owner) })
}

/// True if the current user may create databases, also as superuser. Must run in a transaction.
pub fn can_create_databases() -> bool {
    // SAFETY: looks at roles.
    let (user, is_superuser) = unsafe { (pg_sys::GetUserId(), pg_sys::superuser()) };
    let cache = pg_sys::SysCacheIdentifier::AUTHOID;
    is_superuser || syscache::by_oid(cache, user, |row: &pg_sys::FormData_pg_authid| row.rolcreatedb).unwrap_or(false)
}

/// True if the current user owns the table, by membership or as superuser. False if the table does not exist. Must run
/// in a transaction.
pub fn owns_table(table: pg_sys::Oid) -> bool {
    owns(table, user())
}

/// True if a role owns the table, by membership or as superuser. False if the table does not exist. Must run in a
/// transaction.
pub fn owns(table: pg_sys::Oid, role: pg_sys::Oid) -> bool {
    // SAFETY: looks at roles.
    syscache::owner(table).is_some_and(|owner| unsafe { pg_sys::has_privs_of_role(role, owner) })
}

/// Returns the user whose rights count now.
pub fn user() -> pg_sys::Oid {
    // SAFETY: reads this backend's state.
    unsafe { raw::GetUserId() }
}

/// Returns the role of this name. `None`: it does not exist. Must run in a transaction.
pub fn role(name: &str) -> Option<pg_sys::Oid> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: a look-up in the catalog, which returns an invalid oid for an unknown name.
    let oid = unsafe { pg_sys::get_role_oid(name.as_ptr(), true) };
    (oid != pg_sys::Oid::INVALID).then_some(oid)
}

/// Returns the name of a role. `None`: it was dropped. Must run in a transaction.
pub fn role_name(role: pg_sys::Oid) -> Option<String> {
    // SAFETY: a look-up in the catalog; null when there is none.
    unsafe {
        let name = pg_sys::GetUserNameFromId(role, true);
        (!name.is_null()).then(|| datum::c_text(name))
    }
}

/// True if a user has the rights of the role of this name. False if the role does not exist. Must run in a transaction.
pub fn has_rights_of(user: pg_sys::Oid, name: &str) -> bool {
    // SAFETY: looks at roles.
    role(name).is_some_and(|role| unsafe { pg_sys::has_privs_of_role(user, role) })
}

/// True if the current user has the rights of a role, by membership or as superuser. Must run in a transaction.
pub fn user_has_rights_of(role: pg_sys::Oid) -> bool {
    // SAFETY: looks at roles.
    unsafe { pg_sys::has_privs_of_role(user(), role) }
}

/// Returns the name of the role that a statement names. `None`: the role does not exist, or the current user does not
/// have its rights. Must run in a transaction.
///
/// # Safety
/// `role` is a node of the parser.
pub unsafe fn own_role(role: *const pg_sys::RoleSpec) -> Option<String> {
    // SAFETY: the caller's promise; look-ups in the catalogs.
    unsafe {
        let oid = pg_sys::get_rolespec_oid(role, true);
        (oid != pg_sys::Oid::INVALID && pg_sys::has_privs_of_role(user(), oid)).then(|| role_name(oid)).flatten()
    }
}

/// True if a role is a superuser. Must run in a transaction.
pub fn is_superuser(role: pg_sys::Oid) -> bool {
    // SAFETY: looks at roles.
    unsafe { pg_sys::superuser_arg(role) }
}

/// True if a background process can connect as a role. In 17 and later every role is allowed.
pub fn can_start_sessions(role: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::AUTHOID;
    cfg!(feature = "from17")
        || syscache::by_oid(cache, role, |row: &pg_sys::FormData_pg_authid| row.rolcanlogin).unwrap_or(false)
}

/// True if a role may connect to this database. Must run in a transaction.
pub fn can_connect(role: pg_sys::Oid) -> bool {
    // SAFETY: reads the catalogs; the database is this session's.
    unsafe {
        let database = pg_sys::MyDatabaseId;
        #[cfg(not(feature = "from16"))]
        let answer = pg_sys::pg_database_aclcheck(database, role, pg_sys::ACL_CONNECT);
        #[cfg(feature = "from16")]
        let answer = pg_sys::object_aclcheck(pg_sys::DatabaseRelationId, database, role, pg_sys::ACL_CONNECT.into());
        answer == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// True if the current user may execute a function. Must run in a transaction.
pub fn may_execute(function: pg_sys::Oid) -> bool {
    // SAFETY: reads the catalogs.
    unsafe {
        #[cfg(not(feature = "from16"))]
        let answer = pg_sys::pg_proc_aclcheck(function, user(), pg_sys::ACL_EXECUTE);
        #[cfg(feature = "from16")]
        let answer = pg_sys::object_aclcheck(pg_sys::ProcedureRelationId, function, user(), pg_sys::ACL_EXECUTE.into());
        answer == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// True if the current user may SET ROLE to a role. Must run in a transaction.
pub fn may_become(role: pg_sys::Oid) -> bool {
    can_become(user(), role)
}

/// True if a role may SET ROLE to another one, or is it. Must run in a transaction.
pub fn can_become(from: pg_sys::Oid, to: pg_sys::Oid) -> bool {
    // SAFETY: looks at roles.
    #[cfg(not(feature = "from16"))]
    let may = unsafe { pg_sys::is_member_of_role(from, to) };
    // SAFETY: as above.
    #[cfg(feature = "from16")]
    let may = unsafe { pg_sys::member_can_set_role(from, to) };
    may
}

thread_local! {
    /// The function that is called when roles change.
    static ON_CHANGE: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Called by Postgres when roles or their memberships change.
#[pg_guard]
unsafe extern "C-unwind" fn on_roles(_arg: pg_sys::Datum, _cache: c_int, _hash: u32) {
    if let Some(f) = ON_CHANGE.get() {
        f();
    }
}

/// Registers `f` to be called whenever this process gets a message that roles or their memberships have changed. `f`
/// must not fail. Call this once per process.
pub fn on_role_changes(f: fn()) {
    ON_CHANGE.set(Some(f));
    use pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID};
    for cache in [AUTHMEMROLEMEM, AUTHOID] {
        // SAFETY: a function of this library, which is never unloaded.
        unsafe { pg_sys::CacheRegisterSyscacheCallback(cache as c_int, Some(on_roles), pg_sys::Datum::from(0)) };
    }
}

/// The borrowed rights of another user, as VACUUM and CREATE INDEX borrow those of a table's owner. Code of that user
/// (triggers, functions of indexes) gains nothing from the role that runs it. It cannot leave anything behind that
/// later runs with the session's own rights, such as a deferred trigger. Neither side changes the other's settings.
///
/// The loan ends with `give_back`, or with the transaction or subtransaction that an error ends. The value has nothing
/// to drop, so it may exist within a guard.
pub struct Borrowed {
    user: pg_sys::Oid,
    context: c_int,
    settings: c_int,
}

impl Borrowed {
    /// Makes this user's rights count.
    ///
    /// # Safety
    /// The call is made under a guard and in a transaction. The role exists.
    pub unsafe fn from(owner: pg_sys::Oid) -> Self {
        let mut before = Self { user: pg_sys::Oid::INVALID, context: 0, settings: 0 };
        // SAFETY: both are valid for writing. The setting is Postgres's, and takes this value.
        unsafe {
            raw::GetUserIdAndSecContext(&raw mut before.user, &raw mut before.context);
            let restricted = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
            raw::SetUserIdAndSecContext(owner, before.context | restricted as c_int);
            before.settings = raw::NewGUCNestLevel();
            // The search_path of the worker stays unchanged. It is the administrator's choice, for event triggers that
            // see tables created and dropped.
            if !is_our_process() {
                raw::set_config_option(
                    c"search_path".as_ptr(),
                    c"pg_catalog, pg_temp".as_ptr(),
                    pg_sys::GucContext::PGC_USERSET,
                    pg_sys::GucSource::PGC_S_SESSION,
                    pg_sys::GucAction::GUC_ACTION_SAVE,
                    true,
                    0,
                    false,
                );
            }
        }
        before
    }

    /// Restores the previous user, security context and settings.
    ///
    /// # Safety
    /// As for `from`, and in the same subtransaction.
    pub unsafe fn give_back(self) {
        // SAFETY: these are the values that `from` found.
        unsafe {
            raw::AtEOXact_GUC(false, self.settings);
            raw::SetUserIdAndSecContext(self.user, self.context);
        }
    }
}

/// True if this is a worker of the extension, and not a process that runs commands of users.
fn is_our_process() -> bool {
    let is_worker = |entry: &pg_sys::BackgroundWorker| {
        // SAFETY: the names end in a zero byte.
        let of = |name: &[c_char]| unsafe { CStr::from_ptr(name.as_ptr()) };
        of(&entry.bgw_library_name) == c"pg_queue" && of(&entry.bgw_function_name) == c"pg_queue_worker_main"
    };
    // SAFETY: null, or the entry by which this process was started.
    unsafe { pg_sys::MyBgworkerEntry.as_ref() }.is_some_and(is_worker)
}

/// Runs `f` with the rights of a table's owner, also in a superuser's session. So what the owner has added to the
/// tables, such as triggers, runs with the owner's rights. If the table was dropped, or the user is its owner, `f` runs
/// with the current rights.
pub fn as_owner<R>(table: pg_sys::Oid, f: impl FnOnce() -> R) -> R {
    match syscache::owner(table) {
        // The role exists, because it owns something.
        Some(owner) if owner != user() => as_role(owner, f),
        _ => f(),
    }
}

/// Runs `f` with the rights of a role that exists, in a restricted operation (see `Borrowed`).
pub fn as_role<R>(role: pg_sys::Oid, f: impl FnOnce() -> R) -> R {
    // SAFETY: in a transaction. The role exists, as the caller says. The guards hold nothing to drop.
    let borrowed = unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| Borrowed::from(role)) };
    let result = f();
    // SAFETY: as above. `f` has ended everything that it began.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| borrowed.give_back()) };
    result
}

/// Runs a GRANT or REVOKE. If `is_part_of_extension`, the privileges count as part of the extension, and pg_dump leaves
/// them out. No event trigger sees the statement. Can raise.
pub fn grant(statement: &str, is_part_of_extension: bool) -> Result<()> {
    struct Before(bool, pg_sys::Oid);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: plain globals of this backend, as they were.
            unsafe { (pg_sys::creating_extension, pg_sys::CurrentExtensionObject) = (self.0, self.1) };
        }
    }
    let statement =
        std::ffi::CString::new(statement).map_err(|_| Error::internal("the name of a role holds a zero byte"))?;
    // SAFETY: the parser returns a list with one statement, of the type that was written. The globals say whether a
    // script of the extension runs. They keep these values only during this call. In a transaction that may write.
    unsafe {
        let parsed = pg_sys::raw_parser(statement.as_ptr(), pg_sys::RawParseMode::RAW_PARSE_DEFAULT);
        let parsed = datum::list(parsed).next().map(|cell| (*cell.cast::<pg_sys::RawStmt>()).stmt);
        let Some(parsed) = parsed.filter(|node| (**node).type_ == pg_sys::NodeTag::T_GrantStmt) else {
            return Err(Error::internal("this is no GRANT"));
        };
        let extension = pg_sys::get_extension_oid(c"pg_queue".as_ptr(), false);
        let _before = Before(pg_sys::creating_extension, pg_sys::CurrentExtensionObject);
        pg_sys::creating_extension = is_part_of_extension;
        pg_sys::CurrentExtensionObject = if is_part_of_extension { extension } else { pg_sys::Oid::INVALID };
        pg_sys::ExecuteGrantStmt(parsed.cast());
        pg_sys::CommandCounterIncrement();
    }
    Ok(())
}

/// Returns a name in double quotes, as an identifier in SQL.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
