//! Commits of a command whose job is not its own any more: they are refused.
//!
//! Responsible for the check before each commit of this process. Not responsible for ending the job in the last
//! transaction (`job::complete`), nor for what becomes of the error (`job`).
//!
//! Invariant: a transaction of a command commits only if the process has the attempt at that moment, be it that this
//! same transaction ends it.

use std::ffi::c_void;

use pg_queue_core::frontier::State;
use pgrx::{pg_guard, pg_sys};

use crate::error::{self, Error};
use crate::executor::job;
use crate::executor::table::INSTANCE;
use crate::pg::session;
use crate::shmem;

/// Has each commit of this process checked. Called once.
pub fn watch() {
    // SAFETY: a callback of this library, which is never unloaded.
    unsafe { pg_sys::RegisterXactCallback(Some(before_commit), std::ptr::null_mut()) };
}

#[pg_guard]
unsafe extern "C-unwind" fn before_commit(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    if event == pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT
        && let Some(current) = job::current()
        && !is_ours(current.id)
    {
        Error::new(error::LOST_LEASE, "the job has ended")
            .detail("A command cannot commit anything after its job was ended or taken from it.")
            .hint("End the job in the command's last transaction, or leave that to the command's success.")
            .report();
    }
}

/// Whether this process has the attempt, or this transaction ends it.
fn is_ours(id: i64) -> bool {
    let own = session::session();
    shmem::with(|shared| shared.frontier.entry(INSTANCE.get(), id)).is_some_and(|entry| match entry.state {
        State::Ending if entry.owner == own => true,
        State::Running | State::Ending => entry.session == own + 1,
        State::Taken | State::Free => false,
    })
}
