//! Throttles a queue or a group: no session starts a job of it for some time.
//!
//! Not responsible for keeping jobs from starting (`pg_queue_core::frontier`).
//!
//! Invariant: a throttle counts from the call on, for every session, and no rollback ends it: what a worker has learnt
//! is a fact.

use crate::catalog::queue::Queue;
use crate::error::{self, Error, Result};
use crate::job::limits::LimitCheck;
use crate::pg::datum::Interval;
use crate::pg::time;
use crate::shmem;
use crate::shmem::here;

/// The longest throttle: a wrong one should end by itself.
pub const MAX_PERIOD_US: i64 = 86_400_000_000;

/// Keeps jobs of a queue, or of the group with this hash, from starting for this time. Of two throttles the later one
/// counts; zero ends it. Returns until when, as a `timestamptz`. `None`: jobs may start now.
///
/// Errors: 22023 unless the period is between 0 and 1 day, 53400 memory has no room, 55000 a group in a queue whose
/// groups take no turns.
pub fn throttle(queue: &Queue, period: Interval, group: Option<i64>) -> Result<Option<i64>> {
    let period_us = Interval::us(period);
    if !(0..=MAX_PERIOD_US).contains(&period_us) {
        return Err(Error::invalid("period must be between 0 and 1 day")
            .detail(format!("It is {}.", period.text()))
            .hint("queue.pause stops a queue for longer."));
    }
    if group.is_some() && !queue.has_groups() {
        return Err(Error::new(
            error::WRONG_STATE,
            format!("queue \"{}\" has neither limits of groups nor fair shares", queue.name),
        )
        .hint("Set max_running_per_group, rate_limit_per_group or fair_share, or leave group_key out."));
    }
    let check = if group.is_some() { LimitCheck::of(queue)? } else { None };
    let (number, now, wall) = (here::number(), time::monotonic_us(), time::now_us());
    let until = now + period_us;
    let claimer = check.as_ref().map(LimitCheck::claimer);
    let mut last = 0;
    for &lane in queue.lanes() {
        let mut worker = None;
        let done = shmem::with_instance(|frontier, instance| {
            let done = match (&claimer, group) {
                (Some(claimer), Some(group)) => frontier.throttle_group(number, lane, claimer, group, until),
                _ => frontier.throttle(number, lane, until, now),
            };
            worker = frontier.next_opening().and_then(|at| instance.worker.wake_by(at));
            done
        });
        if let Some(latch) = worker {
            shmem::wake_latch(latch);
        }
        let (until, woken) = done.flatten().ok_or_else(|| no_room(&queue.name))?;
        woken.into_iter().for_each(shmem::wake);
        last = last.max(until);
    }
    Ok((last > 0).then(|| wall + (last - now)))
}

/// Returns until when a lane is throttled, as a `timestamptz`. `None`: it is not.
pub fn until(lane: i32) -> Option<i64> {
    let until = shmem::with(|shared| shared.frontier.backlog.lanes.throttled_until(here::number(), lane))?;
    let left = until - time::monotonic_us();
    (left > 0).then(|| time::now_us() + left)
}

fn no_room(queue: &str) -> Error {
    Error::new(error::LIMIT, format!("shared memory has no room to throttle queue \"{queue}\""))
        .detail("A throttled queue takes a lane, a throttled group a place among the groups in use.")
        .hint("Raise pg_queue.max_lanes or pg_queue.max_running, and restart the server.")
}
