//! Enqueues jobs: makes attempts, writes their rows, and records what the commit will tell the frontier.
//!
//! Invariant: a queue that is being dropped gets no job (`catalog::drops`).

use std::rc::Rc;

use pg_queue_core::after::Upon;
use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::catalog::noted::Noted;
use crate::catalog::queue::Queue;
use crate::catalog::{drops, ids};
use crate::error::{Error, Result};
use crate::job::options::{After, Options, OwnFlow};
use crate::job::{after, flow, limits, start_by, unique};
use crate::log::attempt::{self, New};
use crate::log::edge::{self, Edge};
use crate::log::segment::{self, Target};
use crate::pg::memory;
use crate::transaction::{self, QueueStep};

/// Who adds jobs to a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A producer. A queue that is full or is being dropped refuses it.
    Producer,
    /// A topic. The queue does not refuse its publisher: `max_waiting` was checked before, or does not count.
    Topic,
    /// A producer that adds members to a flow of this transaction. It may do so because it has made the flow.
    Flow,
    /// Another server, which has committed the job already. So `max_waiting` does not count.
    Bridge,
}

/// The jobs that a call has made.
pub struct Made {
    /// Their ids, in the order of the call.
    pub ids: Vec<i64>,
    /// True if any job is new. The other jobs existed, under their keys.
    pub has_new: bool,
}

/// Enqueues jobs, with or without keys. Every job except plain copies of events is enqueued here.
///
/// Errors: 53400 when the queue has no room or too many keys are held, 55006 when the queue is being dropped, 23505 on
/// 'error'; those of `flow::join` and `after::unmet`.
pub fn produce(queue: &Queue, jobs: &[(Datum, Options)], now: i64, by: By) -> Result<Made> {
    let mut joined = None;
    for flow in jobs.iter().filter_map(|(_, options)| options.flow).filter(|_| by != By::Flow) {
        if joined.replace(flow) != Some(flow) {
            flow::join(flow)?;
        }
    }
    if jobs.iter().all(|(_, options)| options.unique.is_none()) {
        return Ok(Made { ids: insert(queue, jobs, now, by)?, has_new: !jobs.is_empty() });
    }
    if let Some(job_id) = unique::is_there(queue, jobs)? {
        return Ok(Made { ids: vec![job_id], has_new: false });
    }
    let plan = unique::plan(queue, jobs, now)?;
    let new = insert(queue, &plan.new, now, by)?;
    Ok(Made { has_new: !new.is_empty(), ids: plan.finish(new)? })
}

/// Returns when a job is due, if that is late enough for a segment of old. Otherwise `None`.
pub fn far(options: &Options) -> Option<i64> {
    options.run_at.filter(|&at| segment::is_far(at))
}

/// Returns the first attempt of a job.
pub fn first_attempt(queue: &Queue, target: &Target, count: i64, payload: Datum, options: &Options, now: i64) -> New {
    let id = id::attempt(ids::node(), count, target.home.segment);
    New {
        // With this mark the attempt is its job's first, although the two ids have nothing in common.
        asked: options.job_id.map(|_| id & !id::JOB_NIBBLE),
        lane: options.lane.unwrap_or_else(|| queue.entry()),
        priority: options.priority,
        attempt: 1,
        max_attempts: options.max_attempts,
        run_at: options.run_at,
        payload: Some(payload),
        lease: options.lease,
        headers: options.headers,
        group_hash: options.group_key.map(attempt::group_hash),
        group_key: options.group_key,
        unique_key: options.unique.map(|unique| unique.key()),
        version: options.unique.and_then(|unique| unique.version()),
        flow: options.flow,
        task: options.task,
        after: options.after.as_ref().map(|after| after.named),
        upon: match (options.own_flow, &options.after) {
            (Some(own), _) => Some(own.upon.char()),
            (None, after) => after.as_ref().map(|after| after.upon.char()),
        },
        run_as: options.run_as.map(|role| role.name),
        run_as_id: options.run_as.map(|role| role.id),
        own_flow: options.own_flow.and_then(|own| own.datum(&Noted::caller(now))),
        start_by: start_by::of_new(queue, options.start_by(), options.run_at, now),
        timing: options.timing.as_ref().map(|timing| timing.stored),
        ..New::blank(id, job_id(options, count), now)
    }
}

