//! What the background worker does, one file a duty. A duty is a probe of memory and a bounded piece of work in a
//! transaction; `queue.maintain()` runs the same duties in the foreground.
//!
//! Not here: the worker's loop and its transactions (`worker`).
//!
//! Invariant: a duty that is killed at any point leaves nothing half done; the next run continues. One job, queue or
//! schedule that a duty cannot serve keeps it from no other: after an error the duty serves each by itself, and leaves
//! alone for a minute what fails.

use crate::error::Error;
use crate::shmem::awake;

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
    /// Whether there is something to do. It looks at memory only and needs no transaction.
    pub is_due: fn(instance: u32) -> bool,
    /// Does a bounded piece of it, in a transaction with a snapshot. Returns how much it did; 0: done for now.
    pub run: fn(instance: u32) -> i64,
}

impl Duty {
    /// Whether there is something to do. While the tables are being restored, only the duty `restore` is ever due.
    pub fn is_due(&self, instance: u32) -> bool {
        (self.is_due)(instance) && (self.name == RESTORE || awake::is_awake(instance))
    }
}
