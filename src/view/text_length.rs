//! `queue.text_length`: how long a JSON value is as text, for readers who bound what they fetch.
//!
//! Not responsible for the measure (`pg::stored_json`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::error::Result;
use crate::pg::function::Call;
use crate::pg::stored_json;

sql_function!(pg_queue_text_length, pg_finfo_pg_queue_text_length => text_length, api::run_unpinned);

/// `queue.text_length(value)`: returns the length in bytes. If `value` is NULL, returns NULL.
fn text_length(call: &Call) -> Result<Option<Datum>> {
    Ok(call.datum(args::text_length::VALUE).map(|value| (stored_json::text_length(value) as i64).into()))
}
