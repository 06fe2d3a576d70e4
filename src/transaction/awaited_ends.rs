//! The attempts that this transaction ends whose jobs have successors. Their successors can be released before the
//! commit, so that they wait neither for another commit nor for the background worker.
//!
//! Responsible for the list, and for which of its jobs were served. Not responsible for the release
//! (`duty::release::ender`), which takes the list before the commit.
//!
//! Invariant: the commit hands every job that is not in the list, or not served, to the worker.

use std::cell::{Cell, RefCell};

/// If the transaction ends more attempts than this, their jobs are left to the worker.
const MAX_ENDS: usize = 16;

/// Jobs whose successors are all released, each with the value of `Awaited::adds` before the look.
pub type Served = Vec<(i64, u64)>;

thread_local! {
    /// The attempts, each with its job.
    static ENDS: RefCell<Vec<(i64, i64)>> = const { RefCell::new(Vec::new()) };
    /// Their instance; 0: this transaction has ended none.
    static OF: Cell<u32> = const { Cell::new(0) };
    static SERVED: RefCell<Served> = const { RefCell::new(Vec::new()) };
}

/// Notes that this transaction ends an attempt whose job may have successors.
pub fn add(instance: u32, id: i64, job_id: i64) {
    ENDS.with_borrow_mut(|ends| {
        if OF.replace(instance) != instance {
            ends.clear();
        }
        if ends.len() <= MAX_ENDS {
            ends.push((id, job_id));
        }
    });
}

/// Takes the instance and the list: attempts, each with its job. `None`: the list is empty, or was too long.
pub fn take() -> Option<(u32, Vec<(i64, i64)>)> {
    if OF.get() == 0 {
        return None;
    }
    let ends = ENDS.take();
    (!ends.is_empty() && ends.len() <= MAX_ENDS).then(|| (OF.get(), ends))
}

/// Notes which of the jobs are served.
pub fn set_served(served: Served) {
    SERVED.set(served);
}

/// Returns the value of `Awaited::adds` before the look by which this job was served. `None`: it was not served.
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
