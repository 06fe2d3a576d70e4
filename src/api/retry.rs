//! `queue.retry`: an ended job runs once more, a waiting one runs now or at another time. Also
//! `queue.retry_dead` and `queue.forget`.

use std::rc::Rc;

use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

use crate::api::job::Found;
use crate::api::move_job::supersede;
use crate::api::{self, fail, job, run_time, unique};
use crate::call::{Call, VOID, sql_function};
use crate::error::{self, Error, Result};
use crate::hold;
use crate::instance::{self, Catalog};
use crate::log::attempt::{self, New, Reader};
use crate::log::{note, outcome, successor};
use crate::permission::{self, Privilege};
use crate::queue::{self, Queue};
use crate::{rerun, spi, sys};
use pg_queue_core::id::{self, SEGMENTS};

/// Dead jobs that are looked for at once, at least.
const PAGE: i64 = 100;

sql_function!(pg_queue_retry, pg_finfo_pg_queue_retry => retry);
sql_function!(pg_queue_retry_dead, pg_finfo_pg_queue_retry_dead => retry_dead);
sql_function!(pg_queue_forget, pg_finfo_pg_queue_forget => forget);

/// Gives an ended job a new first attempt, with a payload of its own: the row that holds the old one may be
/// removed any time. The key of the note about it sees to it that two callers make one.
fn revive(catalog: &Rc<Catalog>, ended: &New, run_at: Option<i64>) -> Result<()> {
    let (target, id) = fail::fresh(catalog, run_at)?;
    // Its stage may be gone, or have come after it ended.
    let lane = match queue::by_lane(catalog, ended.lane)? {
        Some(queue) if queue.stage_of(ended.lane).is_none() || !queue.has_lane(ended.lane) => queue.entry(),
        _ => ended.lane,
    };
    let next = New { id, lane, attempt: 1, run_at, payload_of: None, last_error: None, ..*ended };
    if !successor::insert(catalog, ended.id, id) {
        return Err(job::in_use(ended.job_id));
    }
    attempt::insert(catalog, &target, &[next])
}

/// Until this transaction ends nobody revives a job that is being erased, nor erases one that is being revived. Jobs share
/// locks, so that a transaction can revive any number.
///
/// Errors: 55006 when an open transaction is at it.
fn lock_ended(catalog: &Catalog, job_id: i64, mode: u32) -> Result<()> {
    const PARTS: i64 = 64;
    let part = 1 + (id::count(job_id) % PARTS) as u16;
    if sys::try_lock_part(catalog.successor, part, mode) { Ok(()) } else { Err(job::in_use(job_id)) }
}

/// Revives a job that has ended, wherever it is. False: it is there no more, look again.
fn revive_ended(catalog: &Rc<Catalog>, ended: &Found, run_at: Option<i64>) -> Result<bool> {
    match ended {
        Found::Here(job) => {
            // The segment is not emptied before the successor is on record for all to see.
            if outcome::Writer::open_home(catalog, job.attempt.home).is_none() {
                return Ok(false);
            }
            let mut reader = Reader::new(catalog);
            // With the payload as it was: a wish for another run that nobody has served yet is not served by this.
            let asked = job.attempt.unique_key().map(|_| job.attempt.asked());
            // What the last run has reported; else it is what it began with.
            let notes = note::summary(catalog, job.attempt.home.segment, job.attempt.id());
            let copy = job.attempt.copy();
            let ended = New { asked, progress: notes.progress().or(copy.progress), ..copy };
            reader.payload(&job.attempt, |payload| revive(catalog, &New { payload, ..ended }, run_at))?;
        }
        Found::Past(past) => revive(catalog, &past.template(), run_at)?,
    }
    Ok(true)
}

fn claim_key(catalog: &Catalog, queue: &Queue, found: &Found) -> Result<()> {
    match found {
        Found::Here(job) => unique::claim_key(catalog, queue, &job.attempt.copy()),
        Found::Past(past) => unique::claim_key(catalog, queue, &past.template()),
    }
}

/// `queue.retry(job_id, run_at)`.
fn retry(call: &Call) -> Result<Option<Datum>> {
    api::writable("retry")?;
    let job_id = call.required("job_id", call.i64(0))?;
    let run_at = match call.timestamp(1) {
        Some(at) => run_time(at, sys::now_us())?,
        None => None,
    };
    let catalog = instance::current()?;
    let mut is_locked = false;
    loop {
        let found = job::managed(&catalog, job_id)?;
        if found.outcome().is_none() {
            supersede(&catalog, job_id, |next| next.run_at = run_at)?;
            return Ok(Some(VOID));
        }
        if !is_locked {
            lock_ended(&catalog, job_id, pg_sys::ShareLock)?;
            is_locked = true;
            continue;
        }
        let Some(queue) = queue::by_lane(&catalog, found.lane())? else {
            return Err(job::of_dropped(job_id));
        };
        claim_key(&catalog, &queue, &found)?;
        if revive_ended(&catalog, &found, run_at)? {
            return Ok(Some(VOID));
        }
    }
}

/// `queue.retry_dead(queue_name, error_like, max_jobs)`.
fn retry_dead(call: &Call) -> Result<Option<Datum>> {
    api::writable("retry")?;
    let name = call.required("queue_name", call.text(0))?;
    let pattern = call.text(1);
    let most = call.i32(2);
    if most.is_some_and(|n| n < 0) {
        return Err(Error::invalid("max_jobs cannot be negative"));
    }
    let catalog = instance::current()?;
    let queue = queue::by_name(&catalog, &name)?;
    permission::check(&catalog, &queue, Privilege::Manage)?;
    let (mut revived, mut last) = (0, 0);
    // Some are left out, because another job has their key: then others take their places.
    while most.is_none_or(|most| revived < i64::from(most)) {
        let left = most.map(|most| (i64::from(most) - revived).max(PAGE));
        let dead = dead_after(&queue, last, pattern.clone(), left)?;
        let Some(&end) = dead.last() else { break };
        last = end;
        revived += revive_all(&catalog, &queue, &dead, most.map_or(i64::MAX, |most| i64::from(most) - revived))?;
    }
    Ok(Some(revived.into()))
}

