//! A role as a row names it: by name and oid, and whether both are still one role's.
//!
//! Not responsible for which role is noted (`run_as`).
//!
//! Invariant: a new role of an old name is not taken for the old one, unless the row was restored from elsewhere.

use std::cell::Cell;

use pgrx::pg_sys::Oid;

use crate::catalog;
use crate::pg::role;
use crate::pg::scan::Snapshot;
use crate::pg::table::Relation;

/// The column of `queue_internal.timeline` that says when it was first seen, counted from 0.
const SEEN_AT: usize = 2;

/// A role as a row had it.
#[derive(Clone, PartialEq, Eq)]
pub struct Noted {
    pub name: String,
    pub id: i64,
    /// When the row was made, as `timestamptz`.
    pub since: i64,
}

impl Noted {
    /// Returns the current user, for a row of this time; in a SECURITY DEFINER function that is its owner.
    pub fn caller(since: i64) -> Self {
        let user = role::user();
        Self { name: role::role_name(user).unwrap_or_default(), id: i64::from(user.to_u32()), since }
    }

    /// Whether this is the same role, of whatever row.
    pub fn is(&self, other: &Self) -> bool {
        (&self.name, self.id) == (&other.name, other.id)
    }

    /// Returns the role, if it still exists under its name. For a restored row only the name counts, because oids
    /// differ between clusters.
    pub fn role(&self) -> Option<Oid> {
        let is_it = |role: &Oid| i64::from(role.to_u32()) == self.id || self.is_restored();
        role::role(&self.name).filter(is_it)
    }

    /// Whether the row has come from another database, or another cluster, whose oids mean nothing here.
    pub fn is_restored(&self) -> bool {
        self.since < installed_at()
    }
}

thread_local! {
    /// The instance for which it was asked last, and when that was installed.
    static INSTALLED_AT: Cell<(u32, i64)> = const { Cell::new((0, 0)) };
}

/// Returns when the extension was installed in this database. Older rows have come from another database. The timelines
/// are not dumped.
fn installed_at() -> i64 {
    let (number, at) = INSTALLED_AT.get();
    let catalog = catalog::pinned();
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
