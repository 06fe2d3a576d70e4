//! `queue.cancel`, `cancel_many`: a waiting job is taken and ended; a running one is asked to stop, or ended by force.
//! Also `queue.purge`, which cancels all waiting jobs of a queue.
//!
//! Not responsible for cancelling a job (`job::cancel`), nor for requests that come too late for the end of their
//! attempt (`duty::serve_cancels`).

use pgrx::pg_sys::Datum;

use crate::api::{self, answers, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue;
use crate::error::Result;
use crate::job::{cancel, fail};
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
    let job_id = call.need(args::cancel::JOB_ID)?;
    let reason = call.get(args::cancel::REASON);
    let reason = reason.as_deref().map(fail::cut);
    let force = call.get(args::cancel::FORCE).unwrap_or(false);
    cancel::cancel(job_id, reason, force).map(|done| Some(text_datum(done)))
}

/// `queue.cancel_many(job_ids, reason, force)`.
fn cancel_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("cancel")?;
    let reason = call.get(args::cancel_many::REASON);
    let reason = reason.as_deref().map(fail::cut);
    let force = call.get(args::cancel_many::FORCE).unwrap_or(false);
    answers::for_each_job(call, |job_id| cancel::cancel(job_id, reason, force))
}

/// `queue.purge(queue_name)`: cancels what it finds in the index of each lane. Returns how many jobs it has cancelled.
///
/// The entries are not kept in memory, because it may have room for fewer entries than there are jobs. Until the commit
/// only the claims' keys keep other sessions away. A rollback makes the frontier read the lane again.
fn purge(call: &Call) -> Result<Option<Datum>> {
    api::writable("purge")?;
    let name = call.need(args::purge::QUEUE_NAME)?;
    let queue = queue::by_name(&name)?;
    permission::check(&queue, Privilege::Manage)?;
    let mut purged: i64 = 0;
    for &lane in queue.living_lanes() {
        purged += cancel::purge_lane(lane)?;
    }
    Ok(Some(purged.into()))
}
