//! `queue.advance`: the attempt is done, and its job goes on in another stage, in the same transaction.
//!
//! The next attempt is the same job with its place in the order, but a first one: attempts, the last error and
//! progress are a stage's own. A job that is to be cancelled does not go on: it is cancelled. Nor does one that got new
//! contents while it ran: it begins anew with them.

use pgrx::pg_sys::Datum;

use crate::api::{self, fail, in_future};
use crate::call::{Call, Interval, VOID, sql_function};
use crate::error::{self, Error, Result};
use crate::hold::{self, Outcomes};
use crate::instance;
use crate::log::attempt::{self, New as NewAttempt, Reader};
use crate::log::note;
use crate::log::outcome::{Kind, New};
use crate::queue::{self, Queue};
use crate::transaction::{self, Step};
use crate::{rerun, sys};

sql_function!(pg_queue_advance, pg_finfo_pg_queue_advance => advance);

/// `queue.advance(id, stage, payload, delay)`.
fn advance(call: &Call) -> Result<Option<Datum>> {
    api::writable("advance")?;
    let id = call.required("id", call.i64(0))?;
    let run_at = call.interval(3).map_or(Ok(None), |delay: Interval| in_future("delay", delay, sys::now_us()))?;
    let catalog = instance::current()?;
    let mut outcomes = Outcomes::new(&catalog);
    let held = hold::running(&mut outcomes, id)?;
    let Some(queue) = queue::by_lane(&catalog, held.entry.lane)? else {
        return Err(Error::new(error::UNDEFINED, "the queue was dropped, and its jobs with it"));
    };
    let lane = target(&queue, held.entry.lane, call.text(1).as_deref())?;
    let notes = note::summary(&catalog, held.home.segment, id);
    let is_cancelled = held.is_unwanted(&notes);
    if let Some((next_id, _)) = rerun::follow(&catalog, &held)? {
        let kind = if is_cancelled { Kind::Cancelled } else { Kind::Advanced };
        outcomes.add(held.home, New { next_id: Some(next_id), ..New::of(id, kind) });
        outcomes.insert()?;
        return Ok(Some(VOID));
    }
    if is_cancelled {
        outcomes.add(held.home, New::of(id, Kind::Cancelled));
        outcomes.insert()?;
        return Ok(Some(VOID));
    }
    let mut reader = Reader::new(&catalog);
    let attempt = fail::attempt_of(&mut reader, &held)?;
    let (target, next) = fail::successor(&catalog, &attempt, run_at)?;
    let mut next = NewAttempt { lane, attempt: 1, last_error: None, progress: None, ..next };
    if let Some(payload) = call.datum(2) {
        (next.payload, next.payload_of) = (Some(payload), None);
    }
    attempt::insert(&catalog, &target, &[next])?;
    outcomes.add(held.home, New { next_id: Some(next.id), ..New::of(id, Kind::Advanced) });
    outcomes.insert()?;
    if queue.notify {
        transaction::remember(catalog.number, Step::Notify { lane });
    }
    Ok(Some(VOID))
}

/// The lane to go to.
///
/// Errors: 22023 when there is no such stage, 55000 when there is none after this one.
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
