//! The functions by which the views read the logs: every attempt with its claim and outcome, by the snapshot of the
//! statement. They are in Rust and not in SQL, so that a query locks a segment for no longer than it reads it (a plan
//! would lock all segments until its transaction ends, and stop the ring of segments).
//!
//! Not here: what only memory knows of running attempts (`api::running`), and counts (`api::stats`).
//!
//! Invariant: each row is of a lane that the current user may observe.

use std::collections::BTreeMap;

use pg_queue_core::after::Upon;
use pgrx::pg_sys::Datum;

use crate::api::{running, sql_function};
use crate::catalog::permission::{self, Privilege, Rights};
use crate::catalog::{self, Catalog, ids, queue};
use crate::error::Result;
use crate::job::find::Doing;
use crate::log::attempt::Attempt;
use crate::log::history::{self, Past, column};
use crate::log::listing::{Found, Opened, Where};
use crate::log::outcome::{self, Kind, has_moved_claim};
use crate::log::reader::Reader;
use crate::log::tables::{self, Tables};
use crate::log::{claim, note, successor};
use crate::pg::datum::{self, text_datum};
use crate::pg::function::Call;
use crate::pg::process;
use crate::pg::row::Row;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::Relation;
use crate::shmem::ledger::Ledger;
use crate::shmem::segments::State;

sql_function!(pg_queue_live, pg_finfo_pg_queue_live => live);
sql_function!(pg_queue_life_of, pg_finfo_pg_queue_life_of => life_of);
sql_function!(pg_queue_job, pg_finfo_pg_queue_job => job);
sql_function!(pg_queue_job_attempts, pg_finfo_pg_queue_job_attempts => job_attempts);

/// Number of columns of `queue_internal.live` and of `queue_internal.life_of`, which has the payload in place of `payload_of`.
const COLUMNS: usize = 30;

const SNAPSHOT: Snapshot = Snapshot::Statement;

fn ledger(catalog: &Catalog) -> Ledger {
    Ledger::read(catalog.segment_log, catalog.segment_log_pkey, SNAPSHOT)
}

/// `queue_internal.live()`: returns all attempts in the segments.
fn live(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let catalog = catalog::current()?;
    let ledger = ledger(&catalog);
    let successors = successor::Reader::open(&catalog, SNAPSHOT);
    let rights = permission::rights(&catalog);
    let mut scratch = datum::Scratch::new();
    for tables in Tables::open_all(&catalog, ledger.read_here()) {
        let notes = note::Reader::open(&catalog, tables.home.segment, SNAPSHOT);
        for (n, trace) in tables.walk(i64::MIN, SNAPSHOT).enumerate() {
            if n % 1024 == 0 {
                process::check_for_interrupts();
            }
            if !rights.on_lane(trace.attempt.lane(), Privilege::Observe) {
                continue;
            }
            let payload_of = trace.attempt.payload_of().map(Datum::from);
            let life = Life { attempt: &trace.attempt, claim: trace.claim.row(), outcome: trace.outcome.row() };
            // The result set has a copy, so values fetched from toast tables are freed.
            scratch.lend(|| {
                let row = life.row(&notes, &successors, payload_of);
                row.map_or(Ok(()), |row| rows.add_options(&row))
            })?;
        }
    }
    Ok(None)
}

/// `queue_internal.life_of(job_id)`: returns all attempts of a job, in the segments and in history. If `job_id` is NULL, it
/// returns no rows.
fn life_of(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let Some(id) = call.i64(0) else { return Ok(None) };
    let catalog = catalog::current()?;
    let rights = permission::rights(&catalog);
    each_life(&catalog, ids::job_id(id)?, &rights, &mut |row| rows.add_options(row).map(|()| true))?;
    Ok(None)
}

/// Number of columns of `queue.jobs`.
pub const JOB_COLUMNS: usize = 24;

/// A row of `queue.jobs`.
pub type JobRow = [Option<Datum>; JOB_COLUMNS];

/// `queue.job(job_id)`: returns the row of `queue.jobs` for one job. It is in Rust, since SQL over `queue_internal.life_of`
/// would cost more to plan than to run. If `job_id` is NULL, it returns no row.
fn job(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    // NULL comes from joins with rows that need not have a job.
    let Some(id) = call.i64(0) else { return Ok(None) };
    let catalog = catalog::current()?;
    let rights = permission::rights(&catalog);
    with_newest(&catalog, ids::job_id(id)?, &rights, &mut |_, row| rows.add_options(row))?;
    Ok(None)
}

