//! `queue.advance`: ends an attempt, and its job goes on in another stage, in the same transaction.
//!
//! Not responsible for the next attempt (`job::advance`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::error::Result;
use crate::job::options::in_future;
use crate::job::outcomes::Outcomes;
use crate::job::{advance, hold};
use crate::pg::datum::Interval;
use crate::pg::function::{Call, VOID};
use crate::pg::time;

sql_function!(pg_queue_advance, pg_finfo_pg_queue_advance => advance);

/// `queue.advance(id, stage, payload, delay)`. If `stage` is NULL, the job goes to the next stage; if `payload` is
/// NULL, it keeps its payload; if `delay` is NULL, the next attempt is ready immediately.
fn advance(call: &Call) -> Result<Option<Datum>> {
    api::writable("advance")?;
    let id = call.need(args::advance::ID)?;
    let payload = call.json(args::advance::PAYLOAD)?;
    let run_at =
        call.get(args::advance::DELAY).map_or(Ok(None), |delay: Interval| in_future("delay", delay, time::now_us()))?;
    let mut outcomes = Outcomes::new();
    let held = hold::hold_for_end(&mut outcomes, id)?;
    let queue = hold::queue_of(&mut outcomes, &held)?;
    let lane = advance::target(&queue, held.entry.lane, call.get(args::advance::STAGE).as_deref())?;
    advance::advance(&mut outcomes, &held, &advance::To { queue: &queue, lane, run_at, payload })?;
    outcomes.insert()?;
    Ok(Some(VOID))
}
