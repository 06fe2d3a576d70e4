//! Finds the leaf to which an entry of a b-tree belongs, and whether the entry exists.
//!
//! Responsible for nbtree's search in all supported majors. Not responsible for inserting (`leaf`).
//!
//! Invariant: it changes nothing except that nbtree finishes splits that a crash has interrupted.

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;

use pgrx::pg_sys::{self, Datum};

use crate::pg::{raw, unguarded};

/// BT_READ and BT_WRITE of nbtree.h: how the leaf is locked.
#[cfg(not(feature = "from19"))]
const READ: c_int = pg_sys::BUFFER_LOCK_SHARE as c_int;
#[cfg(feature = "from19")]
const READ: c_int = pg_sys::BufferLockMode::BUFFER_LOCK_SHARE as c_int;
#[cfg(all(not(feature = "pg16"), not(feature = "from19"), target_endian = "little"))]
const WRITE: c_int = pg_sys::BUFFER_LOCK_EXCLUSIVE as c_int;
#[cfg(all(feature = "from19", target_endian = "little"))]
const WRITE: c_int = pg_sys::BufferLockMode::BUFFER_LOCK_EXCLUSIVE as c_int;

/// Searches for a key, and returns the first leaf that may have it, pinned and locked exclusively. The caller releases
/// it by [`release`].
///
/// # Safety
/// The call is made within `pg_guard_ffi_boundary`. `index` is an open b-tree of `table`, and `tuple` is an entry of
/// its shape.
#[cfg(all(not(feature = "pg16"), target_endian = "little"))]
pub unsafe fn leaf(index: pg_sys::Relation, table: pg_sys::Relation, tuple: pg_sys::IndexTuple) -> pg_sys::Buffer {
    // SAFETY: the caller's promise. The search key lives until it is freed here.
    unsafe {
        let key = raw::_bt_mkscankey(index, tuple);
        // The search ignores the row's place, as `btinsert` does for equal keys. So it finds the first leaf that may
        // have an equal key.
        (*key).scantid = ptr::null_mut();
        let buffer = descend(index, table, key, WRITE);
        raw::pfree(key.cast());
        buffer
    }
}

/// Returns whether the index has the entry of the row at this place. The index has no posting lists: it was created
/// with `deduplicate_items = off`.
///
/// # Safety
/// The call is made within `pg_guard_ffi_boundary`. `index` is an open b-tree of `table`, with a value for each column.
pub unsafe fn has(
    index: pg_sys::Relation,
    table: pg_sys::Relation,
    tid: pg_sys::ItemPointerData,
    values: &mut [Datum],
    nulls: &mut [bool],
) -> bool {
    // SAFETY: the caller's promise. Items are compared between the leaf's first entry and its last line pointer.
    unsafe {
        let tuple = raw::index_form_tuple((*index).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
        (*tuple).t_tid = tid;
        // The key has the row's place, so at most one entry equals it, and only one leaf may have that.
        let key = raw::_bt_mkscankey(index, tuple);
        // An index without a root has no leaf: the buffer is 0.
        let buffer = descend(index, table, key, READ);
        let mut is_there = false;
        if buffer != 0 {
            let page = unguarded::page_of(buffer);
            let header = &*page.cast::<pg_sys::PageHeaderData>();
            let opaque = &*page.add(header.pd_special as usize).cast::<pg_sys::BTPageOpaqueData>();
            let is_rightmost = opaque.btpo_next == 0;
            let pointers = (header.pd_lower as usize).saturating_sub(offset_of!(pg_sys::PageHeaderData, pd_linp));
            // The first item of a leaf with a right neighbour is its high key.
            let mut low = if is_rightmost { 1 } else { 2 };
            let mut high = pointers / size_of::<pg_sys::ItemIdData>() + 1;
            while low < high && !is_there {
                let middle = low + (high - low) / 2;
                match raw::_bt_compare(index, key, page, middle as u16) {
                    0 => is_there = true,
                    order if order > 0 => low = middle + 1,
                    _ => high = middle,
                }
            }
            release(index, buffer);
        }
        raw::pfree(key.cast());
        raw::pfree(tuple.cast());
        is_there
    }
}

/// Unlocks and unpins a leaf.
///
/// # Safety
/// A search has returned the buffer.
pub unsafe fn release(index: pg_sys::Relation, buffer: pg_sys::Buffer) {
    // SAFETY: the caller's promise.
    unsafe { raw::_bt_relbuf(index, buffer) }
}

/// # Safety
/// The call is made under a guard. `key` is a search key for the index.
#[cfg_attr(not(feature = "from16"), expect(unused_variables, reason = "wanted from 16 on"))]
unsafe fn descend(
    index: pg_sys::Relation,
    table: pg_sys::Relation,
    key: pg_sys::BTScanInsert,
    access: c_int,
) -> pg_sys::Buffer {
    let mut buffer: pg_sys::Buffer = 0;
    // SAFETY: the caller's promise. If a call raises an error, the transaction's abort releases lock and pin.
    unsafe {
        #[cfg(not(feature = "from16"))]
        let stack = raw::_bt_search(index, key, &raw mut buffer, access, ptr::null_mut());
        #[cfg(feature = "pg16")]
        let stack = raw::_bt_search(index, table, key, &raw mut buffer, access, ptr::null_mut());
        #[cfg(all(feature = "from17", not(feature = "from19")))]
        let stack = raw::_bt_search(index, table, key, &raw mut buffer, access);
        #[cfg(not(feature = "from19"))]
        raw::_bt_freestack(stack);
        // Without a stack there is nothing to free.
        #[cfg(feature = "from19")]
        raw::_bt_search(index, table, key, &raw mut buffer, access, false);
    }
    buffer
}
