//! A leaf of a b-tree whose keys are a few integers, byte by byte: what `leaf` and `rightmost`, which put entries
//! into it themselves, know of its form.
//!
//! Invariant: the form is that of nbtree.h and bufpage.h in PostgreSQL 15, 17 and 18 on little-endian machines, where
//! amcheck has looked at the result. Elsewhere this is not compiled.

use std::ptr;

use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

/// BTP_LEAF, and BTP_DELETED, BTP_HALF_DEAD, BTP_INCOMPLETE_SPLIT in btpo_flags.
const LEAF: u16 = 1;
const NOT_WHOLE: u16 = 1 << 2 | 1 << 4 | 1 << 7;
/// IndexTupleData: the place, t_info, then the columns.
const TUPLE_INFO: usize = 6;
const TUPLE_HEADER: usize = 8;
/// INDEX_NULL_MASK and INDEX_ALT_TID_MASK in t_info; BT_OFFSET_MASK of a pivot's number of columns.
const HAS_NULLS: u16 = 0x8000;
const ALTERNATIVE: u16 = 0x2000;
const COLUMNS_MASK: u16 = 0x0fff;
/// PageHeaderData: pd_lower, pd_upper, pd_special, and where the line pointers begin.
const LOWER: usize = 12;
const UPPER: usize = 14;
const SPECIAL: usize = 16;
const LINE_POINTERS: usize = 24;
const LINE_POINTER: usize = 4;
/// BTPageOpaqueData: btpo_next and btpo_flags.
const NEXT: usize = 4;
const FLAGS: usize = 12;
/// Most columns of an index that are looked at.
const MOST_COLUMNS: usize = 3;

/// The key of an index tuple: integers, in the order in which the index sorts.
pub type Key = [i64; MOST_COLUMNS];

/// Where the key's columns lie in an index tuple without nulls, and how large it is.
pub struct Shape {
    columns: usize,
    /// The first byte of each and how wide it is, 4 or 8.
    places: [(usize, usize); MOST_COLUMNS],
    size: usize,
}

impl Shape {
    /// `None` for an index that is not of a few integers passed by value.
    ///
    /// # Safety
    /// An open index.
    pub unsafe fn of(index: pg_sys::Relation, columns: usize) -> Option<Self> {
        // SAFETY: a descriptor has natts attributes.
        unsafe {
            let desc = (*index).rd_att;
            if (*desc).natts as usize != columns || columns > MOST_COLUMNS {
                return None;
            }
            #[cfg(not(feature = "pg18"))]
            let attributes = (*desc).attrs.as_ptr();
            #[cfg(feature = "pg18")]
            let attributes = (*desc).compact_attrs.as_ptr();
            let (mut places, mut end) = ([(0, 0); MOST_COLUMNS], TUPLE_HEADER);
            for (n, place) in places.iter_mut().take(columns).enumerate() {
                let attribute = &*attributes.add(n);
                // In descending order, or with nulls first: somebody has made it anew in a way of his own.
                let is_plain = *(*index).rd_indoption.add(n) == 0;
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
        let mut key = [0; MOST_COLUMNS];
        for (column, &(at, width)) in key.iter_mut().zip(self.places()) {
            // SAFETY: the columns lie there, aligned.
            *column = unsafe {
                if width == 4 { i64::from(*tuple.add(at).cast::<i32>()) } else { *tuple.add(at).cast::<i64>() }
            };
        }
        key
    }
}

/// The next multiple of a power of two.
fn align(at: usize, to: usize) -> usize {
    (at + to - 1) & !(to - 1)
}

/// An entry to be put into a leaf.
#[repr(C, align(8))]
pub struct Tuple {
    bytes: [u8; TUPLE_HEADER + 8 * MOST_COLUMNS],
    size: usize,
    /// What it is sorted by.
    pub key: Key,
}

impl Tuple {
    /// The entry of the row at this place; a value for each column.
    pub fn new(shape: &Shape, tid: &pg_sys::ItemPointerData, values: &[Datum]) -> Self {
        let mut bytes = [0; TUPLE_HEADER + 8 * MOST_COLUMNS];
        let size = shape.size;
        // SAFETY: a place is six bytes, and plain data.
        unsafe { ptr::copy_nonoverlapping(ptr::from_ref(tid).cast::<u8>(), bytes.as_mut_ptr(), TUPLE_INFO) };
        bytes[TUPLE_INFO..TUPLE_HEADER].copy_from_slice(&(size as u16).to_le_bytes());
        let mut key = [0; MOST_COLUMNS];
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

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.size]
    }
}

/// # Safety
/// A page, or a tuple, with two bytes there.
unsafe fn u16_at(memory: *const u8, at: usize) -> u16 {
    // SAFETY: the caller's promise; such fields are aligned.
    unsafe { *memory.add(at).cast::<u16>() }
}

/// A leaf, or a copy of one.
pub struct Leaf<'a> {
    page: *mut u8,
    shape: &'a Shape,
    /// The leaf has no right neighbour, and so no high key.
    pub is_rightmost: bool,
}

