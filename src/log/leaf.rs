//! Inserts a run of entries into a b-tree leaf at once: one descent, one lock, one WAL record. `btinsert`
//! does all three for each entry, and that was the largest part of a batch's cost and half of its WAL.
//!
//! Only what is simple is done here: integer keys that ascend, a leaf that is whole, entries that fit and
//! whose keys are not there. Whatever is not (a page to be split, an equal key) is left to `btinsert`, so
//! that splits and the check for uniqueness stay Postgres's own.
//!
//! Why it is safe: the leaf is found by `_bt_search` and held by its exclusive lock, as `btinsert` does.
//! Entries go in at the places that order asks for, below the leaf's high key. The change is made to a copy
//! and logged as a generic record, which standbys and recovery apply under the same exclusive lock. A key
//! that is equal to one on this leaf, or to the high key behind which equal ones could lie, ends the run.
//!
//! On PostgreSQL 15, 17 and 18, little-endian: the majors on which amcheck has looked at the result. Elsewhere
//! `insert` inserts nothing, and all goes through `btinsert`.

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

#[cfg(all(any(feature = "pg15", feature = "pg17", feature = "pg18"), target_endian = "little"))]
pub use at_once::insert;

#[cfg(all(any(feature = "pg15", feature = "pg17", feature = "pg18"), target_endian = "little"))]
mod at_once {
    use std::ffi::c_void;
    use std::ptr;

