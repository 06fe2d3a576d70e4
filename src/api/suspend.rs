//! `queue.suspend`: a running job waits for others, and goes on when these have ended. The attempt ends, and the next one
//! is held; it has the same number.
//!
//! Not here: the release (`duty::release`).

use std::rc::Rc;

use pg_queue_core::after::Upon;
use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::noted::Noted;
use crate::catalog::{self, queue};
use crate::error::{self, Error, Result};
use crate::job::options::{After, OwnFlow};
use crate::job::outcomes::Outcomes;
use crate::job::{after, hold, rerun, successor};
use crate::log::attempt::{self, New as Next};
use crate::log::edge::Edge;
use crate::log::note;
use crate::log::outcome::{Kind, New};
use crate::log::reader::Reader;
use crate::pg::datum::bigint_array;
use crate::pg::function::{Call, VOID};
use crate::pg::time;

sql_function!(pg_queue_suspend, pg_finfo_pg_queue_suspend => suspend);

/// For what a job waits. `jobs` is NULL: for the members of its own flow.
fn waits(call: &Call, job_id: i64) -> Result<(Upon, Rc<After>)> {
    let name = call.str(2);
    let name = name.as_deref().unwrap_or("ended");
    let upon = Upon::parse(name).filter(|upon| matches!(upon, Upon::Completed | Upon::Ended | Upon::Failed));
    let upon = upon.ok_or_else(|| {
        Error::invalid(format!("invalid value for upon: \"{name}\"")).hint("Use 'completed', 'failed' or 'ended'.")
    })?;
    let Some(named) = call.i64_array(1) else {
        return Ok((upon, Rc::new(After { upon, jobs: vec![job_id], named: bigint_array(&[]), mark: None })));
    };
    let after = After::new(Some(named), Some(name), false)?;
    let after =
        after.ok_or_else(|| Error::invalid("after names no job").hint("NULL waits for the job's own members."))?;
    if after.jobs.contains(&job_id) {
        return Err(Error::invalid("a job cannot wait for itself").hint("Leave out after to wait for its members."));
    }
    Ok((upon, after))
}

/// `queue.suspend(id, after, upon, progress)`.
///
/// Errors: as `queue.complete`; 22023, P0002, 42501 as `queue.enqueue` has them for `after`.
fn suspend(call: &Call) -> Result<Option<Datum>> {
    api::writable("suspend")?;
    let id = call.required("id", call.i64(0))?;
    let catalog = catalog::current()?;
    let mut outcomes = Outcomes::new(&catalog);
    let held = hold::hold_for_end(&mut outcomes, id)?;
    let mut reader = Reader::new(&catalog);
    let attempt = successor::attempt_of(&catalog, &mut reader, &held)?;
    let job_id = attempt.job_id();
    let (upon, after) = waits(call, job_id)?;
    let is_own = after.jobs == [job_id];
    // Whether the jobs are there, and may be waited for.
    let unmet = if is_own { Some(after.clone()) } else { after::unmet(&catalog, &after)? };
    let notes = note::summary(&catalog, held.home.segment, id);
    let is_cancelled = held.is_unwanted(&notes);
    if let Some((next_id, _)) = rerun::follow(&catalog, &held)? {
        let kind = if is_cancelled { Kind::Cancelled } else { Kind::Suspended };
        outcomes.add(held.home, New { next_id: Some(next_id), ..New::of(id, kind) });
        outcomes.insert()?;
        return Ok(Some(VOID));
    }
    if is_cancelled {
        outcomes.add(held.home, New::of(id, Kind::Cancelled));
        outcomes.insert()?;
        return Ok(Some(VOID));
    }
    let queue = queue::by_lane(&catalog, attempt.lane())?;
    let lane = queue.and_then(|queue| queue.held);
    let lane = lane.ok_or_else(|| Error::new(error::UNDEFINED, "the queue was dropped, and its jobs with it"))?;
    let (target, mut next) = successor::successor(&catalog, &attempt, None)?;
    notes.hand_on(&mut next);
    next.progress = call.json(3, "progress")?.or(next.progress);
    next = Next { after: (!is_own).then_some(after.named), upon: Some(upon.char()), ..next };
    if is_own {
        let author = attempt.own_flow().and_then(OwnFlow::author).unwrap_or_else(|| Noted::caller(time::now_us()));
        next.own_flow = OwnFlow { upon, is_open: false, runs: true, is_fail_fast: false }.datum(&author);
    }
    let mut edges = Vec::new();
    if let Some(unmet) = unmet {
        let (goes_to, id) = (next.lane, next.id);
        next = Next { lane, is_parked: false, ..next };
        let edge = |&job_id: &i64| Edge { id, job_id, upon, lane: goes_to, is_met: false, is_own, is_fail_fast: false };
        edges.extend(unmet.jobs.iter().map(edge));
    }
    attempt::insert(&catalog, &target, &[next])?;
    after::insert_edges(&catalog, &target, &edges, |_| job_id, None);
    outcomes.add(held.home, New { next_id: Some(next.id), ..New::of(id, Kind::Suspended) });
    outcomes.insert()?;
    Ok(Some(VOID))
}
