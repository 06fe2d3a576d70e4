//! Deletes minutes of `queue_internal.rollup` that are older than `pg_queue.statistics_retention`. If
//! `queue_internal.total` has many rows, adds them up.
//!
//! Not responsible for writing these rows (`log::rollup`, `log::lane_counts`, called by `duty::storage::copy`).
//!
//! Nothing wakes the worker for this duty. It looks, at most once an hour, when it is awake anyway. Minutes are only
//! added while jobs run, so what an idle database keeps longer does not grow.

use std::cell::Cell;

use pgrx::pg_sys;

use crate::catalog::{self, spi};
use crate::duty::{Duty, Work, with_others};
use crate::error::Result;
use crate::guc;
use crate::log::rollup;
use crate::pg::parameter::Parameter;
use crate::pg::table::Relation;
use crate::pg::{time, transaction};

/// The duty.
pub const DUTY: Duty =
    Duty { name: "prune_statistics", is_due: Some(is_due), next_at: with_others, work: Work::Own(run) };

/// The time between two looks, in microseconds.
const LOOK_PAUSE_US: i64 = 3_600_000_000;
/// At most this many rows per transaction.
const BATCH_ROWS: i64 = 10_000;

thread_local! {
    /// The monotonic time of the next look of this session.
    static NEXT: Cell<i64> = const { Cell::new(0) };
}

fn is_due() -> bool {
    time::monotonic_us() >= NEXT.get()
}

fn run() -> Result<i64> {
    // Another process would wait for the rows while the transaction is open.
    if transaction::in_transaction_block() {
        return Ok(0);
    }
    NEXT.set(time::monotonic_us() + LOOK_PAUSE_US);
    add_up()?;
    let retention = i64::from(guc::STATISTICS_RETENTION.get());
    if retention < 0 {
        return Ok(0);
    }
    let before = time::now_us() - retention * 1_000_000;
    // Usually nothing is old enough. Then this run needs no transaction id.
    if rollup::earliest().is_none_or(|minute| minute >= before) {
        return Ok(0);
    }
    let deleted = spi::run(
        "DELETE FROM queue_internal.rollup WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(
             SELECT ctid FROM queue_internal.rollup WHERE minute OPERATOR(pg_catalog.<) $1 ORDER BY minute LIMIT $2))",
        &[Parameter::raw(Some(before.into()), pg_sys::TIMESTAMPTZOID), BATCH_ROWS.into()],
    )?;
    if deleted as i64 == BATCH_ROWS {
        // More rows may be old enough.
        NEXT.set(0);
    }
    Ok(deleted as i64)
}

/// If `queue_internal.total` has many rows, adds them up to one row per lane. Rows of dropped lanes are deleted.
fn add_up() -> Result<()> {
    /// Blocks of about 80 rows each. A recount reads this many quickly.
    const MIN_BLOCKS_TO_ADD_UP: u32 = 128;
    // Usually there are fewer. Then this run needs no transaction id.
    if Relation::read(catalog::pinned().total).blocks() >= MIN_BLOCKS_TO_ADD_UP {
        spi::run(
            "WITH gone AS (DELETE FROM queue_internal.total RETURNING *)
             INSERT INTO queue_internal.total
                                      (segment_generation, enqueued, claimed, completed, failed, timed_out, died, lane,
                                      expired)
             SELECT pg_catalog.max(g.segment_generation), pg_catalog.sum(g.enqueued), pg_catalog.sum(g.claimed),
                    pg_catalog.sum(g.completed), pg_catalog.sum(g.failed), pg_catalog.sum(g.timed_out),
                    pg_catalog.sum(g.died), g.lane, pg_catalog.sum(g.expired)
             FROM gone AS g JOIN queue_internal.lane AS l ON l.lane OPERATOR(pg_catalog.=) g.lane GROUP BY g.lane",
            &[],
        )?;
    }
    Ok(())
}
