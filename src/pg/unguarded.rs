//! The calls of Postgres that inserting and scanning make for every row, without the bindings' guard. One guard
//! surrounds a whole batch.
//!
//! Responsible for their declarations and for three small functions over them. Not responsible for rare calls, which go
//! through the bindings.
//!
//! Invariant: each caller is inside a guard.

use std::ptr;

use pgrx::pg_sys;

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
        #[cfg(not(feature = "pg14"))]
        let found = heap_fetch(rel, snapshot, &raw mut tuple, &raw mut buffer, false);
        #[cfg(feature = "pg14")]
        let found = heap_fetch(rel, snapshot, &raw mut tuple, &raw mut buffer);
        if !found {
            return ptr::null_mut();
        }
        let copy = heap_copytuple(&raw mut tuple);
        ReleaseBuffer(buffer);
        copy
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
#[cfg(any(feature = "pg14", feature = "pg15"))]
pub unsafe fn file_of(rel: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: the caller's promise.
    unsafe { (*rel).rd_node.relNode }
}

/// Returns the number of a relation's file.
///
/// # Safety
/// `rel` is an open relation.
#[cfg(not(any(feature = "pg14", feature = "pg15")))]
pub unsafe fn file_of(rel: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: the caller's promise.
    unsafe { (*rel).rd_locator.relNumber }
}

unsafe extern "C-unwind" {
    pub fn table_open(oid: pg_sys::Oid, lock: pg_sys::LOCKMODE) -> pg_sys::Relation;
    pub fn table_close(relation: pg_sys::Relation, lock: pg_sys::LOCKMODE);
    pub fn index_open(oid: pg_sys::Oid, lock: pg_sys::LOCKMODE) -> pg_sys::Relation;
    pub fn index_close(relation: pg_sys::Relation, lock: pg_sys::LOCKMODE);
    pub fn GetCurrentCommandId(used: bool) -> pg_sys::CommandId;
    pub fn heap_form_tuple(desc: pg_sys::TupleDesc, values: *mut pg_sys::Datum, nulls: *mut bool) -> pg_sys::HeapTuple;
    pub fn heap_freetuple(tuple: pg_sys::HeapTuple);
    pub fn heap_fetch(
        relation: pg_sys::Relation,
        snapshot: pg_sys::Snapshot,
        tuple: pg_sys::HeapTuple,
        buffer: *mut pg_sys::Buffer,
        #[cfg(not(feature = "pg14"))] keep_buffer: bool,
    ) -> bool;
    pub fn heap_copytuple(tuple: pg_sys::HeapTuple) -> pg_sys::HeapTuple;
    pub fn heap_deform_tuple(
        tuple: pg_sys::HeapTuple,
        desc: pg_sys::TupleDesc,
        values: *mut pg_sys::Datum,
        nulls: *mut bool,
    );
    pub fn slot_getsomeattrs_int(slot: *mut pg_sys::TupleTableSlot, count: i32);
    pub fn ReleaseBuffer(buffer: pg_sys::Buffer);
    pub fn heap_insert(
        relation: pg_sys::Relation,
        tuple: pg_sys::HeapTuple,
        command: pg_sys::CommandId,
        options: i32,
        bulk: pg_sys::BulkInsertState,
    );
    pub fn heap_multi_insert(
        relation: pg_sys::Relation,
        slots: *mut *mut pg_sys::TupleTableSlot,
        count: i32,
        command: pg_sys::CommandId,
        options: i32,
        bulk: pg_sys::BulkInsertState,
    );
    pub fn index_insert(
        index: pg_sys::Relation,
        values: *mut pg_sys::Datum,
        nulls: *mut bool,
        tid: pg_sys::ItemPointer,
        table: pg_sys::Relation,
        check: pg_sys::IndexUniqueCheck::Type,
        is_unchanged: bool,
        info: *mut pg_sys::IndexInfo,
    ) -> bool;
    pub fn RelationGetIndexList(relation: pg_sys::Relation) -> *mut pg_sys::List;
    pub fn palloc0(size: usize) -> *mut std::ffi::c_void;
    pub fn CreateExecutorState() -> *mut pg_sys::EState;
    pub fn FreeExecutorState(state: *mut pg_sys::EState);
    pub fn BuildIndexInfo(index: pg_sys::Relation) -> *mut pg_sys::IndexInfo;
    pub fn InitResultRelInfo(
        result: *mut pg_sys::ResultRelInfo,
        relation: pg_sys::Relation,
        number: u32,
        root: *mut pg_sys::ResultRelInfo,
        instrument: i32,
    );
    pub fn MakeSingleTupleTableSlot(
        desc: pg_sys::TupleDesc,
        ops: *const pg_sys::TupleTableSlotOps,
    ) -> *mut pg_sys::TupleTableSlot;
    pub fn ExecDropSingleTupleTableSlot(slot: *mut pg_sys::TupleTableSlot);
    pub fn ExecStoreHeapTuple(
        tuple: pg_sys::HeapTuple,
        slot: *mut pg_sys::TupleTableSlot,
        free: bool,
    ) -> *mut pg_sys::TupleTableSlot;
    pub fn ExecInsertIndexTuples(
        result: *mut pg_sys::ResultRelInfo,
        slot: *mut pg_sys::TupleTableSlot,
        state: *mut pg_sys::EState,
        update: bool,
        no_duplicate_error: bool,
        conflict: *mut bool,
        arbiters: *mut pg_sys::List,
        #[cfg(not(any(feature = "pg14", feature = "pg15")))] only_summarizing: bool,
    ) -> *mut pg_sys::List;
}
