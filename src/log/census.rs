//! How many jobs of each lane are in which state, counted row by row, and totals since the lane was made: what
//! `tally` keeps up to date. All as the calling statement sees it.

use std::collections::BTreeMap;

use pg_queue_core::frontier::Rank;
use pg_queue_core::id::{self, SEGMENTS};
use pg_queue_core::tally::{Counts, End, Tally};

use crate::instance::Catalog;
use crate::log::history::{self, Counting};
use crate::log::table::{Key, NewRows, Relation, Snapshot};
use crate::log::walk::{Glance, Tables};
use crate::log::{claim, outcome, successor};
use crate::segment::Ledger;
use crate::sys;
use pg_queue_core::rollup::Rollup;

const SNAPSHOT: Snapshot = Snapshot::Statement;

/// One lane.
#[derive(Clone)]
pub struct Lane {
    /// What is counted in memory, too.
    pub tally: Tally,
    /// Attempts that wait for their time.
    pub scheduled: i64,
    /// Those that do after a failure.
    pub retrying: i64,
    /// Dead jobs that nobody has revived.
    pub dead: i64,
    /// Since when the oldest ready attempt has been ready, as `timestamptz`.
    pub oldest: Option<i64>,
}

impl Lane {
    /// A lane of this tally.
    pub fn of(tally: Tally) -> Self {
        Self { tally, scheduled: 0, retrying: 0, dead: 0, oldest: None }
    }
}

/// All lanes in which there is or was anything.
#[derive(Default)]
pub struct Census(pub BTreeMap<i32, Lane>);

impl Census {
    fn lane(&mut self, lane: i32) -> &mut Lane {
        self.0.entry(lane).or_insert_with(|| Lane::of(Tally::NONE))
    }

    /// Counts the attempts of a segment, but for dead jobs. `pause` is called once in a while.
    pub fn walk(&mut self, tables: &Tables, now: i64, mut pause: impl FnMut()) {
        let mut n = 0_u32;
        tables.glance(|glance| {
            self.count(glance, now);
            n += 1;
            if n.is_multiple_of(1024) {
                pause();
            }
        });
    }

    fn count(&mut self, glance: &Glance, now: i64) {
        let moved = |char: u8| char == claim::Kind::Moved.char();
        let has_moved = glance.claim.is_some_and(moved) || glance.outcome.is_some_and(|(char, _)| moved(char));
        // Counted where it is now. Or no attempt but the payload of one.
        if has_moved || glance.lane == 0 {
            return;
        }
        let lane = self.lane(glance.lane);
        let counts = &mut lane.tally.counts;
        counts.enqueued += i64::from(id::count(glance.id) == id::count(glance.job_id));
        counts.claimed += i64::from(glance.claim.is_some_and(|kind| kind != claim::Kind::System.char()));
        match (glance.claim, glance.outcome) {
            (_, Some((outcome, has_next))) => counts.end(End { outcome, has_next }),
            (Some(_), None) => counts.running += 1,
            (None, None) => {
                counts.waiting += 1;
                lane.tally.lower(Rank { priority: glance.priority, job_id: glance.job_id });
                match glance.run_at {
                    Some(at) if at > now && glance.has_error => lane.retrying += 1,
                    Some(at) if at > now => lane.scheduled += 1,
                    at => {
                        let since = at.unwrap_or(glance.enqueued_at);
                        lane.oldest = Some(lane.oldest.map_or(since, |oldest| oldest.min(since)));
                    }
                }
            }
        }
    }

    /// Adds the totals of segments that are gone.
    pub fn add_totals(&mut self, catalog: &Catalog) {
        let table = Relation::read(catalog.total);
        let index = Relation::read_index(catalog.total_lane);
        let mut scan = table.scan(&index, &[], SNAPSHOT);
        while scan.next().is_some() {
            let values: [i64; total::COUNT] = {
                let (values, _) = scan.columns(total::COUNT);
                std::array::from_fn(|n| values[n].value() as i64)
            };
            let [_, enqueued, claimed, completed, failed, timed_out, died, lane] = values;
            let counts = Counts { waiting: 0, running: 0, enqueued, claimed, completed, failed, timed_out, died };
            self.lane(lane as i32).tally.counts.add(&counts);
        }
    }

