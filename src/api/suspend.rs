//! `queue.suspend`: a running job waits for other jobs, and goes on when they have ended.
//!
//! Not responsible for how the attempt ends and the next one is held (`job::suspend`), nor for the release
//! (`duty::release`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::error::Result;
use crate::job::outcomes::Outcomes;
use crate::job::suspend::Wait;
use crate::job::{hold, suspend};
use crate::pg::function::{Call, VOID};

sql_function!(pg_queue_suspend, pg_finfo_pg_queue_suspend => suspend);

/// `queue.suspend(id, after, upon, progress, until)`.
///
/// Errors: as `queue.complete`. 22023, P0002 and 42501 as `queue.enqueue` raises them for `after`.
fn suspend(call: &Call) -> Result<Option<Datum>> {
    api::writable("suspend")?;
    let id = call.need(args::suspend::ID)?;
    let progress = call.json(args::suspend::PROGRESS)?;
    let wait = Wait {
        after: call.get(args::suspend::AFTER),
        upon: call.str(args::suspend::UPON),
        progress,
        until: call.get(args::suspend::UNTIL),
    };
    let mut outcomes = Outcomes::new();
    let held = hold::hold_for_end(&mut outcomes, id)?;
    suspend::suspend(&mut outcomes, &held, wait)?;
    outcomes.insert()?;
    Ok(Some(VOID))
}
