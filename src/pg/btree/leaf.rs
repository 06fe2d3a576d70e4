//! Puts a batch's entries into a b-tree leaf as a run, without `btinsert`. See docs/decisions/leaf-at-once.md.
//!
//! Responsible for integer keys that ascend, one leaf, and entries that fit and have new keys. Not responsible for page
//! splits and equal keys: for these `btinsert` is called, so that splits and the check for uniqueness stay Postgres's
//! own.
//!
//! Invariant: amcheck finds no fault. It has checked the result on PostgreSQL 15, 17, 18 and 19, little-endian. On
//! other platforms the function does nothing, and all entries go through `btinsert`.

use pgrx::pg_sys::{self, Datum};

/// Fewer entries than this do not pay for the copy of the page that a generic WAL record needs.
const MIN_RUN_ENTRIES: usize = 8;

/// What became of a run.
pub struct Run {
    /// The number of the first entry that was not inserted.
    pub next: usize,
    /// How many entries from there on `btinsert` should insert before the next run.
    pub plain: usize,
}

/// True if at least `MIN_RUN_ENTRIES` rows, beginning with `from`, have ascending keys, so that a leaf may take them
/// together. It compares the keys as integers. An index with other keys is refused later.
pub fn is_run<const COLUMNS: usize>(from: usize, end: usize, key: &impl Fn(usize) -> Option<[Datum; COLUMNS]>) -> bool {
    let integers = |n| key(n).map(|key| key.map(|value| value.value() as i64));
    from + MIN_RUN_ENTRIES <= end
        && (from..from + MIN_RUN_ENTRIES - 1).all(|n| match (integers(n), integers(n + 1)) {
            (Some(this), Some(next)) => this < next,
            _ => false,
        })
}

#[cfg(not(all(not(feature = "pg16"), target_endian = "little")))]
pub unsafe fn insert<const COLUMNS: usize>(
    _index: pg_sys::Relation,
    _table: pg_sys::Relation,
    _tids: &[pg_sys::ItemPointerData],
    from: usize,
    _key: &impl Fn(usize) -> Option<[Datum; COLUMNS]>,
) -> Run {
    Run { next: from, plain: usize::MAX }
}

#[cfg(all(not(feature = "pg16"), target_endian = "little"))]
pub use direct::insert;

#[cfg(all(not(feature = "pg16"), target_endian = "little"))]
mod direct {
    use std::ptr;

    use super::{Datum, MIN_RUN_ENTRIES, Run, pg_sys};
    use crate::pg::btree::page::{Key, Leaf, Shape, Tuple};
    use crate::pg::btree::search;
    use crate::pg::{raw, unguarded};

    /// A generic record has each line pointer that moves. This many of them take as much WAL as the header of a record
    /// of `btinsert`.
    const POINTERS_PER_RECORD: usize = 12;

    /// Inserts entries into one leaf, beginning with number `from`: as many as ascend, fit and have new keys.
    /// `btinsert` then inserts the next one. `key` returns `None` for a row without a key, which ends the run.
    ///
    /// A run needs one descent, one lock and one WAL record. Three of each for every entry were the largest part of a
    /// batch's cost, and half of its WAL. A run that is short, or that moves many line pointers, is left to `btinsert`.
    ///
    /// It is safe because `_bt_search` finds the leaf and locks it exclusively, as for `btinsert`. Entries are inserted
    /// in order, below the leaf's high key. The change is made to a copy and logged as a generic record. Standbys and
    /// recovery apply that record under the same exclusive lock. A key that equals one on this leaf ends the run. So
    /// does a key that equals the high key, because equal keys could lie behind it.
    ///
    /// # Safety
    /// The call is made within `pg_guard_ffi_boundary`. `index` is an open b-tree whose lock allows inserting, and
    /// `table` is its table. `key` drops nothing.
    pub unsafe fn insert<const COLUMNS: usize>(
        index: pg_sys::Relation,
        table: pg_sys::Relation,
        tids: &[pg_sys::ItemPointerData],
        from: usize,
        key: &impl Fn(usize) -> Option<[Datum; COLUMNS]>,
    ) -> Run {
        // SAFETY: the function's comment says why. If a call raises an error, the transaction's abort releases the lock
        // and the pin.
        unsafe {
            let (Some(shape), Some(values)) = (Shape::of(index, COLUMNS), key(from)) else {
                return Run { next: from, plain: usize::MAX };
            };
            let mut first = Tuple::new(&shape, &tids[from], &values);
            let buffer = search::leaf(index, table, first.bytes().as_mut_ptr().cast());
            raw::CheckForSerializableConflictIn(index, ptr::null_mut(), raw::BufferGetBlockNumber(buffer));

            // Here the page is only read. Its copy is the same, as the page is locked.
            let pays = Leaf::of(unguarded::page_of(buffer), &shape).ok_or(0).and_then(|leaf| {
                let behind = leaf.place(&first).map(|at| leaf.count_from(at)).ok_or(0_usize)?;
                let needed = MIN_RUN_ENTRIES.max(behind / POINTERS_PER_RECORD);
                let high = leaf.high_key();
                let mut last = None;
                let key_of = |n: usize| key(n).map(|values| Tuple::new(&shape, &tids[n], &values).key);
                let belongs = |this: &Key| {
                    let ascends = last.replace(*this).is_none_or(|last| last < *this);
                    ascends && high.is_none_or(|(high, columns)| this[..columns] < high[..columns])
                };
                let found = (from..tids.len()).map_while(key_of).take_while(belongs).take(needed).count();
                if found == needed && leaf.has_no_marks() { Ok(()) } else { Err(found) }
            });
            if let Err(together) = pays {
                search::release(index, buffer);
                return Run { next: from, plain: together.max(1) };
            }

            let record = raw::GenericXLogStart(index);
            let page = raw::GenericXLogRegisterBuffer(record, buffer, 0);
            let mut next = from;
            if let Some(mut leaf) = Leaf::of(page, &shape) {
                let high = leaf.high_key();
                let mut last: Option<Key> = None;
                while next < tids.len() {
                    let Some(values) = key(next) else { break };
                    let mut tuple = Tuple::new(&shape, &tids[next], &values);
                    let this = tuple.key;
                    let descends = last.is_some_and(|last| this <= last);
                    let is_behind = high.is_some_and(|(high, columns)| this[..columns] >= high[..columns]);
                    if descends || is_behind {
                        break;
                    }
                    let Some(at) = leaf.place(&tuple) else { break };
                    if !leaf.put(&mut tuple, at) {
                        break;
                    }
                    last = Some(this);
                    next += 1;
                }
            }
            if next > from {
                raw::GenericXLogFinish(record);
            } else {
                raw::GenericXLogAbort(record);
            }
            search::release(index, buffer);
            Run { next, plain: 1 }
        }
    }
}
