//! `queue.inputs`, `queue.members`: the predecessors of a job with their results, and the members of a flow.
//!
//! Invariant: payloads, results and errors are shown only to users that may consume or observe the job's queue.

use pgrx::pg_sys::Datum;

use crate::api::sql_function;
use crate::catalog::arguments as args;
use crate::catalog::ids;
use crate::catalog::permission::{self, Privilege, Rights};
use crate::error::Result;
use crate::job::find;
use crate::log::member;
use crate::log::reader::Reader;
use crate::pg::datum;
use crate::pg::function::Call;
use crate::pg::process;
use crate::view::attempts;

sql_function!(pg_queue_inputs, pg_finfo_pg_queue_inputs => inputs);
sql_function!(pg_queue_members, pg_finfo_pg_queue_members => members);

fn may_see(rights: &Rights, lane: i32) -> bool {
    rights.on_lane(lane, Privilege::Observe) || rights.on_lane(lane, Privilege::Consume)
}

/// `queue.inputs(id)`: returns a row for each predecessor of the attempt's job, and for each member of its flow, in the
/// order of their ids. If a job is not known any more, all columns but its id are NULL.
///
/// Errors: 22023 if `id` is no attempt's id; P0002 if the attempt does not exist; 42501.
fn inputs(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let id = call.need(args::inputs::ID)?;
    ids::attempt_id(id)?;
    let rights = permission::rights();
    let attempt = Reader::new().by_id(id).ok_or_else(|| find::no_attempt(id))?;
    if !may_see(&rights, attempt.lane()) {
        return Err(permission::denied_lane(attempt.lane(), Privilege::Consume)?);
    }
    let after = attempt.after().map(datum::i64_array).unwrap_or_default();
    let mut jobs: Vec<i64> = after.into_iter().chain(member::all(attempt.job_id())).collect();
    jobs.sort_unstable();
    jobs.dedup();
    for job_id in jobs {
        let mut is_known = false;
        attempts::with_newest(job_id, &Rights::everything(), &mut |lane, job| {
            is_known = true;
            let shown = |column: Option<Datum>| column.filter(|_| may_see(&rights, lane));
            rows.add_options(&[
                job.job_id,
                job.queue_name,
                job.task,
                job.state,
                shown(job.result),
                shown(job.error),
                job.finished_at,
            ])
        })?;
        if !is_known {
            rows.add_options(&[Some(job_id.into()), None, None, None, None, None, None])?;
        }
        process::check_for_interrupts();
    }
    Ok(None)
}

/// `queue.members(job_id, state, beyond, max_jobs)`: returns the members of a flow that the user may observe and whose
/// ids are greater than `beyond`, in the order of their ids. If `job_id` is NULL, it returns no rows.
fn members(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let Some(flow) = call.get(args::members::JOB_ID) else { return Ok(None) };
    let state = call.get(args::members::STATE);
    let beyond = call.get(args::members::BEYOND).unwrap_or(i64::MIN);
    let mut left = call.get(args::members::MAX_JOBS).unwrap_or(100);
    let rights = permission::rights();
    for job_id in member::all(ids::job_id(flow)?).into_iter().filter(|&job_id| job_id > beyond) {
        if left <= 0 {
            break;
        }
        process::check_for_interrupts();
        attempts::with_newest(job_id, &rights, &mut |_, row| {
            let is_wanted = |state: &String| row.state.map(datum::text).as_ref() == Some(state);
            if state.as_ref().is_none_or(is_wanted) {
                rows.add_options(&attempts::of_view(row))?;
                left -= 1;
            }
            Ok(())
        })?;
    }
    Ok(None)
}
