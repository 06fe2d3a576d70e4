//! Puts a batch's entries into a b-tree leaf as a run, without `btinsert`. See docs/decisions/leaf-at-once.md.
//!
//! Responsible for integer keys that ascend, a whole leaf, and entries that fit and have new keys. Not responsible for
//! anything else (a page to be split, an equal key): `btinsert` keeps splits and the check for uniqueness Postgres's
//! own.
//!
//! Invariant: amcheck finds nothing wrong. It has looked at the result on PostgreSQL 15, 17 and 18, little-endian;
//! elsewhere the function does nothing, and all entries go through `btinsert`.

use pgrx::pg_sys::{self, Datum};

/// Fewer entries than this are not worth the copy of the page that a generic WAL record needs.
const WORTHWHILE: usize = 8;

/// Whether at least `WORTHWHILE` rows, beginning with `from`, have keys that ascend, so that a leaf may take them
/// at once. It compares the keys as integers; an index whose keys are none is refused later.
pub fn is_run<const COLUMNS: usize>(from: usize, end: usize, key: &impl Fn(usize) -> Option<[Datum; COLUMNS]>) -> bool {
    let integers = |n| key(n).map(|key| key.map(|value| value.value() as i64));
    from + WORTHWHILE <= end
        && (from..from + WORTHWHILE - 1).all(|n| match (integers(n), integers(n + 1)) {
            (Some(this), Some(next)) => this < next,
            _ => false,
        })
}

#[cfg(not(all(any(feature = "pg15", feature = "pg17", feature = "pg18"), target_endian = "little")))]
pub unsafe fn insert<const COLUMNS: usize>(
    _index: pg_sys::Relation,
    _table: pg_sys::Relation,
    _tids: &[pg_sys::ItemPointerData],
    from: usize,
    _key: &impl Fn(usize) -> Option<[Datum; COLUMNS]>,
) -> usize {
    from
}

#[cfg(all(any(feature = "pg15", feature = "pg17", feature = "pg18"), target_endian = "little"))]
pub use direct::insert;

#[cfg(all(any(feature = "pg15", feature = "pg17", feature = "pg18"), target_endian = "little"))]
mod direct {
    use std::ffi::c_void;
    use std::ptr;

    use super::{Datum, pg_sys};
    use crate::pg::btree::page::{Key, Leaf, Shape, Tuple};

    // These are of nbtree.h, generic_xlog.h, bufpage.h, predicate.h; without guards, as in `pg::unguarded`.
    unsafe extern "C-unwind" {
        fn _bt_mkscankey(index: pg_sys::Relation, tuple: pg_sys::IndexTuple) -> *mut c_void;
        #[cfg(feature = "pg15")]
        fn _bt_search(
            index: pg_sys::Relation,
            key: *mut c_void,
            buffer: *mut pg_sys::Buffer,
            access: i32,
            snapshot: pg_sys::Snapshot,
        ) -> *mut c_void;
        #[cfg(not(feature = "pg15"))]
        fn _bt_search(
            index: pg_sys::Relation,
            table: pg_sys::Relation,
            key: *mut c_void,
            buffer: *mut pg_sys::Buffer,
            access: i32,
        ) -> *mut c_void;
        fn _bt_freestack(stack: *mut c_void);
        fn _bt_relbuf(index: pg_sys::Relation, buffer: pg_sys::Buffer);
        fn BufferGetBlockNumber(buffer: pg_sys::Buffer) -> pg_sys::BlockNumber;
        fn CheckForSerializableConflictIn(
            index: pg_sys::Relation,
            tid: *mut pg_sys::ItemPointerData,
            block: pg_sys::BlockNumber,
        );
        fn GenericXLogStart(index: pg_sys::Relation) -> *mut c_void;
        fn GenericXLogRegisterBuffer(state: *mut c_void, buffer: pg_sys::Buffer, flags: i32) -> *mut u8;
        fn GenericXLogFinish(state: *mut c_void) -> u64;
        fn GenericXLogAbort(state: *mut c_void);
        fn pfree(memory: *mut c_void);
    }

    /// BT_WRITE of nbtree.h: the leaf comes locked exclusively.
    const WRITE: i32 = 2;
    /// The word of BTScanInsertData that is `scantid`: the second one, behind five truth values.
    const SEARCHED_TID: usize = 1;
    /// Inserts entries, beginning with the one numbered `from`, into one leaf: as many as ascend, fit and have new
    /// keys. Returns the number of the first entry that was not inserted, which `btinsert` then inserts. `key` returns
    /// `None` for a row without a key, which ends the run.
    ///
    /// One descent, one lock and one WAL record for a run pay: three of each for every entry were the largest part of a
    /// batch's cost, and half of its WAL.
    ///
    /// It is safe, since the leaf is found by `_bt_search` and held by its exclusive lock, as `btinsert` does. Entries
    /// go in at the places that order asks for, below the leaf's high key. The change is made to a copy and logged as a
    /// generic record, which standbys and recovery apply under the same exclusive lock. A key that is equal to one on
    /// this leaf, or to the high key, behind which equal ones could lie, ends the run.
    ///
    /// # Safety
    /// The call stands within `pg_guard_ffi_boundary`. `index` is an open b-tree whose lock allows inserting, and
    /// `table` is its table. `key` drops nothing.
    pub unsafe fn insert<const COLUMNS: usize>(
        index: pg_sys::Relation,
        #[cfg_attr(feature = "pg15", expect(unused_variables, reason = "wanted from 16 on"))] table: pg_sys::Relation,
        tids: &[pg_sys::ItemPointerData],
        from: usize,
        key: &impl Fn(usize) -> Option<[Datum; COLUMNS]>,
    ) -> usize {
        // SAFETY: the function's comment says why. If a call raises an error, the transaction's abort gives back lock
        // and pin.
        unsafe {
            let (Some(shape), Some(values)) = (Shape::of(index, COLUMNS), key(from)) else { return from };
            let mut first = Tuple::new(&shape, &tids[from], &values);
            let mut buffer: pg_sys::Buffer = 0;
            let search = _bt_mkscankey(index, first.bytes().as_mut_ptr().cast());
            // The search goes without the row's place, as that of `btinsert` for equal keys: to the first leaf that may
            // have one.
            search.cast::<*mut c_void>().add(SEARCHED_TID).write(ptr::null_mut());
            #[cfg(feature = "pg15")]
            let stack = _bt_search(index, search, &raw mut buffer, WRITE, ptr::null_mut());
            #[cfg(not(feature = "pg15"))]
            let stack = _bt_search(index, table, search, &raw mut buffer, WRITE);
            _bt_freestack(stack);
            pfree(search);
            CheckForSerializableConflictIn(index, ptr::null_mut(), BufferGetBlockNumber(buffer));

            let record = GenericXLogStart(index);
            let page = GenericXLogRegisterBuffer(record, buffer, 0);
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
                GenericXLogFinish(record);
            } else {
                GenericXLogAbort(record);
            }
            _bt_relbuf(index, buffer);
            next
        }
    }
}
