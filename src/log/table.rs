//! Direct access to tables and their b-tree indexes: the unsafe fence around the access methods.
//!
//! No SQL plan, no search_path, no row security stands between a verb and a log. Reads use snapshots
//! that see what is committed at the moment of looking (never the transaction's own, older one) and
//! take no predicate locks; writes are those of the heap and of `btinsert`.
//!
//! Invariant: whatever is opened is closed when the value is dropped. A writer's lock stays until the
//! end of the transaction, a reader's is released at once.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::ptr;

use pg_queue_core::frontier::Place;
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

use crate::instance;
use crate::log::{leaf, rightmost};
use crate::sys;

/// The functions of the hot path without a guard each: a guard (a sigsetjmp) costs about as much as the
/// function itself, so one is laid around many calls. Not to be called outside `pg_guard_ffi_boundary`.
mod raw {
    use pgrx::pg_sys;

    unsafe extern "C-unwind" {
        pub fn table_open(oid: pg_sys::Oid, lock: pg_sys::LOCKMODE) -> pg_sys::Relation;
        pub fn table_close(relation: pg_sys::Relation, lock: pg_sys::LOCKMODE);
        pub fn index_open(oid: pg_sys::Oid, lock: pg_sys::LOCKMODE) -> pg_sys::Relation;
        pub fn index_close(relation: pg_sys::Relation, lock: pg_sys::LOCKMODE);
        pub fn GetCurrentCommandId(used: bool) -> pg_sys::CommandId;
        pub fn heap_form_tuple(
            desc: pg_sys::TupleDesc,
            values: *mut pg_sys::Datum,
            nulls: *mut bool,
        ) -> pg_sys::HeapTuple;
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
        pub fn NewGUCNestLevel() -> i32;
        pub fn AtEOXact_GUC(is_commit: bool, level: i32);
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
}

/// Calls `f` with `count` slots in which tuples travel to `heap_multi_insert`. They are kept for the session
/// and are envelopes only: marked as holding a tuple of their own, so that the heap takes it as it is. They
/// are overwritten before each use, so what an error leaves in them does no harm.
fn envelopes(count: usize, f: impl FnOnce(*mut *mut pg_sys::HeapTupleTableSlot)) {
    thread_local! {
        static SLOTS: RefCell<Vec<*mut pg_sys::HeapTupleTableSlot>> = const { RefCell::new(Vec::new()) };
    }
    let mut slots = SLOTS.take();
    while slots.len() < count {
        let mut slot = Box::<pg_sys::HeapTupleTableSlot>::default();
        slot.base.type_ = pg_sys::NodeTag::T_TupleTableSlot;
        slot.base.tts_ops = &raw const pg_sys::TTSOpsHeapTuple;
        slot.base.tts_flags = pg_sys::TTS_FLAG_SHOULDFREE as u16;
        slots.push(Box::into_raw(slot));
    }
    f(slots.as_mut_ptr());
    SLOTS.set(slots);
}

/// Most columns a table of ours has: queue.history.
pub const COLUMNS: usize = 26;

/// An open table or index.
pub struct Relation {
    rel: pg_sys::Relation,
    is_index: bool,
    release: pg_sys::LOCKMODE,
}

impl Relation {
    /// Opens a table to write; the lock is kept to the end of the transaction.
    pub fn write(oid: pg_sys::Oid) -> Self {
        // SAFETY: raises when there is no such table.
        Self::written(unsafe { pg_sys::table_open(oid, pg_sys::RowExclusiveLock as i32) }, false)
    }

