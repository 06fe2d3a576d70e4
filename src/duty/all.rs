//! All duties in the order of a round, and how long the worker may sleep until the next round.
//!
//! Not responsible for the round itself and the sleep (`worker`), nor for `queue.maintain()` (`api::maintain`), which
//! uses the same list. Each duty's own file says when the worker must wake for it.

use crate::duty::{
    self, Duty, Memory, RESTORE, count, dispatch, expire, expire_waiting, fire_schedules, forget_history, notify,
    open_gates, prune_statistics, release, restore, rotate_firings, rotate_keys, serve_cancels, serve_reruns,
    start_due, storage,
};
use crate::pg::time;
use crate::shmem;

/// All duties, in the order of a round.
pub const ALL: &[Duty] = &[
    restore::DUTY,
    duty::recover::DUTY,
    start_due::DUTY,
    expire_waiting::DUTY,
    fire_schedules::DUTY,
    expire::DUTY,
    serve_cancels::DUTY,
    serve_reruns::DUTY,
    release::DUTY,
    open_gates::DUTY,
    dispatch::DUTY,
    notify::DUTY,
    storage::DUTY,
    forget_history::DUTY,
    rotate_firings::DUTY,
    rotate_keys::DUTY,
    prune_statistics::DUTY,
    count::DUTY,
];

/// Returns the milliseconds until the next duty for which nothing wakes the worker. `None`: there is none.
///
/// Records in shared memory when the worker will wake. A session with something earlier then sets the worker's latch.
/// Takes the frontier's lock.
pub fn sleep_ms() -> Option<i64> {
    let (now, wall) = (time::monotonic_us(), time::now_us());
    let at = shmem::with_instance_and_awaited(|frontier, instance, awaited| {
        let memory = Memory { frontier, instance, awaited, now, wall };
        // While the tables are being restored, no other duty is ever due.
        let is_awake = instance.restore.is_awake();
        let duties = ALL.iter().filter(|duty| is_awake || duty.name == RESTORE);
        let at = duties.map(|duty| (duty.next_at)(&memory)).min().unwrap_or(i64::MAX);
        instance.worker.wakes_at = at;
        at
    });
    at.filter(|at| *at < i64::MAX).map(|at| (at.saturating_sub(now).max(0) + 999) / 1_000)
}
