//! What the background worker does, one file a duty. A duty is a probe of memory and a bounded piece of work in a
//! transaction; `queue.maintain()` runs the same duties in the foreground.
//!
//! Not here: the worker's loop and its transactions (`worker`).
//!
//! Invariant: a duty that is killed at any point leaves nothing half done; the next run continues. One job, queue or
//! schedule that a duty cannot serve keeps it from no other: after an error the duty serves each by itself, and leaves
//! alone for a minute what fails.

use pg_queue_core::awaited::Awaited;
use pg_queue_core::frontier::Frontier;

use crate::error::Error;
use crate::pg::time;
use crate::shmem::{self, Instance, awake};

pub mod all;
pub mod count;
pub mod dispatch;
pub mod expire;
pub mod fire_schedules;
pub mod forget_history;
pub mod missed;
pub mod notify;
pub mod open_gates;
pub mod prune_statistics;
pub mod recover;
pub mod release;
pub mod restore;
pub mod rotate_firings;
pub mod rotate_keys;
pub mod serve_cancels;
pub mod serve_reruns;
pub mod start_due;
pub mod storage;

/// How long, in microseconds, a duty leaves alone what it could not do because of an error.
const PUT_OFF_FOR: i64 = 60_000_000;

/// Warns that a duty could not do something, which it leaves alone for `PUT_OFF_FOR`; the rest goes on.
fn put_off(what: &str, error: &Error) {
    Error::new(error.code, format!("{what}: {}", error.message)).detail("It is tried again in a minute.").warn();
}

/// The name of the duty that ends a restore.
const RESTORE: &str = "restore";

/// A duty of the background worker.
pub struct Duty {
    /// Its name in `queue.maintain()` and in the log.
    pub name: &'static str,
    /// Whether there is something to do, if that is not simply whether the time has come that `next_at` says. It looks
    /// at memory only and needs no transaction.
    pub is_due: Option<fn(instance: u32) -> bool>,
    /// When the worker has to wake for it by itself, on the monotonic clock. `i64::MAX`: sessions wake the worker for
    /// it, or it is done when the worker is awake anyway (`with_others`).
    pub next_at: fn(&Memory<'_, '_>) -> i64,
    /// Does a bounded piece of it, in a transaction with a snapshot. Returns how much it did; 0: done for now.
    pub run: fn(instance: u32) -> i64,
}

/// What the times of the duties follow from: memory under one hold of the frontier's lock, and the clocks.
pub struct Memory<'a, 's> {
    pub frontier: &'a Frontier<'s>,
    pub instance: &'a Instance,
    pub awaited: &'a Awaited,
    /// The monotonic clock, in microseconds.
    pub now: i64,
    /// The wall clock, as `timestamptz`.
    pub wall: i64,
}

impl Memory<'_, '_> {
    /// Returns the monotonic time at which the wall clock will show `at`; `wall` is what that clock shows now. The wall
    /// clock can be set, so the worker looks at it once a minute.
    fn at_wall(&self, at: i64, wall: i64) -> i64 {
        /// Microseconds between two looks at the wall clock.
        const CLOCK_CHECK: i64 = 60_000_000;
        if at == i64::MAX { at } else { self.now.saturating_add(at.saturating_sub(wall).clamp(0, CLOCK_CHECK)) }
    }
}

/// The time of a duty that the worker does not wake for: it is done when another duty or a session has woken the
/// worker.
fn with_others(_: &Memory<'_, '_>) -> i64 {
    i64::MAX
}

impl Duty {
    /// Whether there is something to do. While the tables are being restored, only the duty `restore` is ever due.
    pub fn is_due(&self, instance: u32) -> bool {
        let is_due = self.is_due.map_or_else(|| self.has_come(instance), |is_due| is_due(instance));
        is_due && (self.name == RESTORE || awake::is_awake(instance))
    }

    /// Whether the time has come that `next_at` says.
    fn has_come(&self, instance: u32) -> bool {
        let (now, wall) = (time::monotonic_us(), time::now_us());
        let at = shmem::with_instance_and_awaited(instance, |frontier, instance, awaited| {
            (self.next_at)(&Memory { frontier, instance, awaited, now, wall })
        });
        at.is_some_and(|at| at <= now)
    }
}
