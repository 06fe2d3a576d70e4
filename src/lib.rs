//! pg_queue: a job queue inside Postgres.
//!
//! The folders are layers. A file imports only from its own folder and from lower layers. From the lowest layer up:
//!
//! | folder | contents |
//! |---|---|
//! | `core` | a separate crate without Postgres and without `unsafe`: the frontier, ids, delays, schedules |
//! | `pg` | the boundary to Postgres and the system: their calls as safe functions; knows no queue |
//! | `shmem` | the structures in shared memory, their locks and latches, and every change that needs only memory |
//! | `transaction` | what the open transaction does to shared memory when it ends |
//! | `catalog` | what exists: oids of our tables, queues, schedules, permissions, ids; and SQL from Rust |
//! | `log` | the rows: the four logs, history, segments, walks over them |
//! | `restore` | whether SQL is writing the tables, as a restore does, and how that ends |
//! | `job` | everything that can happen to a job, one file for each change of state; knows no SQL function |
//! | `executor` | the processes that run SQL jobs |
//! | `duty` | what the background worker does, one file for each duty |
//! | `worker` | the background processes, and the hooks that notify them |
//! | `doctor` | the checks of `queue.doctor()` |
//! | `api` | the SQL functions that change something: read arguments, call `job`, return; one file for each verb |
//! | `view` | the SQL functions that only read, mainly those behind the views |
//!
//! So `queue.claim` in SQL is `api/claim.rs`, then `job/claim.rs`, then `log/claim.rs`. `api` imports nothing from
//! `log`. A test checks the layers (`xtask/tests/layers.rs`).
//!
//! # Words
//!
//! What users see:
//!
//! * *job*: what a producer enqueued. *attempt*: one try to run it. A job gets a new attempt after a failure, a
//!   release, or the end of a stage.
//! * *claim*: a session takes an attempt under a *lease*. The session must end the attempt or extend the lease before
//!   it expires.
//! * *outcome*: how an attempt ended. *note*: anything else about it that must survive a crash: progress, a request to
//!   cancel, a longer lease, another run.
//! * *queue*, *stage*: a queue's jobs pass through its stages one after the other. *group*: jobs of which only a few
//!   run at a time, or that run in order. *slot*: a time at which a schedule fires.
//!
//! What the code calls things:
//!
//! * *lane*: a queue without stages, or one stage of a queue.
//! * *segment*, *generation*: the logs have ten sets of tables, the segments, which are filled and emptied in turn.
//!   Each filling is a generation. A row's *home* is its segment and generation.
//! * *frontier*: the cache in shared memory of the next attempts. *ready*: attempts that it can hand out. *running*:
//!   attempts that are taken. *position*: how far a lane's index has been read. *refill*: reading further in that
//!   index.
//! * *rank*: priority and job id, the order in which ready attempts run. *place*: where an attempt's row is stored.
//! * *step*: a change of shared memory that the end of the transaction makes. *mark*: a row that says "moved".
//! * *instance*: the extension in one database. *duty*: one of the background worker's tasks.
//! * *missed request*: a request to cancel a job or to run it again that came too late for the end of its attempt.
//! * *counter*: how many attempts of a lane wait and run, and its totals. Like the frontier, it is a cache in shared
//!   memory.
//! * *invalidate*: to mark a cache as stale after a change that no callback has reported. It is then read again from
//!   the logs.
//! * *restoring*: SQL is writing the tables, and no job runs.

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
/// the hooks. Postgres calls it when it loads the library.
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
