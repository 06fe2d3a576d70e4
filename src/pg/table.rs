//! Direct access to tables and their b-tree indexes: inserting, fetching by place, closing.
//!
//! Responsible for writes, which call the heap and `btinsert` directly, and for rows at a known place. No SQL plan,
//! search_path or row security stands between a verb and a log. Not responsible for finding rows (`scan`), b-tree pages
//! (`btree`), opening (`open`), nor for checking columns (`shape`). Reads see rows that are committed at the moment of
//! reading, instead of those of the transaction's older snapshot, and take no predicate locks. See
//! docs/decisions/direct-access.md.
//!
//! Invariant: a relation is closed when its value is dropped. A writer's lock stays until the end of the transaction. A
//! reader's lock is released with the relation.

use std::cell::Cell;
use std::ffi::CStr;
use std::ptr;

use pgrx::pg_sys::{self, Datum};

use crate::pg::btree::{leaf, rightmost, search};
use crate::pg::fault::row_fault;
use crate::pg::row::{Formed, NewRows, Row, Tid, envelopes};
use crate::pg::{descriptor, memory, process, raw, relcache, role, trigger, unguarded};

/// An open table or index. It is closed when the value is dropped.
pub struct Relation {
    pub rel: pg_sys::Relation,
    pub(super) is_index: bool,
    pub(super) release: pg_sys::LOCKMODE,
}

impl Relation {
    /// Returns the descriptor of its columns.
    pub fn desc(&self) -> pg_sys::TupleDesc {
        // SAFETY: open relations have a descriptor.
        unsafe { (*self.rel).rd_att }
    }

