//! The callbacks that Postgres runs at the end of transactions and subtransactions, and at the process's exit.
//!
//! Responsible for registering them, and for the order of what happens at each event. Not responsible for what a step
//! does (`settle`), nor for which steps there are (`pending`).
//!
//! Invariant: nothing raises from the moment a commit is on record.

use std::cell::Cell;

use pgrx::{pg_guard, pg_sys};

use crate::pg::fault::{fault, fault_quietly};
use crate::pg::{session, time};
use crate::shmem::{self, keys, latch, recount};
use crate::transaction::steps::{ExtensionStep, Step};
use crate::transaction::target::Wake;
use crate::transaction::tell::{TO_TELL, tell};
use crate::transaction::{awaited_ends, entries, foreign, hooks, pending, settle};

thread_local! {
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
    /// The instance in which this transaction is about to change rights, from the moment before it can be seen until
    /// all sessions were told; 0: none.
    static CHANGING_RIGHTS: Cell<u32> = const { Cell::new(0) };
}

/// Counts a change of rights that is about to commit. A session that sees anything of the transaction finds it counted.
fn rights_begin() {
    if let Some(number) = pending::rights_instance() {
        CHANGING_RIGHTS.set(number);
        shmem::with_instance_of(number, |_, instance| instance.rights.begun.increment());
    }
}

/// Counts that all sessions were told of the change, or that it was rolled back. Cannot fail.
fn rights_told() {
    let number = CHANGING_RIGHTS.take();
    if number != 0 {
        shmem::with_instance_of(number, |_, instance| instance.rights.told.increment());
    }
}

/// Registers this session's callbacks, once. Every verb that changes anything calls it first.
pub fn register() {
    if REGISTERED.replace(true) {
        return;
    }
    latch::announce_session(session::session());
    // SAFETY: once per backend, functions with the signatures that Postgres asks for.
    unsafe {
        pg_sys::RegisterXactCallback(Some(on_transaction), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(on_subtransaction), std::ptr::null_mut());
        pg_sys::RegisterResourceReleaseCallback(Some(on_resource_release), std::ptr::null_mut());
        // This callback runs after the abort of an open transaction, which is a before_shmem_exit callback, and before
        // the process gives its slot back.
        pg_sys::on_shmem_exit(Some(on_exit), pg_sys::Datum::from(0));
    }
}

/// Frees the instance when this transaction commits, because its extension is being dropped.
pub fn on_commit_drop_instance(number: u32) {
    register();
    pending::record_of(number, ExtensionStep::Dropped);
}

