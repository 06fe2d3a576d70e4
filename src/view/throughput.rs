//! The functions behind `queue.throughput`: the minutes of the live segments, and the reading of histograms.
//!
//! Not responsible for the minutes of emptied segments, which are rows of `queue_internal.rollup`
//! (`duty::storage::copy` writes them).

use pg_queue_core::rollup::{Rollup, Times};
use pgrx::pg_sys::Datum;

use crate::api::sql_function;
use crate::catalog;
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::error::{Error, Result};
use crate::log::rollup;
use crate::log::tables::Tables;
use crate::pg::datum::Interval;
use crate::pg::function::Call;
use crate::pg::process;
use crate::pg::scan::Snapshot;
use crate::shmem::ledger::Ledger;

sql_function!(pg_queue_throughput_live, pg_finfo_pg_queue_throughput_live => throughput_live);
sql_function!(pg_queue_times, pg_finfo_pg_queue_times => times);

/// `queue_internal.throughput_live()`: returns the minutes of the live segments like rows of `queue_internal.rollup`,
/// by the snapshot of the calling statement.
fn throughput_live(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let catalog = catalog::current()?;
    let mut minutes = Rollup::default();
    let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
    for tables in Tables::open_all(ledger.read_here()) {
        let Some(mut walk) = tables.walk(i64::MIN, Snapshot::Statement) else { continue };
        for n in 0_u32.. {
            let Some(trace) = walk.next() else { break };
            rollup::life(&trace).iter().for_each(|life| minutes.add(life));
            if n % 1024 == 0 {
                process::check_for_interrupts();
            }
        }
    }
    let rights = permission::rights();
    for entry in minutes.iter().filter(|(_, lane, _)| rights.on_lane(*lane, Privilege::Observe)) {
        rows.add_options(&rollup::row(entry, None))?;
    }
    Ok(None)
}

/// `queue_internal.times(histograms)`: returns the mean and percentiles of all histograms together. NULL: they are
/// empty.
///
/// Errors: 22023 if a value is not a histogram.
fn times(call: &Call) -> Result<Option<Datum>> {
    let Some(histograms) = call.get(args::times::HISTOGRAMS) else { return Ok(None) };
    let mut all = Times::default();
    for bytes in histograms.into_iter().flatten() {
        let Some(part) = Times::from_bytes(&bytes) else {
            return Err(Error::invalid("histograms holds a value that is not a histogram of this version"));
        };
        all.merge(&part);
    }
    if all.count() == 0 {
        return Ok(None);
    }
    let found = [all.mean(), all.quantile(0.5), all.quantile(0.95), all.quantile(0.99)];
    let mut nulls = found.map(|us| us.is_none());
    let mut values = found.map(|us| {
        let time = us.and_then(|us| i64::try_from(us).ok()).unwrap_or(i64::MAX);
        Interval { months: 0, days: 0, time }.datum()
    });
    call.result_row(&mut values, &mut nulls).map(Some)
}
