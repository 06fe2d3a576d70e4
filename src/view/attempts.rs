//! The functions by which the views read the logs: every attempt with its claim and outcome, by the snapshot of the
//! statement. They are in Rust so that a query locks a segment only while it reads it. A plan of SQL would lock all
//! segments until its transaction ends, and stop the ring of segments.
//!
//! Not responsible for what only memory knows of running attempts (`view::running`), nor for counts (`view::stats`).
//!
//! Invariant: each row is of a lane that the current user may observe.

use std::collections::BTreeMap;

use pg_queue_core::after::Upon;
use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege, Rights};
use crate::catalog::rows::{LifeRow, ListedJob};
use crate::catalog::tables as columns;
use crate::catalog::{self, ids, queue};
use crate::error::Result;
use crate::job::find::Doing;
use crate::log::attempt::Attempt;
use crate::log::history::{self, Counting, Past};
use crate::log::listing::{Found, Opened, Where};
use crate::log::outcome::{self, Kind, has_moved_claim};
use crate::log::reader::Reader;
use crate::log::tables::Tables;
use crate::log::{claim, note, retried};
use crate::pg::datum::{self, text_datum};
use crate::pg::function::Call;
use crate::pg::process;
use crate::pg::row::Row;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::Relation;
use crate::shmem::ledger::Ledger;
use crate::view::running;

sql_function!(pg_queue_live, pg_finfo_pg_queue_live => live);
sql_function!(pg_queue_life_of, pg_finfo_pg_queue_life_of => life_of);
sql_function!(pg_queue_job, pg_finfo_pg_queue_job => job);
sql_function!(pg_queue_job_attempts, pg_finfo_pg_queue_job_attempts => job_attempts);
sql_function!(pg_queue_job_state, pg_finfo_pg_queue_job_state => job_state, api::run_unpinned);
sql_function!(pg_queue_attempt_state, pg_finfo_pg_queue_attempt_state => attempt_state, api::run_unpinned);

const SNAPSHOT: Snapshot = Snapshot::Statement;

fn ledger() -> Ledger {
    let catalog = catalog::pinned();
    Ledger::read(catalog.segment_log, catalog.segment_log_pkey, SNAPSHOT)
}

/// `queue_internal.live()`: returns all attempts in the segments.
fn live(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let ledger = ledger();
    let retried = retried::Reader::open(SNAPSHOT);
    let rights = permission::rights();
    let mut scratch = datum::Scratch::new();
    for tables in Tables::open_all(ledger.read_here()) {
        let notes = note::Reader::open(tables.home.segment, SNAPSHOT);
        let Some(mut walk) = tables.walk(i64::MIN, SNAPSHOT) else { continue };
        for n in 0_u32.. {
            let Some(lane) = walk.next().map(|trace| trace.attempt.lane()) else { break };
            if n % 1024 == 0 {
                process::check_for_interrupts();
            }
            if !rights.on_lane(lane, Privilege::Observe) {
                continue;
            }
            let trace = walk.copy();
            let payload_of = trace.attempt.payload_of().map(Datum::from);
            let life = Life { attempt: &trace.attempt, claim: trace.claim.row(), outcome: trace.outcome.row() };
            // The result set has a copy, so values that were fetched from toast tables are freed.
            scratch.lend(|| {
                let row = life.row(&notes, &retried, payload_of);
                row.map_or(Ok(()), |row| rows.add_options(&row.columns()))
            })?;
        }
    }
    Ok(None)
}

/// `queue_internal.life_of(job_id)`: returns all attempts of a job, in the segments and in history. If `job_id` is
/// NULL, it returns no rows.
fn life_of(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let Some(id) = call.get(args::life_of::JOB_ID) else { return Ok(None) };
    let rights = permission::rights();
    each_life(ids::job_id(id)?, &rights, &mut |row| rows.add_options(&row.columns()).map(|()| true))?;
    Ok(None)
}

/// Returns the columns of `queue.jobs`: those of `queue.listed_job`, but for two that say how a search goes on.
pub fn of_view(row: &ListedJob) -> [Option<Datum>; ListedJob::COUNT - 2] {
    let [columns @ .., _, _, start_by, timing] = row.columns();
    let mut shown = [start_by; ListedJob::COUNT - 2];
    shown[..columns.len()].copy_from_slice(&columns);
    shown[columns.len() + 1] = timing;
    shown
}

/// `queue.job(job_id)`: returns the row of `queue.jobs` for one job. It is in Rust because SQL over
/// `queue_internal.life_of` would cost more to plan than to run. If `job_id` is NULL, it returns no row.
fn job(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    // NULL comes from joins with rows that may have no job.
    let Some(id) = call.get(args::job::JOB_ID) else { return Ok(None) };
    let rights = permission::rights();
    with_newest(ids::job_id(id)?, &rights, &mut |_, row| rows.add_options(&of_view(row)))?;
    Ok(None)
}

