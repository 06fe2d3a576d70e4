//! Cancels jobs: a waiting job is ended unrun, a running one is asked to stop or is ended by force.
//!
//! Not responsible for requests that come too late for the end of their attempt (`duty::serve_cancels`).

use pgrx::pg_sys::Datum;

use crate::catalog::permission::Rights;
use crate::catalog::queue;
use crate::error::{self, Error, Result};
use crate::job::find::{self, Found, Job};
use crate::job::held::Refusal;
use crate::job::outcomes::{Outcomes, end_unrun};
use crate::job::take::{self, TakeWaiting};
use crate::job::{after, flow, hold, rerun};
use crate::log::attempt::Attempt;
use crate::log::edge::{self, Ending};
use crate::log::note::{self, Note};
use crate::log::outcome::{Kind, New};
use crate::log::{claim, waiting};
use crate::pg::datum::text_datum;
use crate::pg::memory;
use crate::transaction::{self, FlowStep, SegmentStep, Step};

/// Asks the worker of a running attempt to stop. `body`: the body of the note about it. If a session that does not see
/// the note ends the attempt and the job goes on, the background worker cancels the job.
pub fn ask(attempt: &Attempt, body: Option<Datum>) -> std::result::Result<(), Refusal> {
    hold::write_note(attempt.id(), attempt.home, Note::CancelRequested(body))?;
    let (lane, ready) = (attempt.lane(), attempt.ready());
    transaction::record(Step::CancelRequested { lane, ready });
    Ok(())
}

pub fn purge_lane(lane: i32) -> Result<i64> {
    transaction::record(Step::Unseen { lane });
    transaction::record(FlowStep::JobEnded { job_id: 0 });
    let mut purged: i64 = 0;
    waiting::for_each_waiting(lane, |attempts| {
        let mut held = memory::list(attempts.len());
        for attempt in attempts {
            let mut answer = take::take_waiting(attempt);
            // Memory is full, and this transaction's steps are a part of that.
            if answer.as_ref().is_err_and(|e| e.code == error::LIMIT) && !held.is_empty() {
                purged += end_held(lane, std::mem::take(&mut held))?;
                answer = take::take_waiting(attempt);
            }
            if let TakeWaiting::Taken = answer? {
                held.push(attempt);
            }
        }
        purged += end_held(lane, held)?;
        Ok(())
    })?;
    Ok(purged)
}

/// Ends waiting attempts of one segment that this transaction has taken, and makes memory forget them. Returns their
/// number.
fn end_held(lane: i32, held: Vec<&Attempt>) -> Result<i64> {
    let Some(first) = held.first() else { return Ok(0) };
    let (segment, ended) = (first.home.segment, held.len() as i64);
    let mut outcomes = Outcomes::new();
    held.iter().for_each(|attempt| outcomes.add_unrun(attempt.home, New::of(attempt.id(), Kind::Cancelled)));
    outcomes.insert()?;
    held.iter().for_each(|attempt| take::forget_taken(attempt.id()));
    transaction::record(SegmentStep::Counted { segment, attempts: 0, ended });
    transaction::record(Step::Purged { lane, count: ended });
    Ok(ended)
}

/// Cancels a job, or asks its worker to stop. Returns which of both.
///
/// Errors: as `queue.cancel`.
pub fn cancel(job_id: i64, reason: Option<&str>, force: bool) -> Result<&'static str> {
    let error = reason.map(text_datum);
    // `Stale` and `Lost` mean that the attempt changed after it was found and before it was held. The next turn of the
    // loop sees the change. In practice no job takes 100 turns; the limit keeps the loop finite.
    for _ in 0..100 {
        let found = find::managed(job_id)?;
        if let Some(outcome) = &found.outcome() {
            return match outcome.kind {
                Kind::Cancelled => Ok("cancelled"),
                _ => Err(find::has_ended(job_id, outcome)),
            };
        }
        let Found::Here(job) = found else { continue };
        let id = job.attempt.id();
        if job.is_claimed && queue::by_lane(job.attempt.lane())?.is_none() {
            return Err(find::of_dropped(job_id));
        }
        if !job.is_claimed && end_members(&job, reason, force)? {
            return Ok("cancelling");
        }
        if !job.is_claimed {
            match take::take_waiting(&job.attempt)? {
                TakeWaiting::Taken => {
                    end_unrun(&job.attempt, New { error, ..New::of(id, Kind::Cancelled) })?;
                    return Ok("cancelled");
                }
                TakeWaiting::InUse if force => return Err(find::in_use(job_id)),
                TakeWaiting::Running => {}
                // A worker is claiming the job, and may be asked to stop. If the system is moving the job instead, the
                // request would be left behind.
                TakeWaiting::InUse => match claim::kind_even_open(job.attempt.home.segment, id) {
                    Some(claim::Kind::System) => return Err(find::in_use(job_id)),
                    Some(_) => {}
                    None => continue,
                },
                TakeWaiting::Stale => continue,
            }
        } else if !force {
            // The call reads a claim from before the server's start into memory. Its result is not used.
            let _ = hold::check_claimed(id, &Rights::everything());
        }
        if !force {
            match ask(&job.attempt, note::Cancel::new_body(reason)) {
                Ok(()) => return Ok("cancelling"),
                Err(Refusal::Lost(_)) => continue,
                Err(Refusal::Busy(e) | Refusal::Unfit(e) | Refusal::Wrong(e)) => return Err(e),
            }
        }
        match end_claimed(id, error) {
            Ok(()) => return Ok("cancelled"),
            Err(Refusal::Lost(_)) => continue,
            Err(Refusal::Busy(e) | Refusal::Unfit(e) | Refusal::Wrong(e)) => return Err(e),
        }
    }
    Err(Error::new(error::IN_USE, format!("job {job_id} keeps changing")).hint("Try again."))
}

/// Ends a claimed attempt as cancelled, whatever its worker does. Makes the next run if one was requested.
///
/// A failure after the attempt is held is `Refusal::Wrong`: the transaction cannot go on.
pub fn end_claimed(id: i64, error: Option<Datum>) -> std::result::Result<(), Refusal> {
    let mut outcomes = Outcomes::new();
    let held = hold::hold_for_end(&mut outcomes, id)?;
    let next = rerun::follow(&held).map_err(|refusal| Refusal::Wrong(refusal.into()))?;
    outcomes.add(&held, New { error, next_id: next.map(|(id, _)| id), ..New::of(id, Kind::Cancelled) });
    outcomes.insert().map_err(Refusal::Wrong)
}

/// Asks the background worker to cancel the members of a flow that waits for them, and then the flow. Returns false if
/// the job is not such a flow.
///
/// Errors: 55006 if the job is on the move for too long.
fn end_members(job: &Job, reason: Option<&str>, is_forced: bool) -> Result<bool> {
    let attempt = &job.attempt;
    if !flow::is_flow(attempt) || !after::is_held(attempt.lane())? {
        return Ok(false);
    }
    let ending = Ending { is_forced, dead: None, is_expired: false, reason: reason.map(str::to_owned) };
    let insert = |home| edge::insert_ending(home, attempt.id(), attempt.job_id(), &ending);
    flow::note_about(job, insert).map(|()| true)
}
