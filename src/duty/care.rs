//! How a duty serves items: all together, and after an error each by itself. So an item that fails does not stop the
//! duty, and the usual run pays for no subtransactions.
//!
//! Responsible for remembering which duties have failed, for the subtransaction around an item, and for the warning.
//! Not responsible for leaving a failed item alone for a minute: each duty does that where it keeps its items.
//!
//! Invariant: a duty that has failed serves its next items by themselves.

use std::cell::{Cell, RefCell};

use pgrx::PgSqlErrorCode;

use crate::error::{Error, Result};
use crate::pg::transaction;

/// A failed item is left alone for this long, in microseconds.
pub const PUT_OFF_US: i64 = 60_000_000;

/// After this many runs that have failed, an error that seems to be about the server counts as one of the item: code of
/// users, such as a function in an index, can raise any.
const MAX_FAILED_RUNS: u32 = 5;

thread_local! {
    /// The duties whose last run began and did not end: an error has rolled it back. How many such runs there were.
    static FAILED: RefCell<Vec<(&'static str, u32)>> = const { RefCell::new(Vec::new()) };
}

/// The care with which a run of a duty serves its items.
pub struct Care {
    is_careful: bool,
    has_served: Cell<bool>,
    /// The errors that are not about an item.
    passes: fn(PgSqlErrorCode) -> bool,
}

impl Care {
    /// Returns the care of a transaction that is no duty's: an error is its own.
    pub fn none() -> Self {
        Self { is_careful: false, has_served: Cell::new(false), passes }
    }

    /// Runs a duty's work. It is careful if the last run has failed.
    pub(super) fn run(duty: &'static str, work: impl FnOnce(&Self) -> Result<i64>) -> Result<i64> {
        let failed_runs = FAILED.with_borrow_mut(|failed| match failed.iter_mut().find(|(known, _)| *known == duty) {
            Some((_, runs)) => {
                *runs += 1;
                *runs
            }
            None => {
                failed.push((duty, 0));
                0
            }
        });
        let is_careful = failed_runs > 0;
        let passes: fn(PgSqlErrorCode) -> bool = if failed_runs < MAX_FAILED_RUNS { passes } else { |_| false };
        let care = Self { is_careful, has_served: Cell::new(false), passes };
        let did = work(&care)?;
        // A run that has come to no item says nothing about the one that failed.
        if !is_careful || care.has_served.get() {
            FAILED.with_borrow_mut(|failed| failed.retain(|(known, _)| *known != duty));
        }
        Ok(did)
    }

    /// True if each item is served in a subtransaction. What was opened in one is closed when it is rolled back.
    pub fn is_careful(&self) -> bool {
        self.is_careful
    }

    /// Returns how many of `all` items are served together.
    pub fn together(&self, all: usize) -> usize {
        if self.is_careful { 1 } else { all.max(1) }
    }

    /// Tries what may fail for an item, and undoes it. An error is returned, and counts as an item that was served.
    pub fn try_out<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        self.has_served.set(true);
        transaction::in_undone_subtransaction(work, self.passes)
    }

    /// Serves an item, or as many as `together` says. `None`: it has failed, which was reported as a warning. The
    /// caller leaves it alone for `PUT_OFF_US`. `what`: what could not be done.
    pub fn serve<R>(&self, what: impl FnOnce() -> String, work: impl FnOnce() -> Result<R>) -> Result<Option<R>> {
        if !self.is_careful {
            return work().map(Some);
        }
        self.has_served.set(true);
        let served = transaction::in_subtransaction_passing(work, self.passes);
        Ok(served.map_err(|error| put_off(&what(), error)).ok())
    }
}

/// Serves an item in a subtransaction. Returns any error but one that is not about the item: a cancel, a locked table,
/// a full disk. A lack of memory may be about the item.
pub fn apart<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    transaction::in_subtransaction_passing(work, passes)
}

fn passes(code: PgSqlErrorCode) -> bool {
    matches!(
        code,
        PgSqlErrorCode::ERRCODE_QUERY_CANCELED
            | PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE
            | PgSqlErrorCode::ERRCODE_DISK_FULL
    )
}

/// Warns that an item has failed.
pub fn put_off(what: &str, error: Error) {
    let detail = error.detail.map_or_else(String::new, |detail| format!("{detail} "));
    let warning = Error::new(error.code, format!("{what}: {}", error.message));
    warning.detail(format!("{detail}It is retried in a minute.")).warn();
}
