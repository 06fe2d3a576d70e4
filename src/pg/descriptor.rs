//! Descriptors by which rows are written without the NULLs at their end: as rows were written before a column was
//! added, they have fewer columns than their table, and those that they lack read as NULL. So a column that few rows
//! use costs the others nothing, neither when they are formed nor when they are read.
//!
//! Responsible for the descriptors. Not responsible for forming rows (`table`).
//!
//! Invariant: a descriptor has the first columns of its table as they are now, and no more. None is made of a table
//! with a column that rows without it have a value of.

use std::cell::Cell;
use std::ptr;

use pgrx::pg_sys;

use crate::pg::relcache;

/// What is kept for a table.
#[derive(Clone, Copy)]
struct Kept {
    table: u32,
    /// The number of messages about tables when it was made: see `relcache::messages`.
    messages: u64,
    /// With as many columns as the table's rows have needed since.
    desc: pg_sys::TupleDesc,
}

/// How many tables are kept: more than the extension has in a database. The place is given by the last bits of the oid.
const PLACES: usize = 64;

thread_local! {
    static KEPT: [Cell<Kept>; PLACES] =
        const { [const { Cell::new(Kept { table: 0, messages: 0, desc: ptr::null_mut() }) }; PLACES] };
}

/// Returns how many columns a tuple has.
///
/// # Safety
/// A tuple of the heap.
pub unsafe fn width_of(tuple: pg_sys::HeapTuple) -> usize {
    // SAFETY: the caller's promise: it has a header.
    usize::from(unsafe { (*(*tuple).t_data).t_infomask2 } & pg_sys::HEAP_NATTS_MASK as u16)
}

/// Returns how many columns a row has without the NULLs at its end.
pub fn width(nulls: &[bool]) -> usize {
    nulls.iter().rposition(|is_null| !is_null).map_or(0, |last| last + 1)
}

/// Returns a descriptor of the first columns of a table: of at least as many as asked for, or of all that it has. It is
/// good until messages about tables are next read.
///
/// # Safety
/// An open table.
pub unsafe fn of_first(rel: pg_sys::Relation, columns: usize) -> pg_sys::TupleDesc {
    // SAFETY: the caller's promise: an open relation has a descriptor; what is kept is of this file's own making, and
    // lives until it is freed here.
    unsafe {
        let (table, whole) = ((*rel).rd_id.to_u32(), (*rel).rd_att);
        let constraints = (*whole).constr;
        let has_missing = !constraints.is_null() && !(*constraints).missing.is_null();
        if columns >= (*whole).natts as usize || has_missing {
            return whole;
        }
        KEPT.with(|kept| {
            let place = &kept[table as usize % PLACES];
            let Kept { table: known, messages, desc } = place.get();
            let is_current = known == table && messages == relcache::messages();
            if is_current && (*desc).natts as usize >= columns {
                return desc;
            }
            let old = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
            let new = pg_sys::CreateTemplateTupleDesc(columns as i32);
            pg_sys::MemoryContextSwitchTo(old);
            for column in 1..=columns as pg_sys::AttrNumber {
                pg_sys::TupleDescCopyEntry(new, column, whole, column);
            }
            place.set(Kept { table, messages: relcache::messages(), desc: new });
            if !desc.is_null() {
                pg_sys::FreeTupleDesc(desc);
            }
            new
        })
    }
}
