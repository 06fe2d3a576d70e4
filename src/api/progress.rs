//! `queue.progress`: records the progress of an attempt, for the next attempt.
//!
//! Not responsible for the record (`job::progress`), nor for how the next attempt gets it (`job::next_attempt`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::error::Result;
use crate::job::progress;
use crate::pg::function::{Call, VOID};

sql_function!(pg_queue_progress, pg_finfo_pg_queue_progress => progress);

/// `queue.progress(id, progress)`.
fn progress(call: &Call) -> Result<Option<Datum>> {
    api::writable("report progress")?;
    let id = call.need(args::progress::ID)?;
    let body = call.required(args::progress::PROGRESS, call.json(args::progress::PROGRESS)?)?;
    progress::record(id, body)?;
    Ok(Some(VOID))
}
