//! Scans of tables by an index, forwards and backwards, scans from a table's end, and probes of a unique key.
//!
//! Responsible for finding rows. Not responsible for rows at a known place (`table::Relation::fetch`), for writing
//! (`table`), nor for what a column means (`log`).
//!
//! Invariant: a scan is ended on every way out, by its value or by the transaction's abort. Ending it cannot raise.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use pgrx::pg_sys::{self, Datum};

use crate::pg::descriptor;
use crate::pg::raw;
use crate::pg::row::{self, Columns, Row, Tid};
use crate::pg::table::Relation;

impl Relation {
    /// Begins to read the rows of this table by an index, in its order. `keys` are conditions on leading columns of the
    /// index, four at most.
    pub fn scan<'a>(&'a self, index: &'a Relation, keys: &[Key], snapshot: Snapshot) -> Scan<'a> {
        Scan::begin(self, index, keys, snapshot)
    }

    /// Begins to read the table from its end, as the calling statement sees it. Roughly, the newest rows come first.
    /// The order is not exact, because each session fills its own pages.
    pub fn backwards(&self) -> Backwards<'_> {
        self.backwards_from(None)
    }

    /// As `backwards`, but begins at the end of a block. A block behind the end of the table counts as the last one.
    pub fn backwards_from(&self, block: Option<u32>) -> Backwards<'_> {
        let blocks = self.blocks();
        // SAFETY: the snapshot is active, and stays so while the statement runs. The flags exclude synchronized scans,
        // which would begin anywhere in the table. The limits are set before the scan begins, to existing blocks.
        let scan = unsafe {
            let flags = pg_sys::ScanOptions::SO_TYPE_SEQSCAN | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE;
            let snapshot = pg_sys::GetActiveSnapshot();
            let scan = pg_sys::heap_beginscan(self.rel, snapshot, 0, ptr::null_mut(), ptr::null_mut(), flags);
            if let Some(block) = block.filter(|&block| block < blocks) {
                pg_sys::heap_setscanlimits(scan, 0, block + 1);
            }
            scan
        };
        Backwards { scan, table: self }
    }

    /// Looks a key up, also among rows that open transactions have inserted. Does not wait. `id` is the first column of
    /// `index`. `moved`: a `"char"` column, counted from 0, and its value in a row that says that the attempt has
    /// moved.
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

/// The state in which `probe` found a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// No row has the key.
    Absent,
    /// A committed row has the key, or a row of this transaction.
    Committed,
    /// A row of another open transaction has the key.
    InProgress,
    /// A committed row says that the attempt has moved.
    Moved,
    /// A row of another open transaction says that the attempt has moved. Such a transaction ends within milliseconds.
    Moving,
}

/// Which rows a scan sees.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Snapshot {
    /// Rows that are committed at the moment of reading, and rows of this transaction.
    Now,
    /// Also rows that open transactions have inserted.
    Dirty,
    /// Rows that the active snapshot sees: the calling statement's, or an `ActiveSnapshot`.
    Statement,
}

/// One condition of an index scan. Columns are those of the index, counted from 1.
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
    key!(/// bigint < value
        lt_i64, i64, BTLessStrategyNumber, F_INT8LT);
    key!(/// timestamptz >= value
        not_before, i64, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE);
    key!(/// integer > value
        gt_i32, i32, BTGreaterStrategyNumber, F_INT4GT);
    key!(/// timestamptz > value
        after, i64, BTGreaterStrategyNumber, F_TIMESTAMPTZ_GT);
    key!(/// timestamptz = value
        at, i64, BTEqualStrategyNumber, F_TIMESTAMPTZ_EQ);

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

    /// Returns the collation of the comparison. All text columns of the extension's indexes are in "C".
    fn collation(&self) -> pg_sys::Oid {
        let is_text = [pg_sys::F_TEXTEQ, pg_sys::F_TEXT_GE].map(pg_sys::Oid::from).contains(&self.function);
        if is_text { pg_sys::C_COLLATION_OID } else { pg_sys::InvalidOid }
    }
}