    /// Opens a table and one of its indexes to write.
    pub fn write_both(table: pg_sys::Oid, index: pg_sys::Oid) -> (Self, Self) {
        let lock = pg_sys::RowExclusiveLock as i32;
        // SAFETY: raises when one is not there. Within the guard there is nothing to drop; should the index be
        // missing, the transaction's end closes the table.
        let (table, index) = unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| (raw::table_open(table, lock), raw::index_open(index, lock)))
        };
        (Self::written(table, false), Self::written(index, true))
    }

    /// Opens two indexes to write into.
    pub fn write_indexes([first, second]: [pg_sys::Oid; 2]) -> [Self; 2] {
        let lock = pg_sys::RowExclusiveLock as i32;
        // SAFETY: as above.
        let opened = unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| [raw::index_open(first, lock), raw::index_open(second, lock)])
        };
        opened.map(|rel| Self::written(rel, true))
    }

    fn written(rel: pg_sys::Relation, is_index: bool) -> Self {
        Self { rel, is_index, release: pg_sys::NoLock as i32 }
    }

    /// Opens a table to read; the lock is released when this is dropped.
    pub fn read(oid: pg_sys::Oid) -> Self {
        // SAFETY: as above.
        let rel = unsafe { pg_sys::table_open(oid, pg_sys::AccessShareLock as i32) };
        Self { rel, is_index: false, release: pg_sys::AccessShareLock as i32 }
    }

    /// Opens a table to read that may be gone.
    pub fn try_read(oid: pg_sys::Oid) -> Option<Self> {
        // SAFETY: null when there is no such table.
        let rel = unsafe { pg_sys::try_relation_open(oid, pg_sys::AccessShareLock as i32) };
        (!rel.is_null()).then(|| Self { rel, is_index: false, release: pg_sys::AccessShareLock as i32 })
    }

    /// Opens an index to write into.
    pub fn write_index(oid: pg_sys::Oid) -> Self {
        // SAFETY: as above, for an index.
        Self::written(unsafe { pg_sys::index_open(oid, pg_sys::RowExclusiveLock as i32) }, true)
    }

    /// Opens an index to write into what counts whatever becomes of the transaction; the lock is released when this
    /// is dropped.
    pub fn fill_index(oid: pg_sys::Oid) -> Self {
        Self { release: pg_sys::RowExclusiveLock as i32, ..*std::mem::ManuallyDrop::new(Self::write_index(oid)) }
    }

    /// The number of the file that it lies in: another one when it was built anew.
    pub fn file(&self) -> u32 {
        // SAFETY: an open relation.
        unsafe { file_of(self.rel) }.to_u32()
    }

    /// Opens an index to read.
    pub fn read_index(oid: pg_sys::Oid) -> Self {
        // SAFETY: as above.
        let rel = unsafe { pg_sys::index_open(oid, pg_sys::AccessShareLock as i32) };
        Self { rel, is_index: true, release: pg_sys::AccessShareLock as i32 }
    }

    /// Closes a table that was opened to write and not written to, and gives its lock back.
    pub fn unlock(mut self) {
        self.release = pg_sys::RowExclusiveLock as i32;
    }

    fn desc(&self) -> pg_sys::TupleDesc {
        // SAFETY: open relations have a descriptor.
        unsafe { (*self.rel).rd_att }
    }

    fn columns(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.desc()).natts as usize }
    }

    /// How many blocks the table has now.
    pub fn blocks(&self) -> u32 {
        // SAFETY: an open relation with storage.
        unsafe { pg_sys::RelationGetNumberOfBlocksInFork(self.rel, pg_sys::ForkNumber::MAIN_FORKNUM) }
    }

    /// Inserts a row with its entries, and tells where it lies; `None`: the key of a unique index is there already,
    /// or is being inserted by an open transaction (nobody waits), and the row is taken back. Everything under
    /// one guard and by the same code for all tables: a job has three such rows.
    pub fn insert_row<const COLUMNS: usize>(
        &self,
        row: [Option<Datum>; COLUMNS],
        entries: &mut [Entry<'_>],
    ) -> Option<Tid> {
        debug_assert_eq!(COLUMNS, self.columns());
        let mut values = row.map(|value| value.unwrap_or(Datum::from(0)));
        let mut nulls = row.map(|value| value.is_none());
        self.insert_values(&mut values, &mut nulls, entries)
    }

    fn insert_values(&self, values: &mut [Datum], nulls: &mut [bool], entries: &mut [Entry<'_>]) -> Option<Tid> {
        let (rel, desc, info) = (self.rel, self.desc(), index_info());
        let has_others = self.has_others();
        // SAFETY: a value for each column; b-trees of this table, with a value for each of their columns. Within
        // the guard there is nothing to drop.
        let (tid, is_taken) = unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                let tuple = raw::heap_form_tuple(desc, values.as_mut_ptr(), nulls.as_mut_ptr());
                raw::heap_insert(rel, tuple, raw::GetCurrentCommandId(true), 0, ptr::null_mut());
                let mut tid = (*tuple).t_self;
                raw::heap_freetuple(tuple);
                if has_others {
                    fill_others(rel, &raw const tid, 1, &instance::knows_index);
                }
                let mut is_taken = false;
                for Entry { index, is_unique, key } in entries {
                    let (index, key, check) = (index.rel, &**key, uniqueness(*is_unique));
                    let place = tid;
                    let is_new = rightmost::insert(index, &place, key, || {
                        let mut nulls = [false; pg_sys::INDEX_MAX_KEYS as usize];
                        let (key, nulls) = (key.as_ptr().cast_mut(), nulls.as_mut_ptr());
                        raw::index_insert(index, key, nulls, &raw mut tid, rel, check, false, info)
                    });
                    is_taken |= *is_unique && !is_new;
                }
                (Tid(tid), is_taken)
            })
        };
        if is_taken {
            self.take_back(tid);
            return None;
        }
        Some(tid)
    }

    /// Inserts rows and tells where each lies; page by page, with one WAL record a page. Indexes are the caller's
    /// business.
    pub fn insert(&self, rows: &mut NewRows) -> Vec<Tid> {
        /// As many as COPY buffers.
        const AT_ONCE: usize = 1000;
        // Before an upgrade of the SQL the last ones may be missing.
        debug_assert!(rows.columns >= self.columns());
        let (columns, count) = (rows.columns, rows.len());
        let (rel, desc) = (self.rel, self.desc());
        let (values, nulls) = (rows.values.as_mut_ptr(), rows.nulls.as_mut_ptr());
        let mut tids = Vec::with_capacity(count);
        for first in (0..count).step_by(AT_ONCE) {
            let n = AT_ONCE.min(count - first);
            envelopes(n, |slots| {
                // SAFETY: a value for each column of each row; the slots carry the tuples to the heap, which
                // takes them out and puts each row's place in. Within the guard there is nothing to drop.
                unsafe {
                    pg_sys::ffi::pg_guard_ffi_boundary(|| {
                        for row in 0..n {
                            let at = (first + row) * columns;
                            let tuple = raw::heap_form_tuple(desc, values.add(at), nulls.add(at));
                            (**slots.add(row)).tuple = tuple;
                        }
                        let command = raw::GetCurrentCommandId(true);
                        raw::heap_multi_insert(rel, slots.cast(), n as i32, command, 0, ptr::null_mut());
                        for row in 0..n {
                            raw::heap_freetuple((**slots.add(row)).tuple);
                        }
                    });
                    tids.extend((0..n).map(|row| Tid((**slots.add(row)).base.tts_tid)));
                }
            });
            crate::sys::check_for_interrupts();
        }
        if self.has_others() {
            self.fill_others(&tids, &instance::knows_index);
        }
        tids
    }

    /// Whether this table of ours has indexes that this session does not know: while REINDEX CONCURRENTLY puts one into
    /// the place of another, each row needs its entry in both; and somebody may have made one for his own purposes.
    fn has_others(&self) -> bool {
        // SAFETY: an open relation; the list is ours.
        unsafe {
            instance::has_other_indexes((*self.rel).rd_id, || {
                has_unknown(pg_sys::RelationGetIndexList(self.rel), &instance::knows_index)
            })
        }
    }

    /// Makes the entries of rows just inserted in all indexes but those that are known. Conflicts there are none of ours:
    /// what is known comes later, and tells.
    pub fn fill_others(&self, tids: &[Tid], knows: &dyn Fn(pg_sys::Oid) -> bool) {
        let (rel, places, count) = (self.rel, Tid::raw(tids).as_ptr(), tids.len());
        // SAFETY: rows of this table; within the guard there is nothing to drop.
        unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| fill_others(rel, places, count, knows)) }
    }

    /// Makes this index's entries for rows just inserted; rows without a key get none. Returns the positions
    /// of those whose key was there already, or is being inserted by an open transaction: nobody waits. Always
    /// empty for an index that is not unique. Those rows have entries now and must go: `take_back`.
    pub fn insert_entries<const COLUMNS: usize>(
        &self,
        table: &Relation,
        tids: &[Tid],
        is_unique: bool,
        key: impl Fn(usize) -> Option<[Datum; COLUMNS]>,
    ) -> Vec<usize> {
        let check = uniqueness(is_unique);
        let (index, table, info) = (self.rel, table.rel, index_info());
        let mut nulls = [false; COLUMNS];
        let mut conflicts = Vec::new();
        let mut next = 0;
        while next < tids.len() {
            // SAFETY: a b-tree of this table with COLUMNS columns. Within the guard there is nothing to drop:
            // a conflict ends it, and is put down outside.
            let conflict = unsafe {
                pg_sys::ffi::pg_guard_ffi_boundary(|| {
                    while next < tids.len() {
                        if is_run(next, tids.len(), &key) {
                            next = leaf::insert(index, table, Tid::raw(tids), next, &key);
                            if next == tids.len() {
                                break;
                            }
                        }
                        let row = next;
                        next += 1;
                        let Some(mut values) = key(row) else { continue };
                        let mut tid = tids[row].0;
                        let is_new = raw::index_insert(
                            index,
                            values.as_mut_ptr(),
                            nulls.as_mut_ptr(),
                            &raw mut tid,
                            table,
                            check,
                            false,
                            info,
                        );
                        if is_unique && !is_new {
                            return Some(row);
                        }
                    }
                    None
                })
            };
            conflicts.extend(conflict);
        }
        conflicts
    }

    /// Deletes a row that this transaction has just inserted: its key turned out to be taken. Until this
    /// transaction ends, others take the deleted row for one in progress.
    pub fn take_back(&self, tid: Tid) {
        let mut tid = tid.0;
        // SAFETY: a row of this transaction, which nobody else can see; a command cannot delete what it has
        // inserted itself, so the next one begins.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::simple_heap_delete(self.rel, &raw mut tid);
        }
    }

    /// The row at a place, if one is there that this moment's snapshot sees. `generation` changes when the table
    /// is truncated.
    pub fn fetch(&self, tid: Tid, generation: i64) -> Option<Row> {
        if tid.block() >= self.blocks_cached(tid, generation) {
            return None;
        }
        let (rel, desc) = (self.rel, self.desc());
        let mut row = Row::empty();
        let to = &raw mut row;
        // SAFETY: a block within the table. Within the guard there is nothing to drop.
        let found = unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                let copy = copy_at(rel, tid.0);
                if !copy.is_null() {
                    raw::heap_deform_tuple(copy, desc, (*to).values.as_mut_ptr(), (*to).nulls.as_mut_ptr());
                    (*to).tuple = copy;
                }
                !copy.is_null()
            })
        };
        found.then_some(row)
    }

    /// As `fetch`, for a place that may lie behind the end of the table, also when it did not a moment ago: VACUUM cuts
    /// off what is empty. `blocks` is what the table had since it was locked, or more.
    pub fn fetch_if_there(&self, tid: Tid, blocks: &mut u32, generation: i64) -> Option<Row> {
        if tid.block() >= *blocks {
            *blocks = self.blocks();
        }
        (tid.block() < *blocks).then(|| self.fetch(tid, generation)).flatten()
    }

    /// The number of blocks, asked only when the place may lie beyond the end: reading there is an error.
    fn blocks_cached(&self, tid: Tid, generation: i64) -> u32 {
        thread_local! {
            static LAST: Cell<(pg_sys::Oid, i64, u32)> = const { Cell::new((pg_sys::Oid::INVALID, 0, 0)) };
        }
        // SAFETY: an open relation has a file number.
        let file = unsafe { file_of(self.rel) };
        let (last, last_generation, blocks) = LAST.get();
        if last == file && last_generation == generation && tid.block() < blocks {
            return blocks;
        }
        let blocks = self.blocks();
        LAST.set((file, generation, blocks));
        blocks
    }

    /// How many rows the table may have: counts the line pointers of its pages, each of which stands for a row
    /// or for one that was rolled back.
    pub fn line_pointers(&self) -> i64 {
        let mut count = 0;
        let strategy = crate::sys::bulk_reading();
        for block in 0..self.blocks() {
            // SAFETY: a block within the table; the page is pinned and share-locked while it is looked at.
            unsafe {
                let buffer = pg_sys::ReadBufferExtended(
                    self.rel,
                    pg_sys::ForkNumber::MAIN_FORKNUM,
                    block,
                    pg_sys::ReadBufferMode::RBM_NORMAL,
                    strategy,
                );
                pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
                let page = pg_sys::BufferGetPage(buffer);
                let header = page.cast::<pg_sys::PageHeaderData>();
                let lower = usize::from((*header).pd_lower);
                let start = std::mem::offset_of!(pg_sys::PageHeaderData, pd_linp);
                count += (lower.saturating_sub(start) / size_of::<pg_sys::ItemIdData>()) as i64;
                pg_sys::UnlockReleaseBuffer(buffer);
            }
            if block % 256 == 0 {
                crate::sys::check_for_interrupts();
            }
        }
        count
    }

    /// Reads an index in order.
    pub fn scan<'a>(&'a self, index: &'a Relation, keys: &[Key], snapshot: Snapshot) -> Scan<'a> {
        Scan::begin(self, index, keys, snapshot)
    }

    /// Reads the table from its end on: what was inserted last comes first, roughly, as sessions fill pages of their
    /// own. As the calling statement sees it.
    pub fn backwards(&self) -> Backwards<'_> {
        // SAFETY: the snapshot is active, and stays so while the statement runs. Not beside others' reads of the table,
        // which would begin anywhere.
        let scan = unsafe {
            let flags = pg_sys::ScanOptions::SO_TYPE_SEQSCAN | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE;
            let snapshot = pg_sys::GetActiveSnapshot();
            pg_sys::heap_beginscan(self.rel, snapshot, 0, ptr::null_mut(), ptr::null_mut(), flags)
        };
        Backwards { scan, table: self }
    }

    /// Looks a key up, also among what open transactions have inserted. `moved`: a `"char"` column, counted
    /// from 0, and its value in a row which says that the attempt has moved.
    pub fn probe(&self, index: &Relation, id: i64, moved: (usize, u8)) -> Probe {
        let mut scan = self.scan(index, &[Key::eq_i64(1, id)], Snapshot::Dirty);
        if scan.next().is_none() {
            return Probe::Absent;
        }
        let is_in_progress = scan.is_in_progress();
        let (column, value) = moved;
        let has_moved = scan.columns(column + 1).0[column].value() as u8 == value;
        match (has_moved, is_in_progress) {
            (false, false) => Probe::Committed,
            (false, true) => Probe::InProgress,
            (true, false) => Probe::Moved,
            (true, true) => Probe::Moving,
        }
    }
}

