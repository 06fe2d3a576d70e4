//! `queue.current_job()`: the job whose command this process is running. Also the functions that the view
//! `queue.executors` and the metrics read.
//!
//! Not responsible for running jobs (`executor`).

use pgrx::pg_sys::Datum;

use crate::api::claim::add_row;
use crate::api::{self, sql_function};
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue;
use crate::error::Result;
use crate::executor::{job, table};
use crate::job::claim::ClaimedAttempt;
use crate::log::reader::Reader;
use crate::pg::datum::text_datum;
use crate::pg::function::Call;
use crate::pg::{role, time};
use crate::shmem::executors::State;
use crate::shmem::{self, here};

sql_function!(pg_queue_current_job, pg_finfo_pg_queue_current_job => current_job);
sql_function!(pg_queue_executors_now, pg_finfo_pg_queue_executors_now => executors_now, api::run_briefly);
sql_function!(pg_queue_executor_counts, pg_finfo_pg_queue_executor_counts => executor_counts, api::run_unpinned);

/// `queue.current_job()`: returns a row as `queue.claim` does. Outside a job's command it returns none.
fn current_job(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let Some(current) = job::current() else { return Ok(None) };
    let mut reader = Reader::new();
    let Some(attempt) = reader.by_id(current.id) else { return Ok(None) };
    let Some(queue) = queue::by_lane(attempt.lane())? else { return Ok(None) };
    let deadline = shmem::with(|shared| shared.frontier.entry(here::number(), current.id)).map(|entry| entry.deadline);
    let left = deadline.map_or(0, |deadline| deadline.saturating_sub(time::monotonic_us()));
    let expires_at = time::now_us().saturating_add(left);
    let queue_name = text_datum(&queue.name);
    add_row(&rows, ClaimedAttempt { queue: &queue, queue_name, reader: &mut reader, attempt: &attempt, expires_at })?;
    Ok(None)
}

/// `queue_internal.executors_now()`: returns the processes of this database for queues that the user may observe.
fn executors_now(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let rights = permission::rights();
    let (now, wall) = (time::monotonic_us(), time::now_us());
    for slot in table::all(here::number()).iter().filter(|slot| rights.on_lane(slot.lane, Privilege::Observe)) {
        let state = match slot.state {
            State::Starting => "starting",
            State::Idle => "idle",
            State::Running if slot.attempt != 0 => "running",
            _ => "looking",
        };
        rows.add_options(&[
            Some(slot.pid.into()),
            role::role_name(slot.role).as_deref().map(text_datum),
            Some(slot.lane.into()),
            Some(text_datum(state)),
            (slot.job_id != 0).then(|| slot.job_id.into()),
            Some(wall.saturating_sub(now.saturating_sub(slot.since)).into()),
        ])?;
    }
    Ok(None)
}

/// `queue_internal.executor_counts()`: returns the counts of starts of processes, over all databases.
fn executor_counts(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let counts = table::counts();
    let short_for = counts.short_for.unwrap_or(0);
    let numbers =
        [i64::from(counts.starts), i64::from(counts.failures), counts.dispatches, counts.dispatch_us, short_for];
    rows.add_options(&numbers.map(|number| Some(number.into())))?;
    Ok(None)
}
