//! What the views read of the logs: every attempt with its claim and outcome, by one snapshot, that of the
//! statement. Here and not in SQL, so that nobody who looks holds a lock on a segment for longer than he reads it
//! (a plan would lock all of them until its transaction ends, and stop the ring of segments).

use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys::Datum;

use crate::api::looking;
use crate::call::{Call, sql_function, text_datum};
use crate::error::Result;
use crate::instance::{self, Catalog};
use crate::log::attempt::{Attempt, Reader};
use crate::log::history::{self, Past, column};
use crate::log::outcome::{self, Kind};
use crate::log::table::{Key, Relation, Row, Snapshot};
use crate::log::walk::Tables;
use crate::log::{claim, has_moved, note, successor};
use crate::permission::{self, Privilege, Rights};
use crate::segment::{Ledger, State};
use crate::{hold, queue, sys};

sql_function!(pg_queue_live, pg_finfo_pg_queue_live => live);
sql_function!(pg_queue_life_of, pg_finfo_pg_queue_life_of => life_of);
sql_function!(pg_queue_job, pg_finfo_pg_queue_job => job);

/// Columns of `queue.live` and, with the payload instead of the place of it, of `queue.life_of`.
const COLUMNS: usize = 25;

const SNAPSHOT: Snapshot = Snapshot::Statement;

fn ledger(catalog: &Catalog) -> Ledger {
    Ledger::read(catalog.segment_log, catalog.segment_log_pkey, SNAPSHOT)
}

/// `queue.live()`: all attempts in the segments.
fn live(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let catalog = instance::current()?;
    let ledger = ledger(&catalog);
    let successors = successor::Reader::open(&catalog, SNAPSHOT);
    let rights = permission::rights(&catalog);
    let mut scratch = sys::Scratch::new();
    let segments: Vec<u8> = (0..SEGMENTS as u8).filter(|&segment| ledger.is_read_here(segment)).collect();
    // None is emptied before all are read, which may take longer than pg_queue.reclaim_delay.
    let _locked: Vec<Relation> =
        segments.iter().map(|&segment| Relation::read(catalog.segments[segment as usize].attempt)).collect();
    for segment in segments {
        let tables = Tables::open(&catalog, segment);
        if tables.is_empty() {
            continue;
        }
        let notes = note::Reader::open(&catalog, segment, SNAPSHOT);
        for (n, trace) in tables.walk(i64::MIN, SNAPSHOT).enumerate() {
            if n % 1024 == 0 {
                sys::check_for_interrupts();
            }
            if !rights.on_lane(trace.attempt.lane(), Privilege::Observe) {
                continue;
            }
            let payload_of = trace.attempt.payload_of().map(Datum::from);
            let life = Life { attempt: &trace.attempt, claim: trace.claim.row(), outcome: trace.outcome.row() };
            // The set has a copy; what was fetched from toast tables is of no more use.
            scratch.lend(|| {
                let row = life.row(&notes, &successors, payload_of);
                row.map_or(Ok(()), |row| rows.add_options(&row))
            })?;
        }
    }
    Ok(None)
}

/// `queue.life_of(job_id)`: all attempts of a job, in the segments and in history.
fn life_of(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let Some(id) = call.i64(0) else { return Ok(None) };
    let catalog = instance::current()?;
    let rights = permission::rights(&catalog);
    each_life(&catalog, hold::job_id(id)?, &rights, &mut |row| rows.add_options(row).map(|()| true))?;
    Ok(None)
}

/// Columns of `queue.jobs`.
const JOB_COLUMNS: usize = 20;

/// `queue.job(job_id)`: what `queue.jobs` has of one job. Not by SQL over `queue.life_of`, which would cost more to
/// plan than to run.
fn job(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    // For joins with what need not have a job.
    let Some(id) = call.i64(0) else { return Ok(None) };
    let catalog = instance::current()?;
    let rights = permission::rights(&catalog);
    each_life(&catalog, hold::job_id(id)?, &rights, &mut |row| {
        let is_newest = row[24].is_some_and(|datum| datum.value() & 1 != 0);
        if !is_newest {
            return Ok(true);
        }
        if let Some(row) = job_row(&catalog, row, &rights)? {
            rows.add_options(&row)?;
        }
        Ok(false)
    })?;
    Ok(None)
}

