//! An attempt that this transaction holds, and the reasons for which an attempt cannot be held.

use pg_queue_core::frontier::Running;
use pg_queue_core::share;

use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue;
use crate::error::{self, Error};
use crate::guc;
use crate::log::segment::Home;
use crate::log::{note, outcome};
use crate::pg::time;

/// An attempt that this transaction may end.
pub struct Held {
    pub id: i64,
    pub home: Home,
    pub entry: Running,
    /// The place of the step that ends it (`transaction::record`).
    pub step: usize,
}

impl Held {
    /// Returns whether a cancellation was requested. Memory may not know of a request that the notes have.
    pub fn is_unwanted(&self, notes: &note::Summary) -> bool {
        self.entry.cancel != 0 || notes.cancel().is_some()
    }
}

/// Why an attempt cannot be ended.
pub enum Refusal {
    /// The caller has lost the attempt.
    Lost(Error),
    /// Another open transaction holds the attempt.
    Busy(Error),
    /// The attempt cannot end in this way, and its worker keeps it: for instance there is no next stage. The
    /// transaction does not hold it.
    Unfit(Error),
    /// The call is wrong, also if it is about many attempts: for instance the id is not the id of an attempt.
    Wrong(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Wrong(error)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Lost(e) | Refusal::Busy(e) | Refusal::Unfit(e) | Refusal::Wrong(e) => e,
        }
    }
}

pub fn lost(id: i64, detail: impl Into<String>) -> Refusal {
    Refusal::Lost(
        Error::new(error::LOST_LEASE, format!("lost lease on attempt {id}"))
            .detail(detail)
            .hint("Another worker may be running this job, or the job has ended; roll back what was done for it."),
    )
}

/// Returns the refusal for an attempt that this transaction has ended itself.
pub fn lost_here(id: i64) -> Refusal {
    Refusal::Lost(
        Error::new(error::LOST_LEASE, format!("lost lease on attempt {id}"))
            .detail("This attempt was already ended in this transaction.")
            .hint("End each attempt once, by one of complete, fail, release and advance."),
    )
}

/// Returns the refusal for an attempt whose claim is of an open transaction.
pub fn being_claimed(id: i64) -> Refusal {
    Refusal::Lost(
        Error::new(error::LOST_LEASE, format!("lost lease on attempt {id}"))
            .detail("The attempt is being claimed by another transaction.")
            .hint("Commit the claim before another connection ends the attempt."),
    )
}

/// Returns the refusal for an attempt that no committed transaction has claimed.
pub fn unclaimed(id: i64) -> Refusal {
    Refusal::Lost(
        Error::new(error::LOST_LEASE, format!("lost lease on attempt {id}"))
            .detail("The attempt waits to be claimed: its claim was rolled back, or never made.")
            .hint("Commit a claim before its attempt is ended, and roll back what was done for this one."),
    )
}

pub fn busy(id: i64, entry: Option<Running>) -> Refusal {
    let error = Error::new(error::IN_USE, format!("attempt {id} is being ended by another transaction"))
        .hint("Try again when that transaction has ended; pg_stat_activity shows what it does.");
    Refusal::Busy(match entry {
        Some(entry) if entry.pid != 0 => error.detail(format!(
            "It was claimed by process {}; the transaction that is ending it has not committed yet.",
            entry.pid
        )),
        _ => error,
    })
}

/// Returns the refusal for an attempt whose claim is on record, by a transaction that has not told memory yet.
pub fn claiming(id: i64) -> Refusal {
    Refusal::Busy(
        Error::new(error::IN_USE, format!("attempt {id} is still being claimed"))
            .detail("The transaction that has claimed it is committed and about to end.")
            .hint("Try again immediately."),
    )
}

pub fn ended(id: i64, outcome: &outcome::Outcome) -> Refusal {
    let next = outcome.next_id.map(|next| format!(" The job went on as attempt {next}.")).unwrap_or_default();
    lost(id, format!("This attempt was {} at {}.{next}", outcome.kind.words(), time::timestamp_text(outcome.ended_at)))
}

/// Returns the error for a user who may not end an attempt of this lane.
pub fn denied(id: i64, lane: i32) -> Refusal {
    match queue::by_lane(lane) {
        Ok(None) => dropped(id),
        _ => permission::denied_lane(lane, Privilege::Consume).map_or_else(Refusal::Wrong, Refusal::Wrong),
    }
}

pub fn dropped(id: i64) -> Refusal {
    lost(id, "The queue was dropped, and its jobs with it.")
}

pub fn removed(id: i64) -> Refusal {
    lost(id, "There is no such attempt: it was rolled back, or has ended and was removed.")
}

/// Returns the error for a full `running`.
pub fn running_full() -> Error {
    Error::new(error::LIMIT, "too many jobs are running at the same time")
        .detail(format!(
            "Shared memory has room for {} running jobs; a queue, and a database, may have {} times what is free.",
            guc::MAX_RUNNING.get(),
            share::ALPHA
        ))
        .hint("Raise pg_queue.max_running and restart the server, or let workers claim fewer jobs.")
}
