//! Counts the jobs of each lane by state, row by row, and their totals since the lane was made, as the calling
//! statement sees them. The counters (`pg_queue_core::counter`) keep the same numbers up to date.

use std::collections::BTreeMap;

use pg_queue_core::counter::Counter;
use pg_queue_core::frontier::Rank;
use pg_queue_core::rollup::Rollup;
use pg_queue_core::totals::{End, Totals};

use crate::catalog;
use crate::catalog::tables::total as column;
use crate::log::tables::Tables;
use crate::log::walk::Trace;
use crate::log::{claim, dead, outcome, rollup};
use crate::pg::row::{Columns, NewRows};
use crate::pg::scan::Snapshot;
use crate::pg::table::Relation;
use crate::pg::{process, time};
use crate::shmem::ledger::Ledger;

const SNAPSHOT: Snapshot = Snapshot::Statement;

/// One lane.
#[derive(Clone)]
pub struct Lane {
    /// The numbers that memory counts, too.
    pub counter: Counter,
    /// Attempts that are not due.
    pub scheduled: i64,
    /// Attempts that are not due, after a failure.
    pub retrying: i64,
    /// The scheduled and retrying attempts that are due soon, if that was asked for.
    pub due_soon: i64,
    /// Dead jobs that were not revived.
    pub dead: i64,
    /// Since when the oldest ready attempt has been ready, as `timestamptz`.
    pub oldest: Option<i64>,
}

impl Lane {
    /// A lane without attempts.
    pub const NONE: Lane = Lane::of(Counter::NONE);

    /// Returns the lane of a counter.
    pub const fn of(counter: Counter) -> Self {
        Self { counter, scheduled: 0, retrying: 0, due_soon: 0, dead: 0, oldest: None }
    }

    /// Returns how many attempts can be claimed.
    pub fn ready(&self) -> i64 {
        // At this moment a commit may be in one of the numbers and not yet in the other.
        (self.counter.counts.waiting - self.scheduled - self.retrying).max(0)
    }
}

/// All lanes that have or had jobs, by number.
#[derive(Default)]
pub struct LaneCounts(pub BTreeMap<i32, Lane>);

impl LaneCounts {
    fn lane(&mut self, lane: i32) -> &mut Lane {
        self.0.entry(lane).or_insert_with(|| Lane::of(Counter::NONE))
    }

    /// Counts the attempts of a segment, without dead jobs. Attempts that are due up to `soon` count as due soon. Calls
    /// `pause` from time to time.
    pub fn walk(&mut self, tables: &Tables, now: i64, soon: i64, mut pause: impl FnMut()) {
        let Some(mut walk) = tables.walk(i64::MIN, Snapshot::Statement) else { return };
        for n in 1_u32.. {
            let Some(trace) = walk.next() else { break };
            self.count(&trace, now, soon);
            if n.is_multiple_of(1024) {
                pause();
            }
        }
    }

    fn count(&mut self, trace: &Trace<impl Columns>, now: i64, soon: i64) {
        let attempt = &trace.attempt;
        let claim = trace.claim.row().map(claim::read);
        let outcome = trace.outcome.row().map(outcome::read);
        // A moved attempt is counted in its new segment.
        if outcome::has_moved_claim(claim.as_ref(), outcome.as_ref()) || attempt.is_payload_only() {
            return;
        }
        let lane = self.lane(attempt.lane());
        let counts = &mut lane.counter.counts;
        counts.totals.enqueued += i64::from(attempt.is_first());
        counts.totals.claimed += i64::from(claim.as_ref().is_some_and(|claim| claim.kind != claim::Kind::System));
        match (claim, outcome) {
            (_, Some(outcome)) => {
                counts.totals.end(End { outcome: outcome.kind.char(), has_next: outcome.next_id.is_some() });
            }
            (Some(_), None) => counts.running += 1,
            (None, None) => {
                counts.waiting += 1;
                lane.counter.lower(Rank { priority: attempt.priority(), job_id: attempt.job_id() });
                match attempt.run_at() {
                    Some(at) if at > now => {
                        let is_retry = attempt.last_error().is_some();
                        *(if is_retry { &mut lane.retrying } else { &mut lane.scheduled }) += 1;
                        lane.due_soon += i64::from(at <= soon);
                    }
                    at => {
                        let since = at.unwrap_or(attempt.enqueued_at());
                        lane.oldest = Some(lane.oldest.map_or(since, |oldest| oldest.min(since)));
                    }
                }
            }
        }
    }

    /// Adds the totals of segments that are gone.
    pub fn add_totals(&mut self) {
        let catalog = catalog::pinned();
        let table = Relation::read(catalog.total);
        let index = Relation::read_index(catalog.total_lane);
        let mut scan = table.scan(&index, &[], SNAPSHOT);
        while scan.next().is_some() {
            let row = scan.current();
            let totals = TOTALS.map(|column| row.i64(column));
            self.lane(row.i32(column::LANE)).counter.counts.totals.add(&Totals::of(totals));
        }
    }

    /// Counts dead jobs.
    pub fn add_dead(&mut self, ledger: &Ledger) {
        dead::each(ledger, |dead| self.lane(dead.lane).dead += 1);
    }

    /// Counts everything by a walk through all segments. Attempts that are due up to `soon` count as due soon.
    pub fn take(soon: i64) -> Self {
        let mut lane_counts = Self::default();
        let catalog = catalog::pinned();
        let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, SNAPSHOT);
        let now = time::now_us();
        for tables in Tables::open_all(ledger.read_here()) {
            lane_counts.walk(&tables, now, soon, process::check_for_interrupts);
        }
        lane_counts.add_totals();
        lane_counts.add_dead(&ledger);
        lane_counts
    }
}

/// The columns of `queue_internal.total` with the values of `Totals`.
const TOTALS: [usize; 7] = [
    column::ENQUEUED,
    column::CLAIMED,
    column::COMPLETED,
    column::FAILED,
    column::TIMED_OUT,
    column::DIED,
    column::EXPIRED,
];

/// Appends the totals of a segment of this generation.
pub fn write_totals(rollup: &Rollup, generation: i64) {
    let mut lanes: BTreeMap<i32, Totals> = BTreeMap::new();
    rollup.iter().for_each(|(_, lane, of_minute)| lanes.entry(lane).or_default().add(&of_minute.totals));
    if lanes.is_empty() {
        return;
    }
    let mut rows = NewRows::new(column::COUNT, lanes.len());
    for (&lane, totals) in &lanes {
        let [enqueued, claimed, completed, failed, timed_out, died, _] = totals.values();
        let row = column::Row {
            segment_generation: generation,
            enqueued,
            claimed,
            completed,
            failed,
            timed_out,
            died,
            lane,
            expired: rollup::expired(totals),
        };
        rows.add(row.values());
    }
    let keys: Vec<i32> = lanes.into_keys().collect();
    let catalog = catalog::pinned();
    let table = Relation::write(catalog.total);
    let tids = table.insert(&mut rows);
    Relation::write_index(catalog.total_lane).insert_entries(&table, &tids, false, |n| Some([keys[n].into()]));
}
