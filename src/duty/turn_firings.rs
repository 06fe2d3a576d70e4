//! Turns the halves of the log of firings, see `log::firing`, and empties the one that is left: not before
//! `pg_queue.reclaim_delay` is over, nor while a dump is running, which reads by an older snapshot.
//!
//! Nobody wakes the worker for it: it looks when it has fired a thousand slots, and when it is awake anyway.

use std::cell::Cell;

use crate::duty::Duty;
use crate::error::Result;
use crate::instance::{self, Catalog};
use crate::log::firing::{self, Log};
use crate::{guc, schedule, sys};

/// The duty.
pub const DUTY: Duty = Duty { name: "turn_firings", is_due, run };

/// Rows after which it is worth while to look.
const ROWS: usize = 1000;
/// Microseconds between two looks at what somebody else must do first.
const PAUSE: i64 = 1_000_000;
/// The half is large at so many blocks, of about 120 rows each; and more when the copies alone take many.
const LARGE: usize = 64;

thread_local! {
    /// Rows that this session has inserted since its last look.
    static ROWS_SINCE: Cell<usize> = const { Cell::new(ROWS) };
    /// The monotonic time before which it does not look.
    static NOT_BEFORE: Cell<i64> = const { Cell::new(0) };
    /// The instance whose other half waits to be emptied, and the monotonic time since when that is known.
    static WAITS: Cell<Option<(u32, i64)>> = const { Cell::new(None) };
}

/// So many rows were inserted.
pub fn inserted(rows: usize) {
    ROWS_SINCE.set(ROWS_SINCE.get().saturating_add(rows));
}

fn is_due(_number: u32) -> bool {
    (ROWS_SINCE.get() >= ROWS || WAITS.get().is_some()) && sys::monotonic_us() >= NOT_BEFORE.get()
}

fn run(number: u32) -> i64 {
    let Some(catalog) = instance::of_duty(number) else { return 0 };
    let now = sys::monotonic_us();
    if sys::in_transaction_block() || !guc::RECLAIM.get() || !firing::try_lock(&catalog) {
        NOT_BEFORE.set(now + PAUSE);
        return 0;
    }
    match step(&catalog, now) {
        Ok(did) => i64::from(did),
        Err(error) => error.report(),
    }
}

fn step(catalog: &Catalog, now: i64) -> Result<bool> {
    let (has_other, has_turned, blocks) = {
        let log = Log::read(catalog);
        (log.has_other(), log.has_turned(), log.blocks())
    };
    if has_other {
        // In another transaction than the copies: they must be there whatever becomes of this one.
        if has_turned {
            return Ok(false);
        }
        let since = match WAITS.get() {
            Some((number, since)) if number == catalog.number => since,
            _ => now,
        };
        WAITS.set(Some((catalog.number, since)));
        let empty_at = since + i64::from(guc::RECLAIM_DELAY.get()) * 1_000;
        if now < empty_at {
            NOT_BEFORE.set(empty_at);
            return Ok(false);
        }
        if sys::is_being_dumped() || !firing::empty_other(catalog) {
            NOT_BEFORE.set(now + PAUSE);
            return Ok(false);
        }
        WAITS.set(None);
        return Ok(true);
    }
    WAITS.set(None);
    ROWS_SINCE.set(0);
    let schedules = schedule::ids(catalog);
    if (blocks as usize) < LARGE + schedules.len() / 8 || !firing::turn(catalog, &schedules)? {
        return Ok(false);
    }
    WAITS.set(Some((catalog.number, now)));
    Ok(true)
}
