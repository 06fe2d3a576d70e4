//! Rows: their place, the values of their columns, and rows that will be inserted.
//!
//! Responsible for values in memory. Not responsible for finding rows (`scan`) or for writing them (`table`), nor for
//! what a column means (`log`).
//!
//! Invariant: a `Row` owns its tuple. Its values that are not passed by value point into the tuple.

use std::cell::RefCell;
use std::ptr;

use pg_queue_core::frontier::Place;
use pgrx::pg_sys::{self, Datum};

use crate::pg::datum::Interval;
use crate::pg::{descriptor, memory, raw};

/// A table of the extension may have at most this many columns: those of queue_internal.history, and some that were
/// added by mistake and dropped.
pub const COLUMNS: usize = 40;

/// The place of a row in its table.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Tid(pub pg_sys::ItemPointerData);

impl Tid {
    /// Returns the places in Postgres's type.
    pub fn raw(tids: &[Self]) -> &[pg_sys::ItemPointerData] {
        // SAFETY: a transparent wrapper.
        unsafe { std::slice::from_raw_parts(tids.as_ptr().cast(), tids.len()) }
    }

    /// Returns the number of the block.
    pub fn block(self) -> u32 {
        (u32::from(self.0.ip_blkid.bi_hi) << 16) | u32::from(self.0.ip_blkid.bi_lo)
    }

    /// Returns the block and the number in the block. Their order is the order of rows in a table.
    pub fn parts(self) -> (u32, u16) {
        (self.block(), self.0.ip_posid)
    }

    /// Returns the place as the frontier stores it, in this segment.
    pub fn place(self, segment: u8) -> Place {
        Place { block: self.block(), offset: self.0.ip_posid, segment, is_indexed: false }
    }

    /// Returns the place of a row from the frontier's form.
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

/// The values of rows to insert, row by row: `columns` values each.
pub struct NewRows {
    pub values: Vec<Datum>,
    pub nulls: Vec<bool>,
    pub columns: usize,
}

impl NewRows {
    /// Reserves room for `rows` rows of `columns` columns.
    pub fn new(columns: usize, rows: usize) -> Self {
        Self { values: memory::list(columns * rows), nulls: memory::list(columns * rows), columns }
    }

    /// Adds a row with a value for each column. `None` is NULL.
    pub fn add<const COLUMNS: usize>(&mut self, row: [Option<Datum>; COLUMNS]) {
        assert_eq!(COLUMNS, self.columns);
        self.values.extend(row.iter().map(|value| value.unwrap_or(Datum::from(0))));
        self.nulls.extend(row.iter().map(Option::is_none));
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.values.len() / self.columns
    }

    /// Returns the number of columns of the widest row, without the NULLs at its end.
    pub fn width(&self) -> usize {
        self.nulls.chunks(self.columns).map(descriptor::width).max().unwrap_or(0)
    }
}

/// A row that was formed, to be inserted. It is freed when the value is dropped.
#[repr(transparent)]
pub struct Formed(pub(super) pg_sys::HeapTuple);

impl Drop for Formed {
    fn drop(&mut self) {
        // SAFETY: owned by the value. Freeing raises nothing, so it needs no guard.
        unsafe { raw::heap_freetuple(self.0) };
    }
}

/// The columns of a row, counted from 0: of a copy, or of the row at which a scan is. The datums are valid as long as
/// the row.
pub trait Columns {
    /// Returns a column. `None` is NULL.
    fn get(&self, column: usize) -> Option<Datum>;

    /// Returns a `bigint` or `timestamptz` column that is never NULL.
    fn i64(&self, column: usize) -> i64 {
        self.get(column).map_or(0, |d| d.value() as i64)
    }

    /// Returns an `integer` column that is never NULL.
    fn i32(&self, column: usize) -> i32 {
        self.get(column).map_or(0, |d| d.value() as i32)
    }

    /// Returns a `"char"` column that is never NULL.
    fn char(&self, column: usize) -> u8 {
        self.get(column).map_or(0, |d| d.value() as u8)
    }
}

/// A value as a row stores it.
pub trait Stored: Copy {
    /// The value of a column that was not written.
    const BLANK: Self;
    /// Reads a column of a row.
    fn read(row: &impl Columns, n: usize) -> Self;
    /// Returns it as it is written. `None`: NULL.
    fn datum(self) -> Option<Datum>;
}

macro_rules! stored {
    (|$datum:ident| $($kind:ty = $blank:expr, $read:expr, $write:expr;)*) => {$(
        impl Stored for $kind {
            const BLANK: Self = $blank;
            #[inline]
            fn read(row: &impl Columns, n: usize) -> Self {
                row.get(n).map_or($blank, |$datum| $read)
            }
            #[inline]
            fn datum(self) -> Option<Datum> {
                let $datum = self;
                Some($write)
            }
        }
        impl Stored for Option<$kind> {
            const BLANK: Self = None;
            #[inline]
            fn read(row: &impl Columns, n: usize) -> Self {
                row.get(n).map(|$datum| $read)
            }
            #[inline]
            fn datum(self) -> Option<Datum> {
                self.map(|$datum| $write)
            }
        }
    )*};
}

stored! { |value|
    i64 = 0, value.value() as i64, value.into();
    i32 = 0, value.value() as i32, value.into();
    u8 = 0, value.value() as u8, Datum::from(value as i8);
    bool = false, value.value() & 1 != 0, value.into();
    f64 = 0.0, f64::from_bits(value.value() as u64), Datum::from(value.to_bits());
    Interval = Interval::ZERO, Interval::read(value), value.datum();
    Datum = Datum::null(), value, value;
}

/// A copy of a row that was read. It is freed when the value is dropped.
pub struct Row {
    pub tuple: pg_sys::HeapTuple,
    pub values: [Datum; COLUMNS],
    pub nulls: [bool; COLUMNS],
}

impl Row {
    /// Returns a row without a tuple. All columns are NULL.
    pub fn empty() -> Self {
        Self { tuple: ptr::null_mut(), values: [Datum::from(0); COLUMNS], nulls: [true; COLUMNS] }
    }