/// The row of `queue.job_life` for that of the newest attempt; `None`: the queue was dropped.
fn job_row(
    catalog: &Catalog,
    life: &[Option<Datum>; COLUMNS],
    rights: &Rights,
) -> Result<Option<[Option<Datum>; JOB_COLUMNS]>> {
    let number = |column: usize| life[column].map(|datum| datum.value() as i64);
    let [id, job_id, enqueued_at, lane, priority, attempt, max_attempts, run_at, payload, headers, group_key, ..] =
        *life;
    let [
        ..,
        unique_key,
        last_error,
        progress,
        claimed_at,
        lease_us,
        _,
        claim_kind,
        worker,
        ended_at,
        outcome,
        _,
        result,
        error,
        _,
    ] = *life;
    let lane = lane.map_or(0, |datum| datum.value() as i32);
    let Some(queue) = queue::by_lane(catalog, lane)? else { return Ok(None) };
    let char = |datum: Option<Datum>| datum.map(|datum| datum.value() as u8);
    let is_running = outcome.is_none() && claimed_at.is_some();
    let state = match char(outcome).map(Kind::of) {
        Some(Kind::Completed) => "completed",
        Some(Kind::Cancelled) => "cancelled",
        Some(_) => "dead",
        None if is_running => "running",
        None if number(7).is_some_and(|at| at > sys::now_us()) => {
            if last_error.is_none() {
                "scheduled"
            } else {
                "retrying"
            }
        }
        None => "ready",
    };
    let lease_expires_at = || {
        let id = id.map_or(0, |datum| datum.value() as i64);
        let by_claim = || Some(Datum::from(number(14)?.saturating_add(number(15)?)));
        debug_assert!(claimed_at.is_some() && lease_us.is_some());
        looking::lease_end(catalog, id, rights).map(Datum::from).or_else(by_claim)
    };
    Ok(Some([
        job_id,
        Some(text_datum(&queue.name)),
        queue.stage_of(lane).map(text_datum),
        Some(text_datum(state)),
        payload,
        priority,
        attempt,
        max_attempts.or(Some(queue.max_attempts.into())),
        run_at,
        enqueued_at,
        claimed_at.filter(|_| char(claim_kind) != Some(b's')),
        ended_at,
        if is_running { lease_expires_at() } else { None },
        worker,
        error.or(last_error),
        result,
        progress,
        unique_key,
        group_key,
        headers,
    ]))
}

/// Calls `f` with each attempt of a job that the user may see, in the columns of `queue.life_of`, until it returns false.
fn each_life(
    catalog: &Catalog,
    job_id: i64,
    rights: &Rights,
    f: &mut dyn FnMut(&[Option<Datum>; COLUMNS]) -> Result<bool>,
) -> Result<()> {
    let may_see = |lane: i32| rights.on_lane(lane, Privilege::Observe);
    let ledger = ledger(catalog);
    let successors = successor::Reader::open(catalog, SNAPSHOT);
    let mut reader = Reader::new(catalog);
    for segment in (0..SEGMENTS as u8).filter(|&segment| ledger.is_read_here(segment)) {
        let found = reader.of_job(segment, job_id, SNAPSHOT);
        if found.is_empty() {
            continue;
        }
        let oids = &catalog.segments[segment as usize];
        let side = |table, pkey, id: i64| {
            let (table, pkey) = (Relation::read(table), Relation::read_index(pkey));
            let mut scan = table.scan(&pkey, &[Key::eq_i64(1, id)], SNAPSHOT);
            scan.next().map(|_| scan.row())
        };
        let notes = note::Reader::open(catalog, segment, SNAPSHOT);
        for attempt in found.iter().filter(|attempt| may_see(attempt.lane())) {
            let claim = side(oids.claim, oids.claim_pkey, attempt.id());
            let outcome = side(oids.outcome, oids.outcome_pkey, attempt.id());
            let life = Life { attempt, claim: claim.as_ref(), outcome: outcome.as_ref() };
            let goes_on = reader.payload(attempt, |payload| {
                life.row(&notes, &successors, payload.map(sys::fetched)).map_or(Ok(true), |row| f(&row))
            })?;
            if !goes_on {
                return Ok(());
            }
        }
    }
    // What is still being copied was read in its segment.
    let copying: Vec<i64> = (0..SEGMENTS as u8)
        .map(|segment| ledger.word(segment))
        .filter(|word| word.state() == State::Drained)
        .map(|word| word.generation())
        .collect();
    let counts = |generation| !copying.contains(&generation);
    history::each_of_job(catalog, job_id, SNAPSHOT, &counts, &mut |past| {
        if may_see(past.lane()) { f(&past_row(&successors, past)) } else { Ok(true) }
    })
}

