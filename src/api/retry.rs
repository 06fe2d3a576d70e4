//! `queue.retry`, `retry_many`: an ended job runs once more, a waiting one runs now or at another time. Also
//! `queue.forget`.
//!
//! Not here: another run that is requested by `enqueue` (`job::rerun`), and the next attempt of a failed one
//! (`job::fail`).
//!
//! Invariant: an ended attempt gets at most one successor; the key of the row in `queue.successor` decides.

use std::rc::Rc;

use pg_queue_core::id;
use pgrx::pg_sys::{self, Datum};

use crate::api::{self, answers, sql_function};
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue::{self, Queue};
use crate::catalog::{self, Catalog, ids, spi};
use crate::error::{self, Error, Result};
use crate::job::find::{self, Found};
use crate::job::options::run_time;
use crate::job::successor::supersede;
use crate::job::{self, after, flow, rerun, unique};
use crate::log::attempt::{self, New};
use crate::log::member::{self, Standing};
use crate::log::outcome::Kind;
use crate::log::reader::Reader;
use crate::log::{self, note, outcome, segment};
use crate::pg::function::{Call, VOID};
use crate::pg::{lock, process, time, transaction};

sql_function!(pg_queue_retry, pg_finfo_pg_queue_retry => retry);
sql_function!(pg_queue_retry_jobs, pg_finfo_pg_queue_retry_jobs => retry_many);
sql_function!(pg_queue_forget, pg_finfo_pg_queue_forget => forget);

/// Gives an ended job a new first attempt, with a payload of its own: the row that holds the old one may be removed at
/// any time. The key of the successor's row ensures that two callers make only one.
///
/// Errors: 55006 if another transaction has made one.
///
/// `waits`: if it was held to its end, it waits once more for what it was after.
fn revive(catalog: &Rc<Catalog>, ended: &New, run_at: Option<i64>, waits: bool) -> Result<()> {
    let (target, id) = job::successor::fresh(catalog, run_at)?;
    // The job's stage may be gone, or the queue may have got stages after the job ended.
    let lane = match queue::by_lane(catalog, ended.lane)? {
        Some(queue) if queue.stage_of(ended.lane).is_none() || !queue.has_lane(ended.lane) => queue.entry(),
        _ => ended.lane,
    };
    let next = New { id, lane, attempt: 1, run_at, payload_of: None, last_error: None, ..*ended };
    if !log::successor::insert(catalog, ended.id, id) {
        return Err(find::in_use(ended.job_id));
    }
    let edges = if waits { after::edges_again(catalog, ended, id, lane)? } else { Vec::new() };
    if !edges.is_empty() {
        let held = queue::by_lane(catalog, ended.lane)?.and_then(|queue| queue.held);
        let next = New { lane: held.unwrap_or(lane), ..next };
        attempt::insert(catalog, &target, &[next])?;
        after::insert_edges(catalog, &target, &edges, |_| ended.job_id, None);
        return Ok(());
    }
    attempt::insert(catalog, &target, &[next])
}

/// Tries to lock an ended job until this transaction ends: no session revives a job that is being erased, or erases one
/// that is being revived. Jobs share locks, so that a transaction can revive any number.
///
/// Errors: 55006 if an open transaction holds the lock.
fn lock_ended(catalog: &Catalog, job_id: i64, mode: u32) -> Result<()> {
    const PARTS: i64 = 64;
    let part = 1 + (id::count(job_id) % PARTS) as u16;
    if lock::try_lock_part(catalog.successor, part, mode) { Ok(()) } else { Err(find::in_use(job_id)) }
}

