//! Opens tables and indexes, and locks them.
//!
//! Responsible for the lock, for its duration, and for checking that a table's columns have its shape. Not responsible
//! for what is done with the relations (`table`, `scan`).
//!
//! Invariant: an index is opened after its table, because only then a dead index is known
//! (`relcache::replace_dead_indexes`).

use pgrx::pg_sys;

use crate::error::{self, Error};
use crate::pg::shape::{self, Shape};
use crate::pg::table::Relation;
use crate::pg::{raw, relcache, syscache, unguarded};

impl Relation {
    /// Opens a table to write, with RowExclusiveLock until the end of the transaction. Waits for the lock. Raises an
    /// error if the table does not exist, and 55000 if its columns are not those that the extension created.
    pub fn write(oid: pg_sys::Oid) -> Self {
        // SAFETY: the call raises if there is no such table.
        Self::written(unsafe { pg_sys::table_open(oid, pg_sys::RowExclusiveLock as i32) }, false)
    }

    /// Opens a table and one of its indexes to write, as `write` does.
    pub fn write_both(table: pg_sys::Oid, index: pg_sys::Oid) -> (Self, Self) {
        let lock = pg_sys::RowExclusiveLock as i32;
        let now = relcache::index_now(index);
        // SAFETY: the calls raise if a relation does not exist. The guard's closure holds nothing to drop. If the index
        // is missing, the transaction's end closes the table.
        let (table, opened) = unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                let table = raw::table_open(table, lock);
                // Taking the lock has read pending invalidation messages.
                (table, relcache::has_no_suspects().then(|| raw::index_open(now, lock)))
            })
        };
        let table = Self::written(table, false);
        (table, opened.map_or_else(|| Self::write_index(index), |index| Self::written(index, true)))
    }

    /// Opens two indexes to write into, with RowExclusiveLock until the end of the transaction.
    pub fn write_indexes([first, second]: [pg_sys::Oid; 2]) -> [Self; 2] {
        let lock = pg_sys::RowExclusiveLock as i32;
        let (first, second) = (relcache::index_now(first), relcache::index_now(second));
        // SAFETY: as above.
        let opened = unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| [raw::index_open(first, lock), raw::index_open(second, lock)])
        };
        opened.map(|rel| Self::written(rel, true))
    }

    /// Takes over an open relation whose lock stays until the end of the transaction. Checks a table's columns.
    fn written(rel: pg_sys::Relation, is_index: bool) -> Self {
        let opened = Self { rel, is_index, release: pg_sys::NoLock as i32 };
        if !is_index {
            opened.check(None);
            relcache::replace_dead_indexes();
        }
        opened
    }

    /// Raises 55000 if the columns of this table differ from its shape. `other`: the shape of a table outside the
    /// catalog.
    fn check(&self, other: Option<Shape>) {
        // SAFETY: an open relation.
        unsafe { shape::check(self.rel, other) };
    }

    /// Returns the fault in the columns of this table. `None`: no fault. Raises nothing.
    pub fn fault(&self, known: Shape) -> Option<Error> {
        // SAFETY: an open relation.
        unsafe { shape::fault(self.rel, known) }
    }

    /// Opens a table to read, with AccessShareLock until the value is dropped. Raises as `write` does.
    pub fn read(oid: pg_sys::Oid) -> Self {
        let opened = Self::read_unchecked(oid);
        opened.check(None);
        opened
    }

    /// Opens a table to read, as `read` does, but does not check its columns.
    pub fn read_unchecked(oid: pg_sys::Oid) -> Self {
        // SAFETY: as above.
        let rel = unsafe { pg_sys::table_open(oid, pg_sys::AccessShareLock as i32) };
        let opened = Self { rel, is_index: false, release: pg_sys::AccessShareLock as i32 };
        relcache::replace_dead_indexes();
        opened
    }

    /// Opens a table of this shape to read, as `read` does. `None`: the table does not exist.
    pub fn try_read(oid: pg_sys::Oid, known: Shape) -> Option<Self> {
        // SAFETY: the call returns null if there is no such table.
        let rel = unsafe { pg_sys::try_relation_open(oid, pg_sys::AccessShareLock as i32) };
        let opened =
            (!rel.is_null()).then(|| Self { rel, is_index: false, release: pg_sys::AccessShareLock as i32 })?;
        opened.check(Some(known));
        Some(opened)
    }

    /// Opens a table of this shape, which the catalog does not know, to write, as `write` does.
    pub fn write_shaped(oid: pg_sys::Oid, known: Shape) -> Self {
        let opened = Self::write(oid);
        opened.check(Some(known));
        opened
    }

    /// Raises 55000 if this index does not have `count` columns.
    pub fn check_columns(&self, count: usize) {
        if self.columns() != count {
            // SAFETY: an open relation has a name.
            let name = syscache::name(unsafe { &(*(*self.rel).rd_rel).relname });
            Error::new(error::WRONG_STATE, format!("index \"queue_internal.{name}\" is not as pg_queue created it"))
                .detail("It has other columns.")
                .hint("Drop it, and create it as in a new database with pg_queue.")
                .report();
        }
    }

    /// Opens an index to write into, as `write` does a table. The table must be open.
    pub fn write_index(oid: pg_sys::Oid) -> Self {
        // SAFETY: as above, for an index.
        Self::written(unsafe { pg_sys::index_open(relcache::index_now(oid), pg_sys::RowExclusiveLock as i32) }, true)
    }

    /// Opens an index for entries that outlive a rollback. The lock is released when the value is dropped.
    pub fn fill_index(oid: pg_sys::Oid) -> Self {
        Self { release: pg_sys::RowExclusiveLock as i32, ..*std::mem::ManuallyDrop::new(Self::write_index(oid)) }
    }

    /// Returns the number of the relation's file. It changes when the relation is rebuilt.
    pub fn file(&self) -> u32 {
        // SAFETY: an open relation.
        unsafe { unguarded::file_of(self.rel) }.to_u32()
    }

    /// Opens an index to read, with AccessShareLock until the value is dropped. The table must be open. Raises an error
    /// if the index does not exist.
    pub fn read_index(oid: pg_sys::Oid) -> Self {
        // SAFETY: as above.
        let rel = unsafe { pg_sys::index_open(relcache::index_now(oid), pg_sys::AccessShareLock as i32) };
        Self { rel, is_index: true, release: pg_sys::AccessShareLock as i32 }
    }

    /// Opens indexes of one table to read, as `read_index` does, in the order of their oids. REINDEX and VACUUM FULL
    /// lock them in that order, so they cannot deadlock with a reader.
    pub fn read_indexes<const N: usize>(oids: [pg_sys::Oid; N]) -> [Self; N] {
        let mut order: [usize; N] = std::array::from_fn(|n| n);
        order.sort_unstable_by_key(|&n| relcache::index_now(oids[n]).to_u32());
        let mut opened: [Option<Self>; N] = std::array::from_fn(|_| None);
        for n in order {
            opened[n] = Some(Self::read_index(oids[n]));
        }
        opened.map(|index| index.unwrap_or_else(|| unreachable!("each was opened above")))
    }

    /// Closes a table that was opened to write but not written to, and releases its lock.
    pub fn unlock(mut self) {
        self.release = pg_sys::RowExclusiveLock as i32;
    }
}