/// An attempt in a segment.
struct Life<'a> {
    attempt: &'a Attempt,
    claim: Option<&'a Row>,
    outcome: Option<&'a Row>,
}

impl Life<'_> {
    /// In the columns of `queue.life_of`; `None`: it is elsewhere, or none.
    fn row(
        &self,
        notes: &note::Reader,
        successors: &successor::Reader,
        payload: Option<Datum>,
    ) -> Option<[Option<Datum>; COLUMNS]> {
        let attempt = self.attempt;
        if has_moved(self.claim.map(claim::read).as_ref(), self.outcome.map(outcome::read).as_ref())
            || attempt.is_payload_only()
        {
            return None;
        }
        let notes = notes.summary(attempt.id());
        let is_newest = match self.outcome {
            Some(row) => outcome::read(row).next_id.is_none() && !successors.has(attempt.id()),
            None => true,
        };
        let of_claim = |column: usize| self.claim.and_then(|row| row.get(column));
        let of_outcome = |column: usize| self.outcome.and_then(|row| row.get(column));
        let wide = |datum: Option<Datum>| datum.map(sys::fetched);
        Some([
            Some(attempt.id().into()),
            Some(attempt.job_id().into()),
            Some(attempt.enqueued_at().into()),
            Some(attempt.lane().into()),
            Some(attempt.priority().into()),
            Some(attempt.attempt().into()),
            attempt.max_attempts().map(Datum::from),
            attempt.run_at().map(Datum::from),
            payload,
            wide(attempt.headers()),
            wide(attempt.group_key()),
            wide(attempt.unique_key()),
            wide(attempt.last_error()),
            notes.progress().map(sys::owned).or_else(|| wide(attempt.progress())),
            of_claim(1),
            of_claim(2),
            of_claim(3),
            of_claim(4),
            wide(of_claim(5)),
            of_outcome(1),
            of_outcome(2),
            of_outcome(3),
            wide(of_outcome(4)),
            wide(of_outcome(5)),
            Some(is_newest.into()),
        ])
    }
}

fn past_row(successors: &successor::Reader, past: &Past) -> [Option<Datum>; COLUMNS] {
    let is_newest = past.outcome().next_id.is_none() && !successors.has(past.id());
    let wide = |column: usize| past.get(column).map(sys::fetched);
    [
        past.get(column::ID),
        past.get(column::JOB_ID),
        past.get(column::ENQUEUED_AT),
        past.get(column::LANE),
        past.get(column::PRIORITY),
        past.get(column::ATTEMPT),
        past.get(column::MAX_ATTEMPTS),
        past.get(column::RUN_AT),
        wide(column::PAYLOAD),
        wide(column::HEADERS),
        wide(column::GROUP_KEY),
        wide(column::UNIQUE_KEY),
        wide(column::LAST_ERROR),
        wide(column::PROGRESS),
        past.get(column::CLAIMED_AT),
        None,
        past.get(column::PID),
        past.get(column::CLAIM_KIND),
        wide(column::WORKER),
        past.get(column::ENDED_AT),
        past.get(column::OUTCOME),
        past.get(column::NEXT_ID),
        wide(column::RESULT),
        wide(column::ERROR),
        Some(is_newest.into()),
    ]
}
