//! The progress of a claimed attempt. It is a row, so that it survives a crash, and it counts when its transaction
//! commits.
//!
//! Not responsible for handing it to the next attempt (`next_attempt`).

use pgrx::pg_sys::Datum;

use crate::catalog::permission;
use crate::job::held::Refusal;
use crate::job::hold;
use crate::log::note::Note;

/// Records the progress of an attempt that the caller holds. `body`: jsonb.
///
/// Errors: 22023 not the id of an attempt, 42501, QJ001 the attempt is lost, 55006 it is in use.
pub fn record(id: i64, body: Datum) -> std::result::Result<(), Refusal> {
    let held = hold::check_claimed(id, &permission::rights())?;
    hold::write_note(id, held.home, Note::Progress(body))
}
