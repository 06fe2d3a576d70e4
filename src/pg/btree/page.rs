//! Reads and writes a leaf of a b-tree whose keys are a few integers, byte by byte.
//!
//! Responsible for the format of pages and tuples, as far as `leaf` needs it to insert entries. Not responsible for
//! locks and WAL (`leaf`).
//!
//! Invariant: the format is that of nbtree.h and bufpage.h in PostgreSQL 15, 17, 18 and 19 on little-endian machines.
//! amcheck has checked the result there. For other platforms this file is not compiled.

use std::mem::offset_of;
use std::ptr;

use pgrx::pg_sys::{self, BTPageOpaqueData, Datum, IndexTupleData, ItemIdData, Page, PageHeaderData};

use crate::pg::raw;

/// Flags in btpo_flags.
const LEAF: u16 = pg_sys::BTP_LEAF as u16;
const NOT_WHOLE: u16 = (pg_sys::BTP_DELETED | pg_sys::BTP_HALF_DEAD | pg_sys::BTP_INCOMPLETE_SPLIT) as u16;
/// Flags in btpo_flags that are not logged.
const HINTS: u16 = (pg_sys::BTP_SPLIT_END | pg_sys::BTP_HAS_GARBAGE) as u16;
/// INTEGER_BTREE_FAM_OID, and the family of the types of time. Their order is that of integers.
const FAMILIES: [u32; 2] = [pg_sys::INTEGER_BTREE_FAM_OID.to_u32(), 434];
/// Where the columns of an index tuple without nulls begin.
const TUPLE_HEADER: usize = size_of::<IndexTupleData>();
/// An index may have at most this many columns here: the one of groups has four.
const MAX_COLUMNS: usize = 4;

/// The key of an index tuple: its columns as integers. So arrays are ordered as the index is. Missing columns are 0.
pub type Key = [i64; MAX_COLUMNS];

/// The places of the key's columns in an index tuple without nulls, and the tuple's size.
pub struct Shape {
    columns: usize,
    /// The offset of each column, and its width: 4 or 8 bytes.
    places: [(usize, usize); MAX_COLUMNS],
    size: usize,
}

impl Shape {
    /// Returns the shape of an index with this number of columns. `None`: the index has a column that is no integer
    /// passed by value in its own ascending order.
    ///
    /// # Safety
    /// `index` is an open index.
    pub unsafe fn of(index: pg_sys::Relation, columns: usize) -> Option<Self> {
        // SAFETY: a descriptor has natts attributes, and an index has an option and an operator family for each.
        unsafe {
            let (desc, form) = ((*index).rd_att, &*(*index).rd_index);
            let counts = [(*desc).natts as usize, form.indnkeyatts as usize];
            if counts != [columns; 2] || columns > MAX_COLUMNS {
                return None;
            }
            let of_table = form.indkey.values.as_slice(columns);
            #[cfg(not(feature = "from18"))]
            let attributes = (*desc).attrs.as_ptr();
            #[cfg(feature = "from18")]
            let attributes = (*desc).compact_attrs.as_ptr();
            let (mut places, mut end) = ([(0, 0); MAX_COLUMNS], TUPLE_HEADER);
            for (n, place) in places.iter_mut().take(columns).enumerate() {
                let attribute = &*attributes.add(n);
                // A user has recreated an index if it is in descending order, with nulls first, of another operator
                // class or of an expression.
                let is_plain = *(*index).rd_indoption.add(n) == 0
                    && FAMILIES.contains(&(*(*index).rd_opfamily.add(n)).to_u32())
                    && of_table[n] > 0;
                if !is_plain || !attribute.attbyval || !matches!(attribute.attlen, 4 | 8) {
                    return None;
                }
                let width = attribute.attlen as usize;
                *place = (align(end, width), width);
                end = place.0 + width;
            }
            Some(Self { columns, places, size: align(end, 8) })
        }
    }

    fn places(&self) -> &[(usize, usize)] {
        &self.places[..self.columns]
    }