/// Returns the id of a job whose first attempt has this count.
fn job_id(options: &Options, count: i64) -> i64 {
    options.job_id.unwrap_or_else(|| id::job(ids::node(), count))
}

/// Returns a fresh count for the first attempt of each job. A job with an id of another server gets another count than
/// that in its id, because equal counts mean that an attempt is found by its job's id alone.
fn fresh_counts<'a>(jobs: impl ExactSizeIterator<Item = &'a Options>) -> Result<Vec<i64>> {
    let mut counts = memory::list(jobs.len());
    ids::take(jobs.len(), |count| counts.push(count))?;
    for (count, options) in counts.iter_mut().zip(jobs) {
        while options.job_id.is_some_and(|job_id| id::count(job_id) == *count) {
            ids::take(1, |other| *count = other)?;
        }
    }
    Ok(counts)
}

/// Announces new jobs of the queue by NOTIFY, if the queue asks for that.
pub fn announce(queue: &Queue) {
    if queue.notify {
        transaction::record(QueueStep::NotifyDue { lane: queue.lane });
    }
}

/// Checks that the queue has room for `more` waiting jobs.
///
/// Errors: 53400 the queue is full.
fn check_room(queue: &Queue, more: usize, by: By) -> Result<()> {
    match queue.max_waiting {
        Some(most) if !matches!(by, By::Topic | By::Bridge) => limits::has_room(queue, most, more),
        _ => Ok(()),
    }
}

/// Inserts one job without predecessors, without the lists of `insert`. Returns its id.
fn insert_plain(queue: &Queue, payload: Datum, options: &Options, now: i64, by: By) -> Result<i64> {
    check_room(queue, 1, by)?;
    let mut count = 0;
    ids::take(1, |taken| count = taken)?;
    if options.job_id.is_some_and(|job_id| id::count(job_id) == count) {
        ids::take(1, |taken| count = taken)?;
    }
    let target = Target::open(far(options));
    let new = first_attempt(queue, &target, count, payload, options, now);
    attempt::insert(&target, &[new])?;
    announce(queue);
    Ok(new.job_id)
}

/// Inserts an attempt for each payload with its options. Returns the jobs' ids in order.
///
/// Errors: those of `produce`, without keys.
fn insert(queue: &Queue, jobs: &[(Datum, Options)], now: i64, by: By) -> Result<Vec<i64>> {
    if let [(payload, options)] = jobs
        && by != By::Topic
        && options.after.is_none()
        && options.own_flow.is_none()
    {
        return Ok(vec![insert_plain(queue, *payload, options, now, by)?]);
    }
    /// The rows of at most this many jobs are made at a time, because a caller decides how many jobs there are.
    const MAX_ROWS: usize = 10_000;
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let held = Held::of(queue, jobs)?;
    // Held jobs do not count, and a release is never refused.
    if held.count < jobs.len() {
        check_room(queue, jobs.len() - held.count, by)?;
    }
    let mut counts = fresh_counts(jobs.iter().map(|(_, options)| options))?;
    let far = |job: &(Datum, Options)| far(&job.1);
    for wants_far in [false, true] {
        let chosen = memory::collect((0..jobs.len()).filter(|&n| far(&jobs[n]).is_some() == wants_far));
        let Some(&first) = chosen.first() else { continue };
        let target = Target::open(far(&jobs[first]));
        for some in chosen.chunks(MAX_ROWS) {
            let mut edges = Vec::new();
            let mut attempts: Vec<New> = memory::list(some.len());
            for &n in some {
                let (payload, options) = &jobs[n];
                let new = first_attempt(queue, &target, counts[n], *payload, options, now);
                attempts.push(held.hold(n, new, options, &mut edges));
            }
            match by {
                By::Producer | By::Flow | By::Bridge => attempt::insert(&target, &attempts)?,
                By::Topic => {
                    // The lane of held jobs may differ from the lane that was checked.
                    attempts.iter().for_each(|new| _ = drops::admits(new.lane));
                    attempt::insert_admitted(&target, &attempts);
                }
            }
            let job_of = |id: i64| attempts.iter().find(|new| new.id == id).map_or(0, |new| new.job_id);
            after::insert_edges(&target, &edges, job_of, held.mark());
        }
    }
    if held.count < jobs.len() {
        announce(queue);
    }
    counts.iter_mut().zip(jobs).for_each(|(count, (_, options))| *count = job_id(options, *count));
    Ok(counts)
}

