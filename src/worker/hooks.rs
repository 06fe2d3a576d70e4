//! Hooks into Postgres's own commands. Some commands need a database without connections and must not meet the worker
//! there. Other commands change what the extension could not learn otherwise.
//!
//! Responsible for recognising these commands. The effects of a command are noted after it and come when its
//! transaction ends: see `worker::pending`. Not responsible for states of databases (`worker::table`).
//!
//! Invariant: a command that fails has no effect. Only what must come before a command is done before it, and only if
//! Postgres will allow the command to this user.
//!
//! Invariant: a command is forwarded through no guard, from a frame that holds nothing to be dropped. So an error of
//! the command keeps its context, its position and its SQLSTATE, even if pgrx does not know that. Forwarding costs
//! nothing.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::RangeInclusive;

use pgrx::pg_guard;
use pgrx::pg_sys::{self, NodeTag, Oid};

use crate::catalog::{grants, instance, triggers, unlogged};
use crate::error::{self, Error};
use crate::executor::table as executors;
use crate::pg::{datum, process, raw, role, session, syscache};
use crate::restore;
use crate::shmem::launcher::with_launcher;
use crate::shmem::prepared;
use crate::transaction;
use crate::worker::{pending, table};

/// How long a command waits for the worker to leave, in microseconds. After that Postgres waits some seconds more, and
/// refuses the command with the reason.
const LEAVE_WITHIN_US: i64 = 2_000_000;

static mut PREVIOUS_UTILITY: pg_sys::ProcessUtility_hook_type = None;
static mut PREVIOUS_ACCESS: pg_sys::object_access_hook_type = None;

/// Installs the hooks. Called once, while preloading.
pub fn install() {
    // SAFETY: the postmaster, single-threaded, while it loads libraries: hooks are chained as Postgres documents.
    unsafe {
        PREVIOUS_UTILITY = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(on_utility);
        PREVIOUS_ACCESS = pg_sys::object_access_hook;
        pg_sys::object_access_hook = Some(on_access);
    }
}

/// Handles every command but SELECT, INSERT, UPDATE, DELETE and MERGE.
#[allow(clippy::too_many_arguments, reason = "the signature is Postgres's")]
unsafe extern "C-unwind" fn on_utility(
    planned: *mut pg_sys::PlannedStmt,
    query: *const c_char,
    read_only_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    receiver: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: Postgres passes a planned utility statement; each node begins with its tag, which says its type. `before`
    // and `after` raise errors as C code does, by the guards around them. This frame has nothing to drop. The previous
    // hook, or else Postgres's own function, gets exactly the arguments of this one. The statement lives longer than
    // the command.
    unsafe {
        let statement = (*planned).utilityStmt;
        let concerns_us = concerns_us(statement);
        let mut prepared = 0;
        if concerns_us {
            prepared = before(statement, context == pg_sys::ProcessUtilityContext::PROCESS_UTILITY_TOPLEVEL);
        }
        let next = PREVIOUS_UTILITY.unwrap_or(raw::standard_ProcessUtility);
        next(planned, query, read_only_tree, context, params, environment, receiver, completion);
        if concerns_us {
            after(statement, prepared);
        }
    }
}