/// `queue.job_attempts(job_id)`: returns the rows of `queue.attempts` for one job. If `job_id` is NULL, it returns no
/// rows.
fn job_attempts(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let Some(id) = call.get(args::job_attempts::JOB_ID) else { return Ok(None) };
    let rights = permission::rights();
    each_life(ids::job_id(id)?, &rights, &mut |life| {
        if let Some(row) = attempt_row(life)? {
            rows.add_options(&row)?;
        }
        Ok(true)
    })?;
    Ok(None)
}

/// Returns the row of `queue.attempts` for an attempt. `None`: the queue was dropped.
fn attempt_row(life: &LifeRow) -> Result<Option<[Option<Datum>; 10]>> {
    let (lane, doing) = (lane(life), doing(life));
    let Some(queue) = queue::by_lane(lane)? else { return Ok(None) };
    Ok(Some([
        life.id,
        life.job_id,
        Some(text_datum(&queue.name)),
        life.attempt,
        Some(text_datum(doing.state_of_attempt(queue.is_held(lane)))),
        claimed_at(life),
        life.ended_at,
        life.worker,
        life.error,
        queue.stage_of(lane).map(text_datum),
    ]))
}

fn lane(life: &LifeRow) -> i32 {
    life.lane.map_or(0, |datum| datum.value() as i32)
}

fn is_newest(life: &LifeRow) -> bool {
    life.is_newest.is_some_and(|datum| datum.value() & 1 != 0)
}

/// Returns when a worker claimed the attempt. A claim of the system itself does not count.
fn claimed_at(life: &LifeRow) -> Option<Datum> {
    let is_systems = life.claim_kind.is_some_and(|kind| kind.value() as u8 == b's');
    life.claimed_at.filter(|_| !is_systems)
}

/// Returns the standing of an attempt from its row.
fn doing(life: &LifeRow) -> Doing {
    Doing {
        outcome: life.outcome.map(|datum| Kind::of(datum.value() as u8)),
        is_claimed: life.claimed_at.is_some(),
        run_at: life.run_at.map(|datum| datum.value() as i64),
        has_failed: life.last_error.is_some(),
    }
}

/// Returns the standing of an attempt from the arguments that a view gives.
fn given(call: &Call) -> Doing {
    Doing {
        outcome: call.datum(args::job_state::OUTCOME).map(|datum| Kind::of(datum.value() as u8)),
        is_claimed: call.get(args::job_state::IS_CLAIMED).unwrap_or(false),
        run_at: call.get(args::job_state::RUN_AT),
        has_failed: call.get(args::job_state::HAS_FAILED).unwrap_or(false),
    }
}

/// `queue_internal.job_state(outcome, is_claimed, is_held, run_at, has_failed)`.
fn job_state(call: &Call) -> Result<Option<Datum>> {
    Ok(Some(text_datum(given(call).state_of_job(call.get(args::job_state::IS_HELD).unwrap_or(false)))))
}

/// `queue_internal.attempt_state(outcome, is_claimed, is_held, run_at, has_failed)`.
fn attempt_state(call: &Call) -> Result<Option<Datum>> {
    Ok(Some(text_datum(given(call).state_of_attempt(call.get(args::attempt_state::IS_HELD).unwrap_or(false)))))
}

/// Calls `f` with the lane and the row of `queue.jobs` for a job, if the job exists and the user may observe it. The
/// values are valid during the call.
pub fn with_newest(job_id: i64, rights: &Rights, f: &mut dyn FnMut(i32, &ListedJob) -> Result<()>) -> Result<()> {
    each_life(job_id, rights, &mut |row| {
        if !is_newest(row) {
            return Ok(true);
        }
        let lane = lane(row);
        if let Some(row) = job_row(row, rights)? {
            f(lane, &row)?;
        }
        Ok(false)
    })
}

/// A page of jobs, read row by row.
pub struct Page<'a> {
    opened: &'a Opened,
    rights: &'a Rights,
    reader: Reader,
    retried: retried::Reader,
    notes: BTreeMap<u8, note::Reader>,
}

impl<'a> Page<'a> {
    pub fn new(opened: &'a Opened, rights: &'a Rights) -> Self {
        Self { opened, rights, reader: Reader::new(), retried: retried::Reader::open(SNAPSHOT), notes: BTreeMap::new() }
    }

