//! What inserting and scanning do for every row, without the bindings' guard. One guard surrounds a whole batch.
//!
//! Responsible for small functions over the declarations of `raw`. Not responsible for rare calls, which go through the
//! bindings.
//!
//! Invariant: each caller is inside a guard.

use std::ptr;

use pgrx::pg_sys;

use crate::pg::raw;

/// Copies the row at a place if it is committed or of this transaction. Returns null if there is no such row.
///
/// # Safety
/// The call is made under a guard. The place is in a block of the table.
pub unsafe fn copy_at(rel: pg_sys::Relation, tid: pg_sys::ItemPointerData) -> pg_sys::HeapTuple {
    let mut tuple = pg_sys::HeapTupleData { t_self: tid, ..Default::default() };
    let mut buffer: pg_sys::Buffer = 0;
    let snapshot = &raw mut pg_sys::SnapshotSelfData;
    // SAFETY: heap_fetch checks the line pointer and pins the page. The tuple is copied before the pin is released.
    unsafe {
        let found = raw::heap_fetch(rel, snapshot, &raw mut tuple, &raw mut buffer, false);
        if !found {
            return ptr::null_mut();
        }
        let copy = raw::heap_copytuple(&raw mut tuple);
        raw::ReleaseBuffer(buffer);
        copy
    }
}

/// Returns the page in a shared buffer. All relations of the extension are in shared buffers.
///
/// # Safety
/// The buffer is pinned.
pub unsafe fn page_of(buffer: pg_sys::Buffer) -> pg_sys::Page {
    // SAFETY: the caller's promise. Buffers are counted from 1.
    unsafe { pg_sys::BufferBlocks.add((buffer as usize - 1) * pg_sys::BLCKSZ as usize).cast() }
}

/// Makes the entries of a row in all indexes, as the executor does. An existing key is no error; `conflict` tells.
///
/// # Safety
/// The call is made under a guard. `slot` has the row, and the state and the indexes of `result` are the executor's.
pub unsafe fn insert_index_entries(
    result: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    state: *mut pg_sys::EState,
    conflict: *mut bool,
) {
    // SAFETY: the caller's promise.
    #[cfg(not(feature = "from19"))]
    unsafe {
        let arbiters = ptr::null_mut();
        raw::ExecInsertIndexTuples(
            result,
            slot,
            state,
            false,
            true,
            conflict,
            arbiters,
            #[cfg(feature = "from16")]
            false,
        );
    }
    // SAFETY: the caller's promise.
    #[cfg(feature = "from19")]
    unsafe {
        raw::ExecInsertIndexTuples(result, state, pg_sys::EIIT_NO_DUPE_ERROR, slot, ptr::null_mut(), conflict);
    }
}

/// True if a list has an oid for which `knows` returns false.
///
/// # Safety
/// `list` is a list of oids, or null.
pub unsafe fn has_unknown(list: *const pg_sys::List, knows: &dyn Fn(pg_sys::Oid) -> bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let length = if list.is_null() { 0 } else { usize::try_from((*list).length).unwrap_or(0) };
        (0..length).any(|n| !knows((*(*list).elements.add(n)).oid_value))
    }
}

/// Returns the number of a relation's file.
///
/// # Safety
/// `rel` is an open relation.
#[cfg(not(feature = "from16"))]
pub unsafe fn file_of(rel: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: the caller's promise.
    unsafe { (*rel).rd_node.relNode }
}

/// Returns the number of a relation's file.
///
/// # Safety
/// `rel` is an open relation.
#[cfg(feature = "from16")]
pub unsafe fn file_of(rel: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: the caller's promise.
    unsafe { (*rel).rd_locator.relNumber }
}
