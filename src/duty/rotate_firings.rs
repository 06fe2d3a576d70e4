//! Turns the halves of the log of firings (`log::firing`) and empties the old half. It does that only after
//! `pg_queue.reclaim_delay`, and not while a dump is running, because a dump reads by an older snapshot.
//!
//! Not responsible for what a turn copies and how a half is emptied (`log::firing`).
//!
//! Invariant: the transaction that empties a half is not the one that copied from it.
//!
//! Nothing wakes the worker for this duty. It looks when it has fired a thousand slots, and when it is awake anyway. A
//! session looks in its first `queue.maintain()`.

use std::cell::Cell;

use crate::catalog::{dump, schedule};
use crate::duty::{Duty, Work, with_others};
use crate::error::Result;
use crate::log::firing::{self, Log};
use crate::pg::{time, transaction};
use crate::{guc, shmem};

/// The duty.
pub const DUTY: Duty =
    Duty { name: "rotate_firings", is_due: Some(is_due), next_at: with_others, work: Work::Own(run) };

/// The next look pays after this many rows were inserted since the last one.
const MIN_ROWS: usize = 1000;
/// While another session blocks it, the next look is after this many microseconds.
const BLOCKED_PAUSE_US: i64 = 1_000_000;
/// A half is large at this many blocks, of about 120 rows each. The limit is higher if the copies alone, one row per
/// schedule, take many blocks.
const MIN_LARGE_BLOCKS: usize = 64;

thread_local! {
    /// The number of rows that this session has inserted since its last look.
    static ROWS_SINCE: Cell<usize> = const { Cell::new(MIN_ROWS) };
    /// The monotonic time before which this session does not look.
    static NOT_BEFORE: Cell<i64> = const { Cell::new(0) };
}

/// Adds to the number of rows that this session has inserted since its last look.
pub fn inserted(rows: usize) {
    ROWS_SINCE.set(ROWS_SINCE.get().saturating_add(rows));
}

/// Returns the monotonic time since when the other half waits to be emptied. 0: it does not wait. The time is in shared
/// memory, because another session may look next.
fn left_at() -> i64 {
    shmem::with_instance(|_, instance| instance.schedules.left_at).unwrap_or(0)
}

fn set_left_at(at: i64) {
    shmem::with_instance(|_, instance| instance.schedules.left_at = at);
}

fn is_due() -> bool {
    time::monotonic_us() >= NOT_BEFORE.get() && (ROWS_SINCE.get() >= MIN_ROWS || left_at() != 0)
}

fn run() -> Result<i64> {
    let now = time::monotonic_us();
    if transaction::in_transaction_block() || !guc::RECLAIM.get() || !firing::try_lock() {
        NOT_BEFORE.set(now + BLOCKED_PAUSE_US);
        return Ok(0);
    }
    step(now).map(i64::from)
}

fn step(now: i64) -> Result<bool> {
    let (has_other, has_turned, blocks) = {
        let log = Log::read();
        (log.has_other(), log.has_turned(), log.blocks())
    };
    if has_other {
        // The half is emptied by another transaction than the copies were made by. The copies must remain even if this
        // transaction is rolled back.
        if has_turned {
            return Ok(false);
        }
        let since = match left_at() {
            0 => now,
            since => since,
        };
        set_left_at(since);
        let empty_at = since + i64::from(guc::RECLAIM_DELAY.get()) * 1_000;
        if now < empty_at {
            NOT_BEFORE.set(empty_at);
            return Ok(false);
        }
        if dump::is_running()? || !firing::empty_other() {
            NOT_BEFORE.set(now + BLOCKED_PAUSE_US);
            return Ok(false);
        }
        set_left_at(0);
        return Ok(true);
    }
    set_left_at(0);
    ROWS_SINCE.set(0);
    let schedules = schedule::ids();
    if (blocks as usize) < MIN_LARGE_BLOCKS + schedules.len() / 8 || !firing::turn(&schedules)? {
        return Ok(false);
    }
    set_left_at(now);
    Ok(true)
}