/// Begins an index scan. If `with_tuples`, the scan also returns the index's entries themselves.
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
    // SAFETY: the caller's promise. Both relations are open, and index_rescan copies the keys.
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
        #[cfg(not(feature = "from18"))]
        let scan = pg_sys::index_beginscan(table.rel, index.rel, snapshot, count, 0);
        #[cfg(feature = "pg18")]
        let scan = pg_sys::index_beginscan(table.rel, index.rel, snapshot, ptr::null_mut(), count, 0);
        #[cfg(feature = "from19")]
        let scan = pg_sys::index_beginscan(table.rel, index.rel, snapshot, ptr::null_mut(), count, 0, 0);
        (*scan).xs_want_itup = with_tuples;
        pg_sys::index_rescan(scan, raw.as_mut_ptr(), count, ptr::null_mut(), 0);
        scan
    }
}

/// A scan of an index's entries only: their columns and the places to which they point. It does not read the table. It
/// is for an index that VACUUM does not know. Its entries may now point to other rows, or behind the end of the table.
/// The scan never marks an entry as dead: that is safe only if VACUUM waits for the sessions that read the index.
pub struct Entries<'a> {
    scan: pg_sys::IndexScanDesc,
    index: &'a Relation,
}

impl<'a> Entries<'a> {
    /// Begins a scan in the order of the index, at its first entry that fits `keys`. The types of all columns must be
    /// passed by value.
    pub fn begin(table: &'a Relation, index: &'a Relation, keys: &[Key]) -> Self {
        // SAFETY: a static snapshot.
        Self { scan: unsafe { begin_scan(table, index, &raw mut pg_sys::SnapshotSelfData, keys, true) }, index }
    }

    /// Returns the next entry: the place to which it points, and its columns. `None`: the end. Raises 55000 if the
    /// index does not have `COLUMNS` columns.
    pub fn next<const COLUMNS: usize>(&mut self) -> Option<(Tid, [Datum; COLUMNS])> {
        self.index.check_columns(COLUMNS);
        let mut values = [Datum::from(0); COLUMNS];
        let mut nulls = [false; COLUMNS];
        // SAFETY: the scan is valid until dropped. It was begun with tuples, and the arrays have a place for each
        // column.
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

/// Ends an index scan. After an error the transaction's abort ends it instead. The error may have left a state half
/// done, such as a page that is no longer pinned. Ending the scan here would raise again.
fn end_scan(scan: pg_sys::IndexScanDesc) {
    if !std::thread::panicking() {
        // SAFETY: begun, and not ended yet.
        unsafe { pg_sys::index_endscan(scan) }
    }
}

/// An index scan in progress.
pub struct Scan<'a> {
    scan: pg_sys::IndexScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
    table: &'a Relation,
    // The scan holds a pointer to the snapshot, so it must not move.
    snapshot: Box<MaybeUninit<pg_sys::SnapshotData>>,
}

impl<'a> Scan<'a> {
    fn begin(table: &'a Relation, index: &'a Relation, keys: &[Key], kind: Snapshot) -> Self {
        let mut snapshot = Box::new(MaybeUninit::zeroed());
        // SAFETY: InitDirtySnapshot makes a zeroed SnapshotData with its type set, too. The slot fits the table.
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

    /// Moves to the next row, and returns its place. `None`: the end.
    pub fn next(&mut self) -> Option<Tid> {
        // SAFETY: scan and slot are valid until dropped.
        unsafe {
            pg_sys::index_getnext_slot(self.scan, pg_sys::ScanDirection::ForwardScanDirection, self.slot)
                .then(|| Tid((*self.slot).tts_tid))
        }
    }

    /// Moves to the previous row, and returns its place. The first call moves to the last row. `None`: no earlier row.
    pub fn previous(&mut self) -> Option<Tid> {
        // SAFETY: as above.
        unsafe {
            pg_sys::index_getnext_slot(self.scan, pg_sys::ScanDirection::BackwardScanDirection, self.slot)
                .then(|| Tid((*self.slot).tts_tid))
        }
    }

    /// Returns a copy of the row that `next` found.
    pub fn row(&self) -> Row {
        // SAFETY: the slot holds a row. The copy belongs to the returned value.
        unsafe {
            let mut should_free = false;
            let tuple = pg_sys::ExecFetchSlotHeapTuple(self.slot, false, &raw mut should_free);
            let copy = pg_sys::heap_copytuple(tuple);
            (*copy).t_self = (*self.slot).tts_tid;
            Row::new(copy, self.table.rel)
        }
    }

    /// Returns the row that `next` found, without a copy.
    pub fn current(&self) -> Current<'_> {
        Current { slot: self.slot, scan: PhantomData }
    }

