//! The table of minutes: sums over the logs that remain after their segment is gone. Rows are only appended and pruned.

use pg_queue_core::rollup::{Entry, Life, Rollup, Times};
use pg_queue_core::totals::Totals;
use pgrx::pg_sys::Datum;

use crate::catalog;
use crate::catalog::tables::rollup as column;
use crate::log::claim;
use crate::log::outcome::{self, has_moved_claim};
use crate::log::walk::Trace;
use crate::pg::datum::bytes_datum;
use crate::pg::row::{Columns, NewRows};
use crate::pg::scan::Snapshot;
use crate::pg::table::Relation;

/// Returns an entry of a rollup, with its minute and lane, in the order of the columns.
pub fn row((minute, lane, entry): (i64, i32, &Entry), generation: Option<i64>) -> [Option<Datum>; column::COUNT] {
    let times = |times: &Times| (times.count() > 0).then(|| bytes_datum(&times.to_bytes()));
    let [enqueued, claimed, completed, failed, timed_out, died, _] = entry.totals.values().map(Datum::from).map(Some);
    [
        Some(minute.into()),
        generation.map(Datum::from),
        enqueued,
        claimed,
        completed,
        failed,
        timed_out,
        died,
        Some(lane.into()),
        times(&entry.wait),
        times(&entry.run),
        expired(&entry.totals).map(Datum::from),
    ]
}

/// Returns the jobs that expired, as tables have them: NULL if there are none.
pub fn expired(totals: &Totals) -> Option<i64> {
    Some(totals.expired).filter(|&expired| expired > 0)
}

/// Returns what an attempt adds to the minutes. `None` if the attempt has moved: it counts where it is now.
pub fn life(trace: &Trace<impl Columns>) -> Option<Life> {
    let attempt = &trace.attempt;
    let claim = trace.claim.row().map(claim::read);
    let outcome = trace.outcome.row().map(outcome::read);
    if has_moved_claim(claim.as_ref(), outcome.as_ref()) || attempt.is_payload_only() {
        return None;
    }
    let is_first_attempt = attempt.is_first();
    Some(Life {
        lane: attempt.lane(),
        is_first_attempt,
        enqueued_at: attempt.enqueued_at(),
        ready_at: if is_first_attempt {
            attempt.run_at().max(Some(attempt.enqueued_at()))
        } else {
            // The time at which it was made is not stored.
            attempt.run_at()
        },
        claimed_at: claim.filter(|claim| claim.kind != claim::Kind::System).map(|claim| claim.claimed_at),
        ended_at: outcome.as_ref().map(|outcome| outcome.ended_at),
        outcome: outcome.as_ref().map(|outcome| outcome.kind.char()),
        has_next: outcome.is_some_and(|outcome| outcome.next_id.is_some()),
    })
}

/// Appends the minutes of the segment with this generation.
pub fn write(rollup: &Rollup, generation: i64) {
    let mut rows = NewRows::new(column::COUNT, rollup.iter().len());
    rollup.iter().for_each(|entry| rows.add(row(entry, Some(generation))));
    let minutes: Vec<i64> = rollup.iter().map(|(minute, ..)| minute).collect();
    let catalog = catalog::pinned();
    let table = Relation::write(catalog.rollup);
    let tids = table.insert(&mut rows);
    Relation::write_index(catalog.rollup_minute)
        .insert_entries(&table, &tids, false, |n| Some([Datum::from(minutes[n])]));
}

/// Returns the earliest minute.
pub fn earliest() -> Option<i64> {
    let catalog = catalog::pinned();
    let table = Relation::read(catalog.rollup);
    let index = Relation::read_index(catalog.rollup_minute);
    let mut scan = table.scan(&index, &[], Snapshot::Now);
    scan.next()?;
    Some(scan.columns(1).0[column::MINUTE].value() as i64)
}
