//! `queue.progress`: records how far the worker has come, for the next attempt. It is a row, so that it survives a
//! crash, and it counts when its transaction commits.
//!
//! Not here: how the next attempt gets it (`job::successor`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::{self, permission};
use crate::error::Result;
use crate::job::hold;
use crate::log::note;
use crate::pg::function::{Call, VOID};

sql_function!(pg_queue_progress, pg_finfo_pg_queue_progress => progress);

/// `queue.progress(id, progress)`.
fn progress(call: &Call) -> Result<Option<Datum>> {
    api::writable("report progress")?;
    let id = call.required("id", call.i64(0))?;
    let body = call.required("progress", call.json(1, "progress")?)?;
    let catalog = catalog::current()?;
    let held = hold::check_claimed(&catalog, id, &permission::rights(&catalog))?;
    hold::write_note(&catalog, id, held.home, note::Kind::Progress, None, Some(body))?;
    Ok(Some(VOID))
}
