//! `queue.reprioritize`, `reschedule`, and both for many jobs. An attempt with another priority or time supersedes the
//! waiting one. Its job_id, attempt number and everything else stay.
//!
//! Not responsible for superseding (`job::next_attempt`), nor for `queue.retry`, which can also change a job's time
//! (`api::retry`).

use pgrx::pg_sys::Datum;

use crate::api::{self, answers, sql_function};
use crate::catalog::arguments as args;
use crate::error::Result;
use crate::job::next_attempt;
use crate::job::options::run_time;
use crate::pg::function::{Call, VOID};
use crate::pg::time;

sql_function!(pg_queue_reprioritize, pg_finfo_pg_queue_reprioritize => reprioritize);
sql_function!(pg_queue_reprioritize_jobs, pg_finfo_pg_queue_reprioritize_jobs => reprioritize_many);
sql_function!(pg_queue_reschedule, pg_finfo_pg_queue_reschedule => reschedule);
sql_function!(pg_queue_reschedule_jobs, pg_finfo_pg_queue_reschedule_jobs => reschedule_many);

/// `queue.reprioritize(job_id, priority)`.
fn reprioritize(call: &Call) -> Result<Option<Datum>> {
    api::writable("reprioritize")?;
    let job_id = call.need(args::reprioritize::JOB_ID)?;
    let priority = call.need(args::reprioritize::PRIORITY)?;
    set_priority(job_id, priority, time::now_us())?;
    Ok(Some(VOID))
}

/// `queue.reprioritize_many(job_ids, priority)`.
fn reprioritize_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("reprioritize")?;
    let priority = call.need(args::reprioritize_many::PRIORITY)?;
    let now = time::now_us();
    answers::for_each_job(call, |job_id| set_priority(job_id, priority, now).map(|()| "reprioritized"))
}

fn set_priority(job_id: i64, priority: i32, now: i64) -> Result<()> {
    next_attempt::supersede(job_id, false, |next| {
        next.priority = priority;
        next.run_at = next.run_at.filter(|&at| at > now);
    })
}

/// `queue.reschedule(job_id, run_at)`.
fn reschedule(call: &Call) -> Result<Option<Datum>> {
    api::writable("reschedule")?;
    let job_id = call.need(args::reschedule::JOB_ID)?;
    let run_at = run_time(call.need(args::reschedule::RUN_AT)?, time::now_us())?;
    next_attempt::supersede(job_id, false, |next| next.run_at = run_at)?;
    Ok(Some(VOID))
}

/// `queue.reschedule_many(job_ids, run_at)`.
fn reschedule_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("reschedule")?;
    let run_at = run_time(call.need(args::reschedule_many::RUN_AT)?, time::now_us())?;
    answers::for_each_job(call, |job_id| {
        next_attempt::supersede(job_id, false, |next| next.run_at = run_at).map(|()| "rescheduled")
    })
}
