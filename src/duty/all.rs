//! All duties in the order of a tick, and how long the worker may sleep until the next tick.
//!
//! Not here: the tick itself and the sleep (`worker`), and `queue.maintain()` (`api::maintain`), which goes through
//! the same list. When a duty itself is due again, its own file says.

use crate::catalog::schedule;
use crate::duty::{
    self, Duty, count, dispatch, expire, fire_schedules, forget_history, notify, open_gates, prune_statistics, release,
    restore, rotate_firings, rotate_keys, serve_cancels, serve_reruns, start_due, storage,
};
use crate::pg::time;
use crate::{job, shmem};

/// All duties, in the order of a tick.
pub const ALL: &[Duty] = &[
    restore::DUTY,
    duty::recover::DUTY,
    start_due::DUTY,
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

/// Returns the milliseconds until something is to be done that the worker is not woken for. `None`: nothing is.
///
/// It records in shared memory by when the worker wakes, so that a session that has something earlier sets the
/// worker's latch. Takes the frontier's lock.
pub fn sleep_ms(instance: u32) -> Option<i64> {
    /// The wall clock can be set. While something is due by it, the worker looks at it this often, in microseconds.
    const CLOCK_CHECK: i64 = 60_000_000;
    let (now, wall) = (time::monotonic_us(), time::now_us());
    // A session that hands over something earlier sets the latch.
    let release_at = release::next_at(instance);
    let dispatch_at = dispatch::next_at(instance);
    shmem::with_instance(instance, |frontier, instance| {
        let mut at = frontier.next_deadline(instance.deadlines).unwrap_or(i64::MAX);
        if instance.next_due < i64::MAX {
            at = at.min(now.saturating_add(instance.next_due.saturating_sub(wall).clamp(0, CLOCK_CHECK)));
        }
        at = at.min(frontier.next_opening().unwrap_or(i64::MAX));
        let next_slot = instance.schedules.next_slot;
        if next_slot < i64::MAX {
            at = at.min(now.saturating_add(next_slot.saturating_sub(schedule::now_us()).clamp(0, CLOCK_CHECK)));
        }
        at = at.min(instance.storage_at).min(release_at).min(dispatch_at);
        at = at.min(count::next_at(instance));
        at = at.min(instance.reruns.look_at()).min(instance.cancels.look_at());
        at = at.min(rotate_keys::next_at(instance));
        let forget_at = forget_history::next_at();
        if forget_at < i64::MAX {
            at = at.min(now.saturating_add(forget_at.saturating_sub(wall).max(0)));
        }
        if !instance.is_recovered() {
            at = at.min(job::recover::next_try());
        }
        if instance.notify.iter().any(|&lane| lane != 0) {
            at = now;
        }
        if !instance.restore.is_awake() {
            at = instance.restore.look_at();
        }
        instance.wakes_at = at;
        (at < i64::MAX).then(|| (at.saturating_sub(now).max(0) + 999) / 1_000)
    })
    .flatten()
}
