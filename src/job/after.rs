//! Jobs that wait for others: the fates of their predecessors, and the lane into which a successor is enqueued.
//!
//! Not responsible for what follows from the fates (`pg_queue_core::after`), nor for releasing and skipping
//! (`duty::release`). The protocol is docs/internals/after.md.
//!
//! Invariant: a transaction that makes edges known to others hands over the predecessors when it commits
//! (`FlowStep::Awaited`). It need not do so for predecessors that were announced, then found alive, and whose end
//! memory has not been told since. So reading a predecessor decides only a fact that cannot change: that the job has
//! ended.

use std::rc::Rc;

use pg_queue_core::after::{Fate, Time, Upon, Verdict, verdict};

use crate::catalog::ids;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue::{self, Queue};
use crate::error::{self, Error, Result};
use crate::job::find::{self, Found};
use crate::job::options::{After, OwnFlow};
use crate::job::start_by;
use crate::log::attempt::{Attempt, New};
use crate::log::claim;
use crate::log::edge::{self, Edge, Edges};
use crate::log::outcome::Kind;
use crate::log::reader::Reader;
use crate::log::segment::Target;
use crate::pg::datum;
use crate::pg::fault::fault;
use crate::shmem;
use crate::transaction::{self, FlowStep, SegmentStep};

/// A job that may have successors.
pub struct Predecessor {
    /// Whether it lives, or how it has ended.
    pub fate: Fate,
    /// Its attempt, if the job itself is held.
    pub held: Option<Attempt>,
    /// The flow that it is a member of.
    pub flow: Option<i64>,
}

/// Returns the fate of a job that may have successors, as committed transactions and this transaction have left it.
pub fn fate(job_id: i64) -> Result<Predecessor> {
    let found = match find::find_settled(job_id) {
        Ok(found) => found,
        Err(error) if error.code == error::NO_DATA => {
            return Ok(Predecessor { fate: Fate::Gone, held: None, flow: None });
        }
        Err(error) => return Err(error),
    };
    let fate = fate_of(&found)?;
    Ok(match found {
        Found::Here(job) => {
            let flow = job.attempt.flow();
            let is_held = fate == Fate::Living && !job.is_claimed && is_held(job.attempt.lane())?;
            Predecessor { fate, held: is_held.then_some(job.attempt), flow }
        }
        Found::Past(past) => Predecessor { fate, held: None, flow: past.flow() },
    })
}

/// Returns whether attempts of a lane are held.
pub fn is_held(lane: i32) -> Result<bool> {
    Ok(queue::by_lane(lane)?.is_some_and(|queue| queue.is_held(lane)))
}

fn fate_of(found: &Found) -> Result<Fate> {
    let fate = match found.outcome().map(|outcome| (outcome.kind, outcome.is_death())) {
        Some((Kind::Completed, _)) => return Ok(Fate::Completed),
        Some((_, true)) => Fate::Dead,
        Some(_) => return Ok(Fate::Cancelled),
        None => Fate::Living,
    };
    Ok(match queue::by_lane(found.lane())? {
        Some(_) => fate,
        None if fate == Fate::Dead => Fate::Buried,
        None => Fate::Gone,
    })
}

/// Returns the predecessors for which a job still waits. `None`: it waits for none.
///
/// A condition of `upon` that is met stays met, whatever happens to the predecessor later. So a predecessor may be gone
/// before this transaction commits.
///
/// Errors: P0002 when there is no such job, 42501 when the user may neither enqueue into its queue nor observe it.
pub fn unmet(after: &After) -> Result<Option<Rc<After>>> {
    let rights = permission::rights();
    let mark = announce(&after.jobs);
    fault!("after.announced");
    let (mut fates, mut unmet) = (Vec::new(), Vec::new());
    for &job_id in &after.jobs {
        let unknown = || {
            Error::new(error::NO_DATA, format!("job {job_id} does not exist"))
                .detail(
                    "A job cannot be enqueued after it: it was rolled back, or it has ended and its retention is over.",
                )
                .hint("Enqueue both jobs in one transaction.")
        };
        let (lane, fate) = match waiting_lane(job_id)? {
            Some(lane) => (lane, Fate::Living),
            None => {
                let found = find::find_settled(job_id)
                    .map_err(|error| if error.code == error::NO_DATA { unknown() } else { error })?;
                (found.lane(), fate_of(&found)?)
            }
        };
        if !rights.on_lane(lane, Privilege::Produce) && !rights.on_lane(lane, Privilege::Observe) {
            return Err(permission::denied_lane(lane, Privilege::Observe)?);
        }
        if queue::by_lane(lane)?.is_none() {
            return Err(unknown());
        }
        fates.push(fate);
        if !after.upon.is_met_by(fate) {
            unmet.push(job_id);
        }
    }
    fault!("after.looked");
    let waits = verdict(after.upon, &fates, Time::Ahead) != Verdict::Release;
    let mark = mark.filter(|_| fates.iter().all(|fate| *fate == Fate::Living));
    Ok(waits.then(|| Rc::new(After { upon: after.upon, jobs: unmet, named: after.named, mark })))
}

