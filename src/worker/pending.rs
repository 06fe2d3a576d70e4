//! What this session owes the workers when its transaction ends.
//!
//! Responsible for noting it and doing it in time. Not responsible for jobs: what a transaction does to the frontier is
//! in `transaction`.
//!
//! Invariant: everything is noted here before it takes effect and done by one transaction callback. So a block is
//! lifted whether the command committed, failed, or its session was terminated, and nothing looks for an extension or a
//! database before its row can be seen.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;

use pgrx::pg_guard;
use pgrx::pg_sys::{self, Oid};

use crate::executor::table as executors;
use crate::pg::session;
use crate::transaction;
use crate::worker::table;

thread_local! {
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
    static PENDING: RefCell<Pending> = const { RefCell::new(Pending::none()) };
}

struct Pending {
    /// Whether anything below is set.
    some: bool,
    /// To be done at commit: the extension was created or dropped here.
    look: bool,
    /// To be done at commit: the list of databases has changed.
    list: bool,
    /// To be done in any case: a prepared transaction may have ended.
    prepared: bool,
    /// To be done at commit: the settings of these databases have changed.
    renewed: Vec<Oid>,
    /// To be done in any case: these databases are blocked by this transaction.
    blocked: Vec<Oid>,
}

impl Pending {
    const fn none() -> Self {
        Self { some: false, look: false, list: false, prepared: false, renewed: Vec::new(), blocked: Vec::new() }
    }
}

/// Notes something for the end of this transaction. Errors: none but those of memory.
fn note(f: impl FnOnce(&mut Pending)) {
    if !REGISTERED.get() {
        // SAFETY: a callback of this library, which is never unloaded; registered once per session.
        unsafe { pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut()) };
        REGISTERED.set(true);
    }
    PENDING.with_borrow_mut(|pending| {
        pending.some = true;
        f(pending);
    });
}

/// Has the worker, or else the launcher, look at commit whether the extension is in this database.
pub fn look() {
    note(|pending| pending.look = true);
}

/// Has the launcher list the databases at commit.
pub fn list() {
    note(|pending| pending.list = true);
}

/// Has prepared transactions looked after at the end of this transaction, whose command ends one of them.
pub fn prepared() {
    note(|pending| pending.prepared = true);
}

/// Has the database's worker start anew at commit.
pub fn renew(database: Oid) {
    note(|pending| pending.renewed.push(database));
}

/// Keeps workers out of the database until this transaction ends, and tells the one that is there to end. Takes the
/// table's lock.
pub fn block(database: Oid) {
    note(|pending| {
        // The room for the note is made first, so that nothing can fail between the block and its note.
        pending.blocked.reserve(1);
        if table::block(database) {
            pending.blocked.push(database);
        }
    });
}

/// Does what was noted. PREPARE counts as the end, too: the session that ends the prepared transaction looks then.
#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PREPARE};
    let has_ended = matches!(event, XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE);
    if !has_ended || !PENDING.with_borrow(|pending| pending.some) {
        return;
    }
    let pending = PENDING.replace(Pending::none());
    pending.blocked.into_iter().for_each(table::unblock);
    if event == XACT_EVENT_COMMIT {
        for database in pending.renewed {
            table::renew(database);
            executors::retire(database, false);
        }
        if pending.list {
            table::wake_launcher();
        }
    }
    if pending.prepared {
        transaction::prepared_ended();
    }
    if pending.prepared || (pending.look && event == XACT_EVENT_COMMIT) {
        table::look(session::database());
    }
}
