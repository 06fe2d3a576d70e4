//! `queue.advance`: the attempt is done, and its job goes on in another stage, in the same transaction.
//!
//! The next attempt belongs to the same job and keeps its place in the order, but it is a first attempt: attempts, the
//! last error and progress are a stage's own. A job that is to be cancelled does not go on: it is cancelled. A job
//! that got new contents while it ran does not go on either: it begins anew with them.
//!
//! Not here: how the next attempt is made of the last one (`job::successor`), and another run (`job::rerun`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::queue::{self, Queue};
use crate::catalog::{self, run_as};
use crate::error::{self, Error, Result};
use crate::job::options::in_future;
use crate::job::outcomes::Outcomes;
use crate::job::{hold, rerun, successor};
use crate::log::attempt;
use crate::log::note;
use crate::log::outcome::{self, Kind};
use crate::log::reader::Reader;
use crate::pg::datum::Interval;
use crate::pg::function::{Call, VOID};
use crate::pg::time;
use crate::transaction::{self, Step};

sql_function!(pg_queue_advance, pg_finfo_pg_queue_advance => advance);

/// `queue.advance(id, stage, payload, delay)`. If `stage` is NULL, the job goes to the next stage; if `payload` is
/// NULL, it keeps its payload; if `delay` is NULL, the next attempt is ready at once.
fn advance(call: &Call) -> Result<Option<Datum>> {
    api::writable("advance")?;
    let id = call.required("id", call.i64(0))?;
    let run_at = call.interval(3).map_or(Ok(None), |delay: Interval| in_future("delay", delay, time::now_us()))?;
    let catalog = catalog::current()?;
    let mut outcomes = Outcomes::new(&catalog);
    let held = hold::hold_for_end(&mut outcomes, id)?;
    let Some(queue) = queue::by_lane(&catalog, held.entry.lane)? else {
        return Err(Error::new(error::UNDEFINED, "the queue was dropped, and its jobs with it"));
    };
    let lane = target(&queue, held.entry.lane, call.text(1).as_deref())?;
    let notes = note::summary(&catalog, held.home.segment, id);
    let is_cancelled = held.is_unwanted(&notes);
    if let Some((next_id, _)) = rerun::follow(&catalog, &held)? {
        let kind = if is_cancelled { Kind::Cancelled } else { Kind::Advanced };
        outcomes.add(held.home, outcome::New { next_id: Some(next_id), ..outcome::New::of(id, kind) });
        outcomes.insert()?;
        return Ok(Some(VOID));
    }
    if is_cancelled {
        outcomes.add(held.home, outcome::New::of(id, Kind::Cancelled));
        outcomes.insert()?;
        return Ok(Some(VOID));
    }
    let mut reader = Reader::new(&catalog);
    let attempt = successor::attempt_of(&catalog, &mut reader, &held)?;
    let (target, next) = successor::successor(&catalog, &attempt, run_at)?;
    let mut next = attempt::New { lane, attempt: 1, last_error: None, progress: None, ..next };
    next.steps = notes.steps(next.steps);
    if let Some(payload) = call.datum(2) {
        (next.payload, next.payload_of) = (Some(payload), None);
        next.run_as = run_as::of_writer(&queue)?;
    }
    attempt::insert(&catalog, &target, &[next])?;
    outcomes.add(held.home, outcome::New { next_id: Some(next.id), ..outcome::New::of(id, Kind::Advanced) });
    outcomes.insert()?;
    if queue.notify {
        transaction::record(catalog.number, Step::Notify { lane });
    }
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
