//! What the background worker does, one file for each duty. A duty is a probe of memory and a bounded piece of work in
//! a transaction. `queue.maintain()` runs the same duties in the foreground.
//!
//! Not responsible for the worker's loop and its transactions (`worker`).
//!
//! Invariant: a duty that is killed at any point leaves nothing half done, and the next run continues. A job, queue or
//! schedule that a duty cannot serve does not block others (`care`).

use pg_queue_core::awaited::Awaited;
use pg_queue_core::frontier::Frontier;

use crate::catalog::pin;
use crate::duty::care::Care;
use crate::error::Result;
use crate::pg::time;
use crate::shmem::{self, Instance, awake, here};

pub mod all;
pub mod care;
pub mod count;
mod cursor;
pub mod dispatch;
pub mod expire;
pub mod expire_waiting;
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

/// The name of the duty that ends a restore.
const RESTORE: &str = "restore";

/// A duty of the background worker.
pub struct Duty {
    /// Its name in `queue.maintain()` and in the log.
    pub name: &'static str,
    /// True if there is something to do. `None`: the duty is due when the time of `next_at` has come. The function only
    /// reads memory and needs no transaction.
    pub is_due: Option<fn() -> bool>,
    /// The monotonic time at which the worker must wake by itself for the duty. `i64::MAX`: sessions wake the worker
    /// for it, or it runs when the worker is awake anyway (`with_others`).
    pub next_at: fn(&Memory<'_, '_>) -> i64,
    /// Does a bounded piece of work in a transaction with a snapshot. Returns how much it did. 0: nothing is left for
    /// now.
    pub work: Work,
}

/// The work of a duty.
#[derive(Clone, Copy)]
pub enum Work {
    /// It neither reads nor writes anything whose size or contents a user decides, so no job, queue or schedule makes
    /// it fail.
    Own(fn() -> Result<i64>),
    /// It serves jobs, queues or schedules, as the care says.
    Items(fn(care: &Care) -> Result<i64>),
}

/// The data from which the times of duties follow: memory under one hold of the frontier's lock, and the clocks.
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
    /// Returns the monotonic time at which the wall clock will show `at`. `wall` is what that clock shows now. The wall
    /// clock can be set, so the worker reads it once a minute.
    fn at_wall(&self, at: i64, wall: i64) -> i64 {
        /// The longest time between two reads of the wall clock, in microseconds.
        const CLOCK_CHECK_US: i64 = 60_000_000;
        if at == i64::MAX { at } else { self.now.saturating_add(at.saturating_sub(wall).clamp(0, CLOCK_CHECK_US)) }
    }
}

/// The time of a duty for which the worker does not wake. It runs when another duty or a session has woken the worker.
fn with_others(_: &Memory<'_, '_>) -> i64 {
    i64::MAX
}

impl Duty {
    /// Does the work in the open transaction, for the instance that this process works for. Returns how much it did. 0
    /// also if the database has another instance now, or none.
    ///
    /// Errors: raised.
    pub fn run(&self) -> i64 {
        let Some(_call) = pin::begin_duty(here::number()) else { return 0 };
        let did = match self.work {
            Work::Own(work) => work(),
            Work::Items(work) => Care::run(self.name, work),
        };
        did.unwrap_or_else(|error| error.report())
    }

    /// True if there is something to do. While the tables are being restored, only the duty `restore` is ever due.
    pub fn is_due(&self) -> bool {
        let is_due = self.is_due.map_or_else(|| self.has_come(), |is_due| is_due());
        is_due && (self.name == RESTORE || awake::is_awake())
    }

    /// True if the time of `next_at` has come.
    fn has_come(&self) -> bool {
        let (now, wall) = (time::monotonic_us(), time::now_us());
        let at = shmem::with_instance_and_awaited(|frontier, instance, awaited| {
            (self.next_at)(&Memory { frontier, instance, awaited, now, wall })
        });
        at.is_some_and(|at| at <= now)
    }
}