/// A copy of the row at a place that this moment's snapshot sees; null: there is none.
///
/// # Safety
/// Under a guard. A block within the table.
unsafe fn copy_at(rel: pg_sys::Relation, tid: pg_sys::ItemPointerData) -> pg_sys::HeapTuple {
    let mut tuple = pg_sys::HeapTupleData { t_self: tid, ..Default::default() };
    let mut buffer: pg_sys::Buffer = 0;
    let snapshot = &raw mut pg_sys::SnapshotSelfData;
    // SAFETY: heap_fetch checks the line pointer and pins the page; the tuple is copied before the pin is given back.
    unsafe {
        #[cfg(not(feature = "pg14"))]
        let found = raw::heap_fetch(rel, snapshot, &raw mut tuple, &raw mut buffer, false);
        #[cfg(feature = "pg14")]
        let found = raw::heap_fetch(rel, snapshot, &raw mut tuple, &raw mut buffer);
        if !found {
            return ptr::null_mut();
        }
        let copy = raw::heap_copytuple(&raw mut tuple);
        raw::ReleaseBuffer(buffer);
        copy
    }
}

/// # Safety
/// A list of oids, or null.
unsafe fn has_unknown(list: *const pg_sys::List, knows: &dyn Fn(pg_sys::Oid) -> bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let length = if list.is_null() { 0 } else { usize::try_from((*list).length).unwrap_or(0) };
        (0..length).any(|n| !knows((*(*list).elements.add(n)).oid_value))
    }
}

