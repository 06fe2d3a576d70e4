//! pg_queue: a job queue inside Postgres.
//!
//! Vocabulary: a *job* is what a producer enqueued. It is run in *attempts*; each attempt is *claimed*
//! at most once, under a *lease*, and *ends* at most once. A *lane* is a queue (or a stage of one). The
//! *frontier* is the cache in shared memory that knows which attempt is next.
//!
//! Where to look: `api` has the SQL functions, one file a verb; `log` the four logs and the direct access
//! to them; `core` (a crate of its own, without Postgres) the frontier; `transaction` what a commit or an
//! abort does to the frontier; `duty` and `worker` the background worker.

use pgrx::prelude::*;

mod acl;
mod api;
mod call;
mod clock;
mod dead_letter;
mod doctor;
mod dormant;
mod dropping;
mod duty;
mod error;
mod guc;
mod hold;
mod hooks;
mod ids;
mod instance;
mod jsonb;
mod key;
mod late;
mod limits;
mod log;
mod permission;
mod queue;
mod refill;
mod rerun;
mod schedule;
mod segment;
mod shmem;
mod spi;
mod sys;
mod tally;
mod transaction;
mod turn;
mod worker;

pgrx::pg_module_magic!();

extension_sql_file!("../sql/schema/schema.sql", name = "schema", bootstrap);
extension_sql_file!("../sql/schema/tables.sql", name = "tables", requires = ["schema"]);
extension_sql_file!("../sql/schema/history.sql", name = "history", requires = ["tables"]);
extension_sql_file!("../sql/schema/permissions.sql", name = "permissions", requires = ["history"]);
extension_sql_file!("../sql/schema/functions.sql", name = "functions", requires = ["permissions"]);
extension_sql_file!("../sql/schema/rollup.sql", name = "rollup", requires = ["functions"]);
extension_sql_file!("../sql/schema/schedules.sql", name = "schedules", requires = ["rollup"]);
extension_sql_file!("../sql/schema/restore.sql", name = "restore", requires = ["schedules"]);
extension_sql_file!("../sql/schema/views.sql", name = "views", requires = ["restore"]);
extension_sql_file!("../sql/schema/doctor.sql", name = "doctor", requires = ["views"]);

/// Called by Postgres when it loads the library.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // SAFETY: a plain global that the postmaster sets while it preloads.
    let preloading = unsafe { pg_sys::process_shared_preload_libraries_in_progress };
    guc::define(preloading);
    if preloading {
        shmem::install();
        worker::register();
        hooks::install();
    }
}
