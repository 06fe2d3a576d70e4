//! The function behind `queue.schedules`: the last and the next run of each schedule.
//!
//! Not responsible for when a schedule fires (`core::schedule`, `duty::fire_schedules`).

use pgrx::pg_sys::Datum;

use crate::api::sql_function;
use crate::catalog;
use crate::catalog::permission::{self, Privilege};
use crate::error::Result;
use crate::job::schedule::next_run;
use crate::log::firing::Log;
use crate::pg::function::Call;

sql_function!(pg_queue_firings, pg_finfo_pg_queue_firings => firings);

/// `queue_internal.firings()`: returns for each schedule its last job and its next run.
fn firings(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let log = Log::read();
    let rights = permission::rights();
    let mut found = Vec::new();
    catalog::schedule::each_seen(|schedule| {
        if !rights.on_queue(schedule.queue_id(), Privilege::Observe) {
            return;
        }
        let last = log.last(schedule.id()).and_then(|firing| firing.last);
        // A schedule that cannot be planned does not fire either. The server log says why.
        let next = next_run(&schedule, &log).unwrap_or(None);
        found.push([
            Some(schedule.id().into()),
            next.map(Datum::from),
            last.map(|(fired_at, _)| fired_at.into()),
            last.map(|(_, job_id)| job_id.into()),
        ]);
    });
    found.iter().try_for_each(|row| rows.add_options(row))?;
    Ok(None)
}
