//! Hooks into Postgres's own commands: those that need a database without connections must not meet
//! our worker there, and some others tell us something that we could not know otherwise.
//!
//! Nothing is done after a command: what it entails is noted before it, and done when its transaction
//! ends (`worker::pending`).
//!
//! Invariant: a command is forwarded from a frame that holds nothing to be dropped and through no
//! guard. So an error of the command passes as it is, with an SQLSTATE that pgrx does not know, its
//! context and its position, at no cost; and so do all other commands.

use std::ffi::{CStr, c_char, c_int, c_void};

use pgrx::pg_guard;
use pgrx::pg_sys;
use pgrx::pg_sys::{NodeTag, Oid};

use crate::api::permissions;
use crate::worker::{pending, table};
use crate::{dormant, instance, sys};

/// How long, in microseconds, a command waits for the worker to leave. Postgres waits some seconds
/// more, and then refuses the command with the reason.
const PATIENCE: i64 = 2_000_000;

static mut PREVIOUS_UTILITY: pg_sys::ProcessUtility_hook_type = None;
static mut PREVIOUS_ACCESS: pg_sys::object_access_hook_type = None;

/// Installs the hooks; called once, while preloading.
pub fn install() {
    // SAFETY: the postmaster, single-threaded, while it loads libraries: hooks are chained as Postgres
    // documents.
    unsafe {
        PREVIOUS_UTILITY = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(on_utility);
        PREVIOUS_ACCESS = pg_sys::object_access_hook;
        pg_sys::object_access_hook = Some(on_access);
    }
}

/// Every command but SELECT, INSERT, UPDATE, DELETE and MERGE comes by here.
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
    // SAFETY: Postgres hands over a planned utility statement; each node begins with its tag, which says
    // its type. `before` raises errors as C code does, by the guard around it; here is nothing to drop.
    // The previous hook, or else Postgres's own function, gets just what we got.
    unsafe {
        let statement = (*planned).utilityStmt;
        if concerns_us(statement) {
            before(statement, context == pg_sys::ProcessUtilityContext::PROCESS_UTILITY_TOPLEVEL);
        }
        let next = PREVIOUS_UTILITY.unwrap_or(sys::raw::standard_ProcessUtility);
        next(planned, query, read_only_tree, context, params, environment, receiver, completion);
    }
}

/// Whether `before` has anything to do: quick, since it is asked for every command.
///
/// # Safety
/// `statement` is a node.
unsafe fn concerns_us(statement: *mut pg_sys::Node) -> bool {
    // SAFETY: the caller's promise; the type is what the tag says.
    unsafe {
        match (*statement).type_ {
            NodeTag::T_TransactionStmt => matches!(
                (*statement.cast::<pg_sys::TransactionStmt>()).kind,
                pg_sys::TransactionStmtKind::TRANS_STMT_COMMIT_PREPARED
                    | pg_sys::TransactionStmtKind::TRANS_STMT_ROLLBACK_PREPARED
            ),
            NodeTag::T_RenameStmt => {
                (*statement.cast::<pg_sys::RenameStmt>()).renameType == pg_sys::ObjectType::OBJECT_DATABASE
            }
            NodeTag::T_AlterTableStmt => switches_triggers(*statement.cast::<pg_sys::AlterTableStmt>()),
            NodeTag::T_DropOwnedStmt
            | NodeTag::T_CreatedbStmt
            | NodeTag::T_DropdbStmt
            | NodeTag::T_AlterDatabaseStmt
            | NodeTag::T_AlterDatabaseSetStmt => true,
            _ => false,
        }
    }
}

/// Whether an ALTER TABLE switches triggers on or off, as pg_restore --disable-triggers does.
///
/// # Safety
/// The statement is one of the parser.
unsafe fn switches_triggers(statement: pg_sys::AlterTableStmt) -> bool {
    use pg_sys::AlterTableType::{AT_DisableTrigUser, AT_EnableTrig};
    // SAFETY: the caller's promise.
    unsafe {
        sys::list(statement.cmds).any(|cell| {
            let command: *mut pg_sys::AlterTableCmd = cell.cast();
            (AT_EnableTrig..=AT_DisableTrigUser).contains(&(*command).subtype)
        })
    }
}

