//! What a check of the doctor is, what it finds, and what the checks share.
//!
//! Responsible for running one check so that its error becomes its finding. Not responsible for the order of the checks
//! (`doctor`), nor for the rows that users see (`view::doctor`).

use crate::error::{Error, Result};
use crate::guc;
use crate::pg::transaction;
use crate::shmem::layout;

/// A check of one subject.
pub struct Check {
    /// Its name in `queue.doctor()` and in the label `check` of the metrics.
    pub name: &'static str,
    /// The function that looks. An error that it returns is a finding, too.
    pub look: fn() -> Result<Finding>,
}

impl Check {
    /// Looks, and keeps no lock. An error becomes a finding that is not ok. Raises nothing but a cancel.
    pub fn look(&self) -> Finding {
        transaction::look(self.look).unwrap_or_else(|error| {
            let Error { message, detail, hint, .. } = error;
            let detail = detail.map_or_else(|| message.clone(), |detail| format!("{message}: {detail}"));
            Finding { is_ok: false, detail, hint }
        })
    }
}

/// What a check has found.
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

    /// Returns a finding of these troubles, a sentence each, of which it shows the first five; `well` if there is none.
    pub fn of(troubles: &[String], well: &str, hint: &str) -> Self {
        const SHOWN: usize = 5;
        if troubles.is_empty() {
            return Self::well(well);
        }
        let mut detail = troubles[..troubles.len().min(SHOWN)].join(" ");
        if troubles.len() > SHOWN {
            detail += &format!(" And {} more.", troubles.len() - SHOWN);
        }
        Self::ill(detail, hint)
    }
}

/// Checks that the library was preloaded.
///
/// Errors: 55000 when there is no shared memory to look at.
pub fn assert_loaded() -> Result<()> {
    if layout::is_there() { Ok(()) } else { Err(Error::not_loaded()) }
}

/// Returns the catalog of the instance to look at.
///
/// Errors: as `catalog::current`; 55000 when there is no shared memory.
pub fn catalog() -> Result<std::rc::Rc<crate::catalog::Catalog>> {
    assert_loaded()?;
    crate::catalog::current()
}

/// Returns after how many microseconds something has stood still for too long (`pg_queue.patience`).
pub fn patience() -> i64 {
    i64::from(guc::PATIENCE.get()) * 1_000_000
}

/// Returns a length of time in words, with two units at most. `us` is in microseconds.
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
