//! `queue.cancel`, `cancel_many`: a waiting job is taken and ended; a running one is asked to stop, or ended by force.
//! Also `queue.purge`, which cancels all waiting jobs of a queue.
//!
//! Not here: how an attempt is ended unrun or its worker is asked (`job::cancel`), and requests that come too late for
//! the end of their attempt (`duty::serve_cancels`).

use std::rc::Rc;

use pgrx::pg_sys::Datum;

use crate::api::{self, answers, sql_function};
use crate::catalog::permission::{self, Privilege, Rights};
use crate::catalog::{self, Catalog, queue};
use crate::error::{self, Error, Result};
use crate::job::find::{self, Found, Job};
use crate::job::held::Refusal;
use crate::job::outcomes::Outcomes;
use crate::job::take::{self, TakeWaiting};
use crate::job::{after, cancel, fail, flow, hold, rerun};
use crate::log::edge::{self, Ending};
use crate::log::outcome::{Kind, New};
use crate::log::{claim, note};
use crate::pg::datum::text_datum;
use crate::pg::function::Call;

sql_function!(pg_queue_cancel, pg_finfo_pg_queue_cancel => cancel);
sql_function!(pg_queue_cancel_jobs, pg_finfo_pg_queue_cancel_jobs => cancel_many);
sql_function!(pg_queue_purge, pg_finfo_pg_queue_purge => purge);

/// `queue.cancel(job_id, reason, force)`: returns 'cancelled', or 'cancelling' if the worker was asked to stop.
///
/// Errors: 55000 if the job has ended otherwise, 55006 if an open transaction is in the way or the job keeps changing.
fn cancel(call: &Call) -> Result<Option<Datum>> {
    api::writable("cancel")?;
    let job_id = call.required("job_id", call.i64(0))?;
    let reason = call.text(1);
    let reason = reason.as_deref().map(fail::cut);
    let force = call.bool(2).unwrap_or(false);
    cancel_job(&catalog::current()?, job_id, reason, force).map(|done| Some(text_datum(done)))
}

/// `queue.cancel_many(job_ids, reason, force)`.
fn cancel_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("cancel")?;
    let reason = call.text(1);
    let reason = reason.as_deref().map(fail::cut);
    let force = call.bool(2).unwrap_or(false);
    answers::for_each_job(call, |catalog, job_id| cancel_job(catalog, job_id, reason, force))
}

/// Cancels a job, or asks its worker to stop; says which.
///
/// Errors: as `queue.cancel`.
fn cancel_job(catalog: &Rc<Catalog>, job_id: i64, reason: Option<&str>, force: bool) -> Result<&'static str> {
    let error = reason.map(text_datum);
    // `Stale` and `Lost` mean that the attempt changed between the look and the attempt to hold it; the next look sees
    // that. 100 looks in vain are not met in practice: the limit keeps the loop finite.
    for _ in 0..100 {
        let found = find::managed(catalog, job_id)?;
        if let Some(outcome) = &found.outcome() {
            return match outcome.kind {
                Kind::Cancelled => Ok("cancelled"),
                _ => Err(find::has_ended(job_id, outcome)),
            };
        }
        let Found::Here(job) = found else { continue };
        let id = job.attempt.id();
        if job.is_claimed && queue::by_lane(catalog, job.attempt.lane())?.is_none() {
            return Err(find::of_dropped(job_id));
        }
        if !job.is_claimed && end_members(catalog, &job, reason, force)? {
            return Ok("cancelling");
        }
        if !job.is_claimed {
            match take::take_waiting(catalog, &job.attempt)? {
                TakeWaiting::Taken => {
                    cancel::end_unrun(catalog, &job.attempt, New { error, ..New::of(id, Kind::Cancelled) })?;
                    return Ok("cancelled");
                }
                TakeWaiting::InUse if force => return Err(find::in_use(job_id)),
                TakeWaiting::Running => {}
                // A worker is claiming it, and may be asked to stop. If the system is moving the job, the request
                // would be left behind.
                TakeWaiting::InUse => match claim::kind_even_open(catalog, job.attempt.home.segment, id) {
                    Some(claim::Kind::System) => return Err(find::in_use(job_id)),
                    Some(_) => {}
                    None => continue,
                },
                TakeWaiting::Stale => continue,
            }
        } else if !force {
            // The call makes memory know the claim if that is from before the server's start. Its result is not used.
            let _ = hold::check_claimed(catalog, id, &Rights::everything());
        }
        if !force {
            match cancel::ask(catalog, &job.attempt, note::Cancel::new_body(reason)) {
                Ok(()) => return Ok("cancelling"),
                Err(Refusal::Lost(_)) => continue,
                Err(Refusal::Busy(e) | Refusal::Unfit(e) | Refusal::Wrong(e)) => return Err(e),
            }
        }
        let mut outcomes = Outcomes::new(catalog);
        match hold::hold_for_end(&mut outcomes, id) {
            Ok(held) => {
                let next_id = rerun::follow(catalog, &held)?.map(|(id, _)| id);
                outcomes.add(&held, New { error, next_id, ..New::of(id, Kind::Cancelled) });
                outcomes.insert()?;
                return Ok("cancelled");
            }
            Err(Refusal::Lost(_)) => continue,
            Err(Refusal::Busy(e) | Refusal::Unfit(e) | Refusal::Wrong(e)) => return Err(e),
        }
    }
    Err(Error::new(error::IN_USE, format!("job {job_id} keeps changing")).hint("Try again."))
}

/// If a job is a flow that waits for its members, has the background worker cancel these, and then the flow. False: it
/// is no such flow.
///
/// Errors: 55006 if the job is on the move for too long.
fn end_members(catalog: &Catalog, job: &Job, reason: Option<&str>, is_forced: bool) -> Result<bool> {
    let attempt = &job.attempt;
    if !flow::is_flow(attempt) || !after::is_held(catalog, attempt.lane())? {
        return Ok(false);
    }
    let ending = Ending { is_forced, dead: None, reason: reason.map(str::to_owned) };
    let insert = |home| edge::insert_ending(catalog, home, attempt.id(), attempt.job_id(), &ending);
    super::flow::note_about(catalog, job, insert).map(|()| true)
}

/// `queue.purge(queue_name)`: cancels what it finds in the index of each lane. Returns how many jobs it has cancelled.
///
/// The entries are not kept in memory, which may have room for fewer than there are jobs: until the commit only the
/// claims' keys keep other sessions away, and a rollback makes the frontier read the lane again.
fn purge(call: &Call) -> Result<Option<Datum>> {
    api::writable("purge")?;
    let name = call.required("queue_name", call.text(0))?;
    let catalog = catalog::current()?;
    let queue = queue::by_name(&catalog, &name)?;
    permission::check(&catalog, &queue, Privilege::Manage)?;
    let mut purged: i64 = 0;
    for &lane in queue.living_lanes() {
        purged += cancel::purge_lane(&catalog, lane)?;
    }
    Ok(Some(purged.into()))
}