    /// # Safety
    /// `tuple` is an index tuple of this shape.
    unsafe fn read(&self, tuple: *const u8) -> Key {
        let mut key = [0; MAX_COLUMNS];
        for (column, &(at, width)) in key.iter_mut().zip(self.places()) {
            // SAFETY: the columns lie there, aligned.
            *column = unsafe {
                if width == 4 { i64::from(*tuple.add(at).cast::<i32>()) } else { *tuple.add(at).cast::<i64>() }
            };
        }
        key
    }
}

/// Returns `at`, rounded up to a multiple of `to`, a power of two.
fn align(at: usize, to: usize) -> usize {
    (at + to - 1) & !(to - 1)
}

/// An entry to be put into a leaf.
#[repr(C, align(8))]
pub struct Tuple {
    bytes: [u8; TUPLE_HEADER + 8 * MAX_COLUMNS],
    size: usize,
    /// The key by which it is sorted.
    pub key: Key,
}

impl Tuple {
    /// Makes the entry of the row at this place from a value for each column. No value may be NULL.
    pub fn new(shape: &Shape, tid: &pg_sys::ItemPointerData, values: &[Datum]) -> Self {
        let mut bytes = [0; TUPLE_HEADER + 8 * MAX_COLUMNS];
        let size = shape.size;
        // SAFETY: a place is six bytes, and plain data.
        unsafe { ptr::copy_nonoverlapping(ptr::from_ref(tid).cast::<u8>(), bytes.as_mut_ptr(), size_of_val(tid)) };
        bytes[offset_of!(IndexTupleData, t_info)..TUPLE_HEADER].copy_from_slice(&(size as u16).to_le_bytes());
        let mut key = [0; MAX_COLUMNS];
        for ((column, value), &(at, width)) in key.iter_mut().zip(values).zip(shape.places()) {
            *column = if width == 4 { i64::from(value.value() as i32) } else { value.value() as i64 };
            let whole = column.to_le_bytes();
            if width == 4 {
                bytes[at..at + 4].copy_from_slice(&whole[..4]);
            } else {
                bytes[at..at + 8].copy_from_slice(&whole);
            }
        }
        Self { bytes, size, key }
    }

    /// Returns the entry as it is stored.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.size]
    }
}

/// A leaf of a b-tree, or a copy of one.
pub struct Leaf<'a> {
    page: Page,
    shape: &'a Shape,
    /// True if the leaf has no right neighbour, and so no high key.
    pub is_rightmost: bool,
}

impl<'a> Leaf<'a> {
    /// Takes a page for a leaf. `None`: it is no leaf, is not whole, or has flags that are not logged.
    ///
    /// # Safety
    /// `page` is a page of an index of this shape. It is changed by this value only.
    pub unsafe fn of(page: Page, shape: &'a Shape) -> Option<Self> {
        // SAFETY: pages of a b-tree end in BTPageOpaqueData, at pd_special.
        unsafe {
            let special = (*page.cast::<PageHeaderData>()).pd_special as usize;
            let BTPageOpaqueData { btpo_next, btpo_flags, btpo_cycleid, .. } = *page.cast::<u8>().add(special).cast();
            let is_plain = btpo_flags & LEAF != 0 && btpo_flags & (NOT_WHOLE | HINTS) == 0 && btpo_cycleid == 0;
            is_plain.then_some(Self { page, shape, is_rightmost: btpo_next == 0 })
        }
    }

    /// True if no entry is marked as dead. nbtree's own records leave these marks out, but a generic record does not.
    /// So the page on a standby would differ under wal_consistency_checking. BTP_HAS_GARBAGE may be cleared while
    /// entries are still marked, so each line pointer is checked.
    pub fn has_no_marks(&self) -> bool {
        self.pointers().iter().all(|pointer| pointer.lp_flags() == pg_sys::LP_NORMAL)
    }

