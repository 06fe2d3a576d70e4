//! Counts what waits, runs and has ended, row by row, whenever shared memory does not know: after a start, after a
//! restore, after COMMIT PREPARED. From then on commits keep it up to date. See `tally`.
//!
//! In one transaction, as it is one snapshot that counts; it holds back vacuum's horizon for that time. What falls
//! due meanwhile is started from within.

use crate::duty::{Duty, start_due};
use crate::error::Result;
use crate::instance::{self, Catalog};
use crate::log::census::Census;
use crate::log::table::{Relation, Snapshot};
use crate::log::walk::Tables;
use crate::segment::Ledger;
use crate::tally::{self, Recount};
use crate::{dormant, shmem, spi, sys, transaction};
use pg_queue_core::id::SEGMENTS;

/// The duty.
pub const DUTY: Duty = Duty { name: "count", is_due, run };

/// However often somebody makes memory doubt, it is not counted for longer than a tenth of the time.
const SHARE: i64 = 10;
/// The shortest and the longest pause after it, in microseconds.
const PAUSE: std::ops::RangeInclusive<i64> = 100_000..=60_000_000;

/// When it is to be counted, on the monotonic clock.
pub fn next_at(instance: &shmem::Instance) -> i64 {
    instance.counting.count_at()
}

fn is_due(number: u32) -> bool {
    let at = shmem::with_instance(number, |_, instance| next_at(instance)).unwrap_or(i64::MAX);
    at < i64::MAX && at <= sys::monotonic_us() && !sys::in_recovery()
}

fn run(number: u32) -> i64 {
    transaction::register();
    let Some(catalog) = instance::of_duty(number) else { return 0 };
    // What it has written itself no snapshot tells apart.
    if sys::in_transaction_block() || sys::has_xid() {
        return 0;
    }
    match count(&catalog) {
        Ok(()) => 1,
        Err(error) => error.report(),
    }
}

fn count(catalog: &Catalog) -> Result<()> {
    let number = catalog.number;
    let began = sys::monotonic_us();
    look_for_prepared(catalog)?;
    // Opened before the snapshot is taken: from now on none of them is emptied.
    let tables: Vec<Tables> = (0..SEGMENTS as u8).map(|segment| Tables::open(catalog, segment)).collect();
    let Some((_snapshot, recount)) = Recount::begin(number) else { return Ok(()) };
    let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
    let mut census = Census::default();
    let now = sys::now_us();
    for tables in tables {
        if ledger.is_read_here(tables.home.segment) && !tables.is_empty() {
            census.walk(&tables, now, || {
                sys::check_for_interrupts();
                if dormant::is_awake(number) {
                    start_due::catch_up(number);
                }
            });
        }
    }
    census.add_totals(catalog);
    // Rows of queues that were dropped may still be there.
    let lanes = lanes(catalog);
    let counted = census.0.iter().filter(|(lane, _)| lanes.contains(lane)).map(|(&lane, found)| (lane, found.tally));
    let took = sys::monotonic_us() - began;
    recount.end(counted, (took * SHARE).clamp(*PAUSE.start(), *PAUSE.end()));
    Ok(())
}

fn lanes(catalog: &Catalog) -> Vec<i32> {
    let table = Relation::read(catalog.lane);
    let index = Relation::read_index(catalog.lane_pkey);
    let mut scan = table.scan(&index, &[], Snapshot::Now);
    std::iter::from_fn(|| scan.next().map(|_| scan.columns(1).0[0].value() as i32)).collect()
}

/// A prepared transaction that has enqueued keeps its locks on the tables, also over a restart. It is noted after its
/// locks are its own: so either the note comes after it is taken back here, or the locks are seen.
fn look_for_prepared(catalog: &Catalog) -> Result<()> {
    if !sys::has_prepared_transactions() {
        return Ok(());
    }
    tally::forget_prepared(catalog.number);
    let tables: Vec<i64> = catalog.segments.iter().map(|segment| u32::from(segment.attempt).into()).collect();
    let is_there = spi::has_row(
        "SELECT FROM pg_catalog.pg_locks AS l
         WHERE l.pid IS NULL AND l.locktype OPERATOR(pg_catalog.=) 'relation'
           AND l.relation::pg_catalog.int8 OPERATOR(pg_catalog.=) ANY ($1)",
        &[tables.into()],
    )?;
    if is_there {
        shmem::with_instance(catalog.number, |_, instance| tally::prepared(instance));
    }
    Ok(())
}
