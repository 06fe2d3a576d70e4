//! What `queue.stats` stands on: per lane, how many jobs are in which state, and totals.
//!
//! Memory knows what waits, runs and has ended. What waits for its time is counted by the index over `run_at`, from
//! now on; what is dead, by the indexes of the dead; the oldest ready job is looked for in `ready` and behind the
//! lane's position. So the cost goes with the jobs that are scheduled or dead, not with those that are ready or
//! have ended. When memory does not know, everything is counted row by row.

use std::collections::HashSet;

use pg_queue_core::frontier::{Rank, Ready};
use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys::Datum;

use crate::call::{Call, sql_function};
use crate::error::Result;
use crate::instance::{self, Catalog};
use crate::log::attempt::{LAST_ERROR, Reader};
use crate::log::census::{Census, Lane};
use crate::log::table::{Key, Relation, Scan, Snapshot};
use crate::permission::{self, Privilege};
use crate::segment::Ledger;
use crate::{guc, shmem, sys};

sql_function!(pg_queue_tallies, pg_finfo_pg_queue_tallies => tallies);

/// Rows looked at for the oldest ready job of a lane.
const MOST: usize = 10_000;

/// `queue.tallies(walk)`.
fn tallies(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let catalog = instance::current()?;
    let must_walk = call.bool(0).unwrap_or(false) || sys::in_recovery();
    let known = if must_walk { None } else { known(&catalog, Wanted { future: true, dead: true }) };
    let is_counted = known.is_some();
    let census = known.unwrap_or_else(|| Census::take(&catalog));
    let rights = permission::rights(&catalog);
    for (&lane, found) in census.0.iter().filter(|(lane, _)| rights.on_lane(**lane, Privilege::Observe)) {
        let counts = &found.tally.counts;
        // A commit may be in one of the numbers this moment, and not yet in the other.
        let ready = (counts.waiting - found.scheduled - found.retrying).max(0);
        rows.add_options(&[
            Some(lane.into()),
            Some(ready.into()),
            Some(found.scheduled.into()),
            Some(found.retrying.into()),
            Some(counts.running.into()),
            Some(found.dead.into()),
            found.oldest.map(Datum::from),
            Some(counts.enqueued.into()),
            Some(counts.claimed.into()),
            Some(counts.completed.into()),
            Some(counts.failed.into()),
            Some(counts.timed_out.into()),
            Some(counts.died.into()),
            Some(is_counted.into()),
        ])?;
    }
    Ok(None)
}

/// A segment's tables, as far as they are needed here.
struct Tables {
    segment: u8,
    attempt: Relation,
    by_run_at: Relation,
    by_lane: Relation,
    claim: Relation,
    claim_pkey: Relation,
}

impl Tables {
    fn open(catalog: &Catalog, segment: u8) -> Self {
        let oids = &catalog.segments[segment as usize];
        Self {
            segment,
            attempt: Relation::read(oids.attempt),
            by_run_at: Relation::read_index(oids.attempt_run_at),
            by_lane: Relation::read_index(oids.attempt_lane),
            claim: Relation::read(oids.claim),
            claim_pkey: Relation::read_index(oids.claim_pkey),
        }
    }

    /// Whether the attempt was claimed, or has moved; what this very transaction does is not counted.
    fn is_claimed(&self, id: i64) -> bool {
        let mut scan = self.claim.scan(&self.claim_pkey, &[Key::eq_i64(1, id)], Snapshot::Statement);
        scan.next().is_some() && !scan.is_own()
    }
}

/// Which attempts of a segment are claimed: asked of the index one by one, or, where it is asked for many, of a list.
struct Claimed<'a> {
    tables: &'a Tables,
    asked: u32,
    ids: Option<HashSet<i64>>,
}

impl<'a> Claimed<'a> {
    /// So many are asked for one by one, and a larger table of claims, in blocks, is not listed.
    const FEW: u32 = 1_000;
    const LARGE: u32 = 16_384;

    fn of(tables: &'a Tables) -> Self {
        Self { tables, asked: 0, ids: None }
    }

    fn has(&mut self, id: i64) -> bool {
        self.asked = self.asked.saturating_add(1);
        // A list would not tell what this very transaction does.
        if self.asked == Self::FEW && !sys::has_xid() && self.tables.claim.blocks() <= Self::LARGE {
            self.ids = Some(self.tables.claim.backwards().map(|row| row.i64(0)).collect());
        }
        self.ids.as_ref().map_or_else(|| self.tables.is_claimed(id), |ids| ids.contains(&id))
    }
}

/// What is wanted of that which takes long where there is much of it.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// Jobs that wait for their time.
    pub future: bool,
    /// Dead jobs.
    pub dead: bool,
}

