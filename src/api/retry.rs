//! `queue.retry`, `retry_many`: an ended job runs once more, a waiting job runs now or at another time. Also
//! `queue.forget`.
//!
//! Not responsible for how a job runs once more (`job::retry`), nor for what is erased (`job::forget`).

use pgrx::pg_sys::Datum;

use crate::api::{self, answers, sql_function};
use crate::catalog::arguments as args;
use crate::error::Result;
use crate::job::options::run_time;
use crate::job::{forget, retry};
use crate::pg::function::{Call, VOID};
use crate::pg::time;

sql_function!(pg_queue_retry, pg_finfo_pg_queue_retry => retry);
sql_function!(pg_queue_retry_jobs, pg_finfo_pg_queue_retry_jobs => retry_many);
sql_function!(pg_queue_forget, pg_finfo_pg_queue_forget => forget);

/// `queue.retry(job_id, run_at)`. If `run_at` is NULL, the job runs now.
///
/// Errors: 23505 if another job has its key, 55006 if an open transaction is in the way.
fn retry(call: &Call) -> Result<Option<Datum>> {
    api::writable("retry")?;
    let job_id = call.need(args::retry::JOB_ID)?;
    retry::retry(job_id, run_time_of(call)?).map(|()| Some(VOID))
}

/// `queue.retry_many(job_ids, run_at)`.
fn retry_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("retry")?;
    let run_at = run_time_of(call)?;
    answers::for_each_job(call, |job_id| retry::retry(job_id, run_at).map(|()| "retried"))
}

/// Returns the time at which a job shall run; `None` if it shall run now.
fn run_time_of(call: &Call) -> Result<Option<i64>> {
    call.get(args::retry::RUN_AT).map_or(Ok(None), |at| run_time(at, time::now_us()))
}

/// `queue.forget(job_id)`: erases the contents of an ended job.
///
/// Errors: 25001 at REPEATABLE READ or above, 55000 if the job has not ended, 55006 if an open transaction is in the
/// way.
fn forget(call: &Call) -> Result<Option<Datum>> {
    api::writable("forget")?;
    let job_id = call.need(args::forget::JOB_ID)?;
    forget::forget(job_id).map(|()| Some(VOID))
}
