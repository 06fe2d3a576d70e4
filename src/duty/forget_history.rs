//! Drops the tables of history whose day is over: whole ones, with a lock that is only tried.

use std::cell::Cell;

use pgrx::pg_sys;

use crate::duty::Duty;
use crate::error::Result;
use crate::instance;
use crate::log::history::{self, Child};
use crate::{spi, sys};

/// The duty.
pub const DUTY: Duty = Duty { name: "forget_history", is_due, run };

/// When somebody reads a table that is to go: again after this many microseconds.
const PAUSE: i64 = 60_000_000;

thread_local! {
    /// The wall time of the next look.
    static NEXT: Cell<i64> = const { Cell::new(0) };
}

/// The wall time at which the next table is to go.
pub fn next_at() -> i64 {
    NEXT.get()
}

/// There is a new table for this day.
pub fn expect(day: i64) {
    NEXT.set(NEXT.get().min(history::end_of(day)));
}

fn is_due(_number: u32) -> bool {
    sys::now_us() >= NEXT.get()
}

fn run(number: u32) -> i64 {
    let catalog = match instance::current() {
        Ok(catalog) if catalog.number == number => catalog,
        _ => return 0,
    };
    // A lock that nobody can wait for is not to be held longer than a moment.
    if sys::in_transaction_block() {
        return 0;
    }
    let now = sys::now_us();
    NEXT.set(now.saturating_add(PAUSE));
    let children = history::children(&catalog);
    let over = children.iter().filter(|child| history::end_of(child.day) <= now);
    let free = |child: &&Child| {
        sys::lock_holders(child.table, pg_sys::AccessExclusiveLock) == 0
            && sys::try_lock(child.table, pg_sys::AccessExclusiveLock)
    };
    let mut is_waiting = false;
    for child in over {
        if !free(&child) {
            is_waiting = true;
            continue;
        }
        if let Err(error) = forget(child) {
            error.report();
        }
        NEXT.set(now);
        return 1;
    }
    if !is_waiting {
        NEXT.set(children.iter().map(|child| history::end_of(child.day)).min().unwrap_or(i64::MAX));
    }
    0
}

fn forget(child: &Child) -> Result<()> {
    let Some(name) = sys::table_name(child.table) else { return Ok(()) };
    spi::run(
        &format!(
            "DELETE FROM queue.successor WHERE id OPERATOR(pg_catalog.=) ANY (
                 SELECT s.id FROM queue.successor AS s JOIN queue.{name} AS h ON h.id OPERATOR(pg_catalog.=) s.id)"
        ),
        &[],
    )?;
    spi::run(&format!("DROP TABLE queue.{name}"), &[])?;
    Ok(())
}