    /// Returns the first `count` columns of the row that `next` found, and for each whether it is NULL. Nothing is
    /// copied: the slices are valid until the next call of `next`.
    pub fn columns(&mut self, count: usize) -> (&[Datum], &[bool]) {
        // SAFETY: the slot holds a row of at least `count` columns.
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

    /// Returns how many columns the row has that `next` found, without the NULLs at its end that were not written.
    pub fn width(&self) -> usize {
        // SAFETY: the slot holds a tuple of the heap, with its header.
        unsafe {
            let mut should_free = false;
            descriptor::width_of(pg_sys::ExecFetchSlotHeapTuple(self.slot, false, &raw mut should_free))
        }
    }

    /// True if this session's open transaction inserted the row that `next` found.
    pub fn is_own(&self) -> bool {
        if !crate::pg::transaction::has_xid() {
            return false;
        }
        // SAFETY: the slot holds a tuple of the heap, with its header.
        unsafe {
            let mut should_free = false;
            row::is_own(pg_sys::ExecFetchSlotHeapTuple(self.slot, false, &raw mut should_free))
        }
    }

    /// True if another open transaction inserted the row that `next` found. The scan's snapshot must be dirty.
    pub fn is_in_progress(&self) -> bool {
        self.inserter().is_some()
    }

    /// Returns the id of the other open transaction that inserted the row that `next` found. `None`: the row is
    /// committed or of this transaction. The scan's snapshot must be dirty.
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

/// The row at which a scan is. A column is read from the tuple when it is asked for.
#[derive(Clone, Copy)]
pub struct Current<'a> {
    slot: *mut pg_sys::TupleTableSlot,
    scan: PhantomData<&'a ()>,
}

impl Columns for Current<'_> {
    #[inline]
    fn get(&self, column: usize) -> Option<Datum> {
        // SAFETY: the scan is not moved while this value lives, so the slot holds a row. No column is read that its
        // table does not have. Reading them allocates nothing and raises nothing, so it needs no guard.
        unsafe {
            if usize::try_from((*self.slot).tts_nvalid).unwrap_or(0) <= column {
                // An earlier version of the SQL lacks the last columns.
                if usize::try_from((*(*self.slot).tts_tupleDescriptor).natts).unwrap_or(0) <= column {
                    return None;
                }
                raw::slot_getsomeattrs_int(self.slot, column as i32 + 1);
            }
            (!*(*self.slot).tts_isnull.add(column)).then(|| *(*self.slot).tts_values.add(column))
        }
    }
}

/// A scan of a table from its end; see `Relation::backwards`.
pub struct Backwards<'a> {
    scan: pg_sys::TableScanDesc,
    table: &'a Relation,
}

impl Iterator for Backwards<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        // SAFETY: the scan is open. The tuple lies on a page that stays pinned until the next call. The copy belongs to
        // the returned value.
        unsafe {
            let tuple = pg_sys::heap_getnext(self.scan, pg_sys::ScanDirection::BackwardScanDirection);
            (!tuple.is_null()).then(|| Row::new(pg_sys::heap_copytuple(tuple), self.table.rel))
        }
    }
}

impl Drop for Backwards<'_> {
    fn drop(&mut self) {
        // After an error the transaction's abort ends it, as in `end_scan`.
        if !std::thread::panicking() {
            // SAFETY: begun by `backwards`.
            unsafe { pg_sys::heap_endscan(self.scan) }
        }
    }
}
