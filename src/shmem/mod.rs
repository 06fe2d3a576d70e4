//! The data in shared memory, its locks and latches, and every change of it that needs nothing but memory.
//!
//! Responsible for layout, access and locking. Not responsible for the order in which attempts are handed out
//! (`pg_queue_core`), for what the end of a transaction changes (`transaction::steps`), nor for reading the logs
//! (`log`).
//!
//! Invariant: all data are a cache of the logs, of fixed size. Zero bytes are a valid start, so that a restart after a
//! crash begins empty. While a lock is held, no code runs that could raise an error, allocate Postgres memory, sleep or
//! take another lock.

pub mod awake;
pub mod counting;
pub mod databases;
pub mod drops;
pub mod executor;
pub mod executors;
pub mod here;
pub mod instance;
pub mod key_halves;
pub mod keys;
pub mod latch;
pub mod launcher;
pub mod layout;
pub mod ledger;
pub mod lock;
#[cfg(feature = "lock-times")]
pub mod lock_times;
pub mod prepared;
pub mod recount;
pub mod restore;
pub mod schedules;
pub mod segments;
pub mod shared_word;
pub mod topics;
pub mod troubles;
pub mod usage;
pub mod words;
pub mod worker;

pub use instance::Instance;
pub use latch::{wake, wake_latch, wake_watchers};
pub use lock::{
    Shared, born_at, counters, each_running, each_sleeper, is_after_crash, minutes_of, with, with_awaited,
    with_awaited_of, with_counters, with_instance, with_instance_and_awaited, with_instance_of,
};
