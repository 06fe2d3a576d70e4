//! `queue.complete`, `complete_many`: end attempts that have succeeded.
//!
//! Not responsible for which attempts a session may end (`job::hold`), nor for completing within a claim
//! (`api::claim`).
//!
//! Invariant: an attempt is completed at most once, because the key of its outcome decides.

use pgrx::pg_sys::Datum;

use crate::api::answers::Answers;
use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::error::Result;
use crate::job::complete;
use crate::job::outcomes::Kind;
use crate::pg::function::{Call, VOID};

sql_function!(pg_queue_complete, pg_finfo_pg_queue_complete => complete);
sql_function!(pg_queue_complete_many, pg_finfo_pg_queue_complete_many => complete_many);

/// `queue.complete(id, result)`.
fn complete(call: &Call) -> Result<Option<Datum>> {
    api::writable("complete")?;
    let id = call.need(args::complete::ID)?;
    let result = call.json(args::complete::RESULT)?;
    complete::complete_one(id, result)?;
    Ok(Some(VOID))
}

/// `queue.complete_many(ids)`.
fn complete_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("complete")?;
    let answers = Answers::begin(call)?;
    let ids = call.need(args::complete_many::IDS)?;
    let mut refused = Vec::new();
    for id in complete::complete_all(&ids, &[], &mut refused)? {
        answers.done(id, Kind::Completed.name())?;
    }
    refused.into_iter().try_for_each(|(id, refusal)| answers.ended(id, Err(refusal)))?;
    Ok(None)
}
