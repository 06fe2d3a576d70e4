//! As which role a job's command runs: the role that wrote it, kept in the job's row by name and by oid. Both must still be
//! one role's when it runs, so a new role of an old name inherits nothing.
//!
//! Responsible for noting the role and for finding it again. Not responsible for running anything (`executor`).
//!
//! Invariant: only the library fills these columns, and from nothing but the user at the moment of the call.

use std::cell::Cell;

use pgrx::pg_sys::{Datum, Oid};

use crate::catalog::Catalog;
use crate::catalog::queue::{Executor, Queue};
use crate::error::{self, Error, Result};
use crate::guc;
use crate::pg::datum::{text, text_datum};
use crate::pg::role;
use crate::pg::row::Row;
use crate::pg::scan::Snapshot;
use crate::pg::table::Relation;

/// The column of `queue.timeline` that says when it was first seen, counted from 0.
const SEEN_AT: usize = 2;

/// A role as a row has it.
#[derive(Clone, Copy)]
pub struct RunAs {
    pub name: Datum,
    pub id: i64,
}

impl RunAs {
    /// Returns the current user; in a SECURITY DEFINER function that is its owner.
    pub fn caller() -> Option<Self> {
        let user = role::user();
        let name = role::role_name(user)?;
        Some(Self { name: text_datum(&name), id: i64::from(user.to_u32()) })
    }

    /// Returns the role in these columns of a row. `None`: it has none.
    pub fn read(row: &Row, name: usize, id: usize) -> Option<Self> {
        Some(Self { name: row.get(name)?, id: row.get(id)?.value() as i64 })
    }

    /// A copy that lives as long as wanted, of a row of this time.
    pub fn noted(self, since: i64) -> Noted {
        Noted { name: text(self.name), id: self.id, since }
    }

    /// The same role with the oid that it has now, if the row of this time was restored.
    pub fn renewed(self, catalog: &Catalog, since: i64) -> Self {
        let id = self.noted(since).role(catalog).map_or(self.id, |role| i64::from(role.to_u32()));
        Self { id, ..self }
    }
}

/// A role as a row had it.
#[derive(Clone, PartialEq, Eq)]
pub struct Noted {
    pub name: String,
    pub id: i64,
    /// When the row was made, as `timestamptz`.
    pub since: i64,
}

impl Noted {
    /// Whether this is the same role, of whatever row.
    pub fn is(&self, other: &Self) -> bool {
        (&self.name, self.id) == (&other.name, other.id)
    }

    /// Returns the role, if it is still there under its name. Of a row that was restored the name alone counts, as oids are
    /// a cluster's own.
    pub fn role(&self, catalog: &Catalog) -> Option<Oid> {
        let is_it = |role: &Oid| i64::from(role.to_u32()) == self.id || self.since < installed_at(catalog);
        role::role(&self.name).filter(is_it)
    }
}

thread_local! {
    /// The instance for which it was asked last, and when that was installed.
    static INSTALLED_AT: Cell<(u32, i64)> = const { Cell::new((0, 0)) };
}

/// Returns when the extension was installed in this database: what is older has come from another one. The timelines are
/// not dumped.
fn installed_at(catalog: &Catalog) -> i64 {
    let (number, at) = INSTALLED_AT.get();
    if number == catalog.number {
        return at;
    }
    let (table, index) = (Relation::read(catalog.timeline), Relation::read_index(catalog.timeline_idx));
    let mut scan = table.scan(&index, &[], Snapshot::Now);
    let mut first = i64::MAX;
    while scan.next().is_some() {
        first = first.min(scan.row().i64(SEEN_AT));
    }
    let at = if first == i64::MAX { i64::MIN } else { first };
    INSTALLED_AT.set((catalog.number, at));
    at
}

/// Returns as whom a job runs that the current user writes for a queue. `None`: the queue has no executor.
///
/// Errors: 42501 if no job runs as this user.
pub fn of_writer(queue: &Queue) -> Result<Option<RunAs>> {
    if queue.executor.is_none() {
        return Ok(None);
    }
    if matches!(queue.executor, Some(Executor::Sql)) {
        may_run(role::user())?;
    }
    Ok(RunAs::caller())
}

/// Checks that jobs may run as a role.
///
/// Errors: 42501 if it is a superuser and `pg_queue.superuser_jobs` is off, if it may not log in where that matters, or if it
/// may not connect to this database.
pub fn may_run(role: Oid) -> Result<()> {
    let name = || role::role_name(role).unwrap_or_default();
    if role::is_superuser(role) && !guc::SUPERUSER_JOBS.get() {
        return Err(Error::new(error::DENIED, format!("role \"{}\" is a superuser, and no job runs as one", name()))
            .hint("Use a role with the rights that the job needs, or set pg_queue.superuser_jobs."));
    }
    if !role::can_start_sessions(role) {
        return Err(Error::new(error::DENIED, format!("role \"{}\" may not log in, and no job runs as it", name()))
            .hint("Give it LOGIN; without a password or a line in pg_hba.conf nobody can use that to connect."));
    }
    if !role::can_connect(role) {
        return Err(Error::new(
            error::DENIED,
            format!("role \"{}\" may not connect to this database, and no job runs as it", name()),
        )
        .hint("GRANT CONNECT ON DATABASE … to it."));
    }
    Ok(())
}
