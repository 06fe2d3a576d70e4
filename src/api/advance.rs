//! `queue.advance`: the attempt is done, and its job goes on in another stage, in the same transaction.
//!
//! Not here: what the next attempt is (`job::advance`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog;
use crate::catalog::queue::{self, Queue};
use crate::error::{self, Error, Result};
use crate::job::options::in_future;
use crate::job::outcomes::Outcomes;
use crate::job::{advance, hold};
use crate::pg::datum::Interval;
use crate::pg::function::{Call, VOID};
use crate::pg::time;

sql_function!(pg_queue_advance, pg_finfo_pg_queue_advance => advance);

/// `queue.advance(id, stage, payload, delay)`. If `stage` is NULL, the job goes to the next stage; if `payload` is
/// NULL, it keeps its payload; if `delay` is NULL, the next attempt is ready at once.
fn advance(call: &Call) -> Result<Option<Datum>> {
    api::writable("advance")?;
    let id = call.required("id", call.i64(0))?;
    let payload = call.json(2, "payload")?;
    let run_at = call.interval(3).map_or(Ok(None), |delay: Interval| in_future("delay", delay, time::now_us()))?;
    let catalog = catalog::current()?;
    let mut outcomes = Outcomes::new(&catalog);
    let held = hold::hold_for_end(&mut outcomes, id)?;
    let Some(queue) = queue::by_lane(&catalog, held.entry.lane)? else {
        return Err(Error::new(error::UNDEFINED, "the queue was dropped, and its jobs with it"));
    };
    let lane = target(&queue, held.entry.lane, call.text(1).as_deref())?;
    advance::advance(&catalog, outcomes, &held, &advance::To { queue: &queue, lane, run_at, payload })?;
    Ok(Some(VOID))
}

/// Returns the lane to go to: that of the named stage, or of the stage after the present one.
///
/// Errors: 22023 if there is no such stage, 55000 if there is none after the present one.
fn target(queue: &Queue, from: i32, stage: Option<&str>) -> Result<i32> {
    if let Some(stage) = stage {
        return queue.stage(stage);
    }
    queue.after(from).ok_or_else(|| {
        let name = &queue.name;
        let error = match queue.stage_of(from) {
            Some(stage) => Error::new(error::WRONG_STATE, format!("stage \"{stage}\" is the last of queue \"{name}\"")),
            None => Error::new(error::WRONG_STATE, format!("queue \"{name}\" has no stages")),
        };
        error.hint("Use queue.complete.")
    })
}
