//! Enqueueing: attempts, their rows and what the commit will tell the frontier.
//!
//! Invariant: a queue that is being dropped gets no job (`catalog::drops`).

use std::rc::Rc;

use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::catalog::queue::Queue;
use crate::catalog::{Catalog, ids};
use crate::error::Result;
use crate::job::options::Options;
use crate::job::{limits, unique};
use crate::log::attempt::{self, New};
use crate::log::segment::{self, Target};
use crate::transaction::{self, Step};

/// Enqueues jobs, with or without keys. Returns the jobs' ids in order.
pub fn produce(catalog: &Rc<Catalog>, queue: &Queue, jobs: &[(Datum, Options)], now: i64) -> Result<Vec<i64>> {
    let insert = |jobs: &[(Datum, Options)]| insert(catalog, queue, jobs, now);
    if jobs.iter().all(|(_, options)| options.unique.is_none()) {
        return insert(jobs);
    }
    unique::produce(catalog, queue, jobs, now, insert)
}

/// Returns when a job is due, if that is so much later that it goes to old; else `None`.
fn far(catalog: &Catalog, options: &Options) -> Option<i64> {
    options.run_at.filter(|&at| segment::is_far(catalog, at))
}

/// The first attempt of a job.
fn first_attempt(queue: &Queue, target: &Target, count: i64, payload: Datum, options: &Options, now: i64) -> New {
    let node = ids::node();
    New {
        id: id::attempt(node, count, target.home.segment),
        job_id: id::job(node, count),
        enqueued_at: now,
        lane: options.lane.unwrap_or_else(|| queue.entry()),
        priority: options.priority,
        attempt: 1,
        max_attempts: options.max_attempts,
        run_at: options.run_at,
        payload_of: None,
        payload: Some(payload),
        lease: options.lease,
        headers: options.headers,
        group_hash: options.group_key.map_or(0, attempt::group_hash),
        group_key: options.group_key,
        is_parked: queue.limits.is_some_and(|limits| limits.is_strict),
        unique_key: options.unique.map(|unique| unique.key()),
        version: options.unique.and_then(|unique| unique.version()),
        last_error: None,
        progress: None,
        asked: None,
    }
}

/// Tells the listeners of the queue's new jobs.
fn announce(catalog: &Catalog, queue: &Queue) {
    if queue.notify {
        transaction::record(catalog.number, Step::Notify { lane: queue.lane });
    }
}

/// Inserts one job and returns its id: as `insert`, without its lists.
pub fn insert_one(catalog: &Catalog, queue: &Queue, payload: Datum, options: &Options, now: i64) -> Result<i64> {
    if let Some(most) = queue.max_waiting {
        limits::has_room(catalog, queue, most, 1)?;
    }
    let mut count = 0;
    ids::take(catalog, 1, |taken| count = taken)?;
    let target = Target::open(catalog, far(catalog, options));
    let new = first_attempt(queue, &target, count, payload, options, now);
    attempt::insert(catalog, &target, &[new])?;
    announce(catalog, queue);
    Ok(new.job_id)
}

/// Inserts an attempt for each payload with its options. Returns the jobs' ids in order.
pub fn insert(catalog: &Catalog, queue: &Queue, jobs: &[(Datum, Options)], now: i64) -> Result<Vec<i64>> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(most) = queue.max_waiting {
        limits::has_room(catalog, queue, most, jobs.len())?;
    }
    let mut counts = Vec::with_capacity(jobs.len());
    ids::take(catalog, jobs.len(), |count| counts.push(count))?;
    let far = |job: &(Datum, Options)| far(catalog, &job.1);
    for wants_far in [false, true] {
        let mut chosen = jobs.iter().zip(&counts).filter(|(job, _)| far(job).is_some() == wants_far).peekable();
        let Some((first, _)) = chosen.peek() else { continue };
        let target = Target::open(catalog, far(first));
        let attempts: Vec<New> = chosen
            .map(|((payload, options), &count)| first_attempt(queue, &target, count, *payload, options, now))
            .collect();
        attempt::insert(catalog, &target, &attempts)?;
    }
    announce(catalog, queue);
    let node = ids::node();
    Ok(counts.into_iter().map(|count| id::job(node, count)).collect())
}