/// Which of the jobs of a call are held.
struct Held {
    /// The lane in which they are; 0: none is.
    lane: i32,
    /// The predecessors and the flow of each job. Empty: no job waits.
    waits: Vec<(Option<Rc<After>>, Option<OwnFlow>)>,
    /// How many jobs are held.
    count: usize,
}

impl Held {
    fn of(queue: &Queue, jobs: &[(Datum, Options)]) -> Result<Self> {
        if jobs.iter().all(|(_, options)| options.after.is_none() && options.own_flow.is_none()) {
            return Ok(Self { lane: 0, waits: Vec::new(), count: 0 });
        }
        let lane = queue.held.ok_or_else(|| Error::internal("a queue has no lane for held jobs"))?;
        let mut waits: Vec<(Option<Rc<After>>, Option<OwnFlow>)> = memory::list(jobs.len());
        // Jobs of one call mostly have the same predecessors.
        let mut last: Option<&Rc<After>> = None;
        let mut unmet = None;
        for (_, options) in jobs {
            if let Some(after) = &options.after
                && !last.is_some_and(|last| Rc::ptr_eq(last, after))
            {
                (last, unmet) = (Some(after), after::unmet(after)?);
            }
            waits.push((options.after.as_ref().and_then(|_| unmet.clone()), options.own_flow));
        }
        let count = waits.iter().filter(|(after, own)| after.is_some() || own.is_some()).count();
        Ok(Self { lane, waits, count })
    }

    /// Returns the mark of the first announcement of predecessors, if all predecessors lived and no job of the call is
    /// a flow.
    fn mark(&self) -> Option<u64> {
        let mut first = u64::MAX;
        for (after, own) in &self.waits {
            if own.is_some() {
                return None;
            }
            if let Some(after) = after {
                first = first.min(after.mark?);
            }
        }
        Some(first)
    }

    /// Puts the attempt of the job at position `n` into the lane of held jobs, if the job is held, and adds its edges.
    fn hold(&self, n: usize, new: New, options: &Options, edges: &mut Vec<Edge>) -> New {
        let (after, own) = match self.waits.get(n) {
            None | Some((None, None)) => return new,
            Some((after, own)) => (after.as_ref(), *own),
        };
        let upon = own.map(|own| own.upon).or(after.map(|after| after.upon)).unwrap_or_default();
        let lane = if own.is_some_and(|own| !own.runs) { 0 } else { new.lane };
        let is_fail_fast = own.is_some_and(|own| own.is_fail_fast);
        let edge = |job_id: i64| {
            let is_own = job_id == new.job_id;
            Edge { id: new.id, job_id, upon, lane, is_met: false, is_own, is_fail_fast, until: None }
        };
        memory::grow(edges, 3 + after.map_or(0, |after| after.jobs.len()));
        edges.extend(own.map(|_| edge(new.job_id)));
        edges.extend(own.filter(|own| own.is_open).map(|_| edge(edge::SEAL)));
        edges.extend(after.into_iter().flat_map(|after| &after.jobs).map(|&job_id| edge(job_id)));
        // Some predecessor has completed, so the duty releases the flow.
        let is_met = after.is_none() && upon == Upon::Any;
        let met = options.after.iter().filter(|_| is_met).filter_map(|after| after.jobs.first());
        edges.extend(met.map(|&job_id| Edge { is_met: true, ..edge(job_id) }));
        // A flow that ends by itself is never released.
        let start_by =
            if own.is_some_and(|own| !own.runs) { new.start_by } else { start_by::of_held(options.start_by()) };
        New { lane: self.lane, start_by, ..new }
    }
}
