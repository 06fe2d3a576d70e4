//! What `queue.throughput` stands on: the minutes of the segments that are there, and the reading of histograms.

use pg_queue_core::id;
use pg_queue_core::rollup::{Life, Rollup, Times};
use pgrx::pg_sys::Datum;

use crate::call::{Call, Interval, sql_function};
use crate::error::{Error, Result};
use crate::instance::{self, Catalog};
use crate::log::attempt::Attempt;
use crate::log::table::{Key, Relation, Snapshot};
use crate::log::{claim, outcome, rollup};
use crate::sys;

sql_function!(pg_queue_throughput_live, pg_finfo_pg_queue_throughput_live => throughput_live);
sql_function!(pg_queue_times, pg_finfo_pg_queue_times => times);

/// `queue.throughput_live()`: as the rows of `queue.rollup`, in the eyes of the calling statement.
fn throughput_live(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let catalog = instance::current()?;
    let mut minutes = Rollup::default();
    for segment in 0..id::SEGMENTS as u8 {
        lives(&catalog, segment, |life| minutes.add(life));
    }
    for entry in minutes.iter() {
        rows.add_options(&rollup::row(entry, None))?;
    }
    Ok(None)
}

/// Calls `each` with every attempt of a segment.
fn lives(catalog: &Catalog, segment: u8, mut each: impl FnMut(&Life)) {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.attempt);
    if table.blocks() == 0 {
        return;
    }
    let pkey = Relation::read_index(oids.attempt_pkey);
    let (claims, claims_pkey) = (Relation::read(oids.claim), Relation::read_index(oids.claim_pkey));
    let (outcomes, outcomes_pkey) = (Relation::read(oids.outcome), Relation::read_index(oids.outcome_pkey));
    let mut scan = table.scan(&pkey, &[], Snapshot::Statement);
    while scan.next().is_some() {
        sys::check_for_interrupts();
        let attempt = Attempt::new(scan.row(), segment);
        let key = [Key::eq_i64(1, attempt.id())];
        let mut found = claims.scan(&claims_pkey, &key, Snapshot::Statement);
        let claim = found.next().map(|_| claim::read(&found.row()));
        let mut found = outcomes.scan(&outcomes_pkey, &key, Snapshot::Statement);
        let outcome = found.next().map(|_| outcome::read(&found.row()));
        let is_first_attempt = id::count(attempt.id()) == id::count(attempt.job_id());
        each(&Life {
            lane: attempt.lane(),
            is_first_attempt,
            enqueued_at: attempt.enqueued_at(),
            ready_at: if is_first_attempt {
                attempt.run_at().max(Some(attempt.enqueued_at()))
            } else {
                // When it was made is not written down.
                attempt.run_at()
            },
            claimed_at: claim.filter(|claim| claim.kind != claim::Kind::System).map(|claim| claim.claimed_at),
            ended_at: outcome.as_ref().map(|outcome| outcome.ended_at),
            outcome: outcome.as_ref().map(|outcome| outcome.kind.char()),
            has_next: outcome.is_some_and(|outcome| outcome.next_id.is_some()),
        });
    }
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
