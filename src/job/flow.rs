//! Flows: jobs that wait for their members. Which roles may add members, and until when.
//!
//! A flow is a job with an edge to itself. It lies in its queue's held lane until its members have ended as its `upon`
//! says; the duty `release` looks at them. Not here: what the rows say of members (`log::member`).
//!
//! Invariant: a transaction that adds a member holds the flow's token to its end. The duty takes the token for itself
//! before it looks whether members hold the flow up: so a flow ends with all its members or not yet.

use pgrx::pg_sys;

use crate::catalog::permission::{self, Privilege};
use crate::catalog::{Catalog, ids, queue};
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

/// Whether an attempt's job has a flow of its own.
pub fn is_flow(attempt: &Attempt) -> bool {
    attempt.own_flow().is_some()
}

fn token(flow: i64) -> u64 {
    flow.cast_unsigned() >> 4
}

/// Takes the token of a flow, so that nobody adds members until the transaction ends. False: a transaction that adds
/// one is open.
pub fn try_close(catalog: &Catalog, flow: i64) -> bool {
    lock::try_lock_numbered(catalog.successor, token(flow), pg_sys::ExclusiveLock)
}

/// Takes part in a flow, until the transaction ends: the duty does not end or release it meanwhile. It may wait for the
/// duty's transaction.
pub fn hold_open(catalog: &Catalog, flow: i64) {
    lock::lock_numbered(catalog.successor, token(flow), pg_sys::ShareLock);
}

/// Checks that the current user has a say in a flow: its members can hold it up, and can end it and each other. So it
/// takes them from roles that may consume its queue, and from the role that made it, as long as that may produce there.
/// To be a producer of its queue is not enough.
///
/// Errors: 42501.
pub fn check_say(catalog: &Catalog, flow: i64, found: &Found) -> Result<()> {
    let lane = found.lane();
    let rights = permission::rights(catalog);
    if rights.on_lane(lane, Privilege::Consume) {
        return Ok(());
    }
    if !rights.on_lane(lane, Privilege::Produce) {
        return Err(permission::denied_lane(catalog, lane, Privilege::Produce)?);
    }
    let author = found.own_flow().and_then(OwnFlow::author).and_then(|author| author.role(catalog));
    if author.is_some_and(role::user_has_rights_of) {
        return Ok(());
    }
    let name = queue::by_lane(catalog, lane)?.map(|queue| queue.name.clone()).unwrap_or_default();
    Err(Error::new(error::DENIED, format!("permission denied for the flow of job {flow}"))
        .detail("It takes members from the role that made it, and from roles that may consume its queue.")
        .hint(format!("A role that manages the queue can run {}.", permission::grant_of(&name, Privilege::Consume))))
}

/// Checks that a job takes members: a held flow, or a job that runs, which may wait for them later (`queue.suspend`).
/// Until the transaction ends, it does not end because its members have.
///
/// Errors: 22023 no job's id, P0002 no such job, 42501 the user has no say in it, 55000 it has ended, is to be
/// cancelled, or waits to be run.
pub fn join(catalog: &Catalog, flow: i64) -> Result<()> {
    ids::job_id(flow)?;
    hold_open(catalog, flow);
    let found = find::find_settled(catalog, flow)?;
    check_say(catalog, flow, &found)?;
    let refused = |detail: &str| {
        Err(Error::new(error::WRONG_STATE, format!("job {flow} takes no members"))
            .detail(detail)
            .hint("Members are added to a flow that waits for them, see queue.enqueue_flow, or to a job that runs."))
    };
    let Found::Here(job) = &found else { return refused("It has ended.") };
    if job.outcome.is_some() {
        return refused("It has ended.");
    }
    if after::is_held(catalog, job.attempt.lane())? {
        let edges = Edges::open(catalog, job.attempt.home.segment);
        let own = edges.as_ref().and_then(|edges| own_edge(&edges.of(job.attempt.id())));
        return match (own, edges.and_then(|edges| edges.ending_of(job.attempt.id()))) {
            (None, _) => refused("It waits for other jobs, and has no flow."),
            (Some(_), Some(_)) => refused("It is being cancelled."),
            (Some(_), None) => Ok(()),
        };
    }
    if job.is_claimed { Ok(()) } else { refused("It waits to be run: its members have ended, or it never had a flow.") }
}

/// Checks that a held attempt may be replaced by another one: of a flow that is to end, the note that says so would be
/// left behind.
///
/// Errors: 55000 the flow is being cancelled.
pub fn check_goes_on(catalog: &Catalog, attempt: &Attempt) -> Result<()> {
    let is_ending = is_flow(attempt)
        && after::is_held(catalog, attempt.lane())?
        && Edges::open(catalog, attempt.home.segment).is_some_and(|edges| edges.ending_of(attempt.id()).is_some());
    if is_ending {
        return Err(Error::new(error::WRONG_STATE, format!("job {} is being cancelled", attempt.job_id()))
            .detail("It is a flow, which ends when the last of its members has.")
            .hint("Wait for its end, with queue.await; then queue.retry runs it once more."));
    }
    Ok(())
}

/// The edge of a flow to itself.
pub fn own_edge(edges: &[Edge]) -> Option<Edge> {
    edges.iter().find(|edge| edge.is_own).copied()
}

/// Has `insert` write a note about a held flow, and the commit hand the flow over.
///
/// Errors: 55006 if the flow keeps moving, or is not there any more.
pub fn note_about(catalog: &Catalog, job: &Job, insert: impl Fn(Home) -> bool) -> Result<()> {
    let job_id = job.attempt.job_id();
    // The duty does not see the note before the commit.
    hold_open(catalog, job_id);
    match hold::note_held(catalog, job.attempt.id(), job.attempt.home, insert) {
        hold::Noted::Here(Probe::Absent) => {
            transaction::record(catalog.number, FlowStep::Awaited { job_id, mark: None });
            Ok(())
        }
        hold::Noted::Here(_) | hold::Noted::Moving | hold::Noted::Gone => Err(find::in_use(job_id)),
    }
}