    /// Reads the columns of a tuple, and takes the tuple over.
    ///
    /// # Safety
    /// `tuple` is a tuple of this open table in Postgres's memory, and the row becomes its owner.
    pub unsafe fn new(tuple: pg_sys::HeapTuple, rel: pg_sys::Relation) -> Self {
        let mut row = Self::empty();
        row.tuple = tuple;
        // SAFETY: the arrays have COLUMNS places, and the check before makes sure that the tuple has no more columns.
        unsafe {
            let desc = descriptor::of_first(rel, descriptor::width_of(tuple));
            assert!((*desc).natts as usize <= COLUMNS, "a table has more columns than COLUMNS");
            pg_sys::heap_deform_tuple(tuple, desc, row.values.as_mut_ptr(), row.nulls.as_mut_ptr());
        }
        row
    }

    /// Returns the place of the row.
    pub fn tid(&self) -> Tid {
        // SAFETY: heap_copytuple has copied the place.
        Tid(unsafe { (*self.tuple).t_self })
    }

    /// True if this session's open transaction inserted the row.
    pub fn is_own(&self) -> bool {
        // SAFETY: a tuple of the heap, with its header.
        crate::pg::transaction::has_xid() && unsafe { is_own(self.tuple) }
    }

    /// Returns a column, counted from 0. `None` is NULL. The datum is valid as long as the row.
    pub fn get(&self, column: usize) -> Option<Datum> {
        (!self.nulls[column]).then(|| self.values[column])
    }

    /// Returns a `bigint` or `timestamptz` column that is never NULL.
    pub fn i64(&self, column: usize) -> i64 {
        self.values[column].value() as i64
    }

    /// Returns an `integer` column that is never NULL.
    pub fn i32(&self, column: usize) -> i32 {
        self.values[column].value() as i32
    }

    /// Returns a `"char"` column that is never NULL.
    pub fn char(&self, column: usize) -> u8 {
        self.values[column].value() as u8
    }
}

/// The columns of the row at which a scan is, and which of them are NULL: see `Scan::columns`.
impl Columns for (&[Datum], &[bool]) {
    #[inline]
    fn get(&self, column: usize) -> Option<Datum> {
        (!self.1[column]).then(|| self.0[column])
    }
}

impl Columns for Row {
    #[inline]
    fn get(&self, column: usize) -> Option<Datum> {
        (!self.nulls[column]).then(|| self.values[column])
    }
}

/// True if this session's open transaction inserted a tuple.
///
/// # Safety
/// `tuple` is a tuple of the heap, with its header.
pub unsafe fn is_own(tuple: pg_sys::HeapTuple) -> bool {
    // SAFETY: the caller's promise.
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(pg_sys::htup::HeapTupleHeaderGetXmin((*tuple).t_data)) }
}

impl Drop for Row {
    fn drop(&mut self) {
        if !self.tuple.is_null() {
            // SAFETY: owned by the row. Freeing raises nothing, so it needs no guard.
            unsafe { raw::heap_freetuple(self.tuple) };
        }
    }
}

/// Calls `f` with `count` slots that carry tuples to `heap_multi_insert`. The session keeps the slots. They are marked
/// as owning their tuple, so that the heap takes the tuple as it is. They are overwritten before each use, so a pointer
/// that an error leaves in them does no harm.
pub(super) fn envelopes(count: usize, f: impl FnOnce(*mut *mut pg_sys::HeapTupleTableSlot)) {
    thread_local! {
        static SLOTS: RefCell<Vec<*mut pg_sys::HeapTupleTableSlot>> = const { RefCell::new(Vec::new()) };
    }
    SLOTS.with_borrow_mut(|slots| {
        while slots.len() < count {
            let mut slot = Box::<pg_sys::HeapTupleTableSlot>::default();
            slot.base.type_ = pg_sys::NodeTag::T_TupleTableSlot;
            slot.base.tts_ops = &raw const pg_sys::TTSOpsHeapTuple;
            slot.base.tts_flags = pg_sys::TTS_FLAG_SHOULDFREE as u16;
            slots.push(Box::into_raw(slot));
        }
        f(slots.as_mut_ptr());
    });
}
