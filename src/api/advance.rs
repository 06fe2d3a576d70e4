//! `queue.advance`: on to the next stage. Stages are not there yet; the name and the arguments are.

use pgrx::pg_sys::Datum;

use crate::call::{Call, sql_function};
use crate::error::{self, Error, Result};

sql_function!(pg_queue_advance, pg_finfo_pg_queue_advance => advance);

/// `queue.advance(id, stage, payload, delay)`.
fn advance(_call: &Call) -> Result<Option<Datum>> {
    Err(Error::new(error::NOT_SUPPORTED, "stages are not supported yet"))
}
