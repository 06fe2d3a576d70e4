//! How long the frontier's lock is held (`shmem::lock_times`), for the benchmark, which declares the function itself.

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::error::Result;
use crate::pg::datum::text_datum;
use crate::pg::function::Call;
use crate::shmem::lock;

sql_function!(pg_queue_lock_times, pg_finfo_pg_queue_lock_times => totals, api::run_unpinned);

/// Returns the number of holds and their nanoseconds, with a space between them.
fn totals(_call: &Call) -> Result<Option<Datum>> {
    let times = lock::times();
    Ok(Some(text_datum(&format!("{} {}", times.holds, times.nanoseconds))))
}
