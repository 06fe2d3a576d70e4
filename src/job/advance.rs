//! Advances a job: its attempt ends, and the job goes on in another stage, in the same transaction.
//!
//! The next attempt belongs to the same job and keeps its place in the order, but it is a first attempt. Each stage
//! counts its own attempts, and has its own last error and progress. A job with a requested cancellation is cancelled
//! instead. If the job got new contents while it ran, it begins anew with them instead.
//!
//! Not responsible for the row of the next attempt (`next_attempt`), nor for another run (`rerun`).

use pgrx::pg_sys::Datum;

use crate::catalog::queue::Queue;
use crate::catalog::run_as;
use crate::error::{self, Error, Result};
use crate::job::held::{Held, Refusal};
use crate::job::outcomes::Outcomes;
use crate::job::{hold, next_attempt, rerun};
use crate::log::attempt;
use crate::log::note;
use crate::log::outcome::{Kind, New};
use crate::log::reader::Reader;
use crate::transaction::{self, QueueStep};

/// Where, when and with which payload a job goes on.
pub struct To<'a> {
    pub queue: &'a Queue,
    pub lane: i32,
    /// `None`: immediately.
    pub run_at: Option<i64>,
    /// The current user is its writer. `None`: the job keeps its payload, and the writer.
    pub payload: Option<Datum>,
}

/// Returns the lane of the named stage, or of the stage after the present one.
///
/// Errors: 22023 if there is no such stage, 55000 if there is none after the present one.
pub fn target(queue: &Queue, from: i32, stage: Option<&str>) -> Result<i32> {
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

/// Ends a held attempt as advanced, or as cancelled if a cancellation was requested. Returns which of both. Adds the
/// outcome to `outcomes`.
pub fn advance(outcomes: &mut Outcomes, held: &Held, to: &To<'_>) -> std::result::Result<Kind, Refusal> {
    let notes = note::summary(held.home.segment, held.id);
    let is_cancelled = held.is_unwanted(&notes);
    if let Some((next_id, _)) = rerun::follow(held)? {
        let kind = if is_cancelled { Kind::Cancelled } else { Kind::Advanced };
        outcomes.add(held, New { next_id: Some(next_id), ..New::of(held.id, kind) });
        return Ok(kind);
    }
    if is_cancelled {
        outcomes.add(held, New::of(held.id, Kind::Cancelled));
        return Ok(Kind::Cancelled);
    }
    let mut reader = Reader::new();
    let attempt = next_attempt::row_of(&mut reader, held)?;
    let (target, next) = next_attempt::make(&attempt, to.run_at)?;
    let mut next = attempt::New { lane: to.lane, attempt: 1, last_error: None, progress: None, start_by: None, ..next };
    next.steps = notes.steps(next.steps);
    if let Some(payload) = to.payload {
        run_as::refuse_data(to.queue).map_err(|e| hold::unfit(held, e))?;
        // The job may have been a command. A payload given here is data.
        (next.payload, next.payload_of, next.run_as) = (Some(payload), None, None);
    }
    next_attempt::insert(held, &target, next)?;
    outcomes.add(held, New { next_id: Some(next.id), ..New::of(held.id, Kind::Advanced) });
    if to.queue.notify {
        transaction::record(QueueStep::NotifyDue { lane: to.lane });
    }
    Ok(Kind::Advanced)
}