/// Makes entries as the executor does: for indexes of any kind, with conditions and expressions, that take them already.
/// Nobody waits for a key that is taken.
///
/// # Safety
/// Under a guard; nothing in here is to be dropped. Rows of this table, which is locked to write.
unsafe fn fill_others(
    rel: pg_sys::Relation,
    tids: *const pg_sys::ItemPointerData,
    count: usize,
    knows: &dyn Fn(pg_sys::Oid) -> bool,
) {
    // SAFETY: the caller's promise. What is made here lies in the current memory context, and the resource owner knows
    // what is open, should there be an error.
    unsafe {
        let list = raw::RelationGetIndexList(rel);
        if !has_unknown(list, knows) {
            return;
        }
        // What the indexes call is their owner's, and is run with his rights, as CREATE INDEX would do it: the worker's are
        // those of a superuser. An error sets them back with the transaction.
        let (mut user, mut context) = (pg_sys::Oid::INVALID, 0);
        sys::raw::GetUserIdAndSecContext(&raw mut user, &raw mut context);
        let restricted = context | pg_sys::SECURITY_RESTRICTED_OPERATION as i32;
        sys::raw::SetUserIdAndSecContext((*(*rel).rd_rel).relowner, restricted);
        let level = raw::NewGUCNestLevel();
        let length = (*list).length as usize;
        let indexes = raw::palloc0(size_of::<pg_sys::Relation>() * length).cast::<pg_sys::Relation>();
        let infos = raw::palloc0(size_of::<usize>() * length).cast::<*mut pg_sys::IndexInfo>();
        let mut open = 0;
        for n in 0..length {
            let oid = (*(*list).elements.add(n)).oid_value;
            if !knows(oid) {
                let index = raw::index_open(oid, pg_sys::RowExclusiveLock as i32);
                *indexes.add(open) = index;
                *infos.add(open) = raw::BuildIndexInfo(index);
                open += 1;
            }
        }
        let state = raw::CreateExecutorState();
        let result = raw::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast::<pg_sys::ResultRelInfo>();
        (*result).type_ = pg_sys::NodeTag::T_ResultRelInfo;
        raw::InitResultRelInfo(result, rel, 0, ptr::null_mut(), 0);
        (*result).ri_NumIndices = open as i32;
        (*result).ri_IndexRelationDescs = indexes;
        (*result).ri_IndexRelationInfo = infos;
        let slot = raw::MakeSingleTupleTableSlot((*rel).rd_att, &raw const pg_sys::TTSOpsHeapTuple);
        for n in 0..count {
            let copy = copy_at(rel, *tids.add(n));
            if !copy.is_null() {
                raw::ExecStoreHeapTuple(copy, slot, true);
                (*slot).tts_tid = *tids.add(n);
                let mut conflict = false;
                raw::ExecInsertIndexTuples(
                    result,
                    slot,
                    state,
                    false,
                    true,
                    &raw mut conflict,
                    ptr::null_mut(),
                    #[cfg(not(any(feature = "pg14", feature = "pg15")))]
                    false,
                );
            }
        }
        raw::ExecDropSingleTupleTableSlot(slot);
        for n in 0..open {
            raw::index_close(*indexes.add(n), pg_sys::NoLock as i32);
        }
        raw::FreeExecutorState(state);
        raw::AtEOXact_GUC(false, level);
        sys::raw::SetUserIdAndSecContext(user, context);
    }
}