    use super::{Datum, pg_sys};

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
        fn PageAddItemExtended(page: *mut u8, item: *mut u8, size: usize, offset: u16, flags: i32) -> u16;
        fn index_form_tuple(desc: pg_sys::TupleDesc, values: *mut Datum, nulls: *mut bool) -> pg_sys::IndexTuple;
        fn pfree(memory: *mut c_void);
    }

    /// BT_WRITE
    const WRITE: i32 = 2;
    /// BTP_LEAF, and BTP_DELETED, BTP_HALF_DEAD, BTP_INCOMPLETE_SPLIT in btpo_flags.
    const LEAF: u16 = 1;
    const NOT_WHOLE: u16 = 1 << 2 | 1 << 4 | 1 << 7;
    /// IndexTupleData: the place, then t_info.
    const TUPLE_HEADER: usize = 8;
    /// INDEX_SIZE_MASK and INDEX_ALT_TID_MASK in t_info; BT_OFFSET_MASK of a pivot's number of columns.
    const SIZE_MASK: u16 = 0x1fff;
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
    type Key = [i64; MOST_COLUMNS];

    /// How wide the key's columns are, each 4 or 8 bytes; 0: no such column.
    struct Shape([usize; MOST_COLUMNS]);

    impl Shape {
        /// `None` for an index that is not of a few integers passed by value.
        ///
        /// # Safety
        /// The descriptor of an open index.
        unsafe fn of(desc: pg_sys::TupleDesc, columns: usize) -> Option<Self> {
            // SAFETY: a descriptor has natts attributes.
            unsafe {
                if (*desc).natts as usize != columns || columns > MOST_COLUMNS {
                    return None;
                }
                #[cfg(not(feature = "pg18"))]
                let attributes = (*desc).attrs.as_ptr();
                #[cfg(feature = "pg18")]
                let attributes = (*desc).compact_attrs.as_ptr();
                let mut widths = [0; MOST_COLUMNS];
                for (n, width) in widths.iter_mut().take(columns).enumerate() {
                    let attribute = &*attributes.add(n);
                    if !attribute.attbyval || !matches!(attribute.attlen, 4 | 8) {
                        return None;
                    }
                    *width = attribute.attlen as usize;
                }
                Some(Self(widths))
            }
        }

        /// Where the columns lie in an index tuple without nulls.
        fn places(&self) -> impl Iterator<Item = (usize, usize)> {
            let mut at = TUPLE_HEADER;
            self.0.iter().take_while(|&&width| width > 0).map(move |&width| {
                let place = at.next_multiple_of(width);
                at = place + width;
                (place, width)
            })
        }

        /// # Safety
        /// `tuple` is an index tuple of this shape.
        unsafe fn read(&self, tuple: *const u8) -> Key {
            let mut key = [0; MOST_COLUMNS];
            for (column, (at, width)) in key.iter_mut().zip(self.places()) {
                // SAFETY: the columns lie there, aligned.
                *column = unsafe {
                    if width == 4 { i64::from(*tuple.add(at).cast::<i32>()) } else { *tuple.add(at).cast::<i64>() }
                };
            }
            key
        }

        /// # Safety
        /// `tuple` has room for an index tuple of this shape.
        unsafe fn write(&self, tuple: *mut u8, values: &[Datum]) {
            for (value, (at, width)) in values.iter().zip(self.places()) {
                // SAFETY: as above.
                unsafe {
                    if width == 4 {
                        *tuple.add(at).cast::<i32>() = value.value() as i32;
                    } else {
                        *tuple.add(at).cast::<i64>() = value.value() as i64;
                    }
                }
            }
        }
    }

    /// # Safety
    /// A page, or a tuple, with two bytes there.
    unsafe fn u16_at(memory: *const u8, at: usize) -> u16 {
        // SAFETY: the caller's promise; such fields are aligned.
        unsafe { *memory.add(at).cast::<u16>() }
    }

    /// A copy of a leaf, which the generic record will compare with the page.
    struct Leaf<'a> {
        page: *mut u8,
        shape: &'a Shape,
        columns: usize,
        /// The leaf has no right neighbour, and so no high key.
        is_rightmost: bool,
    }

    impl Leaf<'_> {
        /// # Safety
        /// There is an item of this number, from 1.
        unsafe fn item(&self, number: u16) -> *const u8 {
            // SAFETY: the caller's promise; the low 15 bits of a line pointer are the item's place.
            unsafe {
                let pointer = *self.page.add(LINE_POINTERS + (number as usize - 1) * LINE_POINTER).cast::<u32>();
                self.page.add((pointer & 0x7fff) as usize)
            }
        }

        /// The high key: its columns and how many of them it has; the others were cut off.
        ///
        /// # Safety
        /// The leaf is not the rightmost.
        unsafe fn high_key(&self) -> (Key, usize) {
            // SAFETY: the first item of such a leaf is its high key.
            unsafe {
                let high = self.item(1);
                let is_cut = u16_at(high, 6) & ALTERNATIVE != 0;
                let columns = if is_cut { (u16_at(high, 4) & COLUMNS_MASK) as usize } else { self.columns };
                (self.shape.read(high), columns.min(self.columns))
            }
        }

        /// Puts a tuple in its place. False: it does not fit, or its key is there.
        ///
        /// # Safety
        /// `tuple` is of this shape and `size`, and its key is below the high key.
        unsafe fn add(&mut self, tuple: *mut u8, size: usize, key: &Key) -> bool {
            // SAFETY: items are read between the first key and the last line pointer; the page has the room
            // that is asked for.
            unsafe {
                let (lower, upper) = (u16_at(self.page, LOWER) as usize, u16_at(self.page, UPPER) as usize);
                if upper - lower < size + LINE_POINTER {
                    return false;
                }
                let last = ((lower - LINE_POINTERS) / LINE_POINTER) as u16;
                let (mut low, mut high) = (if self.is_rightmost { 1 } else { 2 }, last + 1);
                // Most runs go to the end.
                if low < high && self.shape.read(self.item(last)) < *key {
                    low = high;
                }
                while low < high {
                    let middle = low + (high - low) / 2;
                    match self.shape.read(self.item(middle)).cmp(key) {
                        std::cmp::Ordering::Less => low = middle + 1,
                        std::cmp::Ordering::Equal => return false,
                        std::cmp::Ordering::Greater => high = middle,
                    }
                }
                high = low;
                PageAddItemExtended(self.page, tuple, size, high, 0) != 0
            }
        }
    }

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
            let desc = (*index).rd_att;
            let (Some(shape), Some(mut values)) = (Shape::of(desc, COLUMNS), key(from)) else { return from };
            let mut nulls = [false; COLUMNS];
            let first = index_form_tuple(desc, values.as_mut_ptr(), nulls.as_mut_ptr());
            let size = ((*first).t_info & SIZE_MASK) as usize;
            let size = size.next_multiple_of(8);
            let mut buffer: pg_sys::Buffer = 0;
            let search = _bt_mkscankey(index, first);
            #[cfg(feature = "pg15")]
            let stack = _bt_search(index, search, &raw mut buffer, WRITE, ptr::null_mut());
            #[cfg(not(feature = "pg15"))]
            let stack = _bt_search(index, table, search, &raw mut buffer, WRITE);
            _bt_freestack(stack);
            pfree(search);
            CheckForSerializableConflictIn(index, ptr::null_mut(), BufferGetBlockNumber(buffer));

            let record = GenericXLogStart(index);
            let page = GenericXLogRegisterBuffer(record, buffer, 0);
            let special = u16_at(page, SPECIAL) as usize;
            let is_rightmost = *page.add(special + NEXT).cast::<u32>() == 0;
            let mut leaf = Leaf { page, shape: &shape, columns: COLUMNS, is_rightmost };
            let flags = u16_at(page, special + FLAGS);
            let mut room = [0_u64; 8];
            let mut next = from;
            if flags & LEAF != 0 && flags & NOT_WHOLE == 0 && size <= size_of_val(&room) {
                let high = (!is_rightmost).then(|| leaf.high_key());
                let tuple = room.as_mut_ptr().cast::<u8>();
                ptr::copy_nonoverlapping(first.cast::<u8>(), tuple, TUPLE_HEADER);
                let mut last: Option<Key> = None;
                while next < tids.len() {
                    let Some(values) = key(next) else { break };
                    ptr::copy_nonoverlapping((&raw const tids[next]).cast::<u8>(), tuple, 6);
                    shape.write(tuple, &values);
                    let this = shape.read(tuple);
                    let descends = last.is_some_and(|last| this <= last);
                    let is_behind = high.is_some_and(|(high, columns)| this[..columns] >= high[..columns]);
                    if descends || is_behind || !leaf.add(tuple, size, &this) {
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
            pfree(first.cast());
            next
        }
    }
}
