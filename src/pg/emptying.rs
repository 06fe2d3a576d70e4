//! Empties tables in place.
//!
//! Responsible for truncating a table, its toast table and their indexes. Not responsible for the locks, which the
//! caller holds (`lock::try_lock_whole`).
//!
//! Invariant: nothing in the catalogs changes, so that a turn of the ring of segments leaves no dead row there. When
//! the transaction that has found or made a table empty commits, no session remembers where the roots of its indexes
//! were, however many tries were rolled back before.

use pgrx::pg_sys;

use crate::pg::fault::fault;
use crate::pg::syscache;

/// How much of what is on disk can be believed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// An index that consists of its first page is empty. It is so unless the power failed during an earlier try, which
    /// can leave a part of that page.
    FirstPages,
    /// An earlier try may have been cut off: every index is built anew.
    Nothing,
}

fn blocks(rel: pg_sys::Relation) -> pg_sys::BlockNumber {
    // SAFETY: an open relation.
    unsafe { pg_sys::RelationGetNumberOfBlocksInFork(rel, pg_sys::ForkNumber::MAIN_FORKNUM) }
}

/// Calls `each` with the open relation of a table, and with that of its toast table if it has one. The caller holds
/// AccessExclusiveLock on both.
fn with_toast(table: pg_sys::Oid, mut each: impl FnMut(pg_sys::Relation)) {
    // SAFETY: the tables are locked; each is closed after use.
    let mut visit = |oid| unsafe {
        let rel = pg_sys::table_open(oid, pg_sys::NoLock as pg_sys::LOCKMODE);
        each(rel);
        let toast = (*(*rel).rd_rel).reltoastrelid;
        pg_sys::table_close(rel, pg_sys::NoLock as pg_sys::LOCKMODE);
        toast
    };
    let toast = visit(table);
    if toast != pg_sys::InvalidOid {
        visit(toast);
    }
}

/// Calls `each` with the open relation of each index of an open table. The caller holds AccessExclusiveLock on all of
/// them.
fn each_index(rel: pg_sys::Relation, mut each: impl FnMut(pg_sys::Relation)) {
    // SAFETY: the table is open and its indexes are locked. Each is closed after use.
    unsafe {
        for oid in syscache::index_oids(rel) {
            let index = pg_sys::index_open(oid, pg_sys::NoLock as pg_sys::LOCKMODE);
            each(index);
            pg_sys::index_close(index, pg_sys::NoLock as pg_sys::LOCKMODE);
        }
    }
}

/// Returns whether an index has no entries. Every index of the extension is a b-tree, whose first page has none. An
/// index without a page was left by a crash, and must be built.
fn is_empty_index(index: pg_sys::Relation) -> bool {
    blocks(index) == 1
}

/// Makes every session forget, when the transaction commits, where it has seen the root of an index that is left out.
/// The try that emptied the index may have been rolled back, and then it has told nobody.
fn leave_out(index: pg_sys::Relation) {
    // SAFETY: an open relation.
    unsafe { pg_sys::CacheInvalidateRelcache(index) };
}

/// Returns whether a table, its toast table and their indexes are empty, so that `empty` need not be called for it. The
/// caller holds AccessExclusiveLock on all of them.
pub fn leave_out_if_empty(table: pg_sys::Oid) -> bool {
    let mut is_empty = true;
    with_toast(table, |rel| {
        is_empty &= blocks(rel) == 0;
        each_index(rel, |index| is_empty &= is_empty_index(index));
    });
    if is_empty {
        with_toast(table, |rel| each_index(rel, leave_out));
    }
    is_empty
}

/// Empties a table with its indexes and its toast table, immediately and for good, also if the transaction is rolled
/// back. TRUNCATE does the same to a table that its own transaction has made. Leaves out what is empty: each relation
/// costs a truncation, a flush and a search of the buffer cache. The caller holds AccessExclusiveLock on the table, its
/// indexes and its toast table.
pub fn empty(table: pg_sys::Oid, trust: Trust) {
    fault!("truncate.before");
    with_toast(table, |rel| {
        if blocks(rel) > 0 {
            // SAFETY: the relation is open, and locked exclusively.
            unsafe { pg_sys::RelationTruncate(rel, 0) };
        }
        each_index(rel, |index| {
            if trust == Trust::FirstPages && is_empty_index(index) {
                return leave_out(index);
            }
            // SAFETY: as `heap_truncate_one_rel`: both are open and locked exclusively, and the table has no rows.
            unsafe {
                let info = pg_sys::BuildDummyIndexInfo(index);
                pg_sys::RelationTruncate(index, 0);
                #[cfg(not(feature = "from19"))]
                pg_sys::index_build(rel, index, info, true, false);
                #[cfg(feature = "from19")]
                pg_sys::index_build(rel, index, info, true, false, false);
            }
        });
    });
    fault!("truncate.after");
}