#[cfg(any(feature = "pg14", feature = "pg15"))]
unsafe fn file_of(rel: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: the caller's promise.
    unsafe { (*rel).rd_node.relNode }
}

#[cfg(not(any(feature = "pg14", feature = "pg15")))]
unsafe fn file_of(rel: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: the caller's promise.
    unsafe { (*rel).rd_locator.relNumber }
}

impl Drop for Relation {
    fn drop(&mut self) {
        // SAFETY: opened by this value; closing is right while an error unwinds, too: the resource owner
        // still knows it. Without a guard: what is open, and locked as it is here, closes without an error.
        unsafe {
            if self.is_index {
                raw::index_close(self.rel, self.release);
            } else {
                raw::table_close(self.rel, self.release);
            }
        }
    }
}

fn uniqueness(is_unique: bool) -> pg_sys::IndexUniqueCheck::Type {
    if is_unique { pg_sys::IndexUniqueCheck::UNIQUE_CHECK_PARTIAL } else { pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO }
}

/// What `index_insert` wants to be given: btinsert does not look into it, it must only be there.
fn index_info() -> *mut pg_sys::IndexInfo {
    thread_local! {
        static INFO: Cell<*mut pg_sys::IndexInfo> = const { Cell::new(ptr::null_mut()) };
    }
    if INFO.get().is_null() {
        // SAFETY: zeroed memory that lives as long as the session.
        unsafe {
            let size = size_of::<pg_sys::IndexInfo>();
            let info = pg_sys::MemoryContextAllocZero(pg_sys::TopMemoryContext, size).cast::<pg_sys::IndexInfo>();
            (*info).type_ = pg_sys::NodeTag::T_IndexInfo;
            INFO.set(info);
        }
    }
    INFO.get()
}

/// Whether enough rows from this one on have keys that ascend, so that a leaf may take them at once. Looks at
/// the keys as integers; those that are none are refused later.
fn is_run<const COLUMNS: usize>(from: usize, end: usize, key: &impl Fn(usize) -> Option<[Datum; COLUMNS]>) -> bool {
    let integers = |n| key(n).map(|key| key.map(|value| value.value() as i64));
    from + leaf::WORTHWHILE <= end
        && (from..from + leaf::WORTHWHILE - 1).all(|n| match (integers(n), integers(n + 1)) {
            (Some(this), Some(next)) => this < next,
            _ => false,
        })
}

/// Where a row lies in its table.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Tid(pg_sys::ItemPointerData);