/// Tells memory that an open transaction is about to read these predecessors. Returns the mark since which memory notes
/// their ends for the commit.
fn announce(jobs: &[i64]) -> Option<u64> {
    let (mark, worker) = shmem::with_awaited(|awaited, instance| {
        let (mark, is_ordered) = awaited.announce(jobs);
        (mark, is_ordered.then_some(instance.worker.latch))
    })?;
    worker.into_iter().for_each(shmem::wake_latch);
    Some(mark)
}

/// Returns the lane of a job that waits for its first claim, as most predecessors do. `None`: the logs must decide.
fn waiting_lane(job_id: i64) -> Result<Option<i32>> {
    ids::job_id(job_id)?;
    let Some(attempt) = Reader::new().first(job_id) else { return Ok(None) };
    let waits = claim::find_row(attempt.home.segment, attempt.id()).is_none() && attempt.home.is_valid();
    Ok(waits.then(|| attempt.lane()))
}

/// Inserts the edges of attempts that this transaction has just inserted into a segment. The commit hands over the
/// predecessors. `job_of` returns the job of an attempt. `mark`: all predecessors were announced then, and lived.
pub fn insert_edges(target: &Target, edges: &[Edge], job_of: impl Fn(i64) -> i64, mark: Option<u64>) {
    if edges.is_empty() {
        return;
    }
    let segment = target.home.segment;
    edge::insert(segment, edges);
    let notes = edges.len() as i64;
    transaction::record(SegmentStep::Counted { segment, attempts: notes, ended: notes });
    // Consecutive edges mostly have the same predecessor.
    let mut last = 0;
    for edge in edges {
        if edge.job_id != last && edge.job_id != edge::SEAL {
            transaction::record(FlowStep::Awaited { job_id: edge.job_id, mark });
            last = edge.job_id;
        }
        // The job's own time may come before the commit.
        if edge.heeds_time() {
            transaction::record(FlowStep::Awaited { job_id: job_of(edge.id), mark: None });
        }
    }
}

/// Returns the edges for an attempt whose job waits once more, for members of its flow or for other predecessors.
/// `lane`: where the released job goes.
pub fn edges_again(ended: &New, id: i64, lane: i32) -> Result<Vec<Edge>> {
    let upon = ended.upon.map_or(Upon::Completed, Upon::of);
    let own = ended.own_flow.map(|stored| OwnFlow::of(stored, upon));
    let is_fail_fast = own.is_some_and(|own| own.is_fail_fast);
    let lane = if own.is_some_and(|own| !own.runs) { 0 } else { lane };
    let edge = |job_id: i64, is_met: bool| {
        let is_own = job_id == ended.job_id;
        Edge { id, job_id, upon, lane, is_met, is_own, is_fail_fast, until: None }
    };
    let mut edges: Vec<Edge> = own.map(|_| edge(ended.job_id, false)).into_iter().collect();
    edges.extend(own.filter(|own| own.is_open).map(|_| edge(edge::SEAL, false)));
    for job_id in ended.after.map(datum::i64_array).unwrap_or_default() {
        match (upon.is_met_by(fate(job_id)?.fate), upon) {
            (false, _) => edges.push(edge(job_id, false)),
            (true, Upon::Any) if own.is_none() => return Ok(Vec::new()),
            (true, Upon::Any) => edges.push(edge(job_id, true)),
            (true, _) => {}
        }
    }
    Ok(edges)
}

/// Returns the edges of a held attempt that this transaction has taken, for the attempt that takes its place. There are
/// none if it is not held.
///
/// Errors: 55006 when an open transaction seals or cancels its flow, which would be left behind.
pub fn edges_of(attempt: &Attempt) -> Result<Vec<Edge>> {
    let edges = if is_held(attempt.lane())? { Edges::open(attempt.home.segment) } else { None };
    let Some(edges) = edges else { return Ok(Vec::new()) };
    if edges.is_being_noted(attempt.id()) {
        return Err(find::in_use(attempt.job_id()));
    }
    Ok(edges.of(attempt.id()))
}

/// Returns the lane into which a held attempt is released: where its job was to begin, or the queue's first stage if
/// that stage was removed.
pub fn lane_of_release(queue: &Queue, edges: &[Edge]) -> i32 {
    let wanted = edges.first().map(|edge| edge.lane);
    wanted.filter(|&lane| queue.has_lane(lane) && !queue.is_held(lane)).unwrap_or_else(|| queue.entry())
}

/// Returns the next attempt of a held job that is released into this lane of its queue.
pub fn released(queue: &Queue, attempt: &Attempt, id: i64, lane: i32, run_at: Option<i64>, now: i64) -> New {
    let next = New { lane, run_at, ..attempt.next(id) };
    New { start_by: start_by::of_released(queue, &next, now), ..next }
}
