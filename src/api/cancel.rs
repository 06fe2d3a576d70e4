//! `queue.cancel`: a waiting job is taken and ended; a running one is asked to stop, or ended by force.
//! Also `queue.purge`, which cancels all that waits.

use std::rc::Rc;

use pgrx::pg_sys::Datum;

use crate::api;
use crate::api::fail;
use crate::api::job::{self, Found};
use crate::call::{Call, sql_function, text_datum};
use crate::error::{self, Error, Result};
use crate::hold::{self, Outcomes, Refusal, Waiting};
use crate::instance::{self, Catalog};
use crate::log::attempt::Attempt;
use crate::log::outcome::{Kind, New};
use crate::log::{claim, note};
use crate::permission::{self, Privilege, Rights};
use crate::transaction::{self, Step};
use crate::{queue, refill, rerun};

sql_function!(pg_queue_cancel, pg_finfo_pg_queue_cancel => cancel);
sql_function!(pg_queue_purge, pg_finfo_pg_queue_purge => purge);

/// Inserts the claim and the outcome that end an attempt which this transaction has taken unrun.
///
/// Errors: 55006 when an open transaction came between.
pub fn end_unrun(catalog: &Rc<Catalog>, attempt: &Attempt, outcome: New) -> Result<()> {
    let mut outcomes = Outcomes::new(catalog);
    outcomes.add(attempt.home, outcome);
    outcomes.insert()
}

/// Asks the worker of a running attempt to stop; `body` is what the note about it carries. Should it end meanwhile by
/// somebody who does not see that, and its job go on, the background worker cancels that.
pub fn ask(catalog: &Catalog, attempt: &Attempt, body: Option<Datum>) -> std::result::Result<(), Refusal> {
    hold::write_note(catalog, attempt.id(), attempt.home, note::Kind::CancelRequested, None, body)?;
    let (lane, ready) = (attempt.lane(), attempt.ready());
    transaction::remember(catalog.number, Step::CancelRequested { lane, ready });
    Ok(())
}

/// `queue.cancel(job_id, reason, force)`.
fn cancel(call: &Call) -> Result<Option<Datum>> {
    api::writable("cancel")?;
    let job_id = call.required("job_id", call.i64(0))?;
    let reason = call.text(1);
    let reason = reason.as_deref().map(fail::cut);
    let force = call.bool(2).unwrap_or(false);
    let error = reason.map(text_datum);
    let catalog = instance::current()?;
    // Stale: the attempt's life went on between the look and the grasp; the second look sees it.
    for _ in 0..100 {
        let found = job::managed(&catalog, job_id)?;
        if let Some(outcome) = &found.outcome() {
            return match outcome.kind {
                Kind::Cancelled => Ok(Some(text_datum("cancelled"))),
                _ => Err(job::has_ended(job_id, outcome)),
            };
        }
        let Found::Here(job) = found else { continue };
        let id = job.attempt.id();
        if job.is_claimed && queue::by_lane(&catalog, job.attempt.lane())?.is_none() {
            return Err(job::of_dropped(job_id));
        }
        if !job.is_claimed {
            match hold::waiting(&catalog, &job.attempt)? {
                Waiting::Taken => {
                    end_unrun(&catalog, &job.attempt, New { error, ..New::of(id, Kind::Cancelled) })?;
                    return Ok(Some(text_datum("cancelled")));
                }
                Waiting::InUse if force => return Err(job::in_use(job_id)),
                Waiting::Running => {}
                // A worker may be asked to stop. Who moves the job would leave the request behind.
                Waiting::InUse => match claim::kind_even_open(&catalog, job.attempt.home.segment, id) {
                    Some(claim::Kind::System) => return Err(job::in_use(job_id)),
                    Some(_) => {}
                    None => continue,
                },
                Waiting::Stale => continue,
            }
        } else if !force {
            // Only for memory to know the claim, should it be of before the server's start.
            let _ = hold::look(&catalog, id, &Rights::everything());
        }
        if !force {
            match ask(&catalog, &job.attempt, note::Cancel::new_body(reason)) {
                Ok(()) => return Ok(Some(text_datum("cancelling"))),
                Err(Refusal::Lost(_)) => continue,
                Err(Refusal::Busy(e) | Refusal::Wrong(e)) => return Err(e),
            }
        }
        let mut outcomes = Outcomes::new(&catalog);
        match hold::running(&mut outcomes, id) {
            Ok(held) => {
                let next_id = rerun::follow(&catalog, &held)?.map(|(id, _)| id);
                outcomes.add(held.home, New { error, next_id, ..New::of(id, Kind::Cancelled) });
                outcomes.insert()?;
                return Ok(Some(text_datum("cancelled")));
            }
            Err(Refusal::Lost(_)) => continue,
            Err(Refusal::Busy(e) | Refusal::Wrong(e)) => return Err(e),
        }
    }
    Err(Error::new(error::IN_USE, format!("job {job_id} keeps changing")).hint("Try again."))
}

/// `queue.purge(queue_name)`: goes through the index of each lane. The entries are not kept in memory, of which
/// there may be less than of jobs: until the commit the claims' keys alone keep others away, and a
/// rollback makes the frontier read the lane again.
fn purge(call: &Call) -> Result<Option<Datum>> {
    api::writable("purge")?;
    let name = call.required("queue_name", call.text(0))?;
    let catalog = instance::current()?;
    let queue = queue::by_name(&catalog, &name)?;
    permission::check(&catalog, &queue, Privilege::Manage)?;
    let mut purged: i64 = 0;
    for &lane in queue.lanes() {
        purged += purge_lane(&catalog, lane)?;
    }
    Ok(Some(purged.into()))
}

fn purge_lane(catalog: &Rc<Catalog>, lane: i32) -> Result<i64> {
    transaction::remember(catalog.number, Step::Unseen { lane });
    let mut purged: i64 = 0;
    refill::for_each_waiting(catalog, lane, |attempts| {
        let mut held = Vec::with_capacity(attempts.len());
        for attempt in attempts {
            let mut answer = hold::waiting(catalog, attempt);
            // Memory is full, and what is held here has a part in that.
            if answer.as_ref().is_err_and(|e| e.code == error::LIMIT) && !held.is_empty() {
                purged += end_held(catalog, lane, std::mem::take(&mut held))?;
                answer = hold::waiting(catalog, attempt);
            }
            if let Waiting::Taken = answer? {
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
    held.iter().for_each(|attempt| outcomes.add(attempt.home, New::of(attempt.id(), Kind::Cancelled)));
    outcomes.insert()?;
    held.iter().for_each(|attempt| hold::drop_stale(catalog, attempt.id()));
    transaction::remember(catalog.number, Step::Counted { segment, attempts: 0, ended });
    transaction::remember(catalog.number, Step::Purged { lane, count: ended });
    Ok(ended)
}
