//! `queue.doctor()`, and what memory tells for `queue.metrics()`.

use pgrx::pg_sys::Datum;

use crate::call::{Call, run_unloaded, sql_function, text_datum};
use crate::error::Result;
use crate::log::recent::{self, Recent};
use crate::permission::{self, Privilege};
use crate::{doctor, instance, shmem, sys};

sql_function!(pg_queue_doctor, pg_finfo_pg_queue_doctor => look, run_unloaded);
sql_function!(pg_queue_memory_use, pg_finfo_pg_queue_memory_use => memory_use);
sql_function!(pg_queue_recent_times, pg_finfo_pg_queue_recent_times => recent_times);

/// `queue.doctor()`: a row for each check. It tells of all queues.
///
/// Errors: 42501 for who may not observe every queue.
fn look(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    if shmem::is_there()
        && let Ok(catalog) = instance::current()
    {
        permission::check_everywhere(&catalog, Privilege::Observe)?;
    }
    // Whoever holds a lock that a check needs is not waited for: that is what the check has found then.
    let settings = [(c"lock_timeout", c"10ms"), (c"search_path", c"pg_catalog, pg_temp")];
    sys::with_settings(&settings, || {
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

/// `queue.memory_use()`: how much of what each setting sizes is in use.
fn memory_use(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    for kind in shmem::in_use() {
        let number = |n: usize| Datum::from(i64::try_from(n).unwrap_or(i64::MAX));
        rows.add(&mut [text_datum(kind.setting), number(kind.used), number(kind.size)], &mut [false; 3])?;
    }
    Ok(None)
}

/// The quantiles of waiting and running times that are told.
const QUANTILES: [f64; 3] = [0.5, 0.95, 0.99];
/// Of how long ago, in microseconds.
const RECENT: i64 = 60_000_000;

/// `queue.recent_times()`: quantiles, in seconds, of the times of the last minute.
fn recent_times(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let catalog = instance::current()?;
    let rights = permission::rights(&catalog);
    for (lane, Recent { wait, run }) in recent::read(&catalog, sys::now_us().saturating_sub(RECENT)) {
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
