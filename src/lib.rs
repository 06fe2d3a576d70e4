//! pg_queue: a job queue inside Postgres.
//!
//! Vocabulary: a *job* is what a producer enqueued. It is run in *attempts*; each attempt is *claimed*
//! at most once, under a *lease*, and *ends* at most once. A *lane* is a queue (or a stage of one). The
//! *frontier* is the cache in shared memory that knows which attempt is next.

use pgrx::prelude::*;

mod guc;
mod shmem;
mod sys;

pgrx::pg_module_magic!();

/// Called by Postgres when it loads the library.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // SAFETY: a plain global that the postmaster sets while it preloads.
    let preloading = unsafe { pg_sys::process_shared_preload_libraries_in_progress };
    guc::define(preloading);
    if preloading {
        shmem::install();
    }
}
