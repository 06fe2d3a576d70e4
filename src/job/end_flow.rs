//! Ends a flow that waits for its members, or seals it, so that it takes no more members.
//!
//! Not responsible for the end of a flow whose members have ended (`duty::release`).
//!
//! Invariant: the key of the flow's claim decides between this and the release.

use pg_queue_core::totals;
use pgrx::pg_sys::Datum;

use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue;
use crate::error::{self, Error, Result};
use crate::job::find::{self, Found, Job};
use crate::job::outcomes::end_unrun;
use crate::job::take::{self, TakeWaiting};
use crate::job::{after, dead_letter, flow};
use crate::log::edge::{self, Edge, Edges};
use crate::log::outcome::{Kind, New};
use crate::pg::datum::text_datum;
use crate::transaction::{self, FlowStep, Step};

/// A held flow, with its edges.
struct HeldFlow {
    job: Job,
    own: Edge,
    seal: Option<Edge>,
}

/// Finds a held flow, if `check` finds that the user may end or seal it.
///
/// Errors: 22023, P0002, those of `check`; 55000 if it is no flow, or does not wait for its members; 55006 if an open
/// transaction is changing it.
fn held_flow(job_id: i64, check: impl Fn(&Found) -> Result<()>) -> Result<HeldFlow> {
    let found = find::find_any(job_id)?;
    check(&found)?;
    if let Some(outcome) = found.outcome() {
        return Err(find::has_ended(job_id, &outcome));
    }
    let wrong = || {
        Error::new(error::WRONG_STATE, format!("job {job_id} is no flow that waits"))
            .hint("See queue.enqueue_flow; queue.jobs tells its state.")
    };
    let Found::Here(job) = found else { return Err(wrong()) };
    if job.is_claimed || !after::is_held(job.attempt.lane())? {
        return Err(wrong());
    }
    let edges = Edges::open(job.attempt.home.segment).map(|edges| edges.of(job.attempt.id()));
    let edges = edges.unwrap_or_default();
    let own = flow::own_edge(&edges).ok_or_else(wrong)?;
    Ok(HeldFlow { job, own, seal: edges.into_iter().find(|edge| edge.job_id == edge::SEAL) })
}

/// Seals an open flow with the commit: it gets no more members.
///
/// Errors: 22023, P0002, 42501; 55000 if it is no flow, or does not wait for its members; 55006 if an open transaction
/// is changing it.
pub fn seal(job_id: i64) -> Result<()> {
    let held = held_flow(job_id, |found| flow::check_say(job_id, found))?;
    let Some(seal) = held.seal.filter(|seal| !seal.is_met) else { return Ok(()) };
    flow::note_about(&held.job, |home| edge::insert_met(home, &seal))
}

/// How a flow is ended by a call.
#[derive(Clone, Copy)]
pub enum End<'a> {
    /// The flow has completed, with this result.
    Resolved(Option<Datum>),
    /// The flow is dead, with this error.
    Rejected(&'a str),
}

/// Ends a flow that goes to no worker.
///
/// Errors: as `seal`; 55000 also if the flow goes to a worker.
pub fn end(job_id: i64, end: End<'_>) -> Result<()> {
    for _ in 0..100 {
        let may = |found: &Found| permission::check_lane(found.lane(), Privilege::Consume);
        let held = held_flow(job_id, may)?;
        if held.own.lane != 0 {
            let verb = if let End::Resolved(_) = end { "resolve" } else { "reject" };
            return Err(Error::new(error::WRONG_STATE, format!("job {job_id} goes to a worker"))
                .hint(format!("queue.{verb} ends flows that were enqueued with runs => false.")));
        }
        let attempt = &held.job.attempt;
        match take::take_waiting(attempt)? {
            TakeWaiting::Taken => {}
            TakeWaiting::Running | TakeWaiting::InUse => return Err(find::in_use(job_id)),
            TakeWaiting::Stale => continue,
        }
        let id = attempt.id();
        let outcome = match end {
            End::Resolved(result) => New { result, ..New::of(id, Kind::Completed) },
            End::Rejected(error) => New { error: Some(text_datum(error)), ..New::of(id, Kind::Dead) },
        };
        if let (End::Rejected(error), Some(queue)) = (end, queue::by_lane(attempt.lane())?) {
            dead_letter::copy(&queue, attempt, error);
            if attempt.flow().is_some() {
                transaction::record(FlowStep::Awaited { job_id, mark: None });
            }
        }
        end_unrun(attempt, outcome)?;
        let end = totals::End { outcome: outcome.kind.char(), has_next: false };
        transaction::record(Step::EndCounted { lane: attempt.lane(), end });
        return Ok(());
    }
    Err(find::in_use(job_id))
}
