//! `queue.extend`, `extend_many`: the heartbeat.
//!
//! Not responsible for what a longer lease changes (`job::extend`), nor for expired leases (`duty::expire`).

use pgrx::pg_sys::Datum;

use crate::api::{self, answers, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission;
use crate::error::Result;
use crate::job::extend;
use crate::job::options::lease_us;
use crate::pg::datum::text_datum;
use crate::pg::function::Call;

sql_function!(pg_queue_extend, pg_finfo_pg_queue_extend => extend);
sql_function!(pg_queue_extend_many, pg_finfo_pg_queue_extend_many => extend_many);

/// `queue.extend(id, lease)`.
fn extend(call: &Call) -> Result<Option<Datum>> {
    api::writable("extend")?;
    let id = call.need(args::extend::ID)?;
    let lease = call.get(args::extend::LEASE).map(lease_us).transpose()?;
    let (expires_at, is_cancelled) = extend::extend(id, lease, &permission::rights())?;
    call.result_row(&mut [expires_at.into(), is_cancelled.into()], &mut [false, false]).map(Some)
}

/// `queue.extend_many(ids, lease)`: returns id, outcome and reason, as other verbs for many jobs, and the columns of
/// `queue.extend`.
fn extend_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("extend")?;
    let rows = call.rows()?;
    let ids = call.need(args::extend_many::IDS)?;
    let lease = call.get(args::extend_many::LEASE).map(lease_us).transpose()?;
    let rights = permission::rights();
    for id in ids.into_iter().flatten() {
        match extend::extend(id, lease, &rights) {
            Ok((expires_at, is_cancelled)) => {
                let outcome = Some(text_datum("extended"));
                rows.add_options(&[
                    Some(id.into()),
                    outcome,
                    None,
                    Some(expires_at.into()),
                    Some(is_cancelled.into()),
                ])?;
            }
            Err(refusal) => {
                let (outcome, error) = answers::of_attempt(refusal)?;
                let reason = Some(text_datum(&answers::reason(&error)));
                rows.add_options(&[Some(id.into()), Some(text_datum(outcome)), reason, None, None])?;
            }
        }
    }
    Ok(None)
}
