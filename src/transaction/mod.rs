//! What the open transaction will do to shared memory at its end.
//!
//! A verb records *steps* before it changes shared memory; the end of the transaction settles them: a commit publishes,
//! a rollback undoes.
//!
//! Responsible for the list of steps, for settling them, and for the callbacks that do so. Not responsible for the
//! changes themselves, which are methods in `shmem` and in the frontier, nor for rows, which `log` writes.
//!
//! Invariant: a commit allocates nothing, runs no SQL and cannot fail.

pub mod awaited_ends;
pub mod callbacks;
pub mod commit_counts;
pub mod entries;
pub mod foreign;
pub mod hooks;
pub mod pending;
pub mod settle;
pub mod steps;
mod target;
mod tell;

pub use callbacks::{on_commit_drop_instance, register};
pub use pending::{
    added, completes, decide, drops, ending, foreign_writer, foreign_writes, has_altered_limits, has_any, has_dropped,
    is_adopting, is_dropping, lanes_added, lease_of, record, record_all, record_of, reserve, rights_changed, set_lease,
    tell_retries, unrecord,
};
pub use settle::prepared_ended;
pub use steps::{ExpiryStep, ExtensionStep, FlowStep, QueueStep, ScheduleStep, SegmentStep, Step, TopicStep};
