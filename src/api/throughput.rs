//! What `queue.throughput` stands on: the minutes of the segments that are there, and the reading of histograms.

use pg_queue_core::id;
use pg_queue_core::rollup::{Rollup, Times};
use pgrx::pg_sys::Datum;

use crate::call::{Call, Interval, sql_function};
use crate::error::{Error, Result};
use crate::instance;
use crate::log::rollup;
use crate::log::table::Snapshot;
use crate::log::walk::Tables;
use crate::permission::{self, Privilege};
use crate::segment::Ledger;
use crate::sys;

sql_function!(pg_queue_throughput_live, pg_finfo_pg_queue_throughput_live => throughput_live);
sql_function!(pg_queue_times, pg_finfo_pg_queue_times => times);

/// `queue.throughput_live()`: as the rows of `queue.rollup`, in the eyes of the calling statement.
fn throughput_live(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let catalog = instance::current()?;
    let mut minutes = Rollup::default();
    let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
    let live = (0..id::SEGMENTS as u8).filter(|&segment| ledger.is_read_here(segment));
    // All at once: to read one may take long, and the next could have been emptied by then.
    let live: Vec<Tables> = live.map(|segment| Tables::open(&catalog, segment)).collect();
    for tables in live.iter().filter(|tables| !tables.is_empty()) {
        for (n, trace) in tables.walk(i64::MIN, Snapshot::Statement).enumerate() {
            rollup::life(&trace).iter().for_each(|life| minutes.add(life));
            if n % 1024 == 0 {
                sys::check_for_interrupts();
            }
        }
    }
    let rights = permission::rights(&catalog);
    for entry in minutes.iter().filter(|(_, lane, _)| rights.on_lane(*lane, Privilege::Observe)) {
        rows.add_options(&rollup::row(entry, None))?;
    }
    Ok(None)
}

/// `queue.times(histograms)`: their mean and percentiles; NULL when they are empty.
fn times(call: &Call) -> Result<Option<Datum>> {
    let Some(histograms) = call.bytes_array(0) else { return Ok(None) };
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
