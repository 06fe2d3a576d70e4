//! Descriptors for writing rows without the NULLs at their end. Such a row has fewer columns than its table, like a row
//! written before a column was added. The missing columns read as NULL. So a column that few rows use costs other rows
//! nothing, neither when they are formed nor when they are read.
//!
//! Responsible for the descriptors. Not responsible for forming rows (`table`).
//!
//! Invariant: a descriptor has the first columns of its table as they are now, and no others. No descriptor is made if
//! the table has a column whose missing value is not NULL.

use std::cell::Cell;
use std::ptr;

use pgrx::pg_sys;

use crate::pg::relcache;

/// The cached descriptor of a table.
#[derive(Clone, Copy)]
struct Kept {
    table: u32,
    /// The number of messages about tables when the descriptor was made: see `relcache::messages`.
    messages: u64,
    /// The descriptor, with as many columns as the table's rows have needed since.
    desc: pg_sys::TupleDesc,
}

/// How many tables can be cached, more than the extension has in a database. The last bits of the oid choose the slot.
const PLACES: usize = 64;

thread_local! {
    static KEPT: [Cell<Kept>; PLACES] =
        const { [const { Cell::new(Kept { table: 0, messages: 0, desc: ptr::null_mut() }) }; PLACES] };
}

/// Returns how many columns a tuple has.
///
/// # Safety
/// `tuple` is a tuple of the heap.
pub unsafe fn width_of(tuple: pg_sys::HeapTuple) -> usize {
    // SAFETY: the caller's promise: it has a header.
    usize::from(unsafe { (*(*tuple).t_data).t_infomask2 } & pg_sys::HEAP_NATTS_MASK as u16)
}

/// Returns the number of a row's columns without the NULLs at its end.
pub fn width(nulls: &[bool]) -> usize {
    nulls.iter().rposition(|is_null| !is_null).map_or(0, |last| last + 1)
}

/// Returns a descriptor of the first columns of a table: at least `columns`, or all. It is valid until messages about
/// tables are next read.
///
/// # Safety
/// `rel` is an open table.
pub unsafe fn of_first(rel: pg_sys::Relation, columns: usize) -> pg_sys::TupleDesc {
    // SAFETY: the caller's promise: an open relation has a descriptor. This file made the cached descriptor, which
    // lives until this file frees it.
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
            #[cfg(feature = "from19")]
            pg_sys::TupleDescFinalize(new);
            place.set(Kept { table, messages: relcache::messages(), desc: new });
            if !desc.is_null() {
                pg_sys::FreeTupleDesc(desc);
            }
            new
        })
    }
}
