//! What a job is doing now: its newest attempt, and what the logs say of that.

use std::rc::Rc;

use crate::error::{self, Error, Result};
use crate::hold;
use crate::instance::Catalog;
use crate::log::attempt::{Attempt, Reader};
use crate::log::outcome::Outcome;
use crate::log::{claim, outcome};

/// A job's newest attempt.
pub struct Job {
    /// The attempt's row.
    pub attempt: Attempt,
    /// How it ended, if it has.
    pub outcome: Option<Outcome>,
    /// Whether a worker has claimed it.
    pub is_claimed: bool,
}

/// Finds a job.
///
/// Errors: 22023 when the id is no job's, P0002 when there is no such job, 55006 when an open transaction
/// is changing it.
pub fn find(catalog: &Rc<Catalog>, job_id: i64) -> Result<Job> {
    hold::job_id(job_id)?;
    let (newest, in_progress) = Reader::new(catalog).newest(job_id)?;
    if in_progress {
        return Err(in_use(job_id));
    }
    let Some(attempt) = newest else {
        return Err(Error::new(error::NO_DATA, format!("job {job_id} does not exist"))
            .hint("Its transaction may have been rolled back, or it has ended and its retention is over."));
    };
    let outcome = outcome::find(catalog, attempt.segment, attempt.id());
    let is_claimed = claim::find(catalog, attempt.segment, attempt.id()).is_some();
    Ok(Job { attempt, outcome, is_claimed })
}

/// The error for a job that an open transaction is changing.
pub fn in_use(job_id: i64) -> Error {
    Error::new(error::IN_USE, format!("job {job_id} is being changed by another transaction"))
        .hint("Try again when that has ended.")
}

/// The error for a job that has ended.
pub fn has_ended(job_id: i64, outcome: &Outcome) -> Error {
    Error::new(error::WRONG_STATE, format!("job {job_id} has ended"))
        .detail(format!("It was {}.", outcome.kind.words()))
        .hint("queue.retry runs an ended job once more.")
}
