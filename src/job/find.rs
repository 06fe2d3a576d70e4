//! Finds a job: its newest attempt, and what the logs say of that attempt.

use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::catalog::ids;
use crate::catalog::permission::{self, Privilege};
use crate::error::{self, Error, Result};
use crate::log::attempt::Attempt;
use crate::log::outcome::{self, Kind, Outcome, has_moved_claim};
use crate::log::reader::Reader;
use crate::log::{claim, history, retried};
use crate::pg::process;
use crate::pg::scan::Snapshot;
use crate::pg::time;

/// A job's newest attempt.
pub struct Job {
    /// The attempt's row.
    pub attempt: Attempt,
    /// How the attempt has ended. `None`: it has not.
    pub outcome: Option<Outcome>,
    /// True if a worker has claimed it.
    pub is_claimed: bool,
}

/// A job, wherever its newest attempt is.
pub enum Found {
    /// In the logs.
    Here(Job),
    /// In history: the job has ended.
    Past(history::Past),
}

impl Found {
    /// Returns how the newest attempt has ended. `None`: it has not.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Here(job) => job.outcome,
            Self::Past(past) => Some(past.outcome()),
        }
    }

    /// Returns when the job was enqueued.
    pub fn enqueued_at(&self) -> i64 {
        match self {
            Self::Here(job) => job.attempt.enqueued_at(),
            Self::Past(past) => past.get(history::column::ENQUEUED_AT).map_or(0, |at| at.value() as i64),
        }
    }

    /// Returns whether the job is a flow.
    pub fn is_flow(&self) -> bool {
        self.own_flow().is_some()
    }

    /// Returns the stored settings of the job's own flow (`job::options::OwnFlow`).
    pub fn own_flow(&self) -> Option<Datum> {
        match self {
            Self::Here(job) => job.attempt.own_flow(),
            Self::Past(past) => past.get(history::column::OWN_FLOW),
        }
    }

    /// The lane.
    pub fn lane(&self) -> i32 {
        match self {
            Self::Here(job) => job.attempt.lane(),
            Self::Past(past) => past.lane(),
        }
    }
}

/// The facts of an attempt from which its state is derived.
pub struct Doing {
    pub outcome: Option<Kind>,
    pub is_claimed: bool,
    pub run_at: Option<i64>,
    pub has_failed: bool,
}

impl Doing {
    /// Returns the state of the attempt's job, as `queue.jobs` names it, if the job has no newer attempt. `is_held`:
    /// jobs in its lane wait for others. The views call this function, too: no other place derives the state of a job.
    pub fn state_of_job(&self, is_held: bool) -> &'static str {
        match self.outcome {
            Some(Kind::Completed) => "completed",
            Some(Kind::Cancelled) => "cancelled",
            Some(Kind::Skipped) => "skipped",
            Some(Kind::Expired) => "expired",
            Some(_) => "dead",
            None if self.is_claimed => "running",
            None if is_held => "held",
            None if self.run_at.is_none_or(|at| at <= time::now_us()) => "ready",
            None if self.has_failed => "retrying",
            None => "scheduled",
        }
    }

    /// Returns the state of the attempt, as `queue.attempts` names it: how it has ended, or else the state of the job.
    pub fn state_of_attempt(&self, is_held: bool) -> &'static str {
        self.outcome.map_or_else(|| self.state_of_job(is_held), Kind::name)
    }
}

/// Finds a job that the current user manages.
///
/// Errors: as `find_any`; 42501 when the user may not manage it.
pub fn managed(job_id: i64) -> Result<Found> {
    let found = find_any(job_id)?;
    permission::check_lane(found.lane(), Privilege::Manage)?;
    Ok(found)
}

/// Finds a job that the current user manages and that has not left the logs.
///
/// Errors: as `managed`; 55000 when it has ended and is in history.
pub fn find(job_id: i64) -> Result<Job> {
    match managed(job_id)? {
        Found::Here(job) => Ok(job),
        Found::Past(past) => Err(has_ended(job_id, &past.outcome())),
    }
}