/// Revives a job that has ended, wherever it is. False: it is not there any more, and the caller has to look again.
fn revive_ended(catalog: &Rc<Catalog>, ended: &Found, run_at: Option<i64>, waits: bool) -> Result<bool> {
    match ended {
        Found::Here(job) => {
            // The lock keeps the segment from being emptied before the successor is committed.
            if outcome::Writer::open_home(catalog, job.attempt.home).is_none() {
                return Ok(false);
            }
            let mut reader = Reader::new(catalog);
            // The new attempt keeps the last run's payload and its `asked`: a request for another run that is not
            // served yet is not served by this attempt.
            let asked = job.attempt.unique_key().map(|_| job.attempt.asked());
            // The progress that the last run has reported; else the one it began with.
            let notes = note::summary(catalog, job.attempt.home.segment, job.attempt.id());
            let mut copy = job.attempt.copy();
            // It was held to its end: now it begins where it was to begin.
            let edges = after::edges_of(catalog, &job.attempt)?;
            if let Some(queue) = queue::by_lane(catalog, copy.lane)?.filter(|_| !edges.is_empty()) {
                copy.lane = after::lane_of_release(&queue, &edges);
            }
            // What has completed begins anew.
            let has_completed = ended.outcome().is_some_and(|outcome| outcome.kind == Kind::Completed);
            let steps = if has_completed { None } else { notes.steps(copy.steps) };
            let was_held = after::is_held(catalog, job.attempt.lane())?;
            let ended = New { asked, progress: notes.progress().or(copy.progress), steps, ..copy };
            let waits = waits && was_held;
            reader.payload(&job.attempt, |payload| revive(catalog, &New { payload, ..ended }, run_at, waits))?;
        }
        Found::Past(past) => {
            let template = past.template();
            let has_completed = past.outcome().kind == Kind::Completed;
            let steps = template.steps.filter(|_| !has_completed);
            let waits = waits && after::is_held(catalog, template.lane)?;
            revive(catalog, &New { steps, ..template }, run_at, waits)?;
        }
    }
    Ok(true)
}

fn claim_key(catalog: &Catalog, queue: &Queue, found: &Found) -> Result<()> {
    match found {
        Found::Here(job) => unique::hold_key(catalog, queue, &job.attempt.copy()),
        Found::Past(past) => unique::hold_key(catalog, queue, &past.template()),
    }
}

/// `queue.retry(job_id, run_at)`. If `run_at` is NULL, the job runs now.
///
/// Errors: 23505 if another job has its key, 55006 if an open transaction is in the way.
fn retry(call: &Call) -> Result<Option<Datum>> {
    api::writable("retry")?;
    let job_id = call.required("job_id", call.i64(0))?;
    retry_job(&catalog::current()?, job_id, run_time_of(call)?).map(|()| Some(VOID))
}

/// `queue.retry_many(job_ids, run_at)`.
fn retry_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("retry")?;
    let run_at = run_time_of(call)?;
    answers::for_each_job(call, |catalog, job_id| retry_job(catalog, job_id, run_at).map(|()| "retried"))
}

/// Reads when a job is to run; `None`: now.
fn run_time_of(call: &Call) -> Result<Option<i64>> {
    call.timestamp(1).map_or(Ok(None), |at| run_time(at, time::now_us()))
}

/// Runs a job once more, or now.
///
/// Errors: as `queue.retry`.
fn retry_job(catalog: &Rc<Catalog>, job_id: i64, run_at: Option<i64>) -> Result<()> {
    let mut is_locked = false;
    loop {
        let found = find::managed(catalog, job_id)?;
        if let Found::Here(job) = &found
            && job.outcome.is_none()
            && !job.is_claimed
            && flow::is_flow(&job.attempt)
        {
            flow::check_goes_on(catalog, &job.attempt)?;
            if retry_members(catalog, job_id, &[Standing::Dead])? > 0 {
                return Ok(());
            }
        }
        if found.outcome().is_none() {
            supersede(catalog, job_id, true, |next| next.run_at = run_at)?;
            return Ok(());
        }
        if !is_locked {
            lock_ended(catalog, job_id, pg_sys::ShareLock)?;
            is_locked = true;
            continue;
        }
        let Some(queue) = queue::by_lane(catalog, found.lane())? else {
            return Err(find::of_dropped(job_id));
        };
        claim_key(catalog, &queue, &found)?;
        let waits = retry_flow(catalog, job_id, &found)?;
        if revive_ended(catalog, &found, run_at, waits)? {
            return Ok(());
        }
    }
}

/// If a job is a flow that ended while it waited, runs its members once more that have not completed. Returns whether
/// it is: then it waits for them again.
///
/// Errors: as `retry`, for any of them.
fn retry_flow(catalog: &Rc<Catalog>, job_id: i64, ended: &Found) -> Result<bool> {
    let waits = ended.is_flow() && after::is_held(catalog, ended.lane())?;
    if waits {
        retry_members(catalog, job_id, &[Standing::Dead, Standing::Unrun])?;
    }
    Ok(waits)
}

