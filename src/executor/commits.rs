//! Refuses commits of a command that no longer has its job.
//!
//! Responsible for the check before each commit of this process. Not responsible for ending the job in the last
//! transaction (`job::complete`), nor for what follows from the error (`job`).
//!
//! Invariant: a transaction of a command commits only if the process still has the attempt, or if this transaction ends
//! the attempt.

use std::ffi::c_void;

use pg_queue_core::frontier::State;
use pgrx::{pg_guard, pg_sys};

use crate::error::{self, Error};
use crate::executor::job;
use crate::executor::table::INSTANCE;
use crate::pg::session;
use crate::shmem;

/// Registers the check before each commit of this process. Called once.
pub fn watch() {
    // SAFETY: the callback is of this library, which is never unloaded.
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

/// True if this process has the attempt, or this transaction ends it.
fn is_ours(id: i64) -> bool {
    let own = session::session();
    shmem::with(|shared| shared.frontier.entry(INSTANCE.get(), id)).is_some_and(|entry| match entry.state {
        State::Ending if entry.owner == own => true,
        State::Running | State::Ending => entry.session == own + 1,
        State::Taken | State::Free => false,
    })
}
