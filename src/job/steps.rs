//! Notes the steps that a job has done.
//!
//! Not responsible for handing them to the next attempt and to history (`log::note`).
//!
//! Invariant: the steps of a job are never larger than `MAX_STEPS_BYTES`, so joining them never fails.

use pgrx::pg_sys::Datum;

use crate::catalog::permission;
use crate::error::Error;
use crate::job::held::Refusal;
use crate::job::hold;
use crate::log::note::{self, Note};
use crate::log::reader::Reader;
use crate::pg::datum::whole_size;
use crate::pg::stored_json;

/// The steps of a job may have this many bytes together, not compressed, and as text if they are dense.
/// A jsonb may have 256 MB.
const MAX_STEPS_BYTES: usize = 16 << 20;

/// Few results are this many times longer as text than they are stored. The text of all others together is far below
/// the 1 GB that Postgres can write.
const MAX_DENSITY: usize = 16;

/// Notes a step of an attempt that the caller holds. `body`: an object with a field of the step's name.
///
/// Errors: 22023 not the id of an attempt, or the steps take too much; 42501, QJ001 the attempt is lost, 55006 it is in
/// use.
pub fn record(id: i64, body: Datum) -> std::result::Result<(), Refusal> {
    let held = hold::check_claimed(id, &permission::rights())?;
    hold::write_note(id, held.home, Note::Step(body))?;
    // The sum is taken after the note is written, with the notes of open transactions. So of two sessions that note
    // steps at the same time, one sees the other's.
    let Some(attempt) = Reader::new().by_id(id) else { return Ok(()) };
    // A number of ten bytes can have 131,072 digits.
    let is_dense = stored_json::text_length(body) > MAX_DENSITY * whole_size(body);
    let measure = if is_dense { stored_json::text_length } else { whole_size };
    let bytes = attempt.steps().map_or(0, measure) + note::steps_size(attempt.home.segment, id, measure);
    if bytes <= MAX_STEPS_BYTES {
        return Ok(());
    }
    let job_id = attempt.job_id();
    Err(Refusal::Wrong(
        Error::invalid(format!("the steps of job {job_id} take too many bytes: {bytes}"))
            .detail(format!("All results of a job's steps may take {MAX_STEPS_BYTES} bytes together."))
            .hint("Store a large result in a table of your own, and note its key as the result of the step."),
    ))
}