/// Runs members of a flow once more. Returns how many.
///
/// Errors: as `retry`, for any of them.
fn retry_members(catalog: &Rc<Catalog>, flow: i64, which: &[Standing]) -> Result<i64> {
    let mut retried = 0;
    for job_id in member::of_standing(catalog, flow, which) {
        let found = find::find_any(catalog, job_id)?;
        let Some(queue) = queue::by_lane(catalog, found.lane())? else { continue };
        permission::check(catalog, &queue, Privilege::Manage)?;
        lock_ended(catalog, job_id, pg_sys::ShareLock)?;
        let found = find::find_any(catalog, job_id)?;
        if !found.outcome().is_some_and(|outcome| outcome.kind != Kind::Completed) {
            continue;
        }
        claim_key(catalog, &queue, &found)?;
        if revive_ended(catalog, &found, None, true)? {
            retried += 1;
        }
        if found.is_flow() {
            retried += retry_members(catalog, job_id, which)?;
        }
        process::check_for_interrupts();
    }
    Ok(retried)
}

/// `queue.forget(job_id)`: erases the contents of an ended job. It is the one place where log rows are changed, because
/// a promise of privacy is worth more than a log that is only appended to.
///
/// Errors: 25001 at REPEATABLE READ or above, 55000 if the job has not ended, 55006 if an open transaction is in the
/// way.
fn forget(call: &Call) -> Result<Option<Datum>> {
    api::writable("forget")?;
    let job_id = call.required("job_id", call.i64(0))?;
    ids::job_id(job_id)?;
    if transaction::uses_one_snapshot() {
        return Err(Error::new(error::IN_TRANSACTION, "queue.forget cannot run at REPEATABLE READ or above")
            .hint("It would leave what has been written since the transaction began."));
    }
    let catalog = catalog::current()?;
    check_ended(&catalog, job_id)?;
    // No row is copied to history while it is erased where it was: the storage duty skips its turn. This lock waits for
    // other sessions that erase, so the next one is only about sessions that revive.
    lock::lock(catalog.segment_log, pg_sys::ShareUpdateExclusiveLock);
    lock_ended(&catalog, job_id, pg_sys::ExclusiveLock)?;
    // The job may have been revived before this transaction got the locks.
    check_ended(&catalog, job_id)?;
    let mut ids = Reader::new(&catalog).all_ids(job_id);
    ids.extend(holders(&catalog, &ids)?);
    for segment in segment::plannable(&catalog) {
        for statement in [
            "UPDATE queue.attempt_N SET payload = '{}', payload_of = NULL, headers = NULL, last_error = NULL, \
                progress = NULL",
            "UPDATE queue.outcome_N SET result = NULL, error = NULL",
            "UPDATE queue.note_N SET body = NULL, headers = NULL",
        ] {
            let sql =
                format!("{statement} WHERE id OPERATOR(pg_catalog.=) ANY ($1)").replace("_N", &format!("_{segment}"));
            spi::run(&sql, &[ids.clone().into()])?;
        }
    }
    spi::run(
        "UPDATE queue.history SET payload = '{}', headers = NULL, error = NULL, last_error = NULL, result = NULL,
            progress = NULL
         WHERE job_id OPERATOR(pg_catalog.=) $1",
        &[job_id.into()],
    )?;
    Ok(Some(VOID))
}

/// The rows with payloads that these attempts alone refer to: a payload that other jobs share stays for them.
fn holders(catalog: &Catalog, attempts: &[i64]) -> Result<Vec<i64>> {
    let mut found = Vec::new();
    for segment in segment::plannable(catalog) {
        // Only attempts of the payload's own segment refer to it.
        let sql = "SELECT DISTINCT a.payload_of FROM queue.attempt_N AS a
             WHERE a.id OPERATOR(pg_catalog.=) ANY ($1) AND a.payload_of IS NOT NULL
               AND NOT EXISTS (SELECT FROM queue.attempt_N AS b
                               WHERE b.payload_of OPERATOR(pg_catalog.=) a.payload_of
                                 AND NOT b.id OPERATOR(pg_catalog.=) ANY ($1))";
        found.extend(spi::i64_column(&sql.replace("_N", &format!("_{segment}")), &[attempts.to_vec().into()])?);
    }
    Ok(found)
}

/// Checks that a job has ended for good.
///
/// Errors: 55000 if it has not ended, 55006 if another run was requested that the background worker has yet to make.
fn check_ended(catalog: &Rc<Catalog>, job_id: i64) -> Result<()> {
    let found = find::managed(catalog, job_id)?;
    // A job that ran when its queue was dropped has no outcome, and none can be made.
    if found.outcome().is_none() && queue::by_lane(catalog, found.lane())?.is_some() {
        return Err(Error::new(error::WRONG_STATE, format!("job {job_id} has not ended"))
            .hint("Cancel it first; queue.forget erases what an ended job leaves."));
    }
    match &found {
        Found::Here(job) if rerun::may_be_owed(catalog, &job.attempt) => Err(find::in_use(job_id)),
        _ => Ok(()),
    }
}