/// Returns true if `before` or `after` must do something. It is quick, because it is called for every command.
///
/// # Safety
/// `statement` is a node.
unsafe fn concerns_us(statement: *mut pg_sys::Node) -> bool {
    // SAFETY: the caller's promise; the type is what the tag says.
    unsafe {
        match (*statement).type_ {
            NodeTag::T_TransactionStmt => matches!(
                (*statement.cast::<pg_sys::TransactionStmt>()).kind,
                pg_sys::TransactionStmtKind::TRANS_STMT_PREPARE
                    | pg_sys::TransactionStmtKind::TRANS_STMT_COMMIT_PREPARED
                    | pg_sys::TransactionStmtKind::TRANS_STMT_ROLLBACK_PREPARED
            ),
            NodeTag::T_RuleStmt => true,
            NodeTag::T_RenameStmt => matches!(
                (*statement.cast::<pg_sys::RenameStmt>()).renameType,
                pg_sys::ObjectType::OBJECT_DATABASE
                    | pg_sys::ObjectType::OBJECT_SCHEMA
                    | pg_sys::ObjectType::OBJECT_ROLE
            ),
            NodeTag::T_AlterTableStmt => {
                let alter = *statement.cast::<pg_sys::AlterTableStmt>();
                alters(alter, SWITCHES_TRIGGERS) || alters(alter, SETS_UNLOGGED)
            }
            NodeTag::T_DropOwnedStmt
            | NodeTag::T_GrantRoleStmt
            | NodeTag::T_AlterRoleStmt
            | NodeTag::T_DropRoleStmt
            | NodeTag::T_CreatedbStmt
            | NodeTag::T_DropdbStmt
            | NodeTag::T_AlterDatabaseStmt
            | NodeTag::T_AlterDatabaseSetStmt => true,
            _ => false,
        }
    }
}

/// The commands of ALTER TABLE that switch triggers on or off, as pg_restore --disable-triggers does.
const SWITCHES_TRIGGERS: RangeInclusive<u32> =
    pg_sys::AlterTableType::AT_EnableTrig..=pg_sys::AlterTableType::AT_DisableTrigUser;
/// The command of ALTER TABLE after which a crash empties the table.
const SETS_UNLOGGED: RangeInclusive<u32> =
    pg_sys::AlterTableType::AT_SetUnLogged..=pg_sys::AlterTableType::AT_SetUnLogged;

/// Returns true if an ALTER TABLE has one of these commands.
///
/// # Safety
/// The statement comes from the parser.
unsafe fn alters(statement: pg_sys::AlterTableStmt, commands: RangeInclusive<u32>) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        datum::list(statement.cmds).any(|cell| {
            let command: *mut pg_sys::AlterTableCmd = cell.cast();
            commands.contains(&(*command).subtype)
        })
    }
}

/// Prepares for a command. Returns the number of the prepared transaction that the command ends, as `shmem::prepared`
/// knows it, or 0.
///
/// Errors: a cancel while it waits for a worker; 0A000 for a command that the extension cannot allow; those of catalog
/// look-ups. All are raised.
///
/// # Safety
/// `concerns_us(statement)`.
#[pg_guard]
unsafe extern "C-unwind" fn before(statement: *mut pg_sys::Node, is_top_level: bool) -> u64 {
    // SAFETY: the tag says the type; names are C strings of the parser, null where there is none.
    unsafe {
        match (*statement).type_ {
            NodeTag::T_TransactionStmt => {
                return gid(*statement.cast::<pg_sys::TransactionStmt>())
                    .map_or(0, |gid| with_launcher(|launcher| launcher.prepared.find(&gid)));
            }
            NodeTag::T_CreatedbStmt => {
                let create = statement.cast::<pg_sys::CreatedbStmt>();
                if can_start(is_top_level) && role::can_create_databases() {
                    let template = option(*create, c"template").unwrap_or(c"template1".as_ptr());
                    vacate(template, Whose::AnyOfMine);
                }
            }
            NodeTag::T_DropdbStmt if can_start(is_top_level) => {
                vacate((*statement.cast::<pg_sys::DropdbStmt>()).dbname, Whose::AnotherOfMine);
            }
            NodeTag::T_RenameStmt => {
                let rename = statement.cast::<pg_sys::RenameStmt>();
                match (*rename).renameType {
                    pg_sys::ObjectType::OBJECT_SCHEMA => check_schema_name((*rename).subname),
                    pg_sys::ObjectType::OBJECT_DATABASE if role::can_create_databases() => {
                        vacate((*rename).subname, Whose::AnotherOfMine);
                    }
                    _ => {}
                }
            }
            NodeTag::T_AlterTableStmt => {
                let alter = *statement.cast::<pg_sys::AlterTableStmt>();
                if let Some(table) = syscache::table_oid(alter.relation) {
                    let unlogged = if alters(alter, SETS_UNLOGGED) { unlogged::refuse(table) } else { Ok(()) };
                    let switched = || match alters(alter, SWITCHES_TRIGGERS) {
                        true => restore::triggers_switched(table),
                        false => Ok(()),
                    };
                    if let Err(error) = unlogged.and_then(|()| switched()) {
                        error.report();
                    }
                }
            }
            NodeTag::T_RuleStmt => {
                if let Some(table) = syscache::table_oid((*statement.cast::<pg_sys::RuleStmt>()).relation)
                    && let Err(error) = triggers::refuse_at(table, false)
                {
                    error.report();
                }
            }
            NodeTag::T_DropOwnedStmt => {
                let names = datum::list((*statement.cast::<pg_sys::DropOwnedStmt>()).roles)
                    .filter_map(|cell| role::own_role(cell.cast()))
                    .collect::<Vec<_>>();
                if let Err(error) = grants::owned_dropped(&names) {
                    error.report();
                }
            }
            NodeTag::T_AlterDatabaseStmt => {
                let alter = statement.cast::<pg_sys::AlterDatabaseStmt>();
                if has_option((*alter).options, c"tablespace") && can_start(is_top_level) {
                    vacate((*alter).dbname, Whose::AnotherOfMine);
                }
            }
            _ => {}
        }
    }
    0
}

