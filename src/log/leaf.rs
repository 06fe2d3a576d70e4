//! Puts entries into a b-tree leaf without `btinsert`, in the two cases that make up nearly all of a queue's: a batch's
//! entries go in as a run, with one descent, one lock, one WAL record (`insert`), as three for each entry were the
//! largest part of a batch's cost and half of its WAL; and a single job's entry, which comes behind all others in the
//! index, goes to the end of the last leaf (`append`), without a descent and without a search.
//!
//! Only what is simple is done here: integer keys that ascend, a leaf that is whole, entries that fit and
//! whose keys are not there. Whatever is not (a page to be split, an equal key) is left to `btinsert`, so
//! that splits and the check for uniqueness stay Postgres's own.
//!
//! Why a run is safe: the leaf is found by `_bt_search` and held by its exclusive lock, as `btinsert` does.
//! Entries go in at the places that order asks for, below the leaf's high key. The change is made to a copy
//! and logged as a generic record, which standbys and recovery apply under the same exclusive lock. A key
//! that is equal to one on this leaf, or to the high key behind which equal ones could lie, ends the run.
//!
//! Why appending is safe: the page is looked at under its exclusive lock, whoever said that it is the last leaf. If it
//! is, and its last key is below the new one, then so are all keys in the index, and the new one is unique. What is
//! written and logged is what `_bt_insertonpg` writes and logs for such an entry, so recovery is Postgres's own.
//!
//! On PostgreSQL 15, 17 and 18, little-endian: the majors on which amcheck has looked at the result. Elsewhere
//! both do nothing, and all goes through `btinsert`.

use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

/// Fewer entries than this are not worth the copy of the page.
pub const WORTHWHILE: usize = 8;

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

#[cfg(not(all(any(feature = "pg15", feature = "pg17", feature = "pg18"), target_endian = "little")))]
pub unsafe fn append(
    _index: pg_sys::Relation,
    _block: pg_sys::BlockNumber,
    _tid: &pg_sys::ItemPointerData,
    _values: &[Datum],
) -> bool {
    false
}

#[cfg(all(any(feature = "pg15", feature = "pg17", feature = "pg18"), target_endian = "little"))]
pub use direct::{append, insert};

#[cfg(all(any(feature = "pg15", feature = "pg17", feature = "pg18"), target_endian = "little"))]
mod direct {
    use std::ffi::c_void;
    use std::ptr;

    use super::{Datum, pg_sys};
    use crate::log::page::{Key, Leaf, Shape, Tuple};