    /// Calls `f` with the row of `queue.jobs` for a job that a walk has found, and whether the job is a flow. It does
    /// so only if the attempt is the job's newest and the user may observe it. The values are valid during the call.
    pub fn show(&mut self, found: &Found, f: &mut dyn FnMut(&ListedJob, bool) -> Result<()>) -> Result<()> {
        let rights = self.rights;
        let mut tell = |life: &LifeRow| {
            if is_newest(life)
                && rights.on_lane(lane(life), Privilege::Observe)
                && let Some(row) = job_row(life, rights)?
            {
                f(&row, life.own_flow.is_some())?;
            }
            Ok(())
        };
        let segment = match &found.place {
            Where::History(past) => return tell(&past_row(&self.retried, past)),
            Where::Segment(segment) => *segment,
        };
        let Some((attempt, claim, outcome)) = self.opened.attempt(segment, found.id) else { return Ok(()) };
        let notes = self.notes.entry(segment).or_insert_with(|| note::Reader::open(segment, SNAPSHOT));
        let life = Life { attempt: &attempt, claim: claim.as_ref(), outcome: outcome.as_ref() };
        self.reader.payload(&attempt, |payload| {
            life.row(notes, &self.retried, payload.map(datum::fetched)).map_or(Ok(()), |row| tell(&row))
        })
    }
}

/// Returns the row of `queue_internal.job_life` for the row of the job's newest attempt. `None`: the queue was dropped.
fn job_row(life: &LifeRow, rights: &Rights) -> Result<Option<ListedJob>> {
    let number = |column: Option<Datum>| column.map(|datum| datum.value() as i64);
    let (lane, doing) = (lane(life), doing(life));
    let Some(queue) = queue::by_lane(lane)? else { return Ok(None) };
    let lease_expires_at = || {
        let by_claim = || Some(Datum::from(number(life.claimed_at)?.saturating_add(number(life.lease_us)?)));
        running::lease_end(number(life.id).unwrap_or(0), rights).map(Datum::from).or_else(by_claim)
    };
    let is_running = doing.outcome.is_none() && doing.is_claimed;
    Ok(Some(ListedJob {
        job_id: life.job_id,
        queue_name: Some(text_datum(&queue.name)),
        stage: queue.stage_of(lane).map(text_datum),
        state: Some(text_datum(doing.state_of_job(queue.is_held(lane)))),
        payload: life.payload_of,
        priority: life.priority,
        attempt: life.attempt,
        max_attempts: life.max_attempts.or(Some(queue.max_attempts.into())),
        run_at: life.run_at,
        enqueued_at: life.enqueued_at,
        claimed_at: claimed_at(life),
        finished_at: life.ended_at,
        lease_expires_at: if is_running { lease_expires_at() } else { None },
        worker: life.worker,
        error: life.error.or(life.last_error),
        result: life.result,
        progress: life.progress,
        unique_key: life.unique_key,
        group_key: life.group_key,
        headers: life.headers,
        flow: life.flow,
        task: life.task,
        after: life.after,
        upon: life.upon.map(|char| text_datum(Upon::of(char.value() as u8).name())),
        start_by: number(life.start_by).filter(|&at| at < i64::MAX).map(Datum::from),
        timing: life.timing,
        here: None,
        rows_read: None,
    }))
}

/// Calls `f` with each attempt of a job that the user may observe, in the columns of `queue_internal.life_of`. Stops if
/// `f` returns false.
fn each_life(job_id: i64, rights: &Rights, f: &mut dyn FnMut(&LifeRow) -> Result<bool>) -> Result<()> {
    let may_see = |lane: i32| rights.on_lane(lane, Privilege::Observe);
    let ledger = ledger();
    let retried = retried::Reader::open(SNAPSHOT);
    let mut reader = Reader::new();
    for segment in ledger.read_here() {
        let found = reader.of_job(segment, job_id, SNAPSHOT);
        if found.is_empty() {
            continue;
        }
        let oids = catalog::segment(segment);
        let side = |table, pkey, id: i64| {
            let (table, pkey) = (Relation::read(table), Relation::read_index(pkey));
            let mut scan = table.scan(&pkey, &[Key::eq_i64(1, id)], SNAPSHOT);
            scan.next().map(|_| scan.row())
        };
        let notes = note::Reader::open(segment, SNAPSHOT);
        for attempt in found.iter().filter(|attempt| may_see(attempt.lane())) {
            let claim = side(oids.claim, oids.claim_pkey, attempt.id());
            let outcome = side(oids.outcome, oids.outcome_pkey, attempt.id());
            let life = Life { attempt, claim: claim.as_ref(), outcome: outcome.as_ref() };
            let goes_on = reader.payload(attempt, |payload| {
                life.row(&notes, &retried, payload.map(datum::fetched)).map_or(Ok(true), |row| f(&row))
            })?;
            if !goes_on {
                return Ok(());
            }
        }
    }
    // Attempts that are still being copied were read in their segment.
    history::each_of_job(job_id, SNAPSHOT, &Counting::of(&ledger), &mut |past| {
        if may_see(past.lane()) { f(&past_row(&retried, past)) } else { Ok(true) }
    })
}