/// Notes the effects of a command that has succeeded. `prepared`: what `before` returned.
///
/// # Safety
/// As for `before`.
#[pg_guard]
unsafe extern "C-unwind" fn after(statement: *mut pg_sys::Node, prepared: u64) {
    // SAFETY: as in `before`.
    unsafe {
        match (*statement).type_ {
            NodeTag::T_TransactionStmt => {
                let transaction = *statement.cast::<pg_sys::TransactionStmt>();
                if transaction.kind != pg_sys::TransactionStmtKind::TRANS_STMT_PREPARE {
                    if with_launcher(|launcher| launcher.prepared.ended(prepared)) {
                        pending::prepared_ended();
                    }
                } else if let Some(gid) = gid(transaction) {
                    pending::prepares(gid);
                }
            }
            NodeTag::T_GrantRoleStmt | NodeTag::T_AlterRoleStmt | NodeTag::T_DropRoleStmt | NodeTag::T_RenameStmt => {
                transaction::rights_changed();
            }
            // ALTER DATABASE may allow or forbid connections, or make the database a template or an ordinary one.
            NodeTag::T_CreatedbStmt | NodeTag::T_DropdbStmt | NodeTag::T_AlterDatabaseStmt => pending::list_at_commit(),
            NodeTag::T_AlterDatabaseSetStmt => {
                let set = statement.cast::<pg_sys::AlterDatabaseSetStmt>();
                if let Some(database) = syscache::database_oid((*set).dbname) {
                    pending::restart_at_commit(database);
                }
            }
            _ => {}
        }
    }
}

/// Returns the name in a PREPARE TRANSACTION, COMMIT PREPARED or ROLLBACK PREPARED. `None`: no such transaction can
/// exist.
///
/// # Safety
/// The statement comes from the parser.
unsafe fn gid(statement: pg_sys::TransactionStmt) -> Option<prepared::Gid> {
    // SAFETY: the caller's promise.
    unsafe { (!statement.gid.is_null()).then(|| CStr::from_ptr(statement.gid)) }.and_then(prepared::gid)
}

/// Refuses to rename a schema of the extension: no session would find its objects any more.
///
/// Errors: 0A000, raised.
///
/// # Safety
/// `name` is a C string.
unsafe fn check_schema_name(name: *const c_char) {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let is_ours = name == b"queue" || name == b"queue_internal";
    if is_ours && syscache::our_extension().is_some() {
        Error::new(error::NOT_SUPPORTED, format!("schema \"{}\" cannot be renamed", String::from_utf8_lossy(name)))
            .detail("The functions and the background processes of extension pg_queue find their objects by that name.")
            .hint("For other names create functions in your own schema that call those of schema queue.")
            .report();
    }
}

