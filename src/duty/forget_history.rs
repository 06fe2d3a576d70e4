//! Drops the tables of history whose day is over: whole tables, with locks that it only tries.
//!
//! Not responsible for how tables of history are created and read (`log::history`), nor for which rows get there
//! (`duty::storage::copy`).
//!
//! Invariant: it waits for no lock. It takes none inside a transaction block, which could hold the lock for long.

use std::cell::{Cell, RefCell};

use pg_queue_core::day::Day;
use pgrx::pg_sys;

use crate::catalog::{dump, spi};
use crate::duty::care::{self, Care};
use crate::duty::{Duty, Memory, Work, release};
use crate::error::Result;
use crate::log::history::{self, Child};
use crate::log::retried;
use crate::pg::{lock, syscache, time, transaction};
use crate::transaction::{FlowStep, record, register};

/// The duty.
pub const DUTY: Duty = Duty { name: "forget_history", is_due: Some(is_due), next_at, work: Work::Items(run) };

/// If a session reads a table that is to be dropped, the next look is after this many microseconds.
const BUSY_PAUSE_US: i64 = 60_000_000;

thread_local! {
    /// Tables that could not be dropped in this round.
    static FAILED: RefCell<Vec<pg_sys::Oid>> = const { RefCell::new(Vec::new()) };
    /// The wall time of the next look, in microseconds. If no table is left to drop, this is the end of the day: no
    /// table is created for a day that is over.
    static NEXT: Cell<i64> = const { Cell::new(0) };
}

/// Returns the time of the next look. If the clock is set, a day of history may be dropped late.
fn next_at(memory: &Memory<'_, '_>) -> i64 {
    memory.now.saturating_add(NEXT.get().saturating_sub(memory.wall).max(0))
}

fn is_due() -> bool {
    time::now_us() >= NEXT.get()
}

fn run(_: &Care) -> Result<i64> {
    // The table stays locked until the end of the transaction, and other sessions wait for it. So that must be short.
    if transaction::in_transaction_block() {
        return Ok(0);
    }
    let now = time::now_us();
    let over = |child: &&Child| child.day.end() <= now;
    let children = history::children();
    // Jobs in these tables may have successors that are still to be served.
    if children.iter().any(|child| over(&child)) && !release::is_idle() {
        NEXT.set(now.saturating_add(1_000_000));
        return Ok(0);
    }
    let Some(is_free) = forget_one(&children.iter().filter(over).collect::<Vec<_>>())? else {
        NEXT.set(Day::of(now).end());
        return Ok(0);
    };
    if is_free {
        // The successors of a job that was deleted can no longer be released by it.
        register();
        record(FlowStep::JobEnded { job_id: 0 });
    }
    NEXT.set(if is_free { now } else { now.saturating_add(BUSY_PAUSE_US) });
    Ok(i64::from(is_free))
}

/// Drops the first table that no session reads. False: every table is being read, or could not be dropped. `None`: the
/// list is empty.
fn forget_one(over: &[&Child]) -> Result<Option<bool>> {
    if over.is_empty() {
        return Ok(None);
    }
    if dump::is_running()? {
        return Ok(Some(false));
    }
    // Returns the table and its toast table, which autovacuum may lock separately.
    let tables = |child: &Child| [Some(child.table), syscache::toast_table(child.table)].into_iter().flatten();
    let is_free = |table| lock::lock_holders(table, pg_sys::AccessExclusiveLock) == 0;
    let lock = |table| lock::try_lock(table, pg_sys::AccessExclusiveLock);
    let has_failed = |child: &&&Child| FAILED.with_borrow(|failed| failed.contains(&child.table));
    let Some(child) = over.iter().filter(|child| !has_failed(child)).find(|child| tables(child).all(is_free)) else {
        // The next look retries the tables that could not be dropped.
        FAILED.take();
        return Ok(Some(false));
    };
    // This search comes before the lock, because it takes a while if many jobs were retried.
    let retried: Vec<i64> = retried::all().into_iter().filter(|&id| history::find_in(**child, id).is_some()).collect();
    if !tables(child).all(lock) {
        return Ok(Some(false));
    }
    // A table may fail to be dropped, for instance because a user's view depends on it. The others are still dropped.
    if let Err(error) = care::apart(|| forget(child, retried)) {
        care::put_off("a table of history could not be dropped", error);
        FAILED.with_borrow_mut(|failed| failed.push(child.table));
    }
    Ok(Some(true))
}

fn forget(child: &Child, retried: Vec<i64>) -> Result<()> {
    let Some(name) = syscache::table_name(child.table) else { return Ok(()) };
    if !retried.is_empty() {
        spi::run("DELETE FROM queue_internal.successor WHERE id OPERATOR(pg_catalog.=) ANY ($1)", &[retried.into()])?;
    }
    spi::run(&format!("DROP TABLE queue_internal.{name}"), &[])?;
    Ok(())
}
