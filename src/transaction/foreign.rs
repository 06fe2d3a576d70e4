//! The tables that this transaction has written to by SQL of others than the extension, and how many rows of each it
//! had written before.
//!
//! Responsible for keeping the two facts until the transaction ends. Not responsible for noticing such writes and
//! counting them: `restore` does, and `settle` reads the result.

use std::cell::{Cell, RefCell};

use pgrx::pg_sys;

thread_local! {
    /// The tables that this transaction has touched by foreign writes, each with the number of rows that it had written
    /// to the table before. `None`: the rows are not counted, and the table counts as written.
    pub static TOUCHED: RefCell<Vec<(pg_sys::Oid, Option<i64>)>> = const { RefCell::new(Vec::new()) };
    /// True if the transaction has written rows by foreign writes. It is determined before the commit.
    pub static HAS_WRITTEN: Cell<bool> = const { Cell::new(false) };
}

/// Clears both at the end of the transaction. Cannot fail.
pub fn settled() {
    TOUCHED.with_borrow_mut(Vec::clear);
    HAS_WRITTEN.set(false);
}