/// What memory knows, with what it does not have; `None`: it does not know. Not on a standby.
pub fn known(catalog: &Catalog, wanted: Wanted) -> Option<Census> {
    // Opened before the snapshot is taken, so that none of them is emptied meanwhile.
    let tables: Vec<Tables> = (0..SEGMENTS as u8).map(|segment| Tables::open(catalog, segment)).collect();
    let number = catalog.number;
    // What follows is a look at the same moment: nothing becomes known to memory while its lock is held.
    let mut found = Vec::with_capacity(shmem::tallies());
    let (_snapshot, is_known) = sys::ActiveSnapshot::take(|take| {
        shmem::with_tallies(number, |tallies| {
            take(&mut []);
            found.extend(tallies.of(number).map(|(lane, tally)| (lane, Lane::of(*tally))));
        })
    });
    is_known?;
    let mut census = Census(found.into_iter().collect());
    let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
    let living: Vec<Tables> = tables
        .into_iter()
        .filter(|t| ledger.word(t.segment).state().is_inhabited() && t.attempt.blocks() > 0)
        .collect();
    let now = sys::now_us();
    if wanted.future {
        add_future(&living, &mut census, now);
    }
    if wanted.dead {
        census.add_dead(catalog, &ledger);
    }
    let mut ready = Vec::with_capacity(usize::try_from(guc::MAX_READY.get()).unwrap_or(0));
    for (&lane, found) in &mut census.0 {
        if found.tally.counts.waiting > found.scheduled + found.retrying {
            ready.clear();
            let position = shmem::with(|shared| {
                shared.frontier.each_ready(number, lane, |entry| {
                    if ready.len() < ready.capacity() {
                        ready.push(entry);
                    }
                })
            });
            let mut oldest = Oldest { lane, now, since: None, looked: 0 };
            oldest.among(&ready, catalog, &living);
            oldest.behind(position.unwrap_or(Rank::MIN).max(found.tally.floor), &living);
            found.oldest = oldest.since;
        }
    }
    Some(census)
}

/// Counts the attempts that wait for a time after now.
fn add_future(tables: &[Tables], census: &mut Census, now: i64) {
    let mut n = 0_u32;
    for tables in tables {
        let mut claimed = Claimed::of(tables);
        let mut scan = tables.attempt.scan(&tables.by_run_at, &[Key::after(1, now)], Snapshot::Statement);
        while scan.next().is_some() {
            n += 1;
            if n.is_multiple_of(1024) {
                sys::check_for_interrupts();
            }
            let (values, nulls) = scan.columns(LAST_ERROR + 1);
            let (id, lane, has_error) = (values[0].value() as i64, values[3].value() as i32, !nulls[LAST_ERROR]);
            if claimed.has(id) || scan.is_own() {
                continue;
            }
            // A lane that is not there was dropped.
            if let Some(found) = census.0.get_mut(&lane) {
                let count = if has_error { &mut found.retrying } else { &mut found.scheduled };
                *count += 1;
            }
        }
    }
}

/// The search for the oldest ready attempt of a lane. Within a priority jobs are in the order in which they were
/// enqueued, and none is ready before that: so the search ends there with the first that is not older.
struct Oldest {
    lane: i32,
    now: i64,
    since: Option<i64>,
    looked: usize,
}

impl Oldest {
    /// Looks at an attempt. False: those behind it in its priority are not older.
    fn look(&mut self, enqueued_at: i64, run_at: Option<i64>, is_claimed: impl FnOnce() -> bool) -> bool {
        self.looked += 1;
        if self.since.is_some_and(|since| enqueued_at >= since) || self.looked > MOST {
            return false;
        }
        if run_at.is_none_or(|at| at <= self.now) && !is_claimed() {
            let since = run_at.unwrap_or(enqueued_at);
            self.since = Some(self.since.map_or(since, |oldest| oldest.min(since)));
        }
        true
    }

    /// Looks at what memory has ready.
    fn among(&mut self, ready: &[Ready], catalog: &Catalog, tables: &[Tables]) {
        let mut reader = Reader::new(catalog);
        let mut done = None;
        for entry in ready {
            if done == Some(entry.rank.priority) {
                continue;
            }
            let Some(attempt) = reader.fetch(entry) else { continue };
            let home = tables.iter().find(|t| t.segment == attempt.home.segment);
            let is_claimed = || home.is_none_or(|tables| tables.is_claimed(attempt.id()));
            if !self.look(attempt.enqueued_at(), attempt.run_at(), is_claimed) {
                done = Some(entry.rank.priority);
            }
        }
    }

    /// Looks at what ranks behind a position.
    fn behind(&mut self, position: Rank, tables: &[Tables]) {
        for tables in tables {
            let mut at = position;
            loop {
                let rest = [Key::eq_i32(1, self.lane), Key::eq_i32(2, at.priority), Key::gt_i64(3, at.job_id)];
                let mut scan = tables.attempt.scan(&tables.by_lane, &rest, Snapshot::Statement);
                while scan.next().is_some() && self.look_at(tables, &mut scan) {}
                let next = [Key::eq_i32(1, self.lane), Key::gt_i32(2, at.priority)];
                let mut scan = tables.attempt.scan(&tables.by_lane, &next, Snapshot::Statement);
                if self.looked > MOST || scan.next().is_none() {
                    break;
                }
                at = Rank { priority: scan.columns(5).0[4].value() as i32, job_id: i64::MIN };
            }
            sys::check_for_interrupts();
        }
    }

    fn look_at(&mut self, tables: &Tables, scan: &mut Scan<'_>) -> bool {
        let (values, nulls) = scan.columns(8);
        let int = |n: usize| values[n].value() as i64;
        let (id, enqueued_at, run_at) = (int(0), int(2), (!nulls[7]).then(|| int(7)));
        let is_own = scan.is_own();
        self.look(enqueued_at, run_at, || is_own || tables.is_claimed(id))
    }
}