/// An attempt in a segment.
struct Life<'a> {
    attempt: &'a Attempt,
    claim: Option<&'a Row>,
    outcome: Option<&'a Row>,
}

impl Life<'_> {
    /// Returns the attempt in the columns of `queue_internal.life_of`. `None`: it has moved elsewhere, or the row only
    /// holds a payload.
    fn row(&self, notes: &note::Reader, retried: &retried::Reader, payload: Option<Datum>) -> Option<LifeRow> {
        let attempt = self.attempt;
        if has_moved_claim(self.claim.map(claim::read).as_ref(), self.outcome.map(outcome::read).as_ref())
            || attempt.is_payload_only()
        {
            return None;
        }
        let notes = notes.summary(attempt.id());
        let is_newest = match self.outcome {
            Some(row) => outcome::read(row).next_id.is_none() && !retried.has(attempt.id()),
            None => true,
        };
        let of_claim = |column: usize| self.claim.and_then(|row| row.get(column));
        let of_outcome = |column: usize| self.outcome.and_then(|row| row.get(column));
        let wide = |datum: Option<Datum>| datum.map(datum::fetched);
        Some(LifeRow {
            id: Some(attempt.id().into()),
            job_id: Some(attempt.job_id().into()),
            enqueued_at: Some(attempt.enqueued_at().into()),
            lane: Some(attempt.lane().into()),
            priority: Some(attempt.priority().into()),
            attempt: Some(attempt.attempt().into()),
            max_attempts: attempt.max_attempts().map(Datum::from),
            run_at: attempt.run_at().map(Datum::from),
            payload_of: payload,
            headers: wide(attempt.headers()),
            group_key: wide(attempt.group_key()),
            unique_key: wide(attempt.unique_key()),
            last_error: wide(attempt.last_error()),
            progress: notes.progress().map(datum::owned).or_else(|| wide(attempt.progress())),
            claimed_at: of_claim(columns::claim::CLAIMED_AT),
            lease_us: of_claim(columns::claim::LEASE_US),
            pid: of_claim(columns::claim::PID),
            claim_kind: of_claim(columns::claim::KIND),
            worker: wide(of_claim(columns::claim::WORKER)),
            ended_at: of_outcome(columns::outcome::ENDED_AT),
            outcome: of_outcome(columns::outcome::OUTCOME),
            next_id: of_outcome(columns::outcome::NEXT_ID),
            result: wide(of_outcome(columns::outcome::RESULT)),
            error: wide(of_outcome(columns::outcome::ERROR)),
            is_newest: Some(is_newest.into()),
            flow: attempt.flow().map(Datum::from),
            task: wide(attempt.task()),
            after: wide(attempt.after()),
            upon: attempt.upon().map(|upon| Datum::from(upon as i8)),
            own_flow: wide(attempt.own_flow()),
            start_by: attempt.start_by().map(Datum::from),
            timing: wide(attempt.timing()),
        })
    }
}

/// Returns an attempt in history in the columns of `queue_internal.life_of`.
fn past_row(retried: &retried::Reader, past: &Past) -> LifeRow {
    let plain = |column: usize| past.get(column);
    let wide = |column: usize| past.get(column).map(datum::fetched);
    LifeRow {
        id: plain(columns::history::ID),
        job_id: plain(columns::history::JOB_ID),
        enqueued_at: plain(columns::history::ENQUEUED_AT),
        lane: plain(columns::history::LANE),
        priority: plain(columns::history::PRIORITY),
        attempt: plain(columns::history::ATTEMPT),
        max_attempts: plain(columns::history::MAX_ATTEMPTS),
        run_at: plain(columns::history::RUN_AT),
        payload_of: wide(columns::history::PAYLOAD),
        headers: wide(columns::history::HEADERS),
        group_key: wide(columns::history::GROUP_KEY),
        unique_key: wide(columns::history::UNIQUE_KEY),
        last_error: wide(columns::history::LAST_ERROR),
        progress: wide(columns::history::PROGRESS),
        claimed_at: plain(columns::history::CLAIMED_AT),
        lease_us: None,
        pid: plain(columns::history::PID),
        claim_kind: plain(columns::history::CLAIM_KIND),
        worker: wide(columns::history::WORKER),
        ended_at: plain(columns::history::ENDED_AT),
        outcome: plain(columns::history::OUTCOME),
        next_id: plain(columns::history::NEXT_ID),
        result: wide(columns::history::RESULT),
        error: wide(columns::history::ERROR),
        is_newest: Some((past.outcome().next_id.is_none() && !retried.has(past.id())).into()),
        flow: plain(columns::history::FLOW),
        task: wide(columns::history::TASK),
        after: wide(columns::history::AFTER),
        upon: plain(columns::history::UPON),
        own_flow: wide(columns::history::OWN_FLOW),
        start_by: None,
        timing: wide(columns::history::TIMING),
    }
}