/// Finds a job.
///
/// Errors: 22023 when the id is no job's, P0002 when there is no such job, 55006 when an open transaction
/// is changing it.
pub fn find_any(job_id: i64) -> Result<Found> {
    search(job_id, false)
}

/// Returns the job of an attempt that has ended, and how it has ended. `None`: it has not, or is not known any more.
pub fn ended_attempt(id: i64) -> Option<(i64, Kind)> {
    let here = Reader::new().by_id(id).and_then(|attempt| {
        let outcome = outcome::find(attempt.home.segment, id)?;
        Some((attempt.job_id(), outcome.kind))
    });
    here.or_else(|| history::find(id).map(|past| (past.job_id(), past.outcome().kind)))
}

/// Finds a job as committed transactions and this transaction have left it.
///
/// Errors: 22023 when the id is no job's, P0002 when there is no such job.
pub fn find_settled(job_id: i64) -> Result<Found> {
    search(job_id, true)
}

fn search(job_id: i64, passes_open: bool) -> Result<Found> {
    /// How often to search for the next attempt, which may have been inserted a moment ago.
    const MAX_SEARCHES: usize = 4;
    ids::job_id(job_id)?;
    let retried = retried::Reader::open(Snapshot::Now);
    let went_on = |id, outcome: &Outcome| outcome.next_id.is_some() || retried.has(id);
    let mut searches = 0;
    while searches < MAX_SEARCHES {
        process::check_for_interrupts();
        let (newest, in_progress) = Reader::new().newest(job_id);
        if in_progress && !passes_open {
            return Err(in_use(job_id));
        }
        let mut least = 0;
        if let Some(attempt) = newest {
            let outcome = outcome::find(attempt.home.segment, attempt.id());
            let claim = claim::find(attempt.home.segment, attempt.id());
            // The attempt was inserted between the two searches. Or it has moved through both halves of old before this
            // search.
            if has_moved_claim(claim.as_ref(), outcome.as_ref()) || !attempt.home.is_valid() {
                continue;
            }
            if !outcome.as_ref().is_some_and(|outcome| went_on(attempt.id(), outcome)) {
                return Ok(Found::Here(Job { attempt, outcome, is_claimed: claim.is_some() }));
            }
            least = id::count(attempt.id());
        }
        // A later attempt may have left the segments before an earlier one.
        let past = history::newest(job_id).filter(|past| id::count(past.id()) > least);
        match past.filter(|past| !went_on(past.id(), &past.outcome())) {
            Some(past) => return Ok(Found::Past(past)),
            None => searches += 1,
        }
    }
    Err(Error::new(error::NO_DATA, format!("job {job_id} does not exist"))
        .hint("Its transaction may have been rolled back, or it has ended and its retention is over."))
}

/// The error for an attempt that is not in the logs.
pub fn no_attempt(id: i64) -> Error {
    Error::new(error::NO_DATA, format!("attempt {id} does not exist"))
        .hint("It was rolled back, or it has ended and its retention is over.")
}

/// The error for a job that an open transaction is changing.
pub fn in_use(job_id: i64) -> Error {
    Error::new(error::IN_USE, format!("job {job_id} is being changed by another transaction"))
        .hint("Try again when that has ended.")
}

/// The error for a job whose queue was dropped.
pub fn of_dropped(job_id: i64) -> Error {
    Error::new(error::WRONG_STATE, format!("the queue of job {job_id} was dropped"))
}

/// The error for a job that has ended.
pub fn has_ended(job_id: i64, outcome: &Outcome) -> Error {
    Error::new(error::WRONG_STATE, format!("job {job_id} has ended"))
        .detail(format!("It was {}.", outcome.kind.words()))
        .hint("queue.retry runs an ended job once more.")
}