/// Prepares for a command. Errors: a cancel while it waits for a worker; what catalog look-ups raise.
///
/// # Safety
/// `concerns_us(statement)`.
#[pg_guard]
unsafe extern "C-unwind" fn before(statement: *mut pg_sys::Node, is_top_level: bool) {
    // SAFETY: the tag says the type; names are C strings of the parser, null where there is none.
    unsafe {
        match (*statement).type_ {
            NodeTag::T_TransactionStmt => pending::prepared(),
            NodeTag::T_CreatedbStmt => {
                pending::list();
                let create = statement.cast::<pg_sys::CreatedbStmt>();
                if can_start(is_top_level) && sys::can_create_databases() {
                    let template = option(*create, c"template").unwrap_or(c"template1".as_ptr());
                    vacate(template, Whose::AnyOfMine);
                }
            }
            NodeTag::T_DropdbStmt => {
                pending::list();
                if can_start(is_top_level) {
                    vacate((*statement.cast::<pg_sys::DropdbStmt>()).dbname, Whose::AnotherOfMine);
                }
            }
            NodeTag::T_RenameStmt if sys::can_create_databases() => {
                vacate((*statement.cast::<pg_sys::RenameStmt>()).subname, Whose::AnotherOfMine);
            }
            NodeTag::T_AlterTableStmt => {
                if let Some(table) = sys::table_oid((*statement.cast::<pg_sys::AlterTableStmt>()).relation)
                    && let Err(error) = dormant::triggers_switched(table)
                {
                    error.report();
                }
            }
            NodeTag::T_DropOwnedStmt => {
                let names = sys::list((*statement.cast::<pg_sys::DropOwnedStmt>()).roles)
                    .filter_map(|cell| sys::own_role(cell.cast()))
                    .collect::<Vec<_>>();
                if let Err(error) = permissions::owned_dropped(&names) {
                    error.report();
                }
            }
            NodeTag::T_AlterDatabaseStmt => {
                // Connections may be allowed now, or it may be a template no more, or the reverse.
                pending::list();
                let alter = statement.cast::<pg_sys::AlterDatabaseStmt>();
                if has_option((*alter).options, c"tablespace") && can_start(is_top_level) {
                    vacate((*alter).dbname, Whose::AnotherOfMine);
                }
            }
            NodeTag::T_AlterDatabaseSetStmt => {
                let set = statement.cast::<pg_sys::AlterDatabaseSetStmt>();
                if let Some(database) = sys::database_oid((*set).dbname) {
                    pending::renew(database);
                }
            }
            _ => {}
        }
    }
}

/// Whether a command that refuses to run in a transaction block will run here.
fn can_start(is_top_level: bool) -> bool {
    // SAFETY: reads this session's transaction state.
    !unsafe { pg_sys::IsInTransactionBlock(is_top_level) }
}

/// Which databases a command takes from whom it obeys.
#[derive(PartialEq, Eq)]
enum Whose {
    /// Any that the user owns.
    AnyOfMine,
    /// Not the one that the session is connected to.
    AnotherOfMine,
}

/// Sends the worker out of the database until this transaction ends, and waits until it has left. Does
/// nothing where the command itself would not: nobody shall stop a worker by a command that fails for
/// want of a privilege.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn vacate(name: *const c_char, whose: Whose) {
    if name.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let Some(database) = (unsafe { sys::database_oid(name) }) else {
        return;
    };
    let is_ours = database == sys::database();
    if (is_ours && whose == Whose::AnotherOfMine) || !sys::owns_database(database) {
        return;
    }
    pending::block(database);
    sys::wait_on(crate::shmem::worker_left(), PATIENCE, || !table::has_worker(database));
}

/// The text of an option of CREATE DATABASE; `None`: it is not there, or has no plain text.
///
/// # Safety
/// The statement is one of the parser.
unsafe fn option(statement: pg_sys::CreatedbStmt, name: &CStr) -> Option<*const c_char> {
    // SAFETY: the caller's promise; defGetString turns any value into a text, or says that there is none.
    unsafe {
        let option = sys::list(statement.options).map(|cell| cell.cast::<pg_sys::DefElem>()).find(|option| {
            let option: *mut pg_sys::DefElem = *option;
            CStr::from_ptr((*option).defname) == name
        })?;
        // DEFAULT comes without a value, and means what leaving the option out means.
        (!(*option).arg.is_null()).then(|| pg_sys::defGetString(option).cast_const())
    }
}

/// Whether the option is in the list.
///
/// # Safety
/// A list of DefElem.
unsafe fn has_option(options: *mut pg_sys::List, name: &CStr) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        sys::list(options).any(|cell| {
            let option: *mut pg_sys::DefElem = cell.cast();
            CStr::from_ptr((*option).defname) == name
        })
    }
}

/// Whatever is created, altered or dropped comes by here.
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
        if access == pg_sys::ObjectAccessType::OAT_DROP && class == pg_sys::ExtensionRelationId {
            on_extension_drop(object);
        }
    }
}

/// An extension is being dropped; its row is still there.
#[pg_guard]
extern "C-unwind" fn on_extension_drop(extension: Oid) {
    if sys::is_our_extension(extension) {
        instance::extension_dropped(extension);
        pending::look();
    }
}
