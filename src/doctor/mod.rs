//! Looks whether all is well: the checks of `queue.doctor()`, one function each. What they say to users, and from when
//! on, is in `docs/doctor.md`.
//!
//! Invariant: a check only looks. It waits for nobody, and is over in milliseconds at any depth; where it fails, that
//! is what it has found, and the others go on.

use crate::error::{Error, Result};
use crate::{guc, shmem, sys};

mod jobs;
mod server;
mod storage;
mod transactions;

/// A check.
pub struct Check {
    /// Its name in `queue.doctor()` and in the label `check` of the metrics.
    pub name: &'static str,
    /// Looks. An error is a finding, too.
    look: fn() -> Result<Finding>,
}

/// All checks, in the order in which they are of use: what stops everything comes first.
pub const ALL: &[Check] = &[
    Check { name: "library", look: server::library },
    Check { name: "launcher", look: server::launcher },
    Check { name: "worker", look: server::worker },
    Check { name: "worker_slots", look: server::worker_slots },
    Check { name: "restore", look: transactions::restore },
    Check { name: "memory", look: storage::memory },
    Check { name: "segments", look: storage::segments },
    Check { name: "leases", look: jobs::leases },
    Check { name: "schedules", look: jobs::schedules },
    Check { name: "unclaimed", look: jobs::unclaimed },
    Check { name: "dead", look: jobs::dead },
    Check { name: "prepared", look: transactions::prepared },
    Check { name: "xmin_horizon", look: transactions::xmin_horizon },
    Check { name: "autovacuum", look: storage::autovacuum },
    Check { name: "wraparound", look: storage::wraparound },
    Check { name: "jit", look: server::jit },
    Check { name: "roles", look: server::roles },
];

impl Check {
    /// Looks, and keeps no lock. Raises nothing but a cancel.
    pub fn look(&self) -> Finding {
        sys::look(self.look).unwrap_or_else(|error| {
            let Error { message, detail, hint, .. } = error;
            let detail = detail.map_or_else(|| message.clone(), |detail| format!("{message}: {detail}"));
            Finding { is_ok: false, detail, hint }
        })
    }
}

/// What a check has found.
pub struct Finding {
    pub is_ok: bool,
    /// What it has seen, in sentences.
    pub detail: String,
    /// What to do.
    pub hint: Option<String>,
}

impl Finding {
    fn well(detail: impl Into<String>) -> Self {
        Self { is_ok: true, detail: detail.into(), hint: None }
    }

    fn ill(detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { is_ok: false, detail: detail.into(), hint: Some(hint.into()) }
    }

    /// The first of these troubles, a sentence each; all is well where there is none.
    fn of(troubles: &[String], well: &str, hint: &str) -> Self {
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

/// Errors: 55000 where there is no shared memory to look at.
fn assert_loaded() -> Result<()> {
    if shmem::is_there() { Ok(()) } else { Err(Error::not_loaded()) }
}

/// The instance to look at.
///
/// Errors: as `instance::current`; 55000 where there is no shared memory.
fn catalog() -> Result<std::rc::Rc<crate::instance::Catalog>> {
    assert_loaded()?;
    crate::instance::current()
}

/// After so many microseconds something has stood still for too long.
fn patience() -> i64 {
    i64::from(guc::PATIENCE.get()) * 1_000_000
}

/// A length of time as people say it, two units at most.
fn time(us: i64) -> String {
    let seconds = us / 1_000_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}
