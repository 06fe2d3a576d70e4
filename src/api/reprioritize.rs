//! `queue.reprioritize` and `queue.reschedule`: a waiting attempt is superseded by one with another priority or time.
//! Its job_id, attempt number and everything else stay.
//!
//! Not here: superseding (`job::successor`), and `queue.retry`, which also gives a job another time (`api::retry`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog;
use crate::error::Result;
use crate::job::options::run_time;
use crate::job::successor;
use crate::pg::function::{Call, VOID};
use crate::pg::time;

sql_function!(pg_queue_reprioritize, pg_finfo_pg_queue_reprioritize => reprioritize);
sql_function!(pg_queue_reschedule, pg_finfo_pg_queue_reschedule => reschedule);

/// `queue.reprioritize(job_id, priority)`.
fn reprioritize(call: &Call) -> Result<Option<Datum>> {
    api::writable("reprioritize")?;
    let job_id = call.required("job_id", call.i64(0))?;
    let priority = call.required("priority", call.i32(1))?;
    let now = time::now_us();
    successor::supersede(&catalog::current()?, job_id, false, |next| {
        next.priority = priority;
        next.run_at = next.run_at.filter(|&at| at > now);
    })?;
    Ok(Some(VOID))
}

/// `queue.reschedule(job_id, run_at)`.
fn reschedule(call: &Call) -> Result<Option<Datum>> {
    api::writable("reschedule")?;
    let job_id = call.required("job_id", call.i64(0))?;
    let run_at = run_time(call.required("run_at", call.timestamp(1))?, time::now_us())?;
    successor::supersede(&catalog::current()?, job_id, false, |next| next.run_at = run_at)?;
    Ok(Some(VOID))
}
