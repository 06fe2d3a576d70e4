//! The function behind `queue.stats`: for each lane, how many jobs are in each state, and totals.
//!
//! Memory knows how many jobs wait, run and have ended. The index over `run_at` counts scheduled jobs, and the indexes
//! of the dead count dead ones. The oldest ready job is searched in `ready` and behind the lane's position. So the cost
//! depends on the number of scheduled and dead jobs, and not on that of ready or ended ones. If memory does not know
//! the counts, everything is counted row by row.
//!
//! Not responsible for either way of counting (`log::depth`, `log::lane_counts`).

use pg_queue_core::minutes::{KEPT, MINUTE_US};
use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue;
use crate::error::Result;
use crate::log::depth::{self, Wanted};
use crate::log::lane_counts::LaneCounts;
use crate::pg::function::Call;
use crate::pg::{session, time};
use crate::shmem;

sql_function!(pg_queue_tallies, pg_finfo_pg_queue_tallies => tallies, api::run_briefly);
sql_function!(pg_queue_minutes_now, pg_finfo_pg_queue_minutes_now => minutes_now, api::run_briefly);

/// `queue_internal.minutes_now()`: returns what memory has counted in each minute of the last hour. A lane with any
/// counts has one more row, with NULL for the minute. `since` is the minute in which counting began; its counts are
/// incomplete. Returns nothing on a standby, or while memory does not know the counts.
fn minutes_now(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let rights = permission::rights();
    let now = time::now_us() / MINUTE_US;
    for lane in queue::lanes().into_iter().filter(|&lane| rights.on_lane(lane, Privilege::Observe)) {
        let found = shmem::minutes_of(lane);
        let Some((minutes, since)) = found.and_then(|minutes| Some((minutes, minutes.since()?))) else { continue };
        let of_lane =
            [lane.into(), (since * MINUTE_US).into(), (since.max(now - KEPT + 1) * MINUTE_US).into()].map(Some);
        let add = |minute: Option<i64>, totals: [Option<Datum>; 7]| {
            let [lane, since, from] = of_lane;
            let [enqueued, claimed, completed, failed, timed_out, died, expired] = totals;
            let minute = minute.map(|minute| (minute * MINUTE_US).into());
            rows.add_options(&[
                lane, since, from, minute, enqueued, claimed, completed, failed, timed_out, died, expired,
            ])
        };
        add(None, [None; 7])?;
        for (minute, totals) in minutes.of_the_hour(now) {
            add(Some(minute), totals.values().map(Datum::from).map(Some))?;
        }
    }
    Ok(None)
}

/// `queue_internal.tallies(walk)`: if `walk` is true, or on a standby, counts everything row by row. A row without a
/// lane says that there is an answer.
fn tallies(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let must_walk = call.get(args::tallies::WALK).unwrap_or(false) || session::in_recovery();
    let wanted = Wanted { future: true, dead: true, ..Wanted::default() };
    let known = if must_walk { None } else { depth::known(wanted) };
    let is_counted = known.is_some();
    let lane_counts = known.unwrap_or_else(|| LaneCounts::take(i64::MIN));
    let rights = permission::rights();
    rows.add_options(&[None; 15])?;
    for (&lane, found) in lane_counts.0.iter().filter(|(lane, _)| rights.on_lane(**lane, Privilege::Observe)) {
        let counts = &found.counter.counts;
        let totals = counts.totals.values().map(Datum::from).map(Some);
        let [enqueued, claimed, completed, failed, timed_out, died, expired] = totals;
        rows.add_options(&[
            Some(lane.into()),
            Some(found.ready().into()),
            Some(found.scheduled.into()),
            Some(found.retrying.into()),
            Some(counts.running.into()),
            Some(found.dead.into()),
            found.oldest.map(Datum::from),
            enqueued,
            claimed,
            completed,
            failed,
            timed_out,
            died,
            Some(is_counted.into()),
            expired,
        ])?;
    }
    Ok(None)
}
