//! Completes attempts, one or many, and makes the next run if one was requested.

use pg_queue_core::totals;
use pgrx::pg_sys::Datum;

use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue;
use crate::catalog::queue::Queue;
use crate::error::{self, Error, Result};
use crate::job::find::{self, Found};
use crate::job::held::{Held, Refusal};
use crate::job::outcomes::{Outcomes, end_unrun};
use crate::job::take::{self, TakeWaiting};
use crate::job::{after, hold, rerun};
use crate::log::outcome::{Kind, New};
use crate::pg::memory;
use crate::transaction::{self, Step};

/// Checks that no further stages lie before a job.
///
/// Errors: 55000 when there are further stages.
fn may_end(queue: &Queue, lane: i32) -> Result<()> {
    if !queue.goes_on_after(lane) {
        return Ok(());
    }
    let stage = queue.stage_of(lane).unwrap_or_default();
    Err(Error::new(error::WRONG_STATE, format!("stage \"{stage}\" is not the last of queue \"{}\"", queue.name))
        .hint("Use queue.advance to go on; to end the job here, queue.cancel with force => true."))
}

/// Completes a held attempt whose outcome's key was free a moment ago. Adds the outcome to `outcomes`. If another run
/// was requested meanwhile, inserts the outcome and makes that run instead.
pub fn complete(outcomes: &mut Outcomes, held: Held, result: Option<Datum>) -> std::result::Result<Kind, Refusal> {
    let queue = hold::queue_of(outcomes, &held)?;
    may_end(&queue, held.entry.lane).map_err(|e| hold::unfit(&held, e))?;
    if held.entry.rerun != 0 {
        complete_and_rerun(held, result)?;
    } else {
        outcomes.add(&held, New { result, ..New::of(held.id, Kind::Completed) });
    }
    Ok(Kind::Completed)
}

/// Completes a claimed attempt with the commit. `result`: jsonb.
pub fn complete_one(id: i64, result: Option<Datum>) -> std::result::Result<(), Refusal> {
    let held = hold::hold_claimed(id)?;
    let mut outcomes = Outcomes::new();
    let queue = hold::queue_of(&mut outcomes, &held)?;
    may_end(&queue, held.entry.lane)?;
    end(outcomes, held, result)
}

/// Completes a held attempt whose outcome's key may be taken, and inserts the gathered `outcomes`.
pub fn end(mut outcomes: Outcomes, held: Held, result: Option<Datum>) -> std::result::Result<(), Refusal> {
    if held.entry.rerun != 0 {
        return complete_and_rerun(held, result);
    }
    let outcome = New { result, ..New::of(held.id, Kind::Completed) };
    hold::end(&mut outcomes, held, outcome)
}

/// Completes an attempt. Makes the next run if one was requested.
fn complete_and_rerun(held: Held, result: Option<Datum>) -> std::result::Result<(), Refusal> {
    let mut outcomes = Outcomes::new();
    let held = hold::check_not_ended(&mut outcomes, held)?;
    let next = rerun::follow(&held)?;
    let next_id = next.map(|(id, _)| id);
    outcomes.add(&held, New { result, next_id, ..New::of(held.id, Kind::Completed) });
    outcomes.insert().map_err(Refusal::Wrong)
}

/// Completes the attempts that the caller still has. Returns their ids, in the given order. Adds the others to
/// `refused`, each with the reason. `results`: jsonb, one for each id, or none at all.
pub fn complete_all(
    ids: &[Option<i64>],
    results: &[Option<Datum>],
    refused: &mut Vec<(i64, Refusal)>,
) -> Result<Vec<i64>> {
    let mut given = memory::list(ids.len());
    given.extend(ids.iter().flatten());
    // The held attempts are in the order of their ids.
    let mut results = ids.iter().zip(results);
    let mut result_of = |id| results.find(|(given, _)| **given == Some(id)).and_then(|(_, result)| *result);
    let mut outcomes = Outcomes::new();
    let mut held = memory::list(ids.len());
    for one in hold::hold_claimed_many(&given, refused)? {
        let result = result_of(one.id);
        let may_end = hold::queue_of(&mut outcomes, &one)
            .and_then(|queue| may_end(&queue, one.entry.lane).map_err(|e| hold::unfit(&one, e)));
        match may_end {
            Ok(()) => held.push((one, result)),
            Err(Refusal::Wrong(e)) => return Err(e),
            Err(refusal) => memory::push(refused, (one.id, refusal)),
        }
    }
    for (one, result) in held.iter().filter(|(one, _)| one.entry.rerun == 0) {
        outcomes.add(one, New { result: *result, ..New::of(one.id, Kind::Completed) });
    }
    let lost = outcomes.try_insert();
    let mut completed = memory::list(held.len());
    for (one, result) in held {
        let id = one.id;
        let done = if one.entry.rerun != 0 {
            complete_and_rerun(one, result)
        } else if lost.contains(&id) {
            hold::resolve_conflict(&mut outcomes, one)
                .and_then(|one| hold::end(&mut outcomes, one, New { result, ..New::of(id, Kind::Completed) }))
        } else {
            Ok(())
        };
        match done {
            Ok(()) => completed.push(id),
            Err(Refusal::Wrong(e)) => return Err(e),
            Err(refusal) => memory::push(refused, (id, refusal)),
        }
    }
    Ok(completed)
}

/// Completes the job of an attempt that has lost its lease, failed or was released, because the effects of the attempt
/// are committed elsewhere. Returns false if the job does not wait for a worker, or not in the last stage, or if the
/// current user may not consume it. It returns false for an attempt that has ended in another way: its job has gone on
/// since.
///
/// Errors: P0002; 55006 if an open transaction is changing the job.
pub fn complete_waiting(id: i64, result: Option<Datum>) -> Result<bool> {
    let job_id = match find::ended_attempt(id) {
        Some((job_id, Kind::TimedOut | Kind::Failed | Kind::Released | Kind::Dead)) => job_id,
        _ => return Ok(false),
    };
    for _ in 0..100 {
        let Found::Here(job) = find::find_any(job_id)? else { return Ok(false) };
        let attempt = &job.attempt;
        let lane = attempt.lane();
        let Some(queue) = queue::by_lane(lane)? else { return Ok(false) };
        if job.outcome.is_some()
            || job.is_claimed
            || after::is_held(lane)?
            || queue.goes_on_after(lane)
            || permission::check_lane(lane, Privilege::Consume).is_err()
        {
            return Ok(false);
        }
        match take::take_waiting(attempt)? {
            TakeWaiting::Taken => {}
            TakeWaiting::Running => return Ok(false),
            TakeWaiting::InUse => return Err(find::in_use(job_id)),
            TakeWaiting::Stale => continue,
        }
        let outcome = New { result, ..New::of(attempt.id(), Kind::Completed) };
        let end = totals::End { outcome: outcome.kind.char(), has_next: false };
        end_unrun(attempt, outcome)?;
        transaction::record(Step::EndCounted { lane, end });
        return Ok(true);
    }
    Err(find::in_use(job_id))
}
