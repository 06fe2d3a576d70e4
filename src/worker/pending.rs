//! What this session must tell the workers when its transaction ends.
//!
//! Responsible for noting it, and for doing it when the transaction ends. Not responsible for jobs: `transaction` has
//! what a transaction does to the frontier.
//!
//! Invariant: a note belongs to the subtransaction in which it was made, and a rollback of that discards it. The
//! callbacks of the transaction's end act on all notes. So a block is lifted whether the command committed, failed, or
//! its session was terminated. No worker looks for an extension or a database before its row is visible.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;

use pgrx::pg_guard;
use pgrx::pg_sys::{self, Oid, SubTransactionId};

use crate::executor::table as executors;
use crate::pg::{memory, session, transaction as pg_transaction};
use crate::shmem::keys;
use crate::shmem::launcher::with_launcher;
use crate::shmem::prepared::Gid;
use crate::transaction;
use crate::worker::table;

/// Something to do at the end of the transaction.
#[derive(Clone, Copy)]
enum Note {
    /// At commit: the extension was created or dropped here.
    Look,
    /// At commit: the list of databases has changed.
    List,
    /// At commit: the settings of this database have changed.
    Renewed(Oid),
    /// At any end: this transaction has blocked the database.
    Blocked(Oid),
}

thread_local! {
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
    /// Notes of inner subtransactions come last.
    static NOTES: RefCell<Vec<(SubTransactionId, Note)>> = const { RefCell::new(Vec::new()) };
    /// The name under which this transaction is being prepared.
    static PREPARING: Cell<Option<Gid>> = const { Cell::new(None) };
    /// True if the transaction that is being prepared has used the extension.
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
    /// True if this transaction's command has ended a prepared transaction that may have used the extension.
    static HAS_ENDED_PREPARED: Cell<bool> = const { Cell::new(false) };
}

fn register() {
    if !REGISTERED.get() {
        // SAFETY: callbacks of this library, which is never unloaded; registered once per session.
        unsafe {
            pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
            pg_sys::RegisterSubXactCallback(Some(at_subtransaction_end), std::ptr::null_mut());
        }
        REGISTERED.set(true);
    }
}

/// Notes something for the end of this transaction. Errors: only those of memory.
fn note(note: Note) {
    register();
    NOTES.with_borrow_mut(|notes| notes.push((pg_transaction::subtransaction(), note)));
}

/// Makes the worker, or else the launcher, look at commit whether this database has the extension.
pub fn look_at_commit() {
    note(Note::Look);
}

/// Makes the launcher list the databases at commit.
pub fn list_at_commit() {
    note(Note::List);
}

/// Makes the database's worker restart at commit.
pub fn restart_at_commit(database: Oid) {
    note(Note::Renewed(database));
}

/// Notes the name under which this transaction is being prepared.
pub fn prepares(gid: Gid) {
    register();
    PREPARING.set(Some(gid));
}

/// Notes that this transaction's command has ended a prepared transaction. The end of this transaction acts on that.
pub fn prepared_ended() {
    register();
    HAS_ENDED_PREPARED.set(true);
}

/// Keeps workers out of the database until this transaction ends or the subtransaction is rolled back. Tells the
/// current worker to end. Takes the table's lock.
pub fn block(database: Oid) {
    register();
    NOTES.with_borrow_mut(|notes| {
        // The memory for the note is reserved first, so that nothing can fail between the block and its note.
        memory::grow(notes, 1);
        if table::block(database) {
            notes.push((pg_transaction::subtransaction(), Note::Blocked(database)));
        }
    });
}

/// Acts on the notes. PREPARE counts as the end, too: the session that later ends the prepared transaction looks then.
#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PRE_PREPARE, XACT_EVENT_PREPARE};
    if event == XACT_EVENT_PRE_PREPARE {
        let has_notes = NOTES.with_borrow(|notes| !notes.is_empty());
        IS_OURS.set(has_notes || transaction::has_any() || keys::holds_any());
        return;
    }
    if !matches!(event, XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE) {
        return;
    }
    if let Some(gid) = PREPARING.take()
        && event == XACT_EVENT_PREPARE
    {
        with_launcher(|launcher| launcher.prepared.add(&gid, IS_OURS.get()));
    }
    let is_commit = event == XACT_EVENT_COMMIT;
    let mut must_look = false;
    let mut must_list = false;
    NOTES.with_borrow_mut(|notes| {
        for (_, note) in notes.drain(..) {
            match note {
                Note::Blocked(database) => table::unblock(database),
                Note::Renewed(database) if is_commit => {
                    table::renew(database);
                    executors::retire(database, false);
                }
                Note::Look => must_look |= is_commit,
                Note::List => must_list |= is_commit,
                Note::Renewed(_) => {}
            }
        }
    });
    if must_list {
        table::wake_launcher();
    }
    if HAS_ENDED_PREPARED.take() {
        transaction::prepared_ended();
        must_look = true;
    }
    if must_look {
        table::request_look(session::database());
    }
}

/// Discards the notes of a subtransaction that is rolled back, or gives the notes of a committed one to its parent.
#[pg_guard]
unsafe extern "C-unwind" fn at_subtransaction_end(
    event: pg_sys::SubXactEvent::Type,
    this: SubTransactionId,
    parent: SubTransactionId,
    _arg: *mut c_void,
) {
    use pg_sys::SubXactEvent::{SUBXACT_EVENT_ABORT_SUB, SUBXACT_EVENT_COMMIT_SUB};
    NOTES.with_borrow_mut(|notes| {
        let first = notes.iter().rposition(|(of, _)| *of != this).map_or(0, |at| at + 1);
        match event {
            SUBXACT_EVENT_COMMIT_SUB => notes[first..].iter_mut().for_each(|(of, _)| *of = parent),
            SUBXACT_EVENT_ABORT_SUB => {
                for (_, note) in notes.drain(first..) {
                    if let Note::Blocked(database) = note {
                        table::unblock(database);
                    }
                }
            }
            _ => {}
        }
    });
}