/// `queue.job_attempts(job_id)`: returns the rows of `queue.attempts` for one job. If `job_id` is NULL, it returns no rows.
fn job_attempts(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let Some(id) = call.i64(0) else { return Ok(None) };
    let catalog = catalog::current()?;
    let rights = permission::rights(&catalog);
    each_life(&catalog, ids::job_id(id)?, &rights, &mut |life| {
        if let Some(row) = attempt_row(&catalog, life)? {
            rows.add_options(&row)?;
        }
        Ok(true)
    })?;
    Ok(None)
}

/// Returns the row of `queue.attempts` for an attempt. `None`: the queue was dropped.
fn attempt_row(catalog: &Catalog, life: &[Option<Datum>; COLUMNS]) -> Result<Option<[Option<Datum>; 10]>> {
    let char = |column: usize| life[column].map(|datum| datum.value() as u8);
    let doing = doing(life);
    let Some(queue) = queue::by_lane(catalog, doing.lane)? else { return Ok(None) };
    Ok(Some([
        life[0],
        life[1],
        Some(text_datum(&queue.name)),
        life[5],
        Some(text_datum(doing.outcome.map_or_else(|| doing.state(&queue), Kind::name))),
        life[14].filter(|_| char(17) != Some(b's')),
        life[19],
        life[18],
        life[23],
        queue.stage_of(doing.lane).map(text_datum),
    ]))
}

/// What an attempt is doing, as its row says.
fn doing(life: &[Option<Datum>; COLUMNS]) -> Doing {
    let outcome = life[20].map(|datum| Kind::of(datum.value() as u8));
    Doing {
        lane: life[3].map_or(0, |datum| datum.value() as i32),
        outcome,
        is_claimed: outcome.is_none() && life[14].is_some(),
        run_at: life[7].map(|datum| datum.value() as i64),
        has_failed: life[12].is_some(),
    }
}

/// Calls `f` with the lane and the row of `queue.jobs` for a job, if there is one that the user may observe. The values are
/// good for the time of the call.
pub fn with_newest(
    catalog: &Catalog,
    job_id: i64,
    rights: &Rights,
    f: &mut dyn FnMut(i32, &JobRow) -> Result<()>,
) -> Result<()> {
    each_life(catalog, job_id, rights, &mut |row| {
        let is_newest = row[24].is_some_and(|datum| datum.value() & 1 != 0);
        if !is_newest {
            return Ok(true);
        }
        let lane = row[3].map_or(0, |datum| datum.value() as i32);
        if let Some(row) = job_row(catalog, row, rights)? {
            f(lane, &row)?;
        }
        Ok(false)
    })
}

/// What a page of jobs shows, read row by row.
pub struct Page<'a> {
    catalog: &'a Catalog,
    opened: &'a Opened,
    rights: &'a Rights,
    reader: Reader<'a>,
    successors: successor::Reader,
    notes: BTreeMap<u8, note::Reader>,
}

impl<'a> Page<'a> {
    pub fn new(catalog: &'a Catalog, opened: &'a Opened, rights: &'a Rights) -> Self {
        Self {
            catalog,
            opened,
            rights,
            reader: Reader::new(catalog),
            successors: successor::Reader::open(catalog, SNAPSHOT),
            notes: BTreeMap::new(),
        }
    }

