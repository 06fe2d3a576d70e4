//! `queue.progress`: what the worker has done so far, kept for the next attempt. A row, so that it
//! survives a crash; it counts when its transaction commits.

use pgrx::pg_sys::Datum;

use crate::api;
use crate::call::{Call, VOID, sql_function};
use crate::error::Result;
use crate::{hold, instance, log::note, permission};

sql_function!(pg_queue_progress, pg_finfo_pg_queue_progress => progress);

/// `queue.progress(id, progress)`.
fn progress(call: &Call) -> Result<Option<Datum>> {
    api::writable("report progress")?;
    let id = call.required("id", call.i64(0))?;
    let body = call.required("progress", call.datum(1))?;
    let catalog = instance::current()?;
    let held = hold::look(&catalog, id, &permission::rights(&catalog))?;
    hold::write_note(&catalog, id, held.home, note::Kind::Progress, None, Some(body))?;
    Ok(Some(VOID))
}
