//! Checks the columns, by number and type, of the tables that are read and written directly. If a user adds, drops or
//! alters a column, the library would read and write memory that does not belong to it.
//!
//! Responsible for comparing a table with its shape. Not responsible for the shapes themselves (`catalog::tables`), nor
//! for the columns of indexes (`table::Relation::check_columns`).
//!
//! Invariant: each table is checked when it is opened, under its lock. The check is skipped if this session got no
//! message about any table since the last one. Columns behind the extension's that were added and dropped again are
//! tolerated: they are NULL.

use std::cell::{Cell, RefCell};

use pgrx::pg_sys::{self, Oid};

use crate::error::{self, Error};
use crate::pg::relcache;
use crate::pg::row::COLUMNS;

/// The columns of a table, in order: name, type, and whether the column is NOT NULL.
pub type Shape = &'static [(&'static str, Oid, bool)];

/// How many tables `SOUND` has room for, more than the extension has in a database.
const PLACES: usize = 128;

thread_local! {
    /// The shapes of the catalog's tables, sorted by the tables' oids.
    pub static SHAPES: RefCell<Vec<(u32, Shape)>> = const { RefCell::new(Vec::new()) };
    /// Tables that were seen to have their shape, each with the number of messages at that time. The last bits of the
    /// table's oid choose the slot.
    static SOUND: [Cell<(u32, u64)>; PLACES] = const { [const { Cell::new((0, 0)) }; PLACES] };
}

/// Checks the columns of an open table. Raises 55000 if they differ from its shape. `other`: the shape of a table
/// outside the catalog. `None`: such a table is not checked.
///
/// # Safety
/// `rel` is an open relation.
pub unsafe fn check(rel: pg_sys::Relation, other: Option<Shape>) {
    // SAFETY: the caller's promise.
    let table = unsafe { (*rel).rd_id.to_u32() };
    let now = (table, relcache::messages());
    if SOUND.with(|sound| sound[table as usize % PLACES].get() == now) {
        return;
    }
    let shape = SHAPES
        .with_borrow(|shapes| shapes.binary_search_by_key(&table, |(table, _)| *table).map(|at| shapes[at].1).ok());
    let Some(shape) = shape.or(other) else { return };
    // SAFETY: the caller's promise.
    match unsafe { fault(rel, shape) } {
        None => SOUND.with(|sound| sound[table as usize % PLACES].set(now)),
        Some(error) => error.report(),
    }
}

/// Returns the fault in the columns of a table, as an error with SQLSTATE 55000. `None`: no fault.
///
/// # Safety
/// `rel` is an open relation.
pub unsafe fn fault(rel: pg_sys::Relation, shape: Shape) -> Option<Error> {
    // SAFETY: an open relation has a descriptor, with as many attributes as the descriptor says.
    let (name, attributes) = unsafe {
        let desc = (*rel).rd_att;
        let count = usize::try_from((*desc).natts).unwrap_or(0);
        #[cfg(not(feature = "from18"))]
        let first: *const pg_sys::FormData_pg_attribute = (*desc).attrs.as_ptr();
        // In 18 and later they lie behind the compact attributes, which exist for speed.
        #[cfg(feature = "from18")]
        let first: *const pg_sys::FormData_pg_attribute = (*desc).compact_attrs.as_ptr().add(count).cast();
        (crate::pg::syscache::name(&(*(*rel).rd_rel).relname), std::slice::from_raw_parts(first, count))
    };
    let wrong = |column: &str, what: &str| {
        Some(
            Error::new(error::WRONG_STATE, format!("table \"queue_internal.{name}\" is not as pg_queue created it"))
                .detail(format!("Column \"{column}\" {what}."))
                .hint(
                    "Undo the change. Store what belongs to a job in its payload, \
                    or in a table of your own.",
                ),
        )
    };
    for (n, &(column, kind, is_not_null)) in shape.iter().enumerate() {
        match attributes.get(n) {
            Some(found) if found.attisdropped => return wrong(column, "was dropped"),
            Some(found) if found.atttypid != kind => return wrong(column, "is of another type"),
            Some(found) if found.attnotnull && !is_not_null => return wrong(column, "was made NOT NULL"),
            Some(found) if !found.attnotnull && is_not_null => return wrong(column, "is no longer NOT NULL"),
            Some(_) => {}
            // The SQL may be of an earlier version: later ones add columns that may be NULL.
            None if !is_not_null => break,
            None => return wrong(column, "is missing"),
        }
    }
    if let Some(added) = attributes.iter().skip(shape.len()).find(|found| !found.attisdropped) {
        return wrong(&crate::pg::syscache::name(&added.attname), "was added");
    }
    let last = attributes.last().filter(|_| attributes.len() > COLUMNS)?;
    wrong(&crate::pg::syscache::name(&last.attname), "was added and dropped, and is one too many")
}
