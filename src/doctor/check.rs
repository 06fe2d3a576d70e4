//! Defines a check of the doctor and its finding, and what the checks share.
//!
//! Responsible for running one check, and for turning its error into a finding. Not responsible for the order of the
//! checks (`doctor`), nor for the rows that users see (`view::doctor`).

use crate::error::{Error, Result};
use crate::guc;
use crate::pg::transaction;
use crate::shmem::layout;

/// A check of one subject.
pub struct Check {
    /// Its name in `queue.doctor()` and in the label `check` of the metrics.
    pub name: &'static str,
    /// The function that runs the check. An error that it returns becomes a finding, too.
    pub look: fn() -> Result<Finding>,
}

impl Check {
    /// Runs the check and keeps no lock. An error becomes a finding that is not ok. Raises nothing but a cancel.
    pub fn look(&self) -> Finding {
        transaction::look(self.look).unwrap_or_else(|error| {
            let Error { message, detail, hint, .. } = error;
            let detail = detail.map_or_else(|| message.clone(), |detail| format!("{message}: {detail}"));
            Finding { is_ok: false, detail, hint }
        })
    }
}

/// The result of a check.
pub struct Finding {
    pub is_ok: bool,
    /// What the check has seen, in sentences.
    pub detail: String,
    /// What the user should do; `None`: nothing.
    pub hint: Option<String>,
}

impl Finding {
    pub fn well(detail: impl Into<String>) -> Self {
        Self { is_ok: true, detail: detail.into(), hint: None }
    }

    pub fn ill(detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { is_ok: false, detail: detail.into(), hint: Some(hint.into()) }
    }

    /// Returns a finding with these troubles, one sentence each. It shows the first five. Without troubles the finding
    /// is `well`.
    pub fn of(troubles: &[String], well: &str, hint: &str) -> Self {
        const MAX_SHOWN: usize = 5;
        if troubles.is_empty() {
            return Self::well(well);
        }
        let mut detail = troubles[..troubles.len().min(MAX_SHOWN)].join(" ");
        if troubles.len() > MAX_SHOWN {
            detail += &format!(" And {} more.", troubles.len() - MAX_SHOWN);
        }
        Self::ill(detail, hint)
    }
}

/// Checks that the library was preloaded.
///
/// Errors: 55000 if there is no shared memory.
pub fn assert_loaded() -> Result<()> {
    if layout::is_there() { Ok(()) } else { Err(Error::not_loaded()) }
}

/// Makes sure that the database has an instance, and that it is pinned.
///
/// Errors: as `catalog::current`; 55000 if there is no shared memory.
pub fn needs_instance() -> Result<()> {
    assert_loaded()?;
    crate::catalog::current().map(drop)
}

/// Returns `pg_queue.patience` in microseconds. Anything stuck for longer is reported.
pub fn patience() -> i64 {
    i64::from(guc::PATIENCE.get()) * 1_000_000
}

/// Returns a duration in words, with two units at most. `us` is in microseconds.
pub fn time(us: i64) -> String {
    let seconds = us / 1_000_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}
