//! pg_queue: a job queue inside Postgres.
//!
//! The folders are floors: a file imports its own folder and those below it, and nothing else. From the ground up:
//!
//! | folder | what is there |
//! |---|---|
//! | `core` | a crate of its own, without Postgres and without `unsafe`: the frontier, ids, delays, schedules |
//! | `pg` | the fence: calls of Postgres and of the system as safe functions; knows no queue |
//! | `shmem` | what lies in shared memory, its locks and latches, and every change that needs nothing but memory |
//! | `transaction` | what the open transaction will do to shared memory at its end |
//! | `catalog` | what exists: the oids of our tables, queues, schedules, permissions, ids; and SQL from Rust |
//! | `log` | the rows: the four logs, history, segments, walks over them |
//! | `restore` | whether the tables are being written by SQL, as by a restore, and how that ends |
//! | `job` | everything that can happen to a job, one file per change of state; knows no SQL function |
//! | `executor` | the processes that run jobs which are SQL |
//! | `duty` | what the background worker does, one file a duty |
//! | `worker` | the background processes, and the hooks that tell them something |
//! | `doctor` | the checks of `queue.doctor()` |
//! | `api` | the SQL functions that change something: read the arguments, call `job`, return; one file a verb |
//! | `view` | the SQL functions that only read, those behind the views above all |
//!
//! So `queue.claim` in SQL is `api/claim.rs`, then `job/claim.rs`, then `log/claim.rs`; `api` imports nothing of `log`.
//! A test keeps it so (`xtask/tests/layers.rs`).
//!
//! # Words
//!
//! What users see:
//!
//! * *job*: what a producer enqueued. *attempt*: one try to run it; the first, or one after a failure, a release,
//!   another stage.
//! * *claim*: a session takes an attempt, under a *lease*, the time within which it has to end or extend it.
//! * *outcome*: how an attempt ended. *note*: what else is to survive about it: progress, a request to cancel, a longer
//!   lease, another run.
//! * *queue*, *stage*: a queue's jobs pass its stages one after the other. *group*: jobs that run a few at a time or in
//!   order. *slot*: a time at which a schedule fires.
//!
//! What the code calls things:
//!
//! * *lane*: a queue without stages, or one stage of a queue.
//! * *segment*, *generation*: the logs have ten sets of tables, filled and emptied in turns; each time is a generation.
//!   A row's *home* is its segment and generation.
//! * *frontier*: the cache in shared memory of which attempt is next. *ready*: those it would hand out. *running*:
//!   those that are taken. *position*: how far a lane's index has been read. *refill*: reading on.
//! * *rank*: priority and job id, the order in which ready attempts run. *place*: where an attempt's row lies.
//! * *step*: what the end of the transaction will do to shared memory. *mark*: a row that says "moved".
//! * *instance*: the extension in one database. *duty*: a piece of the worker's work.
//! * *missed request*: one to cancel or to run again that came too late for its attempt's end.
//! * *counter*: how many attempts of a lane wait and run, and its totals; a cache in shared memory, as the frontier.
//! * *invalidate*: to have a cache read again from the logs, after a change that no callback has reported.
//! * *restoring*: the tables are being written by SQL, and no job runs.

use pgrx::prelude::*;

use crate::duty::release::ender;
use crate::pg::{memory, process, session};
use crate::shmem::layout;
use crate::worker::{hooks, log_hook};

mod api;
mod catalog;
mod doctor;
mod duty;
mod error;
mod executor;
mod guc;
mod job;
mod log;
mod pg;
mod restore;
mod shmem;
mod transaction;
mod view;
mod worker;

pgrx::pg_module_magic!();

/// Defines the settings and, while the server preloads libraries, reserves shared memory and registers the launcher and
/// the hooks. Called by Postgres when it loads the library.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    process::switch_backtraces_off();
    memory::keep_reserve();
    let preloading = session::is_preloading();
    guc::define(preloading);
    session::reserve_prefix(c"pg_queue");
    transaction::hooks::before_each_commit(ender::before_commit);
    if preloading {
        layout::install();
        worker::register();
        hooks::install();
        log_hook::install();
    }
}
