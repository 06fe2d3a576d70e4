//! Cancelling: what waits is ended unrun, what runs is asked to stop or ended by force.

use std::rc::Rc;

use pgrx::pg_sys::Datum;

use crate::catalog::Catalog;
use crate::error::{self, Result};
use crate::job::held::Refusal;
use crate::job::hold;
use crate::job::outcomes::Outcomes;
use crate::job::take::{self, TakeWaiting};
use crate::log::attempt::Attempt;
use crate::log::outcome::{Kind, New};
use crate::log::{note, waiting};
use crate::transaction::{self, Step};

/// Inserts the claim and the outcome that end an attempt which this transaction has taken unrun.
///
/// Errors: 55006 when an open transaction came between.
pub fn end_unrun(catalog: &Rc<Catalog>, attempt: &Attempt, outcome: New) -> Result<()> {
    let mut outcomes = Outcomes::new(catalog);
    outcomes.add_unrun(attempt.home, outcome);
    outcomes.insert()
}

/// Asks the worker of a running attempt to stop. `body` is the body of the note about it. If a session that does not
/// see the note ends the attempt meanwhile and the job goes on, the background worker cancels the job.
pub fn ask(catalog: &Catalog, attempt: &Attempt, body: Option<Datum>) -> std::result::Result<(), Refusal> {
    hold::write_note(catalog, attempt.id(), attempt.home, note::Kind::CancelRequested, None, body)?;
    let (lane, ready) = (attempt.lane(), attempt.ready());
    transaction::record(catalog.number, Step::CancelRequested { lane, ready });
    Ok(())
}

pub fn purge_lane(catalog: &Rc<Catalog>, lane: i32) -> Result<i64> {
    transaction::record(catalog.number, Step::Unseen { lane });
    transaction::record(catalog.number, Step::Settled { job_id: 0 });
    let mut purged: i64 = 0;
    waiting::for_each_waiting(catalog, lane, |attempts| {
        let mut held = Vec::with_capacity(attempts.len());
        for attempt in attempts {
            let mut answer = take::take_waiting(catalog, attempt);
            // Memory is full, also because of what is held here.
            if answer.as_ref().is_err_and(|e| e.code == error::LIMIT) && !held.is_empty() {
                purged += end_held(catalog, lane, std::mem::take(&mut held))?;
                answer = take::take_waiting(catalog, attempt);
            }
            if let TakeWaiting::Taken = answer? {
                held.push(attempt);
            }
        }
        purged += end_held(catalog, lane, held)?;
        Ok(())
    })?;
    Ok(purged)
}

/// Ends waiting attempts of one segment that this transaction has taken, and lets memory forget them. Returns how many.
fn end_held(catalog: &Rc<Catalog>, lane: i32, held: Vec<&Attempt>) -> Result<i64> {
    let Some(first) = held.first() else { return Ok(0) };
    let (segment, ended) = (first.home.segment, held.len() as i64);
    let mut outcomes = Outcomes::new(catalog);
    held.iter().for_each(|attempt| outcomes.add_unrun(attempt.home, New::of(attempt.id(), Kind::Cancelled)));
    outcomes.insert()?;
    held.iter().for_each(|attempt| take::forget_taken(catalog, attempt.id()));
    transaction::record(catalog.number, Step::Counted { segment, attempts: 0, ended });
    transaction::record(catalog.number, Step::Purged { lane, count: ended });
    Ok(ended)
}
