//! What a job is doing now: its newest attempt, and what the logs say of that.

use std::rc::Rc;

use crate::error::{self, Error, Result};
use crate::instance::Catalog;
use crate::log::attempt::{Attempt, Reader};
use crate::log::outcome::Outcome;
use crate::log::{claim, history, outcome, successor};
use crate::{hold, sys};

/// A job's newest attempt.
pub struct Job {
    /// The attempt's row.
    pub attempt: Attempt,
    /// How it ended, if it has.
    pub outcome: Option<Outcome>,
    /// Whether a worker has claimed it.
    pub is_claimed: bool,
}

/// A job, wherever its newest attempt is.
pub enum Found {
    /// In the logs.
    Here(Job),
    /// In history: it has ended.
    Past(history::Past),
}

impl Found {
    /// How the newest attempt ended, if it has.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Here(job) => job.outcome,
            Self::Past(past) => Some(past.outcome()),
        }
    }

    /// The lane.
    pub fn lane(&self) -> i32 {
        match self {
            Self::Here(job) => job.attempt.lane(),
            Self::Past(past) => past.template().lane,
        }
    }
}

/// Finds a job that has not left the logs.
///
/// Errors: as `find_any`; 55000 when it has ended and is in history.
pub fn find(catalog: &Rc<Catalog>, job_id: i64) -> Result<Job> {
    match find_any(catalog, job_id)? {
        Found::Here(job) => Ok(job),
        Found::Past(past) => Err(has_ended(job_id, &past.outcome())),
    }
}

/// Finds a job.
///
/// Errors: 22023 when the id is no job's, P0002 when there is no such job, 55006 when an open transaction
/// is changing it.
pub fn find_any(catalog: &Rc<Catalog>, job_id: i64) -> Result<Found> {
    hold::job_id(job_id)?;
    let mut was_over = false;
    loop {
        let (newest, in_progress) = Reader::new(catalog).newest(job_id);
        if in_progress {
            return Err(in_use(job_id));
        }
        let Some(attempt) = newest else {
            match history::newest(catalog, job_id) {
                Some(past) if past.outcome().next_id.is_none() && !successor::exists(catalog, past.id()) => {
                    return Ok(Found::Past(past));
                }
                // It went on, and of that nothing is left: or it was retried between the looks.
                Some(_) if !was_over => {
                    was_over = true;
                    continue;
                }
                _ => {}
            }
            return Err(Error::new(error::NO_DATA, format!("job {job_id} does not exist"))
                .hint("Its transaction may have been rolled back, or it has ended and its retention is over."));
        };
        let outcome = outcome::find(catalog, attempt.home.segment, attempt.id());
        let claim = claim::find(catalog, attempt.home.segment, attempt.id());
        let has_moved = outcome.as_ref().is_some_and(|outcome| outcome.kind == outcome::Kind::Moved)
            || claim.as_ref().is_some_and(|claim| claim.kind == claim::Kind::Moved);
        // Between the looks; or it went through the whole of old meanwhile, and this look was late.
        if !has_moved && attempt.home.is_valid(catalog) {
            return Ok(Found::Here(Job { attempt, outcome, is_claimed: claim.is_some() }));
        }
        sys::check_for_interrupts();
    }
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
