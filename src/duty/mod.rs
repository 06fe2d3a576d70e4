//! What the background worker does, one file a duty. Each is a probe of memory and a bounded piece of work
//! in a transaction; `queue.maintain()` runs the same in the foreground.
//!
//! Invariant: a duty killed at any point leaves nothing half done; the next run continues.

use crate::{clock, dormant, shmem, sys};

mod count;
mod expire;
mod fire_schedules;
pub mod forget_history;
mod notify;
mod open_gates;
mod prune_statistics;
pub mod recover;
mod restore;
mod serve_cancels;
mod serve_reruns;
pub mod start_due;
pub mod storage;
mod turn_firings;
mod turn_memory;
mod wishes;

/// This process ends, by an error that runs no destructors. Returns the latch of a worker who has something to do
/// then. Under the frontier's lock.
pub fn abandon(instances: &mut [shmem::Instance]) -> Option<*mut pgrx::pg_sys::Latch> {
    let worker = start_due::abandon(instances);
    storage::abandon(instances).or(worker)
}

/// A duty of the background worker.
pub struct Duty {
    /// Its name in `queue.maintain()` and in the log.
    pub name: &'static str,
    /// Whether there is something to do; looks at memory only, needs no transaction.
    pub is_due: fn(instance: u32) -> bool,
    /// Does a bounded piece of it, in a transaction with a snapshot; how much. 0: done for now.
    pub run: fn(instance: u32) -> i64,
}

impl Duty {
    /// Whether there is something to do; nothing but to look on while the tables are being restored.
    pub fn is_due(&self, instance: u32) -> bool {
        (self.is_due)(instance) && (self.name == restore::DUTY.name || dormant::is_awake(instance))
    }
}

/// All duties, in the order of a tick.
pub const ALL: &[Duty] = &[
    restore::DUTY,
    recover::DUTY,
    start_due::DUTY,
    fire_schedules::DUTY,
    expire::DUTY,
    serve_cancels::DUTY,
    serve_reruns::DUTY,
    open_gates::DUTY,
    notify::DUTY,
    storage::DUTY,
    forget_history::DUTY,
    turn_firings::DUTY,
    turn_memory::DUTY,
    prune_statistics::DUTY,
    count::DUTY,
];

/// Milliseconds until something is to be done that no one will wake the worker for; `None`: nothing. Tells
/// everybody by when the worker wakes, so that whoever has something earlier sets its latch.
pub fn sleep_ms(instance: u32) -> Option<i64> {
    /// The wall clock can be set; look at it this often while something is due by it. Microseconds.
    const CLOCK_CHECK: i64 = 60_000_000;
    let (now, wall) = (sys::monotonic_us(), sys::now_us());
    shmem::with_instance(instance, |frontier, instance| {
        let mut at = frontier.next_deadline(instance.deadlines).unwrap_or(i64::MAX);
        if instance.next_due < i64::MAX {
            at = at.min(now.saturating_add(instance.next_due.saturating_sub(wall).clamp(0, CLOCK_CHECK)));
        }
        at = at.min(frontier.next_opening().unwrap_or(i64::MAX));
        let next_slot = instance.schedules.next_slot;
        if next_slot < i64::MAX {
            at = at.min(now.saturating_add(next_slot.saturating_sub(clock::now_us()).clamp(0, CLOCK_CHECK)));
        }
        at = at.min(storage::next_at(instance));
        at = at.min(count::next_at(instance));
        at = at.min(instance.reruns.look_at()).min(instance.cancels.look_at());
        at = at.min(turn_memory::next_at(instance));
        let forget_at = forget_history::next_at();
        if forget_at < i64::MAX {
            at = at.min(now.saturating_add(forget_at.saturating_sub(wall).max(0)));
        }
        if !instance.is_recovered {
            at = at.min(recover::next_try());
        }
        if instance.notify.iter().any(|&lane| lane != 0) {
            at = now;
        }
        if !instance.dormancy.is_awake() {
            at = instance.dormancy.look_at();
        }
        instance.wakes_at = at;
        (at < i64::MAX).then(|| (at.saturating_sub(now).max(0) + 999) / 1_000)
    })
    .flatten()
}
