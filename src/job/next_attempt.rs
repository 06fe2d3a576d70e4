//! Makes a job's next attempt: a retry, the next stage, another priority or time.
//!
//! Responsible for the row of the next attempt, and for replacing a waiting attempt. Not responsible for which verb
//! needs it.
//!
//! Invariant: a job has one living attempt, because the last one ends in the transaction that inserts the next one.

use pg_queue_core::frontier::Ready;
use pg_queue_core::id;

use crate::catalog::{ids, queue};
use crate::error::{self, Error, Result};
use crate::job::held::{Held, Refusal};
use crate::job::outcomes::end_unrun;
use crate::job::take::{self, TakeWaiting};
use crate::job::{after, find, flow, hold, start_by};
use crate::log::attempt::{self, Attempt};
use crate::log::edge;
use crate::log::outcome::{self, Kind};
use crate::log::reader::Reader;
use crate::log::segment::Target;
use crate::pg::{jsonb, time};

/// Returns the row of a held attempt, from which the next attempt is made. Refuses if the row was just dropped with its
/// queue.
pub fn row_of(reader: &mut Reader, held: &Held) -> std::result::Result<Attempt, Refusal> {
    let ready = Ready { id: held.id, ..held.entry.ready() };
    reader.fetch(&ready).ok_or_else(|| hold::vanished(held.id))
}

/// Makes the next attempt after `attempt`, with a fresh id, to run at `run_at`. Returns it with the segment to insert
/// it into.
pub fn make(attempt: &Attempt, run_at: Option<i64>) -> Result<(Target, attempt::New)> {
    let (target, id) = fresh(run_at)?;
    let mut next = attempt::New { run_at, ..attempt.next(id) };
    if attempt.shares_payload() {
        next.payload_of = None;
        next.payload = Reader::new().payload(attempt, |payload| payload.map(jsonb::copy));
    }
    Ok((target, next))
}

/// Inserts the attempt that follows a held one. Refuses, and the transaction does not hold that one any more, while its
/// queue is being dropped or its stage removed.
pub fn insert(held: &Held, target: &Target, next: attempt::New) -> std::result::Result<(), Refusal> {
    attempt::insert(target, &[next]).map_err(|error| {
        if error.code != error::IN_USE {
            return Refusal::Wrong(error);
        }
        hold::release_hold(held.id);
        Refusal::Busy(error)
    })
}

/// Returns a fresh id for an attempt that runs at `run_at`, and the segment to insert it into.
pub fn fresh(run_at: Option<i64>) -> Result<(Target, i64)> {
    let mut count = 0;
    ids::take(1, |fresh| count = fresh)?;
    let target = Target::open(run_at);
    let id = id::attempt(ids::node(), count, target.home.segment);
    Ok((target, id))
}

/// Replaces a job's waiting attempt by a copy that `change` has changed. A held attempt stays held, unless `released`
/// is true.
///
/// Errors: 55000 if the job has ended or is running, or would expire before its new time; 55006 if an open transaction
/// has taken it.
pub fn supersede(job_id: i64, released: bool, change: impl Fn(&mut attempt::New)) -> Result<()> {
    for _ in 0..100 {
        let job = find::find(job_id)?;
        if let Some(outcome) = &job.outcome {
            return Err(find::has_ended(job_id, outcome));
        }
        let Some(queue) = queue::by_lane(job.attempt.lane())? else {
            return Err(find::of_dropped(job_id));
        };
        let running = || {
            Error::new(error::WRONG_STATE, format!("job {job_id} is running"))
                .hint("Only a waiting job can be changed; wait for its end, or cancel it.")
        };
        if job.is_claimed {
            return Err(running());
        }
        let mut wanted = job.attempt.copy();
        change(&mut wanted);
        if wanted.run_at != job.attempt.run_at() {
            start_by::check_goes_on(job_id, wanted.start_by, wanted.run_at)?;
        }
        match take::take_waiting(&job.attempt)? {
            TakeWaiting::Taken => {}
            TakeWaiting::Running => return Err(running()),
            TakeWaiting::InUse => return Err(find::in_use(job_id)),
            TakeWaiting::Stale => continue,
        }
        let (target, next) = make(&job.attempt, wanted.run_at)?;
        let mut next = attempt::New { priority: wanted.priority, ..next };
        let mut edges = after::edges_of(&job.attempt)?;
        // This transaction has taken the attempt, so no other transaction writes about it.
        flow::check_goes_on(&job.attempt)?;
        if released && queue.is_held(next.lane) {
            next.lane = after::lane_of_release(&queue, &edges);
            next.start_by = start_by::of_released(&queue, &next, time::now_us());
            edges.clear();
        }
        let outcome = outcome::New { next_id: Some(next.id), ..outcome::New::of(job.attempt.id(), Kind::Superseded) };
        end_unrun(&job.attempt, outcome)?;
        attempt::insert(&target, &[next])?;
        after::insert_edges(&target, &edge::carried(&edges, next.id, next.run_at), |_| job_id, None);
        return Ok(());
    }
    Err(find::in_use(job_id))
}