/// Wakes the sessions whose wake-up had to wait for the end of the commit.
///
/// A commit runs its transaction callbacks *before* it sends the messages by which other sessions drop what they know
/// of queues. A session that a callback woke could look before the message arrives, believe the old settings, and sleep
/// on. The transaction's locks are released after the messages are sent, so this callback is the right moment.
unsafe extern "C-unwind" fn on_resource_release(
    phase: pg_sys::ResourceReleasePhase::Type,
    is_commit: bool,
    is_top: bool,
    _arg: *mut std::ffi::c_void,
) {
    // Postgres calls this many times in a transaction, and there is seldom something to tell. So the usual call must
    // not cost a guard.
    let is_last = phase == pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_AFTER_LOCKS && is_top;
    // It must not panic here either, not even when the process is past its end and the thread-local is gone.
    let has_steps = || TO_TELL.try_with(|later| !later.borrow().is_empty()).unwrap_or(false);
    let has_rights = || CHANGING_RIGHTS.try_with(|number| number.get() != 0).unwrap_or(false);
    if is_last && (has_steps() || has_rights()) {
        // SAFETY: it may be called at any time.
        unsafe { tell_all(is_commit) };
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn tell_all(is_commit: bool) {
    fault_quietly!("commit.untold");
    let mut later = TO_TELL.take();
    if is_commit {
        for &(number, step) in &later {
            tell(number, step);
        }
    }
    later.clear();
    TO_TELL.set(later);
    rights_told();
    fault_quietly!("commit.told");
}

#[pg_guard]
unsafe extern "C-unwind" fn on_transaction(event: pg_sys::XactEvent::Type, _arg: *mut std::ffi::c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT | pg_sys::XactEvent::XACT_EVENT_PARALLEL_COMMIT => end(true),
        pg_sys::XactEvent::XACT_EVENT_ABORT | pg_sys::XactEvent::XACT_EVENT_PARALLEL_ABORT => end(false),
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => {
            check_hooks();
            rights_begin();
        }
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => {
            pending::refuse_prepare();
            check_hooks();
        }
        // Only enqueued jobs are left: COMMIT PREPARED makes the frontier look for them.
        pg_sys::XactEvent::XACT_EVENT_PREPARE => {
            fault_quietly!("prepare.begun");
            // For this session the transaction is over.
            pending::ended();
            hooks::ended(true);
            pending::with_pending(|pending| {
                settle::count_prepared(pending);
                let enqueued = pending.iter().find(|p| matches!(p.step, Step::Enqueued { .. }));
                if let Some(p) = enqueued {
                    shmem::with_instance_of(p.instance, |_, instance| instance.enqueued_in_prepared());
                }
                pending.clear();
            });
            keys::prepared();
            fault_quietly!("prepare.settled");
        }
        _ => {}
    }
}

/// Runs the hooks at the last moment at which a commit can still be refused. It raises the error of a hook.
fn check_hooks() {
    fault!("commit.begun");
    if let Err(error) = hooks::run_before_commit() {
        error.report();
    }
    fault!("commit.checked");
}

fn end(committed: bool) {
    fault_quietly!(if committed { "commit.visible" } else { "abort.begun" });
    let has_retries = pending::has_retries();
    pending::ended();
    hooks::ended(committed);
    pending::with_pending(|pending| {
        if !pending.is_empty() {
            if committed && has_retries {
                settle::tell_retries(pending);
            }
            settle::settle(pending, committed);
            pending.clear();
            // The memory of a huge batch is given back, so that it is not pinned for the session's life.
            if pending.capacity() > 65_536 {
                pending.shrink_to(1024);
            }
        }
    });
    entries::forget();
    awaited_ends::ended();
    foreign::settled();
    // Keys are released last: a session that waits for one then finds that shared memory knows what was done.
    keys::end();
    fault_quietly!(if committed { "commit.settled" } else { "abort.settled" });
}

#[pg_guard]
unsafe extern "C-unwind" fn on_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    this: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    pending::with_pending(|pending| {
        // The steps of a subtransaction and of its finished children stand at the end of the list.
        let first = pending.iter().rposition(|p| p.subtransaction != this).map_or(0, |at| at + 1);
        match event {
            pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => {
                keys::subtransaction_ended(this, Some(parent));
                pending[first..].iter_mut().for_each(|p| p.subtransaction = parent);
            }
            pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
                fault_quietly!("savepoint.begun");
                hooks::rolled_back();
                settle::settle(&pending[first..], false);
                pending.truncate(first);
                pending::forget_sum();
                keys::subtransaction_ended(this, None);
                fault_quietly!("savepoint.settled");
            }
            _ => {}
        }
    });
}

/// Releases what this session held, because the connection ends. Its transaction has ended before.
#[pg_guard]
unsafe extern "C-unwind" fn on_exit(_code: i32, _arg: pg_sys::Datum) {
    fault_quietly!("exit.begun");
    let session = session::session();
    let (now, has_broken) = (time::monotonic_us(), session::has_broken());
    let mut wake = Wake::default();
    shmem::with(|shared| {
        let shmem::Shared { frontier, instances, awaited, watchers, .. } = shared;
        watchers.leave(session);
        frontier.backlog.gates.retries_abandon(session);
        let refill = frontier.refill_abandon(session);
        if let Some((number, lane)) = refill {
            while let Some(waiter) = frontier.refill_wake(number, lane) {
                wake.session(Some(waiter));
            }
            wake.session(frontier.pass_on(number, lane));
        }
        while let Some((number, lane)) = frontier.turn_abandon(session) {
            while let Some(waiter) = frontier.refill_wake(number, lane) {
                wake.session(Some(waiter));
            }
            wake.session(frontier.pass_on(number, lane));
        }
        wake.session(frontier.stop_waiting(session));
        wake.worker = hooks::exit(instances, awaited);
        recount::abandon(instances);
        let number = pending::instance_to_disconnect();
        if let Some(instance) = instances.iter_mut().find(|i| number != 0 && i.number == number)
            && let Some(at) = frontier.running.session_ended(&mut instance.deadlines, number, session, now, has_broken)
            && let Some(latch) = instance.worker.wake_by(at)
        {
            wake.worker = Some(latch);
        }
    });
    wake.go();
    fault_quietly!("exit.settled");
}