/// Dead jobs behind a job, in the order of their ids, at most so many.
fn dead_after(queue: &Queue, last: i64, pattern: Option<String>, most: Option<i64>) -> Result<Vec<i64>> {
    let lanes: Vec<i64> = queue.all_lanes().map(i64::from).collect();
    // What queue.jobs calls dead, in words that the index of history's dead can be used for.
    spi::i64_column(
        "SELECT l.job_id FROM queue.life AS l
         WHERE l.lane OPERATOR(pg_catalog.=) ANY ($1) AND l.is_newest
           AND (l.outcome OPERATOR(pg_catalog.=) 'd' OR l.outcome OPERATOR(pg_catalog.=) 't' AND l.next_id IS NULL)
           AND ($2 IS NULL OR coalesce(l.error, l.last_error) OPERATOR(pg_catalog.~~) $2)
           AND l.job_id OPERATOR(pg_catalog.>) $4
         ORDER BY l.job_id LIMIT $3",
        &[lanes.into(), pattern.into(), most.into(), last.into()],
    )
}

/// Revives these dead jobs, at most so many. Returns how many.
fn revive_all(catalog: &Rc<Catalog>, queue: &Queue, dead: &[i64], most: i64) -> Result<i64> {
    let mut revived = 0;
    for &job_id in dead {
        if revived == most {
            break;
        }
        match revive_dead(catalog, queue, job_id) {
            Ok(is_revived) => revived += i64::from(is_revived),
            // Another job has its key, or may have it; or somebody else is at it.
            Err(error) if matches!(error.code, error::UNIQUE | error::IN_USE) => {}
            Err(error) => return Err(error),
        }
        sys::check_for_interrupts();
    }
    Ok(revived)
}

/// Revives a dead job. False: it is not dead any more.
///
/// Errors: 23505 when another job has its key, 55006 when an open transaction is at it.
fn revive_dead(catalog: &Rc<Catalog>, queue: &Queue, job_id: i64) -> Result<bool> {
    lock_ended(catalog, job_id, pg_sys::ShareLock)?;
    loop {
        let found = job::find_any(catalog, job_id)?;
        if found.outcome().is_none() {
            return Ok(false);
        }
        claim_key(catalog, queue, &found)?;
        if revive_ended(catalog, &found, None)? {
            return Ok(true);
        }
    }
}

/// `queue.forget(job_id)`: the one place where log rows are changed, because a promise of privacy is worth
/// more than a tidy log.
fn forget(call: &Call) -> Result<Option<Datum>> {
    api::writable("forget")?;
    let job_id = call.required("job_id", call.i64(0))?;
    hold::job_id(job_id)?;
    if sys::uses_one_snapshot() {
        return Err(Error::new(error::IN_TRANSACTION, "queue.forget cannot run at REPEATABLE READ or above")
            .hint("It would leave what has been written since the transaction began."));
    }
    let catalog = instance::current()?;
    check_ended(&catalog, job_id)?;
    // Nobody copies a row to history while it is erased where it was: the storage duty does without this turn. Others who
    // erase are waited for, so the next lock is for those who revive.
    sys::lock(catalog.segment_log, pg_sys::ShareUpdateExclusiveLock);
    lock_ended(&catalog, job_id, pg_sys::ExclusiveLock)?;
    // It may have been revived meanwhile.
    check_ended(&catalog, job_id)?;
    let ids = Reader::new(&catalog).all_ids(job_id);
    for segment in 0..SEGMENTS {
        for statement in [
            "UPDATE queue.attempt_N SET payload = '{}', payload_of = NULL, headers = NULL, last_error = NULL, progress = NULL",
            "UPDATE queue.outcome_N SET result = NULL, error = NULL",
            "UPDATE queue.note_N SET body = NULL, headers = NULL",
        ] {
            let sql =
                format!("{statement} WHERE id OPERATOR(pg_catalog.=) ANY ($1)").replace("_N", &format!("_{segment}"));
            spi::run(&sql, &[ids.clone().into()])?;
        }
    }
    spi::run(
        "UPDATE queue.history SET payload = '{}', headers = NULL, error = NULL, last_error = NULL, result = NULL, progress = NULL
         WHERE job_id OPERATOR(pg_catalog.=) $1",
        &[job_id.into()],
    )?;
    Ok(Some(VOID))
}

/// Errors: 55000 when the job has not ended, 55006 when another run of it is wanted, which the worker has yet to make.
fn check_ended(catalog: &Rc<Catalog>, job_id: i64) -> Result<()> {
    let found = job::managed(catalog, job_id)?;
    // What ran when its queue was dropped has no end, and nobody can make one.
    if found.outcome().is_none() && queue::by_lane(catalog, found.lane())?.is_some() {
        return Err(Error::new(error::WRONG_STATE, format!("job {job_id} has not ended"))
            .hint("Cancel it first; queue.forget erases what an ended job leaves."));
    }
    match &found {
        Found::Here(job) if rerun::may_be_owed(catalog, &job.attempt) => Err(job::in_use(job_id)),
        _ => Ok(()),
    }
}