/// Returns true if a command that refuses to run in a transaction block will run here.
fn can_start(is_top_level: bool) -> bool {
    // SAFETY: reads this session's transaction state.
    !unsafe { pg_sys::IsInTransactionBlock(is_top_level) }
}

/// The databases whose worker a command sends out.
#[derive(PartialEq, Eq)]
enum Whose {
    /// Any database that the user owns.
    AnyOfMine,
    /// Any database that the user owns, except the one that the session is connected to.
    AnotherOfMine,
}

/// Sends the worker out of the database until this transaction ends. Waits until the worker has left, at most
/// [`LEAVE_WITHIN_US`]. Does nothing if the command would fail for want of a privilege: no user may stop a worker by
/// such a command.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn vacate(name: *const c_char, whose: Whose) {
    if name.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let Some(database) = (unsafe { syscache::database_oid(name) }) else {
        return;
    };
    let is_ours = database == session::database();
    if (is_ours && whose == Whose::AnotherOfMine) || !role::owns_database(database) {
        return;
    }
    pending::block(database);
    executors::retire(database, true);
    process::wait_on(crate::shmem::latch::worker_left(), LEAVE_WITHIN_US, || {
        !table::has_worker(database) && !executors::has_any(database)
    });
}

/// Returns the text of an option of CREATE DATABASE. `None`: the option is missing, or has no plain text.
///
/// # Safety
/// The statement comes from the parser.
unsafe fn option(statement: pg_sys::CreatedbStmt, name: &CStr) -> Option<*const c_char> {
    // SAFETY: the caller's promise; defGetString turns any value into a text, or raises an error.
    unsafe {
        let option = datum::list(statement.options).map(|cell| cell.cast::<pg_sys::DefElem>()).find(|option| {
            let option: *mut pg_sys::DefElem = *option;
            CStr::from_ptr((*option).defname) == name
        })?;
        // DEFAULT has no value, and means the same as an omitted option.
        (!(*option).arg.is_null()).then(|| pg_sys::defGetString(option).cast_const())
    }
}

/// Returns true if the list has the option.
///
/// # Safety
/// The list is one of DefElem.
unsafe fn has_option(options: *mut pg_sys::List, name: &CStr) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        datum::list(options).any(|cell| {
            let option: *mut pg_sys::DefElem = cell.cast();
            CStr::from_ptr((*option).defname) == name
        })
    }
}

/// Handles every object that is created, altered or dropped.
unsafe extern "C-unwind" fn on_access(
    access: pg_sys::ObjectAccessType::Type,
    class: Oid,
    object: Oid,
    sub: c_int,
    arg: *mut c_void,
) {
    // SAFETY: as in `on_utility`.
    unsafe {
        if let Some(previous) = PREVIOUS_ACCESS {
            previous(access, class, object, sub, arg);
        }
        use pg_sys::ObjectAccessType::{OAT_DROP, OAT_POST_CREATE};
        if access == OAT_DROP && class == pg_sys::ExtensionRelationId {
            on_extension_drop(object);
        }
        if access == OAT_POST_CREATE && class == pg_sys::TriggerRelationId {
            on_new_trigger(object);
        }
    }
}

/// Refuses a new trigger on a table that cannot have any, however the trigger is created. Also refuses the triggers of
/// foreign keys and of deferrable keys.
///
/// Errors: 0A000, raised.
#[pg_guard]
extern "C-unwind" fn on_new_trigger(trigger: Oid) {
    if let Some((table, function)) = syscache::new_trigger(trigger)
        // Our own trigger is created when tables of history are restored.
        && !syscache::is_our_function(function)
        && let Err(error) = triggers::refuse_at(table, syscache::is_of_extension(function))
    {
        error.report();
    }
}

/// Notes that an extension is being dropped, if it is this one. Its row still exists at this moment.
#[pg_guard]
extern "C-unwind" fn on_extension_drop(extension: Oid) {
    if syscache::is_our_extension(extension) {
        instance::extension_dropped(extension);
        pending::look_at_commit();
    }
}
