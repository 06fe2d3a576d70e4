//! `queue.step`, `queue.step_done`, `queue.job_steps`: the steps that a job has already done, over all its attempts.
//! Each step is a row, so that it survives a crash, and counts when its transaction commits.
//!
//! Not responsible for handing the steps to the next attempt (`log::note`, `job::next_attempt`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::error::{Error, Result};
use crate::job::find::{self, Found};
use crate::job::{hold, steps};
use crate::log::history;
use crate::log::note;
use crate::log::reader::Reader;
use crate::pg::datum::text_datum;
use crate::pg::function::{Call, VOID};
use crate::pg::jsonb;

sql_function!(pg_queue_step, pg_finfo_pg_queue_step => step);
sql_function!(pg_queue_step_done, pg_finfo_pg_queue_step_done => step_done);
sql_function!(pg_queue_job_steps, pg_finfo_pg_queue_job_steps => job_steps);

/// A name may be this long, in bytes.
const MAX_NAME_BYTES: usize = 1024;

fn name(call: &Call) -> Result<String> {
    let name = call.need(args::step::NAME)?;
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(Error::invalid(format!("name must have between 1 and {MAX_NAME_BYTES} bytes"))
            .detail(format!("It has {}.", name.len())));
    }
    Ok(name)
}

/// Returns the steps of an attempt that lies in the logs, as an object. `None`: there are none.
fn steps_of(id: i64) -> Option<Datum> {
    let attempt = Reader::new().by_id(id)?;
    let notes = note::summary(attempt.home.segment, id);
    notes.steps(attempt.steps()).map(jsonb::copy)
}

/// `queue.step(id, name)`: returns the result of a step that this attempt or an earlier one has done. NULL: the step is
/// not done.
fn step(call: &Call) -> Result<Option<Datum>> {
    let id = call.need(args::step::ID)?;
    let name = name(call)?;
    hold::check_claimed(id, &permission::rights())?;
    Ok(steps_of(id).and_then(|steps| jsonb::field(steps, &name)).map(|value| value.datum()))
}

/// `queue.step_done(id, name, result)`.
fn step_done(call: &Call) -> Result<Option<Datum>> {
    api::writable("note a step")?;
    let id = call.need(args::step_done::ID)?;
    let name = name(call)?;
    let body = jsonb::object_of(&name, call.json(args::step_done::RESULT)?);
    let body = body.ok_or_else(|| Error::invalid("name cannot be stored as JSON"))?;
    steps::record(id, body)?;
    Ok(Some(VOID))
}

/// `queue.job_steps(job_id)`: returns the steps that a job has done. If `job_id` is NULL, it returns no rows.
fn job_steps(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let Some(job_id) = call.get(args::job_steps::JOB_ID) else { return Ok(None) };
    let found = find::find_settled(job_id)?;
    let rights = permission::rights();
    if ![Privilege::Observe, Privilege::Consume].iter().any(|&privilege| rights.on_lane(found.lane(), privilege)) {
        return Err(permission::denied_lane(found.lane(), Privilege::Observe)?);
    }
    let steps = match &found {
        Found::Here(job) => steps_of(job.attempt.id()),
        Found::Past(past) => past.get(history::column::STEPS),
    };
    for (name, value) in steps.map(jsonb::fields).unwrap_or_default() {
        rows.add_options(&[Some(text_datum(&name)), Some(value.datum())])?;
    }
    Ok(None)
}
