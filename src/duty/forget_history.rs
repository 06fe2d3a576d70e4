//! Drops the tables of history whose day is over: whole ones, with a lock that is only tried.

use std::cell::{Cell, RefCell};

use pg_queue_core::day::Day;
use pgrx::pg_sys;

use crate::duty::Duty;
use crate::error::{Error, Result};
use crate::instance::{self, Catalog};
use crate::log::history::{self, Child};
use crate::log::successor;
use crate::{spi, sys};

/// The duty.
pub const DUTY: Duty = Duty { name: "forget_history", is_due, run };

/// When somebody reads a table that is to go: again after this many microseconds.
const PAUSE: i64 = 60_000_000;

thread_local! {
    /// Tables that could not be dropped in this round.
    static FAILED: RefCell<Vec<pg_sys::Oid>> = const { RefCell::new(Vec::new()) };
    /// The wall time of the next look.
    static NEXT: Cell<i64> = const { Cell::new(0) };
}

/// The wall time of the next look: when a day is over, since no table is made for one that is.
pub fn next_at() -> i64 {
    NEXT.get()
}

fn is_due(_number: u32) -> bool {
    sys::now_us() >= NEXT.get()
}

fn run(number: u32) -> i64 {
    let Some(catalog) = instance::of_duty(number) else { return 0 };
    // A lock that nobody can wait for is not to be held longer than a moment.
    if sys::in_transaction_block() {
        return 0;
    }
    let now = sys::now_us();
    let over = |child: &&Child| child.day.end() <= now;
    let children = history::children(&catalog);
    let Some(is_free) = forget_one(&catalog, &children.iter().filter(over).collect::<Vec<_>>()) else {
        NEXT.set(Day::of(now).end());
        return 0;
    };
    NEXT.set(if is_free { now } else { now.saturating_add(PAUSE) });
    i64::from(is_free)
}

/// Drops the first table that nobody reads; false: there is none like that. `None`: there is none at all.
fn forget_one(catalog: &Catalog, over: &[&Child]) -> Option<bool> {
    over.first()?;
    if sys::is_being_dumped() {
        return Some(false);
    }
    // The toast table as well, which autovacuum may have without the other.
    let tables = |child: &Child| [Some(child.table), sys::toast_table(child.table)].into_iter().flatten();
    let is_free = |table| sys::lock_holders(table, pg_sys::AccessExclusiveLock) == 0;
    let lock = |table| sys::try_lock(table, pg_sys::AccessExclusiveLock);
    let has_failed = |child: &&&Child| FAILED.with_borrow(|failed| failed.contains(&child.table));
    let Some(child) = over.iter().filter(|child| !has_failed(child)).find(|child| tables(child).all(is_free)) else {
        // Those that could not be dropped are tried again with the next look.
        FAILED.take();
        return Some(false);
    };
    // Before it is locked, since it takes a while where much was retried.
    let retried: Vec<i64> =
        successor::all(catalog).into_iter().filter(|&id| history::find_in(**child, id).is_some()).collect();
    if !tables(child).all(lock) {
        return Some(false);
    }
    // One that cannot be dropped, since somebody has put a view on it, say, is not to keep the others.
    if let Err(error) = sys::in_subtransaction(|| forget(child, retried)) {
        let what = format!("a table of history could not be dropped: {}", error.message);
        Error::new(error.code, what).detail(error.detail.unwrap_or_default()).warn();
        FAILED.with_borrow_mut(|failed| failed.push(child.table));
    }
    Some(true)
}

fn forget(child: &Child, retried: Vec<i64>) -> Result<()> {
    let Some(name) = sys::table_name(child.table) else { return Ok(()) };
    if !retried.is_empty() {
        spi::run("DELETE FROM queue.successor WHERE id OPERATOR(pg_catalog.=) ANY ($1)", &[retried.into()])?;
    }
    spi::run(&format!("DROP TABLE queue.{name}"), &[])?;
    Ok(())
}
