//! `queue.doctor()`, and the functions by which `queue.metrics()` reads shared memory.
//!
//! Not responsible for the checks (`doctor`), nor for the counters of jobs (`view::stats`).

use std::collections::BTreeMap;

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::permission::{self, Privilege};
use crate::error::{self, Result};
use crate::log::recent::{self, Recent};
use crate::pg::datum::text_datum;
use crate::pg::function::{Call, Rows, run_unloaded};
use crate::pg::{session, time};
use crate::shmem::{layout, usage};
use crate::{catalog, doctor, job};

sql_function!(pg_queue_doctor, pg_finfo_pg_queue_doctor => look, run_unloaded);
sql_function!(pg_queue_memory_use, pg_finfo_pg_queue_memory_use => memory_use, api::run_unpinned);
sql_function!(pg_queue_held_by_dead, pg_finfo_pg_queue_held_by_dead => held_by_dead, api::run_briefly);
sql_function!(pg_queue_recent_times, pg_finfo_pg_queue_recent_times => recent_times, api::run_briefly);

/// `queue.doctor()`: returns a row for each check. The checks cover all queues.
///
/// Errors: 42501 if the current user may not observe every queue.
fn look(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    // A check does not wait for a lock. If another session holds the lock, the check reports that.
    let settings = [(c"lock_timeout", c"10ms"), (c"search_path", c"pg_catalog, pg_temp")];
    session::with_settings(&settings, || {
        if layout::is_there() && catalog::current().is_ok() {
            match session::without_waiting(|| permission::check_everywhere(Privilege::Observe)) {
                Err(error) if error.code == error::LOCKED => return rights_are_locked(&rows),
                other => other?,
            }
        }
        for check in doctor::ALL {
            let found = check.look();
            rows.add_options(&[
                Some(text_datum(check.name)),
                Some(found.is_ok.into()),
                Some(text_datum(&found.detail)),
                found.hint.as_deref().map(text_datum),
            ])?;
        }
        Ok(None)
    })
}

/// Returns for each check that nothing can be said.
fn rights_are_locked(rows: &Rows) -> Result<Option<Datum>> {
    let detail = "A session has locked a table of privileges or queues, so it is not known what this user may see.";
    let hint =
        "Look into pg_locks for who has locked queue_internal.permission, queue_internal.queue or queue_internal.lane.";
    for check in doctor::ALL {
        let [name, detail, hint] = [check.name, detail, hint].map(text_datum).map(Some);
        rows.add_options(&[name, Some(false.into()), detail, hint])?;
    }
    Ok(None)
}

/// `queue_internal.memory_use()`: returns how much of the memory that each setting sizes is in use.
fn memory_use(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    for kind in usage::in_use() {
        let number = |n: usize| Datum::from(i64::try_from(n).unwrap_or(i64::MAX));
        rows.add(&mut [text_datum(kind.setting), number(kind.used), number(kind.size)], &mut [false; 3])?;
    }
    Ok(None)
}

/// `queue_internal.held_by_dead()`: returns for each lane of held jobs how many of them wait for dead ones.
fn held_by_dead(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    if session::in_recovery() {
        return Ok(None);
    }
    let rights = permission::rights();
    let mut lanes: BTreeMap<i32, i64> = BTreeMap::new();
    for (lane, held) in job::held_by_dead::find()?.into_iter().flat_map(|holder| holder.held) {
        *lanes.entry(lane).or_default() += held;
    }
    for (lane, held) in lanes.into_iter().filter(|(lane, _)| rights.on_lane(*lane, Privilege::Observe)) {
        rows.add(&mut [lane.into(), held.into()], &mut [false; 2])?;
    }
    Ok(None)
}

/// The quantiles of waiting and running times that are returned.
const QUANTILES: [f64; 3] = [0.5, 0.95, 0.99];
/// The time span before now that is read, in microseconds.
const RECENT_US: i64 = 60_000_000;

/// `queue_internal.recent_times()`: returns quantiles, in seconds, of the waiting and running times of the last minute.
fn recent_times(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let rights = permission::rights();
    for (lane, Recent { wait, run }) in recent::read(time::now_us().saturating_sub(RECENT_US)) {
        if !rights.on_lane(lane, Privilege::Observe) {
            continue;
        }
        for (kind, times) in [("wait", wait), ("run", run)] {
            for (share, us) in QUANTILES.into_iter().filter_map(|share| Some((share, times.quantile(share)?))) {
                let float = |value: f64| Datum::from(value.to_bits());
                let mut row = [lane.into(), text_datum(kind), float(share), float(us as f64 / 1e6)];
                rows.add(&mut row, &mut [false; 4])?;
            }
        }
    }
    Ok(None)
}
