//! `queue.reprioritize` and `queue.reschedule`: a waiting attempt is superseded by one with another
//! priority or time. Its job_id, attempt number and everything else stay.

use std::rc::Rc;

use pgrx::pg_sys::Datum;

use crate::api::cancel::end_unrun;
use crate::api::{self, fail, job, run_time};
use crate::call::{Call, VOID, sql_function};
use crate::error::{self, Error, Result};
use crate::hold::{self, Waiting};
use crate::instance::{self, Catalog};
use crate::log::attempt::{self, New as NewAttempt};
use crate::log::outcome::{Kind, New};
use crate::{queue, sys};

sql_function!(pg_queue_reprioritize, pg_finfo_pg_queue_reprioritize => reprioritize);
sql_function!(pg_queue_reschedule, pg_finfo_pg_queue_reschedule => reschedule);

/// Replaces a job's waiting attempt by one that `change` has changed.
///
/// Errors: 55000 when the job has ended or is running, 55006 when an open transaction has it.
pub fn supersede(catalog: &Rc<Catalog>, job_id: i64, change: impl Fn(&mut NewAttempt)) -> Result<()> {
    for _ in 0..100 {
        let job = job::find(catalog, job_id)?;
        if let Some(outcome) = &job.outcome {
            return Err(job::has_ended(job_id, outcome));
        }
        if queue::by_lane(catalog, job.attempt.lane())?.is_none() {
            return Err(job::of_dropped(job_id));
        }
        let running = || {
            Error::new(error::WRONG_STATE, format!("job {job_id} is running"))
                .hint("Only a waiting job can be changed; wait for its end, or cancel it.")
        };
        if job.is_claimed {
            return Err(running());
        }
        match hold::waiting(catalog, &job.attempt)? {
            Waiting::Taken => {}
            Waiting::Running => return Err(running()),
            Waiting::InUse => return Err(job::in_use(job_id)),
            Waiting::Stale => continue,
        }
        let mut wanted = job.attempt.copy();
        change(&mut wanted);
        let (target, next) = fail::successor(catalog, &job.attempt, wanted.run_at)?;
        let next = NewAttempt { priority: wanted.priority, ..next };
        let outcome = New { next_id: Some(next.id), ..New::of(job.attempt.id(), Kind::Superseded) };
        end_unrun(catalog, &job.attempt, outcome)?;
        attempt::insert(catalog, &target, &[next])?;
        return Ok(());
    }
    Err(job::in_use(job_id))
}

/// `queue.reprioritize(job_id, priority)`.
fn reprioritize(call: &Call) -> Result<Option<Datum>> {
    api::writable("reprioritize")?;
    let job_id = call.required("job_id", call.i64(0))?;
    let priority = call.required("priority", call.i32(1))?;
    let now = sys::now_us();
    supersede(&instance::current()?, job_id, |next| {
        next.priority = priority;
        next.run_at = next.run_at.filter(|&at| at > now);
    })?;
    Ok(Some(VOID))
}

/// `queue.reschedule(job_id, run_at)`.
fn reschedule(call: &Call) -> Result<Option<Datum>> {
    api::writable("reschedule")?;
    let job_id = call.required("job_id", call.i64(0))?;
    let run_at = run_time(call.required("run_at", call.timestamp(1))?, sys::now_us())?;
    supersede(&instance::current()?, job_id, |next| next.run_at = run_at)?;
    Ok(Some(VOID))
}
