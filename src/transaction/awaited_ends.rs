//! The attempts that this transaction ends whose jobs others may be after: what is after them can be released before
//! the commit, so that it waits neither for another commit nor for the background worker.
//!
//! Responsible for the list, for handing it over before the commit, and for what was found to be served then. Not
//! responsible for the release.
//!
//! Invariant: what is not in the list, or not released, is handed over to the worker by the commit.

use std::cell::{Cell, RefCell};

use crate::error::Result;
use crate::transaction::pending;

/// More ends than this are left to the worker.
const MOST: usize = 16;

/// Jobs of which all was released that is after them, each with how many were known as awaited before the look.
pub type Served = Vec<(i64, u64)>;

/// Releases what is after these jobs of an instance, which this transaction completes.
type Release = fn(u32, &[i64]) -> Result<Served>;

thread_local! {
    /// The attempts, each with its job.
    static ENDS: RefCell<Vec<(i64, i64)>> = const { RefCell::new(Vec::new()) };
    /// Their instance; 0: this transaction has ended none.
    static OF: Cell<u32> = const { Cell::new(0) };
    static SERVED: RefCell<Served> = const { RefCell::new(Vec::new()) };
    static RELEASE: Cell<Option<Release>> = const { Cell::new(None) };
}

/// Has `release` run before the commit of transactions that complete jobs others may be after.
pub fn install(release: Release) {
    RELEASE.set(Some(release));
}

/// Notes that this transaction ends an attempt whose job others may be after.
pub fn add(instance: u32, id: i64, job_id: i64) {
    ENDS.with_borrow_mut(|ends| {
        if OF.replace(instance) != instance {
            ends.clear();
        }
        if ends.len() <= MOST {
            ends.push((id, job_id));
        }
    });
}

/// Has what is after the jobs released that this transaction has completed, unless these are many.
pub(super) fn release() -> Result<()> {
    if OF.get() == 0 {
        return Ok(());
    }
    let ends = ENDS.take();
    if ends.len() > MOST {
        return Ok(());
    }
    let jobs: Vec<i64> = ends.iter().filter(|(id, _)| pending::completes(*id)).map(|(_, job_id)| *job_id).collect();
    if let Some(release) = RELEASE.get().filter(|_| !jobs.is_empty()) {
        SERVED.set(release(OF.get(), &jobs)?);
    }
    Ok(())
}

/// Returns how many jobs were known as awaited before the look at what is after this job, if that look has released all
/// of it.
pub(super) fn served(instance: u32, job_id: i64) -> Option<u64> {
    if OF.get() != instance {
        return None;
    }
    SERVED.with_borrow(|served| served.iter().find(|(job, _)| *job == job_id).map(|(_, adds)| *adds))
}

/// Forgets everything at the end of the transaction.
pub(super) fn ended() {
    if OF.take() != 0 {
        ENDS.with_borrow_mut(Vec::clear);
        SERVED.with_borrow_mut(Vec::clear);
    }
}