    fn header(&self) -> &PageHeaderData {
        // SAFETY: a page begins with it.
        unsafe { &*self.page.cast() }
    }

    /// Returns the line pointers, that of item 1 first.
    fn pointers(&self) -> &[ItemIdData] {
        // SAFETY: a page has this many line pointers, aligned.
        unsafe {
            let first = self.page.cast::<u8>().add(offset_of!(PageHeaderData, pd_linp)).cast();
            std::slice::from_raw_parts(first, self.last().into())
        }
    }

    /// Returns the number of the last item, counted from 1. 0 if there is none.
    fn last(&self) -> u16 {
        let used = usize::from(self.header().pd_lower).saturating_sub(offset_of!(PageHeaderData, pd_linp));
        (used / size_of::<ItemIdData>()) as u16
    }

    fn has_room(&self, tuple: &Tuple) -> bool {
        let &PageHeaderData { pd_lower, pd_upper, .. } = self.header();
        usize::from(pd_upper.saturating_sub(pd_lower)) >= tuple.size + size_of::<ItemIdData>()
    }

    /// # Safety
    /// An item of this number exists, counted from 1.
    unsafe fn item(&self, number: u16) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { self.page.cast::<u8>().add(self.pointers().get_unchecked(number as usize - 1).lp_off() as usize) }
    }

    /// # Safety
    /// An item of this number exists, and it is not a pivot.
    unsafe fn key(&self, number: u16) -> Key {
        // SAFETY: the caller's promise.
        unsafe { self.shape.read(self.item(number)) }
    }

    /// Returns the high key, and how many of its columns it has: nbtree truncates the others. `None`: this is the last
    /// leaf, which has no high key.
    pub fn high_key(&self) -> Option<(Key, usize)> {
        // SAFETY: the first item of a leaf with a right neighbour is its high key.
        (!self.is_rightmost).then(|| unsafe {
            let (high, columns) = (self.item(1), self.shape.columns);
            let IndexTupleData { t_tid, t_info } = *high.cast();
            // The place of such an entry holds the number of its columns.
            let is_cut = u32::from(t_info) & pg_sys::INDEX_ALT_TID_MASK != 0;
            let left = if is_cut { (u32::from(t_tid.ip_posid) & pg_sys::BT_OFFSET_MASK) as usize } else { columns };
            (self.shape.read(high), left.min(columns))
        })
    }

    /// Returns the number of the item that an entry below the high key will become. `None`: the entry does not fit, or
    /// its key already exists.
    pub fn place(&self, tuple: &Tuple) -> Option<u16> {
        if !self.has_room(tuple) {
            return None;
        }
        let last = self.last();
        let (mut low, mut high) = (if self.is_rightmost { 1 } else { 2 }, last + 1);
        // SAFETY: items are read between the first key and the last line pointer.
        unsafe {
            // Most runs go to the end of the leaf, so the last key is compared first.
            if low < high && self.key(last) < tuple.key {
                low = high;
            }
            while low < high {
                let middle = low + (high - low) / 2;
                match self.key(middle).cmp(&tuple.key) {
                    std::cmp::Ordering::Less => low = middle + 1,
                    std::cmp::Ordering::Equal => return None,
                    std::cmp::Ordering::Greater => high = middle,
                }
            }
        }
        Some(low)
    }

    /// Returns how many items have this number or a greater one.
    pub fn count_from(&self, number: u16) -> usize {
        (self.last() + 1).saturating_sub(number).into()
    }

    /// Puts an entry at the number that `place` returned. Returns false if Postgres refuses it.
    ///
    /// # Safety
    /// The call is made under a guard. The page may be written to, and was not changed since the call of `place`.
    pub unsafe fn put(&mut self, tuple: &mut Tuple, at: u16) -> bool {
        // SAFETY: the caller's promise.
        unsafe { raw::PageAddItemExtended(self.page, tuple.bytes.as_mut_ptr().cast(), tuple.size, at, 0) != 0 }
    }
}
