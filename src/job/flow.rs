//! Flows are jobs that wait for their members. This file decides which roles may add members, and until when.
//!
//! A flow is a job with an edge to itself. It lies in its queue's held lane until its members have ended as its `upon`
//! says. The duty `release` checks them. Not responsible for what the rows say of members (`log::member`).
//!
//! Invariant: a transaction that adds a member holds the flow's token to its end. The duty takes the token for itself
//! before it checks whether members hold the flow up. So a flow never ends before a member that was being added.

use pg_queue_core::after::Upon;
use pgrx::pg_sys;

use crate::catalog::permission::{self, Privilege};
use crate::catalog::{self, queue};
use crate::error::{self, Error, Result};
use crate::job::find::{self, Found, Job};
use crate::job::options::OwnFlow;
use crate::job::{after, hold};
use crate::log::attempt::Attempt;
use crate::log::edge::{Edge, Edges};
use crate::log::segment::Home;
use crate::pg::scan::Probe;
use crate::pg::{lock, role};
use crate::transaction::{self, FlowStep};

/// Returns whether an attempt's job is a flow.
pub fn is_flow(attempt: &Attempt) -> bool {
    attempt.own_flow().is_some()
}

fn token(flow: i64) -> u64 {
    flow.cast_unsigned() >> 4
}

/// Takes the token of a flow for itself, so that no session adds members until this transaction ends. Returns false if
/// an open transaction is adding a member.
pub fn try_close(flow: i64) -> bool {
    lock::try_lock_numbered(catalog::pinned().successor, token(flow), pg_sys::ExclusiveLock)
}

/// Shares the token of a flow until this transaction ends, so that the duty neither ends nor releases the flow. May
/// wait for the duty's transaction.
pub fn hold_open(flow: i64) {
    lock::lock_numbered(catalog::pinned().successor, token(flow), pg_sys::ShareLock);
}

/// Checks that the current user may add members to a flow. Members can hold the flow up, and can end it and each other.
/// So the flow takes members from roles that may consume its queue, and from the role that has made it, as long as that
/// role may produce there. A right to produce into its queue is not enough.
///
/// Errors: 42501.
pub fn check_say(flow: i64, found: &Found) -> Result<()> {
    let lane = found.lane();
    let rights = permission::rights();
    if rights.on_lane(lane, Privilege::Consume) {
        return Ok(());
    }
    if !rights.on_lane(lane, Privilege::Produce) {
        return Err(permission::denied_lane(lane, Privilege::Produce)?);
    }
    let author = found.own_flow().and_then(OwnFlow::author).and_then(|author| author.role());
    if author.is_some_and(role::user_has_rights_of) {
        return Ok(());
    }
    let name = queue::by_lane(lane)?.map(|queue| queue.name.clone()).unwrap_or_default();
    Err(Error::new(error::DENIED, format!("permission denied for the flow of job {flow}"))
        .detail("It takes members from the role that made it, and from roles that may consume its queue.")
        .hint(format!("A role that manages the queue can run {}.", permission::grant_of(&name, Privilege::Consume))))
}

/// Checks that a job takes members: it is a held flow, or a running job, which may wait for members later
/// (`queue.suspend`). Until this transaction ends, the end of its members does not end the job.
///
/// Errors: 22023 not the id of a job, P0002 no such job, 42501 the user may not add members, 55000 the job has ended,
/// is to be cancelled, or waits for its run.
pub fn join(flow: i64) -> Result<()> {
    hold_open(flow);
    let found = find::find_settled(flow)?;
    check_say(flow, &found)?;
    let refused = |detail: &str| {
        Err(Error::new(error::WRONG_STATE, format!("job {flow} takes no members"))
            .detail(detail)
            .hint("Members are added to a flow that waits for them, see queue.enqueue_flow, or to a job that runs."))
    };
    let Found::Here(job) = &found else { return refused("It has ended.") };
    if job.outcome.is_some() {
        return refused("It has ended.");
    }
    if after::is_held(job.attempt.lane())? {
        let edges = Edges::open(job.attempt.home.segment);
        let own = edges.as_ref().and_then(|edges| own_edge(&edges.of(job.attempt.id())));
        return match (own, edges.and_then(|edges| edges.ending_of(job.attempt.id()))) {
            (None, _) => refused("It waits for other jobs, and has no flow."),
            (Some(_), Some(_)) => refused("It is being cancelled."),
            // The duty watches the new member, which may be the first one to complete.
            (Some(own), None) if own.upon == Upon::Any => {
                transaction::record(FlowStep::Awaited { job_id: flow, mark: None });
                Ok(())
            }
            (Some(_), None) => Ok(()),
        };
    }
    if job.is_claimed { Ok(()) } else { refused("It waits to be run: its members have ended, or it never had a flow.") }
}

/// Checks that a held attempt may be replaced by another one. If its flow is to end, the note that says so would be
/// left behind.
///
/// Errors: 55000 the flow is being cancelled.
pub fn check_goes_on(attempt: &Attempt) -> Result<()> {
    let is_ending = is_flow(attempt)
        && after::is_held(attempt.lane())?
        && Edges::open(attempt.home.segment).is_some_and(|edges| edges.ending_of(attempt.id()).is_some());
    if is_ending {
        return Err(Error::new(error::WRONG_STATE, format!("job {} is being cancelled", attempt.job_id()))
            .detail("It is a flow, which ends when the last of its members has.")
            .hint("Wait for its end, with queue.await; then queue.retry runs it once more."));
    }
    Ok(())
}

/// Returns the edge of a flow to itself.
pub fn own_edge(edges: &[Edge]) -> Option<Edge> {
    edges.iter().find(|edge| edge.is_own).copied()
}

/// Writes a note about a held flow by `insert`. The commit hands the flow over to the duty.
///
/// Errors: 55006 if the flow keeps moving, or is gone.
pub fn note_about(job: &Job, insert: impl Fn(Home) -> bool) -> Result<()> {
    let job_id = job.attempt.job_id();
    // The duty does not see the note before the commit.
    hold_open(job_id);
    match hold::note_held(job.attempt.id(), job.attempt.home, insert) {
        hold::Noted::Here(Probe::Absent) => {
            transaction::record(FlowStep::Awaited { job_id, mark: None });
            Ok(())
        }
        hold::Noted::Here(_) | hold::Noted::Moving | hold::Noted::Gone => Err(find::in_use(job_id)),
    }
}