impl Tid {
    fn raw(tids: &[Self]) -> &[pg_sys::ItemPointerData] {
        // SAFETY: a transparent wrapper.
        unsafe { std::slice::from_raw_parts(tids.as_ptr().cast(), tids.len()) }
    }

    fn block(self) -> u32 {
        (u32::from(self.0.ip_blkid.bi_hi) << 16) | u32::from(self.0.ip_blkid.bi_lo)
    }

    fn parts(self) -> (u32, u16) {
        (self.block(), self.0.ip_posid)
    }

    /// As the frontier keeps it.
    pub fn place(self, segment: u8) -> Place {
        Place { block: self.block(), offset: self.0.ip_posid, segment, is_indexed: false }
    }

    /// Back from the frontier.
    pub fn of(place: Place) -> Self {
        Self(pg_sys::ItemPointerData {
            ip_blkid: pg_sys::BlockIdData { bi_hi: (place.block >> 16) as u16, bi_lo: (place.block & 0xffff) as u16 },
            ip_posid: place.offset,
        })
    }
}

impl PartialEq for Tid {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

/// What a look at a key found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// Nothing.
    Absent,
    /// A committed row, or one of this transaction.
    Committed,
    /// A row of somebody's open transaction.
    InProgress,
    /// A committed row which says that the attempt has moved.
    Moved,
    /// The same, in a transaction that is open: it will end within milliseconds.
    Moving,
}

/// A row's entry in an index of its table.
pub struct Entry<'a> {
    pub index: &'a Relation,
    pub is_unique: bool,
    pub key: &'a mut [Datum],
}

/// Values for rows to insert.
pub struct NewRows {
    values: Vec<Datum>,
    nulls: Vec<bool>,
    columns: usize,
}

impl NewRows {
    /// Room for rows of so many columns.
    pub fn new(columns: usize, rows: usize) -> Self {
        Self { values: Vec::with_capacity(columns * rows), nulls: Vec::with_capacity(columns * rows), columns }
    }

    /// Adds a row, column by column.
    pub fn add<const COLUMNS: usize>(&mut self, row: [Option<Datum>; COLUMNS]) {
        debug_assert_eq!(COLUMNS, self.columns);
        self.values.extend(row.iter().map(|value| value.unwrap_or(Datum::from(0))));
        self.nulls.extend(row.iter().map(Option::is_none));
    }

    fn len(&self) -> usize {
        self.values.len() / self.columns
    }
}

/// A copy of a row that was read; freed when dropped.
pub struct Row {
    tuple: pg_sys::HeapTuple,
    values: [Datum; COLUMNS],
    nulls: [bool; COLUMNS],
}

impl Row {
    fn empty() -> Self {
        Self { tuple: ptr::null_mut(), values: [Datum::from(0); COLUMNS], nulls: [true; COLUMNS] }
    }

    /// # Safety
    /// `tuple` is a tuple of this descriptor in Postgres's memory, now owned by the row.
    unsafe fn new(tuple: pg_sys::HeapTuple, desc: pg_sys::TupleDesc) -> Self {
        let mut row = Self::empty();
        row.tuple = tuple;
        // SAFETY: no table of ours has more than COLUMNS columns.
        unsafe {
            assert!((*desc).natts as usize <= COLUMNS, "a table has more columns than COLUMNS");
            pg_sys::heap_deform_tuple(tuple, desc, row.values.as_mut_ptr(), row.nulls.as_mut_ptr());
        }
        row
    }

    /// Where the row lies.
    pub fn tid(&self) -> Tid {
        // SAFETY: heap_copytuple copies the place.
        Tid(unsafe { (*self.tuple).t_self })
    }

    /// Whether this very transaction inserted it.
    pub fn is_own(&self) -> bool {
        // SAFETY: a tuple of the heap, with its header.
        crate::sys::has_xid() && unsafe { is_own(self.tuple) }
    }

    /// A column, counted from 0; the datum is good as long as the row.
    pub fn get(&self, column: usize) -> Option<Datum> {
        (!self.nulls[column]).then(|| self.values[column])
    }

    /// A `bigint` or `timestamptz` column that is never NULL.
    pub fn i64(&self, column: usize) -> i64 {
        self.values[column].value() as i64
    }

    /// An `integer` column that is never NULL.
    pub fn i32(&self, column: usize) -> i32 {
        self.values[column].value() as i32
    }

    /// A `"char"` column that is never NULL.
    pub fn char(&self, column: usize) -> u8 {
        self.values[column].value() as u8
    }
}

/// # Safety
/// A tuple of the heap.
unsafe fn is_own(tuple: pg_sys::HeapTuple) -> bool {
    // SAFETY: the caller's promise.
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(pg_sys::htup::HeapTupleHeaderGetXmin((*tuple).t_data)) }
}

impl Drop for Row {
    fn drop(&mut self) {
        if !self.tuple.is_null() {
            // SAFETY: owned by the row; to free raises nothing, so it needs no guard.
            unsafe { raw::heap_freetuple(self.tuple) };
        }
    }
}

/// Through whose eyes to look.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Snapshot {
    /// What is committed now, and what this transaction has done.
    Now,
    /// Also what open transactions have inserted.
    Dirty,
    /// What the statement sees that called us.
    Statement,
}

/// One condition of an index scan.
pub struct Key {
    column: i16,
    strategy: u16,
    function: pg_sys::Oid,
    value: Datum,
}

