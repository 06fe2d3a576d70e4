//! Retries an ended job by hand: the job gets a new first attempt. A waiting job gets another time.
//!
//! Not responsible for another run that `enqueue` requests (`rerun`), nor for the next attempt after a failure
//! (`fail`).
//!
//! Invariant: an ended attempt gets at most one next attempt; the key of the row in `queue_internal.successor` decides.

use pg_queue_core::id;
use pgrx::pg_sys;

use crate::catalog;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue::{self, Queue};
use crate::error::Result;
use crate::job::find::{self, Found};
use crate::job::next_attempt::{self, supersede};
use crate::job::options::OwnFlow;
use crate::job::{after, flow, start_by, timing, unique};
use crate::log::attempt::{self, New};
use crate::log::member::{self, Standing};
use crate::log::outcome::{self, Kind};
use crate::log::reader::Reader;
use crate::log::{self, note};
use crate::pg::{lock, process};

/// Runs an ended job once more, or a waiting job at another time. If `run_at` is `None`, it runs now.
///
/// Errors: P0002, 42501; 23505 if another job has its key, 55006 if an open transaction is in the way.
pub fn retry(job_id: i64, run_at: Option<i64>) -> Result<()> {
    let mut is_locked = false;
    loop {
        let found = find::managed(job_id)?;
        if let Found::Here(job) = &found
            && job.outcome.is_none()
            && !job.is_claimed
            && flow::is_flow(&job.attempt)
        {
            flow::check_goes_on(&job.attempt)?;
            if retry_members(job_id, &[Standing::Dead])? > 0 {
                return Ok(());
            }
        }
        if found.outcome().is_none() {
            supersede(job_id, true, |next| next.run_at = run_at)?;
            return Ok(());
        }
        if !is_locked {
            lock_ended(job_id, pg_sys::ShareLock)?;
            is_locked = true;
            continue;
        }
        let Some(queue) = queue::by_lane(found.lane())? else {
            return Err(find::of_dropped(job_id));
        };
        claim_key(&queue, &found)?;
        let waits = retry_flow(job_id, &found)?;
        if revive_ended(&found, run_at, waits)? {
            return Ok(());
        }
    }
}

/// If a job is a flow that ended while it waited, retries its members that have not completed. Returns whether it is
/// such a flow, which then waits for its members again.
///
/// Errors: as `retry`, for any of them.
fn retry_flow(job_id: i64, ended: &Found) -> Result<bool> {
    let waits = ended.is_flow() && after::is_held(ended.lane())?;
    if waits {
        retry_members(job_id, &[Standing::Dead, Standing::Unrun])?;
    }
    Ok(waits)
}

/// Retries members of a flow. Returns how many.
///
/// Errors: as `retry`, for any of them.
fn retry_members(flow: i64, which: &[Standing]) -> Result<i64> {
    let mut retried = 0;
    for job_id in member::of_standing(flow, which) {
        let found = find::find_any(job_id)?;
        let Some(queue) = queue::by_lane(found.lane())? else { continue };
        permission::check(&queue, Privilege::Manage)?;
        lock_ended(job_id, pg_sys::ShareLock)?;
        let found = find::find_any(job_id)?;
        if !found.outcome().is_some_and(|outcome| outcome.kind != Kind::Completed) {
            continue;
        }
        claim_key(&queue, &found)?;
        if revive_ended(&found, None, true)? {
            retried += 1;
        }
        if found.is_flow() {
            retried += retry_members(job_id, which)?;
        }
        process::check_for_interrupts();
    }
    Ok(retried)
}

fn claim_key(queue: &Queue, found: &Found) -> Result<()> {
    match found {
        Found::Here(job) => unique::hold_key(queue, &job.attempt.copy()),
        Found::Past(past) => unique::hold_key(queue, &past.template()),
    }
}