    // nbtree.h, generic_xlog.h, bufpage.h, predicate.h: without guards, as in `table::raw`.
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
        fn ReadBuffer(index: pg_sys::Relation, block: pg_sys::BlockNumber) -> pg_sys::Buffer;
        fn ReleaseBuffer(buffer: pg_sys::Buffer);
        fn UnlockReleaseBuffer(buffer: pg_sys::Buffer);
        fn ConditionalLockBuffer(buffer: pg_sys::Buffer) -> bool;
        fn MarkBufferDirty(buffer: pg_sys::Buffer);
        fn _bt_checkpage(index: pg_sys::Relation, buffer: pg_sys::Buffer);
        fn XLogBeginInsert();
        fn XLogRegisterData(data: *const c_void, size: u32);
        fn XLogRegisterBuffer(number: u8, buffer: pg_sys::Buffer, flags: u8);
        fn XLogRegisterBufData(number: u8, data: *const c_void, size: u32);
        fn XLogInsert(manager: u8, info: u8) -> u64;
        fn pfree(memory: *mut c_void);
    }

    /// BT_WRITE
    const WRITE: i32 = 2;
    /// nbtxlog.h: the record of an entry in a leaf. It holds the entry's number, and with the page the entry.
    const XLOG_BTREE_INSERT_LEAF: u8 = 0x00;

    /// Inserts entries from the one numbered `from` on into one leaf, as many as ascend, fit and are new.
    /// Returns the first that was not inserted: that one is `btinsert`'s.
    ///
    /// # Safety
    /// Within `pg_guard_ffi_boundary`; an open b-tree whose lock allows inserting, and its table; `key` drops
    /// nothing.
    pub unsafe fn insert<const COLUMNS: usize>(
        index: pg_sys::Relation,
        #[cfg_attr(feature = "pg15", expect(unused_variables, reason = "wanted from 16 on"))] table: pg_sys::Relation,
        tids: &[pg_sys::ItemPointerData],
        from: usize,
        key: &impl Fn(usize) -> Option<[Datum; COLUMNS]>,
    ) -> usize {
        // SAFETY: the module's comment; whatever raises an error gives back lock and pin with the transaction.
        unsafe {
            let (Some(shape), Some(values)) = (Shape::of(index, COLUMNS), key(from)) else { return from };
            let mut first = Tuple::new(&shape, &tids[from], &values);
            let mut buffer: pg_sys::Buffer = 0;
            let search = _bt_mkscankey(index, first.bytes().as_mut_ptr().cast());
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

    /// Puts a row's entry at the end of this block, if that is the index's last leaf, nobody else holds it, and all keys
    /// in it are smaller. False: nothing was done.
    ///
    /// # Safety
    /// Within `pg_guard_ffi_boundary`; an open b-tree whose lock allows inserting, and a block of it.
    pub unsafe fn append(
        index: pg_sys::Relation,
        block: pg_sys::BlockNumber,
        tid: &pg_sys::ItemPointerData,
        values: &[Datum],
    ) -> bool {
        // SAFETY: the module's comment; whatever raises an error gives back lock and pin with the transaction.
        unsafe {
            let Some(shape) = Shape::of(index, values.len()).filter(|_| is_logged(index)) else { return false };
            let mut tuple = Tuple::new(&shape, tid, values);
            let buffer = ReadBuffer(index, block);
            if !ConditionalLockBuffer(buffer) {
                ReleaseBuffer(buffer);
                return false;
            }
            _bt_checkpage(index, buffer);
            let page = pg_sys::BufferGetPage(buffer).cast::<u8>();
            let mut is_done = false;
            if let Some(mut leaf) = Leaf::of(page, &shape)
                && let Some(at) = leaf.place_at_end(&tuple)
            {
                CheckForSerializableConflictIn(index, ptr::null_mut(), block);
                // From the change to its record nothing may fail.
                pg_sys::CritSectionCount += 1;
                is_done = leaf.put(&mut tuple, at);
                if is_done {
                    MarkBufferDirty(buffer);
                    let entry = tuple.bytes();
                    XLogBeginInsert();
                    XLogRegisterData((&raw const at).cast(), size_of_val(&at) as u32);
                    XLogRegisterBuffer(0, buffer, pg_sys::REGBUF_STANDARD as u8);
                    XLogRegisterBufData(0, entry.as_ptr().cast(), entry.len() as u32);
                    let end = XLogInsert(pg_sys::RmgrIds::RM_BTREE_ID as u8, XLOG_BTREE_INSERT_LEAF);
                    let lsn = pg_sys::PageXLogRecPtr { xlogid: (end >> 32) as u32, xrecoff: end as u32 };
                    page.cast::<pg_sys::PageXLogRecPtr>().write(lsn);
                }
                pg_sys::CritSectionCount -= 1;
            }
            UnlockReleaseBuffer(buffer);
            is_done
        }
    }

    /// RelationNeedsWAL, and a little less: of files that were made in this transaction Postgres knows best.
    ///
    /// # Safety
    /// An open index.
    unsafe fn is_logged(index: pg_sys::Relation) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            #[cfg(feature = "pg15")]
            let changed = (*index).rd_firstRelfilenodeSubid;
            #[cfg(not(feature = "pg15"))]
            let changed = (*index).rd_firstRelfilelocatorSubid;
            let is_permanent = (*(*index).rd_rel).relpersistence as u8 == pg_sys::RELPERSISTENCE_PERMANENT;
            is_permanent && (*index).rd_createSubid == 0 && changed == 0
        }
    }
}