    /// Counts dead jobs, in the segments and in history: by their indexes, which have nothing else.
    pub fn add_dead(&mut self, catalog: &Catalog, ledger: &Ledger) {
        let successors = successor::Reader::open(catalog, SNAPSHOT);
        for segment in (0..SEGMENTS as u8).filter(|&segment| ledger.is_read_here(segment)) {
            let oids = &catalog.segments[segment as usize];
            let outcomes = Relation::read(oids.outcome);
            if outcomes.blocks() == 0 {
                continue;
            }
            let dead = Relation::read_index(oids.outcome_dead);
            let (attempts, attempts_pkey) = (Relation::read(oids.attempt), Relation::read_index(oids.attempt_pkey));
            let mut scan = outcomes.scan(&dead, &[], SNAPSHOT);
            for n in 1_u32.. {
                if scan.next().is_none() {
                    break;
                }
                if n.is_multiple_of(1024) {
                    sys::check_for_interrupts();
                }
                let id = scan.columns(1).0[0].value() as i64;
                if successors.has(id) {
                    continue;
                }
                let mut attempt = attempts.scan(&attempts_pkey, &[Key::eq_i64(1, id)], SNAPSHOT);
                if attempt.next().is_some() {
                    let lane = attempt.columns(4).0[3].value() as i32;
                    self.lane(lane).dead += 1;
                }
            }
        }
        // What is still being copied was counted in its segment.
        history::each_dead(catalog, SNAPSHOT, &Counting::of(ledger), |lane, id| {
            if !successors.has(id) {
                self.lane(lane).dead += 1;
            }
        });
    }

    /// All of it, by walking through everything.
    pub fn take(catalog: &Catalog) -> Self {
        let mut census = Self::default();
        let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, SNAPSHOT);
        let now = sys::now_us();
        for segment in (0..SEGMENTS as u8).filter(|&segment| ledger.is_read_here(segment)) {
            let tables = Tables::open(catalog, segment);
            if !tables.is_empty() {
                census.walk(&tables, now, sys::check_for_interrupts);
            }
        }
        census.add_totals(catalog);
        census.add_dead(catalog, &ledger);
        census
    }
}

/// Columns of queue.total: generation, enqueued, claimed, completed, failed, timed_out, died, lane.
mod total {
    pub const COUNT: usize = 8;
}

/// Appends the totals of a segment of this generation.
pub fn write_totals(catalog: &Catalog, rollup: &Rollup, generation: i64) {
    let mut lanes: BTreeMap<i32, [i64; 6]> = BTreeMap::new();
    for (_, lane, e) in rollup.iter() {
        let of_minute = [e.enqueued, e.claimed, e.completed, e.failed, e.timed_out, e.died];
        lanes.entry(lane).or_default().iter_mut().zip(of_minute).for_each(|(sum, part)| *sum += part);
    }
    if lanes.is_empty() {
        return;
    }
    let mut rows = NewRows::new(total::COUNT, lanes.len());
    for (&lane, &[enqueued, claimed, completed, failed, timed_out, died]) in &lanes {
        rows.add::<{ total::COUNT }>([
            Some(generation.into()),
            Some(enqueued.into()),
            Some(claimed.into()),
            Some(completed.into()),
            Some(failed.into()),
            Some(timed_out.into()),
            Some(died.into()),
            Some(lane.into()),
        ]);
    }
    let keys: Vec<i32> = lanes.into_keys().collect();
    let table = Relation::write(catalog.total);
    let tids = table.insert(&mut rows);
    Relation::write_index(catalog.total_lane).insert_entries(&table, &tids, false, |n| Some([keys[n].into()]));
}

/// Whether an outcome is a job's end for the worse: what the indexes of dead jobs have.
pub fn is_dead(new: &outcome::New) -> bool {
    new.kind == outcome::Kind::Dead || new.kind == outcome::Kind::TimedOut && new.next_id.is_none()
}
