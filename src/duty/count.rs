//! Counts what waits, runs and has ended, row by row, whenever shared memory does not know: after a start, after a
//! restore, after COMMIT PREPARED. Then commits keep the counters up to date (`transaction::commit_counts`).
//!
//! Not responsible for how rows are counted (`log::lane_counts`), nor for how a recount begins and ends
//! (`shmem::recount`).
//!
//! Invariant: the whole recount is one transaction with one snapshot. It holds back vacuum's horizon for that time.
//! Attempts that fall due meanwhile are started during the recount.

use crate::catalog::{self, spi};
use crate::duty::{Duty, Memory, Work, start_due};
use crate::error::Result;
use crate::log::lane_counts::LaneCounts;
use crate::log::tables::{self, Tables};
use crate::pg::fault::fault;
use crate::pg::scan::Snapshot;
use crate::pg::table::Relation;
use crate::pg::{self, process, session, time};
use crate::shmem::ledger::Ledger;
use crate::shmem::recount::{self, Recount};
use crate::shmem::{self, awake, here};
use crate::transaction;

/// The duty.
pub const DUTY: Duty = Duty { name: "count", is_due: Some(is_due), next_at, work: Work::Own(run) };

/// Counting takes at most a tenth of the time, however often the counters are invalidated: a pause lasts this many
/// times as long as the recount before it.
const PAUSES_PER_RECOUNT: i64 = 10;
/// The shortest and the longest pause after a recount, in microseconds.
const PAUSE_US: std::ops::RangeInclusive<i64> = 100_000..=60_000_000;

fn next_at(memory: &Memory<'_, '_>) -> i64 {
    memory.instance.counting.count_at()
}

fn is_due() -> bool {
    let at = shmem::with_instance(|_, instance| instance.counting.count_at()).unwrap_or(i64::MAX);
    at < i64::MAX && at <= time::monotonic_us() && !session::in_recovery()
}

fn run() -> Result<i64> {
    transaction::register();
    // A snapshot cannot tell this transaction's own rows apart.
    if pg::transaction::in_transaction_block() || pg::transaction::has_xid() {
        return Ok(0);
    }
    count()?;
    Ok(1)
}

fn count() -> Result<()> {
    let number = here::number();
    let began = time::monotonic_us();
    look_for_prepared()?;
    // The tables are opened before the snapshot is taken. So none of them can be emptied.
    let tables = Tables::open_all(tables::ALL);
    let Some((_snapshot, recount)) = Recount::begin(number) else { return Ok(()) };
    fault!("count.begun");
    let catalog = catalog::pinned();
    let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
    let mut lane_counts = LaneCounts::default();
    let now = time::now_us();
    for tables in tables {
        if ledger.is_read_here(tables.home.segment) {
            lane_counts.walk(&tables, now, i64::MIN, || {
                process::check_for_interrupts();
                if awake::is_awake() {
                    start_due::catch_up();
                }
            });
        }
    }
    lane_counts.add_totals();
    fault!("count.read");
    // Rows of dropped queues may remain.
    let lanes = lanes();
    let counted =
        lane_counts.0.iter().filter(|(lane, _)| lanes.contains(lane)).map(|(&lane, found)| (lane, found.counter));
    let took = time::monotonic_us() - began;
    recount.end(counted, (took * PAUSES_PER_RECOUNT).clamp(*PAUSE_US.start(), *PAUSE_US.end()));
    Ok(())
}

fn lanes() -> Vec<i32> {
    let catalog = catalog::pinned();
    let table = Relation::read(catalog.lane);
    let index = Relation::read_index(catalog.lane_pkey);
    let mut scan = table.scan(&index, &[], Snapshot::Now);
    std::iter::from_fn(|| scan.next().map(|_| scan.columns(1).0[0].value() as i32)).collect()
}

/// Records whether a prepared transaction has enqueued. Such a transaction keeps its locks on the tables, even over a
/// restart. PREPARE sets the flag in shared memory after the locks belong to the prepared transaction. So either the
/// flag is set after this function has cleared it, or this function sees the locks.
fn look_for_prepared() -> Result<()> {
    if !pg::transaction::has_prepared_transactions() {
        return Ok(());
    }
    recount::forget_prepared();
    let catalog = catalog::pinned();
    let tables: Vec<i64> = catalog.segments.iter().map(|segment| u32::from(segment.attempt).into()).collect();
    let is_there = spi::has_row(
        "SELECT FROM pg_catalog.pg_locks AS l
         WHERE l.pid IS NULL AND l.locktype OPERATOR(pg_catalog.=) 'relation'
           AND l.relation::pg_catalog.int8 OPERATOR(pg_catalog.=) ANY ($1)",
        &[tables.into()],
    )?;
    if is_there {
        shmem::with_instance(|_, instance| instance.enqueued_in_prepared());
    }
    Ok(())
}