macro_rules! key {
    ($(#[$doc:meta])* $name:ident, $kind:ty, $strategy:ident, $function:ident) => {
        $(#[$doc])*
        pub fn $name(column: i16, value: $kind) -> Self {
            Self {
                column,
                strategy: pg_sys::$strategy as u16,
                function: pg_sys::Oid::from(pg_sys::$function),
                value: Datum::from(value),
            }
        }
    };
}

impl Key {
    key!(/// bigint = value
        eq_i64, i64, BTEqualStrategyNumber, F_INT8EQ);
    key!(/// integer = value
        eq_i32, i32, BTEqualStrategyNumber, F_INT4EQ);
    key!(/// bigint > value
        gt_i64, i64, BTGreaterStrategyNumber, F_INT8GT);
    key!(/// bigint >= value
        ge_i64, i64, BTGreaterEqualStrategyNumber, F_INT8GE);
    key!(/// integer > value
        gt_i32, i32, BTGreaterStrategyNumber, F_INT4GT);
    key!(/// timestamptz > value
        after, i64, BTGreaterStrategyNumber, F_TIMESTAMPTZ_GT);

    /// text = value; a datum of type text
    pub fn eq_text(column: i16, value: Datum) -> Self {
        Self {
            column,
            strategy: pg_sys::BTEqualStrategyNumber as u16,
            function: pg_sys::Oid::from(pg_sys::F_TEXTEQ),
            value,
        }
    }

    /// text >= value; a datum of type text
    pub fn ge_text(column: i16, value: Datum) -> Self {
        let (strategy, function) = (pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_TEXT_GE);
        Self { column, strategy: strategy as u16, function: pg_sys::Oid::from(function), value }
    }

    /// All texts of ours are in "C".
    fn collation(&self) -> pg_sys::Oid {
        let is_text = [pg_sys::F_TEXTEQ, pg_sys::F_TEXT_GE].map(pg_sys::Oid::from).contains(&self.function);
        if is_text { pg_sys::C_COLLATION_OID } else { pg_sys::InvalidOid }
    }
}

/// Begins an index scan. `with_tuples`: the entries themselves are asked for.
///
/// # Safety
/// The snapshot lives as long as the scan.
unsafe fn begin_scan(
    table: &Relation,
    index: &Relation,
    snapshot: pg_sys::Snapshot,
    keys: &[Key],
    with_tuples: bool,
) -> pg_sys::IndexScanDesc {
    let mut raw: [pg_sys::ScanKeyData; 4] = std::array::from_fn(|_| pg_sys::ScanKeyData::default());
    let count = keys.len() as i32;
    // SAFETY: the caller's promise; both relations are open, and index_rescan copies the keys.
    unsafe {
        for (raw, key) in raw.iter_mut().zip(keys) {
            pg_sys::ScanKeyEntryInitialize(
                raw,
                0,
                key.column,
                key.strategy,
                pg_sys::InvalidOid,
                key.collation(),
                key.function,
                key.value,
            );
        }
        #[cfg(not(feature = "pg18"))]
        let scan = pg_sys::index_beginscan(table.rel, index.rel, snapshot, count, 0);
        #[cfg(feature = "pg18")]
        let scan = pg_sys::index_beginscan(table.rel, index.rel, snapshot, ptr::null_mut(), count, 0);
        (*scan).xs_want_itup = with_tuples;
        pg_sys::index_rescan(scan, raw.as_mut_ptr(), count, ptr::null_mut(), 0);
        scan
    }
}

/// A look at an index's entries alone: what they say and where they point, be anything there or not. For an index that
/// VACUUM does not know of, whose entries may point to other rows by now, or behind the end of the table. It never
/// tells the index that an entry is dead: that is only safe where VACUUM waits for those who look.
pub struct Entries<'a> {
    scan: pg_sys::IndexScanDesc,
    index: &'a Relation,
}

impl<'a> Entries<'a> {
    /// Begins behind nothing, in order. All columns of the index are of types that are passed by value.
    pub fn begin(table: &'a Relation, index: &'a Relation, keys: &[Key]) -> Self {
        // SAFETY: a static snapshot.
        Self { scan: unsafe { begin_scan(table, index, &raw mut pg_sys::SnapshotSelfData, keys, true) }, index }
    }

    /// The next entry: where it points, and its columns.
    pub fn next<const COLUMNS: usize>(&mut self) -> Option<(Tid, [Datum; COLUMNS])> {
        debug_assert_eq!(COLUMNS, self.index.columns());
        let mut values = [Datum::from(0); COLUMNS];
        let mut nulls = [false; COLUMNS];
        // SAFETY: the scan is valid until dropped; it was asked for tuples, and the arrays have a place for each column.
        unsafe {
            let tid = pg_sys::index_getnext_tid(self.scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tid.is_null() {
                return None;
            }
            let tuple = (*self.scan).xs_itup;
            pg_sys::index_deform_tuple(tuple, self.index.desc(), values.as_mut_ptr(), nulls.as_mut_ptr());
            Some((Tid(*tid), values))
        }
    }
}

impl Drop for Entries<'_> {
    fn drop(&mut self) {
        end_scan(self.scan);
    }
}

/// Ends an index scan. After an error the transaction's abort does so: what the error has left half done, such as a
/// page that is not pinned any more, would raise again.
fn end_scan(scan: pg_sys::IndexScanDesc) {
    if !std::thread::panicking() {
        // SAFETY: begun, and not ended yet.
        unsafe { pg_sys::index_endscan(scan) }
    }
}

/// An index scan under way.
pub struct Scan<'a> {
    scan: pg_sys::IndexScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
    table: &'a Relation,
    // The scan holds a pointer to it.
    snapshot: Box<MaybeUninit<pg_sys::SnapshotData>>,
}

