//! Suspends a job: its attempt ends, and the next one, which has the same number, is held until other jobs have ended.
//!
//! Not responsible for the release (`duty::release`), nor for predecessors (`after`).
//!
//! Invariant: the call is refused before anything is written.

use std::borrow::Cow;
use std::rc::Rc;

use pg_queue_core::after::Upon;
use pgrx::pg_sys::Datum;

use crate::catalog::noted::Noted;
use crate::catalog::queue;
use crate::error::{Error, Result};
use crate::job::held::{Held, Refusal};
use crate::job::options::{After, OwnFlow};
use crate::job::outcomes::Outcomes;
use crate::job::{after, flow, hold, next_attempt, rerun, start_by};
use crate::log::attempt::{Attempt, New as Next};
use crate::log::edge::Edge;
use crate::log::member;
use crate::log::note;
use crate::log::outcome::{Kind, New};
use crate::log::reader::Reader;
use crate::pg::datum::bigint_array;
use crate::pg::time;

/// The jobs and the condition for which a job waits.
pub struct Wait<'a> {
    /// The jobs. `None`: the members of its own flow.
    pub after: Option<Vec<Option<i64>>>,
    /// The condition. `None`: they have ended.
    pub upon: Option<Cow<'a, str>>,
    /// The progress that the next attempt gets. `None`: the progress that was reported last.
    pub progress: Option<Datum>,
    /// When the job goes on at the latest. `None`: it waits until the condition is met.
    pub until: Option<i64>,
}

/// Checks the jobs and the condition.
///
/// Errors: 22023.
fn checked(job_id: i64, after: Option<Vec<Option<i64>>>, upon: Option<&str>) -> Result<(Upon, Rc<After>)> {
    let name = upon.unwrap_or("ended");
    let upon = Upon::parse(name).filter(|upon| *upon != Upon::Overdue);
    let upon = upon.ok_or_else(|| {
        Error::invalid(format!("invalid value for upon: \"{name}\""))
            .hint("Use 'completed', 'any', 'failed' or 'ended'.")
    })?;
    let Some(named) = after else {
        return Ok((upon, Rc::new(After { upon, jobs: vec![job_id], named: bigint_array(&[]), mark: None })));
    };
    let after = After::new(Some(named), Some(name), false)?;
    let after = after.ok_or_else(|| nothing("after names no job."))?;
    if after.jobs.contains(&job_id) {
        return Err(Error::invalid("a job cannot wait for itself").hint("Leave out after to wait for its members."));
    }
    Ok((upon, after))
}

/// Returns the error for a call that names nothing to wait for. The next attempt would start immediately, and its
/// worker would most likely make the same call.
fn nothing(detail: &str) -> Error {
    Error::invalid("there is nothing to wait for").detail(detail).hint(
        "Enqueue members first, with flow => the job_id of this job. Or name jobs in after, or a time in until. \
            queue.release with delay runs the job again later.",
    )
}

/// Checks that a job which is to wait for its members has or had any. A member counts also if it has ended. A job that
/// was a flow or waited for members before has had some, which may be gone from history.
///
/// Errors: 22023 otherwise.
fn check_members(attempt: &Attempt) -> Result<()> {
    let job_id = attempt.job_id();
    let has_any = || attempt.own_flow().is_some() || member::has_any(job_id);
    // An open transaction may be adding the first one. If it was committed meanwhile, the second search sees it.
    if has_any() || !flow::try_close(job_id) || has_any() {
        return Ok(());
    }
    Err(nothing("The call has neither after nor until, and the job has no members."))
}

/// Checks the time at which a job goes on at the latest. `None`: it has passed.
///
/// Errors: 22023 when it is infinite.
fn checked_until(until: i64, now: i64) -> Result<Option<i64>> {
    if until == i64::MAX || until == i64::MIN {
        return Err(Error::invalid("until must be finite").hint("Leave until out to wait as long as it takes."));
    }
    Ok((until > now).then_some(until))
}

/// Ends a held attempt as suspended, or as cancelled if a cancellation was requested. Returns which of both. Adds the
/// outcome to `outcomes`.
pub fn suspend(outcomes: &mut Outcomes, held: &Held, wait: Wait<'_>) -> std::result::Result<Kind, Refusal> {
    let unfit = |error| hold::unfit(held, error);
    let mut reader = Reader::new();
    let attempt = next_attempt::row_of(&mut reader, held)?;
    let job_id = attempt.job_id();
    let (upon, after) = checked(job_id, wait.after, wait.upon.as_deref()).map_err(unfit)?;
    let now = time::now_us();
    let until = wait.until.map(|at| checked_until(at, now)).transpose().map_err(unfit)?;
    let is_own = after.jobs == [job_id];
    // This checks that the jobs exist and that the user may wait for them.
    let unmet = if is_own { Some(after.clone()) } else { after::unmet(&after).map_err(unfit)? };
    // A time that has passed leaves nothing to wait for.
    let unmet = unmet.filter(|_| until != Some(None));
    let until = until.flatten().filter(|_| unmet.is_some());
    let notes = note::summary(held.home.segment, held.id);
    let is_cancelled = held.is_unwanted(&notes);
    if is_own && wait.until.is_none() && !is_cancelled {
        check_members(&attempt).map_err(unfit)?;
    }
    if let Some((next_id, _)) = rerun::follow(held)? {
        let kind = if is_cancelled { Kind::Cancelled } else { Kind::Suspended };
        outcomes.add(held, New { next_id: Some(next_id), ..New::of(held.id, kind) });
        return Ok(kind);
    }
    if is_cancelled {
        outcomes.add(held, New::of(held.id, Kind::Cancelled));
        return Ok(Kind::Cancelled);
    }
    let queue = queue::by_lane(attempt.lane())?;
    let expires = attempt.start_by().is_some() || queue.as_ref().is_some_and(|queue| queue.start_within.is_some());
    let lane = queue.and_then(|queue| queue.held);
    let lane = lane.ok_or_else(|| hold::vanished(held.id))?;
    let (target, mut next) = next_attempt::make(&attempt, until)?;
    notes.hand_on(&mut next);
    // The job has started.
    next.start_by = expires.then_some(start_by::NEVER);
    next.progress = wait.progress.or(next.progress);
    next = Next { after: (!is_own).then_some(after.named), upon: Some(upon.char()), ..next };
    if is_own {
        let author = attempt.own_flow().and_then(OwnFlow::author).unwrap_or_else(|| Noted::caller(now));
        next.own_flow = OwnFlow { upon, is_open: false, runs: true, is_fail_fast: false }.datum(&author);
    }
    let mut edges = Vec::new();
    if let Some(unmet) = unmet {
        let (goes_to, id) = (next.lane, next.id);
        next = Next { lane, ..next };
        let edge =
            |&job_id: &i64| Edge { id, job_id, upon, lane: goes_to, is_met: false, is_own, is_fail_fast: false, until };
        edges.extend(unmet.jobs.iter().map(edge));
    }
    next_attempt::insert(held, &target, next)?;
    after::insert_edges(&target, &edges, |_| job_id, None);
    outcomes.add(held, New { next_id: Some(next.id), ..New::of(held.id, Kind::Suspended) });
    Ok(Kind::Suspended)
}