    /// Returns the number of its columns, dropped ones included.
    pub(super) fn columns(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.desc()).natts as usize }
    }

    /// Returns how many blocks the table has now.
    pub fn blocks(&self) -> u32 {
        // SAFETY: an open relation with storage.
        unsafe { pg_sys::RelationGetNumberOfBlocksInFork(self.rel, pg_sys::ForkNumber::MAIN_FORKNUM) }
    }

    /// Inserts a row with its index entries, and returns the row's place. `None`: the key of a unique index already
    /// exists, or an open transaction is inserting it; then the row is deleted again. The insert does not wait. Columns
    /// of the table behind `COLUMNS` become NULL. Raises 55000 if an index has another number of columns, or the table
    /// has a row trigger.
    pub fn insert_row<const COLUMNS: usize>(
        &self,
        row: [Option<Datum>; COLUMNS],
        entries: &mut [Entry<'_>],
    ) -> Option<Tid> {
        let mut values = row.map(|value| value.unwrap_or(Datum::from(0)));
        let mut nulls = row.map(|value| value.is_none());
        entries.iter().for_each(|entry| entry.index.check_columns(entry.key.len()));
        self.insert_values(&mut values, &mut nulls, entries)
    }

    fn insert_values(&self, values: &mut [Datum], nulls: &mut [bool], entries: &mut [Entry<'_>]) -> Option<Tid> {
        let (rel, width, info) = (self.rel, descriptor::width(nulls), index_info());
        let has_others = self.has_others();
        row_fault!(self.rel, "before");
        // SAFETY: a value for each column; b-trees of this table, with a value for each of their columns. The guard's
        // closure holds nothing to drop.
        let (tid, is_taken) = unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                let desc = descriptor::of_first(rel, width);
                let tuple = raw::heap_form_tuple(desc, values.as_mut_ptr(), nulls.as_mut_ptr());
                raw::heap_insert(rel, tuple, raw::GetCurrentCommandId(true), 0, ptr::null_mut());
                let mut tid = (*tuple).t_self;
                raw::heap_freetuple(tuple);
                if has_others {
                    fill_others(rel, &raw const tid, 1, &relcache::knows_index);
                }
                let mut is_taken = false;
                for Entry { index, is_unique, key } in entries {
                    let (index, key, check) = (index.rel, &**key, uniqueness(*is_unique));
                    let is_new = rightmost::insert(index, || {
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
        row_fault!(self.rel, "after");
        Some(tid)
    }

    /// Forms a row to be inserted by `insert_formed`. It has copies of its values, but for those in toast tables.
    pub fn form<const COLUMNS: usize>(&self, row: &[Option<Datum>; COLUMNS]) -> Formed {
        let mut values = row.map(|value| value.unwrap_or(Datum::from(0)));
        let mut nulls = row.map(|value| value.is_none());
        let (rel, width) = (self.rel, descriptor::width(&nulls));
        // SAFETY: a value for each column.
        Formed(unsafe {
            pg_sys::heap_form_tuple(descriptor::of_first(rel, width), values.as_mut_ptr(), nulls.as_mut_ptr())
        })
    }

    /// Inserts rows page by page, with one WAL record a page, and returns each row's place. The caller makes the
    /// entries in the known indexes (`insert_entries`). Can raise a cancel after each 1000 rows.
    pub fn insert(&self, rows: &mut NewRows) -> Vec<Tid> {
        let (columns, width) = (rows.columns, rows.width());
        let (values, nulls) = (rows.values.as_mut_ptr(), rows.nulls.as_mut_ptr());
        self.insert_batches(rows.len(), |first, n, tids| {
            // SAFETY: an open table. A value for each column of each row.
            unsafe {
                let desc = descriptor::of_first(self.rel, width);
                let form = |row| {
                    let at = (first + row) * columns;
                    raw::heap_form_tuple(desc, values.add(at), nulls.add(at))
                };
                self.insert_batch(n, form, |tuple| raw::heap_freetuple(tuple), tids);
            }
        })
    }

    /// As `insert`, for rows that `form` has formed.
    pub fn insert_formed(&self, rows: Vec<Formed>) -> Vec<Tid> {
        self.insert_batches(rows.len(), |first, n, tids| {
            // SAFETY: rows of this table. Their values free them.
            unsafe { self.insert_batch(n, |row| rows[first + row].0, |_| {}, tids) }
        })
    }

    /// Calls `insert` with the first of a batch of rows, with their number, and with the list of places.
    fn insert_batches(&self, count: usize, insert: impl Fn(usize, usize, &mut Vec<Tid>)) -> Vec<Tid> {
        /// The number of rows that COPY buffers (MAX_BUFFERED_TUPLES).
        const BATCH_ROWS: usize = 1000;
        row_fault!(self.rel, "before");
        let mut tids = memory::list(count);
        for first in (0..count).step_by(BATCH_ROWS) {
            insert(first, BATCH_ROWS.min(count - first), &mut tids);
            process::check_for_interrupts();
        }
        if self.has_others() {
            self.fill_others(&tids, &relcache::knows_index);
        }
        row_fault!(self.rel, "after");
        tids
    }

    /// Inserts `n` tuples, and adds their places to `tids`.
    ///
    /// # Safety
    /// `tuple` returns a tuple of this table, `free` does what is left to do with it. Both are called under a guard and
    /// hold nothing to drop.
    unsafe fn insert_batch(
        &self,
        n: usize,
        tuple: impl Fn(usize) -> pg_sys::HeapTuple,
        free: impl Fn(pg_sys::HeapTuple),
        tids: &mut Vec<Tid>,
    ) {
        let rel = self.rel;
        envelopes(n, |slots| {
            // SAFETY: the slots carry the tuples to the heap, which takes them out and writes each row's place into its
            // slot. The guard's closure holds nothing to drop.
            unsafe {
                pg_sys::ffi::pg_guard_ffi_boundary(|| {
                    (0..n).for_each(|row| (**slots.add(row)).tuple = tuple(row));
                    let command = raw::GetCurrentCommandId(true);
                    raw::heap_multi_insert(rel, slots.cast(), n as i32, command, 0, ptr::null_mut());
                    (0..n).for_each(|row| free((**slots.add(row)).tuple));
                });
                tids.extend((0..n).map(|row| Tid((**slots.add(row)).base.tts_tid)));
            }
        });
    }

    /// True if this table has indexes that this session does not know. While REINDEX CONCURRENTLY replaces an index,
    /// each row needs its entry in both. A user may have created an index, too. Raises 55000 if the table has a row
    /// trigger.
    fn has_others(&self) -> bool {
        // SAFETY: an open relation; the list is a copy for the caller.
        unsafe {
            relcache::has_other_indexes((*self.rel).rd_id, || {
                self.refuse_triggers();
                unguarded::has_unknown(pg_sys::RelationGetIndexList(self.rel), &relcache::knows_index)
            })
        }
    }

    /// Raises 55000 if this table has a row trigger: rows are inserted directly, so the trigger would not see them.
    /// While this table is locked to write, no trigger can be created.
    pub fn refuse_triggers(&self) {
        // SAFETY: an open relation. Its triggers, if it has any, are valid while it is open.
        let stranger = unsafe {
            let triggers = (*self.rel).trigdesc;
            let count = if triggers.is_null() { 0 } else { usize::try_from((*triggers).numtriggers).unwrap_or(0) };
            (0..count).map(|n| &*(*triggers).triggers.add(n)).find(|trigger| {
                i32::from(trigger.tgtype) & pg_sys::TRIGGER_TYPE_ROW as i32 != 0 && !trigger.tgisinternal
            })
        };
        if let Some(trigger) = stranger {
            // SAFETY: the names of triggers are C strings.
            trigger::stop(unsafe { ((*self.rel).rd_id, CStr::from_ptr(trigger.tgname)) });
        }
    }

    /// Makes the entries of rows that were just inserted, in all indexes for which `knows` returns false. A duplicate
    /// key in such an index is not reported: the known indexes get their entries later, and report theirs.
    pub fn fill_others(&self, tids: &[Tid], knows: &dyn Fn(pg_sys::Oid) -> bool) {
        let (rel, places, count) = (self.rel, Tid::raw(tids).as_ptr(), tids.len());
        // SAFETY: rows of this table. The guard's closure holds nothing to drop.
        unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| fill_others(rel, places, count, knows)) }
    }

    /// Makes this index's entries for rows that were just inserted. If `key` returns `None`, the row gets no entry.
    /// Returns the positions in `tids` of rows whose key already exists or is being inserted by an open transaction:
    /// the insert does not wait. Those rows have entries now, and the caller must delete them with `take_back`. For an
    /// index that is not unique the list is empty. Raises 55000 if the index has other columns.
    pub fn insert_entries<const COLUMNS: usize>(
        &self,
        table: &Relation,
        tids: &[Tid],
        is_unique: bool,
        key: impl Fn(usize) -> Option<[Datum; COLUMNS]>,
    ) -> Vec<usize> {
        self.insert_entries_unless(table, tids, is_unique, key, |_, _, _| false)
    }

    /// As `insert_entries`, for an index that is not unique and has no posting lists. An entry that exists is not
    /// inserted again. No other session inserts any of these entries meanwhile.
    pub fn insert_missing_entries<const COLUMNS: usize>(
        &self,
        table: &Relation,
        tids: &[Tid],
        key: impl Fn(usize) -> Option<[Datum; COLUMNS]>,
    ) {
        let (index, rel) = (self.rel, table.rel);
        self.insert_entries_unless(table, tids, false, key, |tid, values, nulls| {
            // SAFETY: called under a guard, with a value for each column of this index of the table.
            unsafe { search::has(index, rel, tid, values, nulls) }
        });
    }

    /// As `insert_entries`. `is_there` is asked for each entry that a run does not take, because a run takes no entry
    /// whose key exists. It is called under a guard.
    fn insert_entries_unless<const COLUMNS: usize>(
        &self,
        table: &Relation,
        tids: &[Tid],
        is_unique: bool,
        key: impl Fn(usize) -> Option<[Datum; COLUMNS]>,
        is_there: impl Fn(pg_sys::ItemPointerData, &mut [Datum], &mut [bool]) -> bool,
    ) -> Vec<usize> {
        /// From then on the pause between runs grows no more.
        const MOST_IN_VAIN: u32 = 6;
        let check = uniqueness(is_unique);
        self.check_columns(COLUMNS);
        let (index, table, info) = (self.rel, table.rel, index_info());
        let mut nulls = [false; COLUMNS];
        let mut conflicts = Vec::new();
        let mut next = 0;
        // How many entries `btinsert` inserts before the next run, and how many runs in a row have inserted none:
        // entries that lie far apart in the index mostly go on like that.
        let (mut plain, mut in_vain) = (0_usize, 0);
        while next < tids.len() {
            // SAFETY: a b-tree of this table with COLUMNS columns. The guard's closure holds nothing to drop: a
            // conflict ends the guarded loop, and is added to the list outside.
            let conflict = unsafe {
                pg_sys::ffi::pg_guard_ffi_boundary(|| {
                    while next < tids.len() {
                        if plain == 0 && leaf::is_run(next, tids.len(), &key) {
                            let run = leaf::insert(index, table, Tid::raw(tids), next, &key);
                            in_vain = if run.next == next { (in_vain + 1).min(MOST_IN_VAIN) } else { 0 };
                            (next, plain) = (run.next, run.plain.saturating_mul(1 << in_vain >> 1).max(1));
                            if next == tids.len() {
                                break;
                            }
                        }
                        plain = plain.saturating_sub(1);
                        let row = next;
                        next += 1;
                        let Some(mut values) = key(row) else { continue };
                        let mut tid = tids[row].0;
                        if is_there(tid, &mut values, &mut nulls) {
                            continue;
                        }
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

    /// Deletes a row that this transaction has just inserted and whose key already exists. Until this transaction ends,
    /// the deleted row looks like a row in progress to other sessions.
    pub fn take_back(&self, tid: Tid) {
        let mut tid = tid.0;
        // SAFETY: a row of this transaction, which no other session can see. A command cannot delete a row that it has
        // inserted itself, so the next command begins.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::simple_heap_delete(self.rel, &raw mut tid);
        }
    }

    /// Returns the row at a place if it is committed or of this transaction. `generation` is a number that changes when
    /// the table is truncated.
    pub fn fetch(&self, tid: Tid, generation: i64) -> Option<Row> {
        if tid.block() >= self.blocks_cached(tid, generation) {
            return None;
        }
        let rel = self.rel;
        let mut row = Row::empty();
        let to = &raw mut row;
        // SAFETY: a block within the table. The guard's closure holds nothing to drop.
        let found = unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                let copy = unguarded::copy_at(rel, tid.0);
                if !copy.is_null() {
                    let desc = descriptor::of_first(rel, descriptor::width_of(copy));
                    raw::heap_deform_tuple(copy, desc, (*to).values.as_mut_ptr(), (*to).nulls.as_mut_ptr());
                    (*to).tuple = copy;
                }
                !copy.is_null()
            })
        };
        found.then_some(row)
    }

    /// As `fetch`, for a place that may lie behind the end of the table: VACUUM may cut off empty blocks there at any
    /// moment. `blocks` is a number of blocks that the table has had since it was locked, or 0. The table may have more
    /// now.
    pub fn fetch_if_there(&self, tid: Tid, blocks: &mut u32, generation: i64) -> Option<Row> {
        if tid.block() >= *blocks {
            *blocks = self.blocks();
        }
        (tid.block() < *blocks).then(|| self.fetch(tid, generation)).flatten()
    }

    /// Returns a lower bound of the table's number of blocks. Asks Postgres only if the place may lie behind it,
    /// because reading there fails.
    fn blocks_cached(&self, tid: Tid, generation: i64) -> u32 {
        thread_local! {
            static LAST: Cell<(pg_sys::Oid, i64, u32)> = const { Cell::new((pg_sys::Oid::INVALID, 0, 0)) };
        }
        // SAFETY: an open relation has a file number.
        let file = unsafe { unguarded::file_of(self.rel) };
        let (last, last_generation, blocks) = LAST.get();
        if last == file && last_generation == generation && tid.block() < blocks {
            return blocks;
        }
        let blocks = self.blocks();
        LAST.set((file, generation, blocks));
        blocks
    }

    /// Returns how many rows the table may have. It counts the line pointers of the table's pages. Each is a row, or a
    /// row that was rolled back. Reads the whole table. Can raise a cancel.
    pub fn line_pointers(&self) -> i64 {
        let mut count = 0;
        let strategy = crate::pg::lock::bulk_reading();
        for block in 0..self.blocks() {
            // SAFETY: a block within the table. The page is pinned and share-locked while it is read.
            unsafe {
                let buffer = pg_sys::ReadBufferExtended(
                    self.rel,
                    pg_sys::ForkNumber::MAIN_FORKNUM,
                    block,
                    pg_sys::ReadBufferMode::RBM_NORMAL,
                    strategy,
                );
                #[cfg(not(feature = "from19"))]
                pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
                #[cfg(feature = "from19")]
                pg_sys::LockBufferInternal(buffer, pg_sys::BufferLockMode::BUFFER_LOCK_SHARE);
                let page = unguarded::page_of(buffer);
                let header = page.cast::<pg_sys::PageHeaderData>();
                let lower = usize::from((*header).pd_lower);
                let start = std::mem::offset_of!(pg_sys::PageHeaderData, pd_linp);
                count += (lower.saturating_sub(start) / size_of::<pg_sys::ItemIdData>()) as i64;
                pg_sys::UnlockReleaseBuffer(buffer);
            }
            if block % 256 == 0 {
                crate::pg::process::check_for_interrupts();
            }
        }
        count
    }
}

/// Makes entries as the executor does, in indexes of any kind, with conditions and expressions. Does not wait if a key
/// already exists.
///
/// # Safety
/// The call is made under a guard, and this function holds nothing to drop. `tids` are `count` rows of the table `rel`,
/// which is locked to write.
unsafe fn fill_others(
    rel: pg_sys::Relation,
    tids: *const pg_sys::ItemPointerData,
    count: usize,
    knows: &dyn Fn(pg_sys::Oid) -> bool,
) {
    // SAFETY: the caller's promise. All memory is of the current context. The resource owner knows the open relations
    // if an error is raised.
    unsafe {
        let list = raw::RelationGetIndexList(rel);
        if !unguarded::has_unknown(list, knows) {
            return;
        }
        // The functions of indexes run with the rights of the table's owner, as under CREATE INDEX. The worker's own
        // rights are a superuser's.
        let borrowed = role::Borrowed::from((*(*rel).rd_rel).relowner);
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
            let copy = unguarded::copy_at(rel, *tids.add(n));
            if !copy.is_null() {
                raw::ExecStoreHeapTuple(copy, slot, true);
                (*slot).tts_tid = *tids.add(n);
                let mut conflict = false;
                unguarded::insert_index_entries(result, slot, state, &raw mut conflict);
            }
        }
        raw::ExecDropSingleTupleTableSlot(slot);
        for n in 0..open {
            raw::index_close(*indexes.add(n), pg_sys::NoLock as i32);
        }
        raw::FreeExecutorState(state);
        borrowed.give_back();
    }
}

impl Drop for Relation {
    fn drop(&mut self) {
        // SAFETY: opened by this value. Closing it is right also while an error unwinds, because the resource owner
        // still knows it. It needs no guard: an open and locked relation closes without an error.
        unsafe {
            if self.is_index {
                raw::index_close(self.rel, self.release);
            } else {
                raw::table_close(self.rel, self.release);
            }
        }
    }
}

/// Returns how an index checks a key. A unique index reports a conflict, and does not wait for it.
fn uniqueness(is_unique: bool) -> pg_sys::IndexUniqueCheck::Type {
    if is_unique { pg_sys::IndexUniqueCheck::UNIQUE_CHECK_PARTIAL } else { pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO }
}

/// Returns the IndexInfo that `index_insert` needs. btinsert does not read it, so all calls share one empty value.
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

/// A row's entry in an index of its table: a value for each column of the index.
pub struct Entry<'a> {
    pub index: &'a Relation,
    pub is_unique: bool,
    pub key: &'a mut [Datum],
}