/// Revives an ended job, in the logs or in history. Returns false if it has gone, so that the caller must search again.
fn revive_ended(ended: &Found, run_at: Option<i64>, waits: bool) -> Result<bool> {
    match ended {
        Found::Here(job) => {
            // The lock on the segment's outcomes prevents that it is emptied before the next attempt is committed.
            if outcome::Writer::open_home(job.attempt.home).is_none() {
                return Ok(false);
            }
            let mut reader = Reader::new();
            // The new attempt keeps the last run's payload and its `asked`: a request for another run that is not
            // served yet is not served by this attempt.
            let asked = job.attempt.unique_key().map(|_| job.attempt.call());
            // The last run's notes hold its progress. Without one, the new attempt keeps the progress that the last run
            // began with.
            let notes = note::summary(job.attempt.home.segment, job.attempt.id());
            let mut copy = job.attempt.copy();
            if notes.is_sealed {
                copy.own_flow = copy.own_flow.and_then(OwnFlow::sealed);
            }
            // If the job was held until it ended, it now begins in the lane in which its release would have put it.
            let edges = after::edges_of(&job.attempt)?;
            if let Some(queue) = queue::by_lane(copy.lane)?.filter(|_| !edges.is_empty()) {
                copy.lane = after::lane_of_release(&queue, &edges);
            }
            // A completed job runs all its steps again.
            let has_completed = ended.outcome().is_some_and(|outcome| outcome.kind == Kind::Completed);
            let steps = if has_completed { None } else { notes.steps(copy.steps) };
            let was_held = after::is_held(job.attempt.lane())?;
            let ended = New { asked, progress: notes.progress().or(copy.progress), steps, ..copy };
            let waits = waits && was_held;
            reader.payload(&job.attempt, |payload| revive(&New { payload, ..ended }, run_at, waits))?;
        }
        Found::Past(past) => {
            let template = past.template();
            let has_completed = past.outcome().kind == Kind::Completed;
            let steps = template.steps.filter(|_| !has_completed);
            let waits = waits && after::is_held(template.lane)?;
            revive(&New { steps, ..template }, run_at, waits)?;
        }
    }
    Ok(true)
}

/// Gives an ended job a new first attempt, with a payload of its own: the row that holds the old one may be removed at
/// any time. The key of the successor's row ensures that two callers make only one.
///
/// Errors: 55006 if another transaction has made one.
///
/// `waits`: a job that was held until it ended waits for its predecessors once more.
fn revive(ended: &New, run_at: Option<i64>, waits: bool) -> Result<()> {
    let (target, id) = next_attempt::fresh(run_at)?;
    // The job's stage may be gone, or the queue may have got stages after the job ended.
    let lane = match queue::by_lane(ended.lane)? {
        Some(queue) if queue.stage_of(ended.lane).is_none() || !queue.has_lane(ended.lane) => queue.entry(),
        _ => ended.lane,
    };
    let timing = ended.timing.map(timing::ended);
    let next =
        New { id, lane, attempt: 1, run_at, payload_of: None, last_error: None, timing, start_by: None, ..*ended };
    if !log::retried::insert(ended.id, id) {
        return Err(find::in_use(ended.job_id));
    }
    let edges = if waits { after::edges_again(ended, id, lane)? } else { Vec::new() };
    if !edges.is_empty() {
        let held = queue::by_lane(ended.lane)?.and_then(|queue| queue.held);
        let next = New { lane: held.unwrap_or(lane), start_by: Some(start_by::NEVER), ..next };
        attempt::insert(&target, &[next])?;
        after::insert_edges(&target, &edges, |_| ended.job_id, None);
        return Ok(());
    }
    attempt::insert(&target, &[next])
}

/// Tries to lock an ended job until this transaction ends. So no session revives a job that is being erased, or erases
/// a job that is being revived. Jobs share a fixed number of locks, so that a transaction can revive any number of
/// jobs.
///
/// Errors: 55006 if an open transaction holds the lock.
pub fn lock_ended(job_id: i64, mode: u32) -> Result<()> {
    const LOCK_PARTS: i64 = 64;
    let part = 1 + (id::count(job_id) % LOCK_PARTS) as u16;
    if lock::try_lock_part(catalog::pinned().successor, part, mode) { Ok(()) } else { Err(find::in_use(job_id)) }
}