    /// Calls `f` with the row of `queue.jobs` for a job that a walk has found, and whether it is a flow, if the attempt is its
    /// newest and the user may observe it. The values are good for the time of the call.
    pub fn show(&mut self, found: &Found, f: &mut dyn FnMut(&JobRow, bool) -> Result<()>) -> Result<()> {
        let rights = self.rights;
        let mut tell = |life: &[Option<Datum>; COLUMNS]| {
            let is_newest = life[24].is_some_and(|datum| datum.value() & 1 != 0);
            let lane = life[3].map_or(0, |datum| datum.value() as i32);
            if is_newest
                && rights.on_lane(lane, Privilege::Observe)
                && let Some(row) = job_row(self.catalog, life, rights)?
            {
                f(&row, life[COLUMNS - 1].is_some())?;
            }
            Ok(())
        };
        let segment = match &found.place {
            Where::History(past) => return tell(&past_row(&self.successors, past)),
            Where::Segment(segment) => *segment,
        };
        let Some((attempt, claim, outcome)) = self.opened.attempt(segment, found.id) else { return Ok(()) };
        let catalog = self.catalog;
        let notes = self.notes.entry(segment).or_insert_with(|| note::Reader::open(catalog, segment, SNAPSHOT));
        let life = Life { attempt: &attempt, claim: claim.as_ref(), outcome: outcome.as_ref() };
        self.reader.payload(&attempt, |payload| {
            life.row(notes, &self.successors, payload.map(datum::fetched)).map_or(Ok(()), |row| tell(&row))
        })
    }
}

/// Returns the row of `queue.job_life` for the row of the job's newest attempt. `None`: the queue was dropped.
fn job_row(catalog: &Catalog, life: &[Option<Datum>; COLUMNS], rights: &Rights) -> Result<Option<JobRow>> {
    let number = |column: usize| life[column].map(|datum| datum.value() as i64);
    let [id, job_id, enqueued_at, _, priority, attempt, max_attempts, run_at, payload, headers, group_key, ..] = *life;
    let [
        ..,
        unique_key,
        last_error,
        progress,
        claimed_at,
        _,
        _,
        claim_kind,
        worker,
        ended_at,
        _,
        _,
        result,
        error,
        _,
        flow,
        task,
        after,
        upon,
        _,
    ] = *life;
    let doing = doing(life);
    let (lane, is_running) = (doing.lane, doing.is_claimed);
    let Some(queue) = queue::by_lane(catalog, lane)? else { return Ok(None) };
    let char = |datum: Option<Datum>| datum.map(|datum| datum.value() as u8);
    let lease_expires_at = || {
        let id = id.map_or(0, |datum| datum.value() as i64);
        let by_claim = || Some(Datum::from(number(14)?.saturating_add(number(15)?)));
        running::lease_end(catalog, id, rights).map(Datum::from).or_else(by_claim)
    };
    Ok(Some([
        job_id,
        Some(text_datum(&queue.name)),
        queue.stage_of(lane).map(text_datum),
        Some(text_datum(doing.state(&queue))),
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
        flow,
        task,
        after,
        char(upon).map(|char| text_datum(Upon::of(char).name())),
    ]))
}

/// Calls `f` with each attempt of a job that the user may observe, in the columns of `queue_internal.life_of`, until `f`
/// returns false.
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
    for segment in ledger.read_here() {
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
                life.row(&notes, &successors, payload.map(datum::fetched)).map_or(Ok(true), |row| f(&row))
            })?;
            if !goes_on {
                return Ok(());
            }
        }
    }
    // Attempts that are still being copied were read in their segment.
    let copying: Vec<i64> = tables::ALL
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
    /// Returns the attempt in the columns of `queue_internal.life_of`. `None`: it has moved elsewhere, or the row only holds a
    /// payload.
    fn row(
        &self,
        notes: &note::Reader,
        successors: &successor::Reader,
        payload: Option<Datum>,
    ) -> Option<[Option<Datum>; COLUMNS]> {
        let attempt = self.attempt;
        if has_moved_claim(self.claim.map(claim::read).as_ref(), self.outcome.map(outcome::read).as_ref())
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
        let wide = |datum: Option<Datum>| datum.map(datum::fetched);
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
            notes.progress().map(datum::owned).or_else(|| wide(attempt.progress())),
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
            attempt.flow().map(Datum::from),
            wide(attempt.task()),
            wide(attempt.after()),
            attempt.upon().map(|upon| Datum::from(upon as i8)),
            wide(attempt.own_flow()),
        ])
    }
}

fn past_row(successors: &successor::Reader, past: &Past) -> [Option<Datum>; COLUMNS] {
    let is_newest = past.outcome().next_id.is_none() && !successors.has(past.id());
    let wide = |column: usize| past.get(column).map(datum::fetched);
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
        past.get(column::FLOW),
        wide(column::TASK),
        wide(column::AFTER),
        past.get(column::UPON),
        wide(column::OWN_FLOW),
    ]
}