impl<'a> Scan<'a> {
    fn begin(table: &'a Relation, index: &'a Relation, keys: &[Key], kind: Snapshot) -> Self {
        let mut snapshot = Box::new(MaybeUninit::zeroed());
        // SAFETY: a zeroed SnapshotData with its type set is what InitDirtySnapshot makes; the slot fits the table.
        unsafe {
            let chosen = match kind {
                Snapshot::Now => &raw mut pg_sys::SnapshotSelfData,
                Snapshot::Statement => pg_sys::GetActiveSnapshot(),
                Snapshot::Dirty => {
                    let dirty: *mut pg_sys::SnapshotData = snapshot.as_mut_ptr();
                    (*dirty).snapshot_type = pg_sys::SnapshotType::SNAPSHOT_DIRTY;
                    dirty
                }
            };
            let slot = pg_sys::MakeSingleTupleTableSlot(table.desc(), &raw const pg_sys::TTSOpsBufferHeapTuple);
            let scan = begin_scan(table, index, chosen, keys, false);
            Self { scan, slot, table, snapshot }
        }
    }

    /// The place of the next row.
    pub fn next(&mut self) -> Option<Tid> {
        // SAFETY: scan and slot are valid until dropped.
        unsafe {
            pg_sys::index_getnext_slot(self.scan, pg_sys::ScanDirection::ForwardScanDirection, self.slot)
                .then(|| Tid((*self.slot).tts_tid))
        }
    }

    /// The place of the row before; at first, of the last one.
    pub fn previous(&mut self) -> Option<Tid> {
        // SAFETY: as above.
        unsafe {
            pg_sys::index_getnext_slot(self.scan, pg_sys::ScanDirection::BackwardScanDirection, self.slot)
                .then(|| Tid((*self.slot).tts_tid))
        }
    }

    /// A copy of the row that `next` found.
    pub fn row(&self) -> Row {
        // SAFETY: the slot holds a row; the copy is ours.
        unsafe {
            let mut should_free = false;
            let tuple = pg_sys::ExecFetchSlotHeapTuple(self.slot, false, &raw mut should_free);
            let copy = pg_sys::heap_copytuple(tuple);
            (*copy).t_self = (*self.slot).tts_tid;
            Row::new(copy, self.table.desc())
        }
    }

    /// The first `count` columns of the row that `next` found, without copying it: good until the next
    /// call of `next`.
    pub fn columns(&mut self, count: usize) -> (&[Datum], &[bool]) {
        // SAFETY: the slot holds a row of at least that many columns.
        unsafe {
            if usize::try_from((*self.slot).tts_nvalid).unwrap_or(0) < count {
                pg_sys::slot_getsomeattrs_int(self.slot, count as i32);
            }
            (
                std::slice::from_raw_parts((*self.slot).tts_values, count),
                std::slice::from_raw_parts((*self.slot).tts_isnull, count),
            )
        }
    }

    /// Whether this very transaction inserted the row which `next` found.
    pub fn is_own(&self) -> bool {
        if !crate::sys::has_xid() {
            return false;
        }
        // SAFETY: the slot holds a tuple of the heap, with its header.
        unsafe {
            let mut should_free = false;
            is_own(pg_sys::ExecFetchSlotHeapTuple(self.slot, false, &raw mut should_free))
        }
    }

    /// Whether an open transaction inserted the row which `next` found; the snapshot is dirty.
    pub fn is_in_progress(&self) -> bool {
        self.inserter().is_some()
    }

    /// The open transaction of somebody else that has inserted the row which a dirty scan has found.
    pub fn inserter(&self) -> Option<u32> {
        // SAFETY: HeapTupleSatisfiesDirty sets xmin to the inserter in progress, or to invalid.
        let xmin: u32 = unsafe { (*self.snapshot.as_ptr()).xmin }.into();
        (xmin != 0).then_some(xmin)
    }
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        end_scan(self.scan);
        if !std::thread::panicking() {
            // SAFETY: made by this value.
            unsafe { pg_sys::ExecDropSingleTupleTableSlot(self.slot) }
        }
    }
}

/// See `Relation::backwards`.
pub struct Backwards<'a> {
    scan: pg_sys::TableScanDesc,
    table: &'a Relation,
}

impl Iterator for Backwards<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        // SAFETY: the scan is open; the tuple lies on a page that is kept until the next call, and the copy is ours.
        unsafe {
            let tuple = pg_sys::heap_getnext(self.scan, pg_sys::ScanDirection::BackwardScanDirection);
            (!tuple.is_null()).then(|| Row::new(pg_sys::heap_copytuple(tuple), self.table.desc()))
        }
    }
}

impl Drop for Backwards<'_> {
    fn drop(&mut self) {
        // As `end_scan`.
        if !std::thread::panicking() {
            // SAFETY: begun by `backwards`.
            unsafe { pg_sys::heap_endscan(self.scan) }
        }
    }
}