impl<'a> Leaf<'a> {
    /// `None`: this page is none, or not whole.
    ///
    /// # Safety
    /// A page of an index of this shape that stays as it is, but for what is done by this value.
    pub unsafe fn of(page: *mut u8, shape: &'a Shape) -> Option<Self> {
        // SAFETY: pages of a b-tree have such an end.
        unsafe {
            let special = u16_at(page, SPECIAL) as usize;
            let flags = u16_at(page, special + FLAGS);
            let is_rightmost = *page.add(special + NEXT).cast::<u32>() == 0;
            (flags & LEAF != 0 && flags & NOT_WHOLE == 0).then_some(Self { page, shape, is_rightmost })
        }
    }

    /// The number of the last item, from 1; 0: there is none.
    fn last(&self) -> u16 {
        // SAFETY: a page.
        let lower = unsafe { u16_at(self.page, LOWER) } as usize;
        (lower.saturating_sub(LINE_POINTERS) / LINE_POINTER) as u16
    }

    fn has_room(&self, tuple: &Tuple) -> bool {
        // SAFETY: a page.
        let (lower, upper) = unsafe { (u16_at(self.page, LOWER) as usize, u16_at(self.page, UPPER) as usize) };
        upper.saturating_sub(lower) >= tuple.size + LINE_POINTER
    }

    /// # Safety
    /// There is an item of this number, from 1.
    unsafe fn item(&self, number: u16) -> *const u8 {
        // SAFETY: the caller's promise; the low 15 bits of a line pointer are the item's place.
        unsafe {
            let pointer = *self.page.add(LINE_POINTERS + (number as usize - 1) * LINE_POINTER).cast::<u32>();
            self.page.add((pointer & 0x7fff) as usize)
        }
    }

    /// # Safety
    /// There is an item of this number, and it is not a pivot.
    unsafe fn key(&self, number: u16) -> Key {
        // SAFETY: the caller's promise.
        unsafe { self.shape.read(self.item(number)) }
    }

    /// The high key: its columns and how many of them it has; the others were cut off. `None`: this is the last leaf.
    pub fn high_key(&self) -> Option<(Key, usize)> {
        // SAFETY: the first item of a leaf with a right neighbour is its high key.
        (!self.is_rightmost).then(|| unsafe {
            let (high, columns) = (self.item(1), self.shape.columns);
            let is_cut = u16_at(high, TUPLE_INFO) & ALTERNATIVE != 0;
            let left = if is_cut { (u16_at(high, 4) & COLUMNS_MASK) as usize } else { columns };
            (self.shape.read(high), left.min(columns))
        })
    }

    /// Where an entry goes that comes behind all there are in the whole index; `None`: it does not, or does not fit.
    pub fn place_at_end(&self, tuple: &Tuple) -> Option<u16> {
        let last = self.last();
        // SAFETY: there is such an item; one that stands for several rows, as equal keys might, is looked at by Postgres.
        let is_behind = self.is_rightmost
            && last > 0
            && unsafe {
                u16_at(self.item(last), TUPLE_INFO) & (ALTERNATIVE | HAS_NULLS) == 0 && self.key(last) < tuple.key
            };
        (is_behind && self.has_room(tuple)).then_some(last + 1)
    }

    /// Where an entry goes that is below the high key; `None`: it does not fit, or its key is there.
    pub fn place(&self, tuple: &Tuple) -> Option<u16> {
        if !self.has_room(tuple) {
            return None;
        }
        let last = self.last();
        let (mut low, mut high) = (if self.is_rightmost { 1 } else { 2 }, last + 1);
        // SAFETY: items are read between the first key and the last line pointer.
        unsafe {
            // Most runs go to the end.
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

    /// Puts an entry where `place` or `place_at_end` said.
    ///
    /// # Safety
    /// Under a guard. The page may be written to, and nothing was done to it since the question.
    pub unsafe fn put(&mut self, tuple: &mut Tuple, at: u16) -> bool {
        unsafe extern "C-unwind" {
            fn PageAddItemExtended(page: *mut u8, item: *mut u8, size: usize, offset: u16, flags: i32) -> u16;
        }
        // SAFETY: the caller's promise.
        unsafe { PageAddItemExtended(self.page, tuple.bytes.as_mut_ptr(), tuple.size, at, 0) != 0 }
    }
}
