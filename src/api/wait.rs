//! `CALL queue.wait(queue_name, timeout)`: sleep until a job is there, holding no snapshot and so holding
//! nothing back from vacuum.

use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

use crate::api::claim::{Known, Sleeper, longest_wait};
use crate::call::{Call, Interval, sql_function};
use crate::error::{self, Error, Result};
use crate::{api, limits, refill, shmem, sys};

sql_function!(pg_queue_wait, pg_finfo_pg_queue_wait => wait);

/// `CALL queue.wait(queue_name, timeout, INOUT has_jobs)`.
fn wait(call: &Call) -> Result<Option<Datum>> {
    if sys::in_recovery() {
        api::writable("wait")?;
    }
    crate::transaction::register();
    let name = call.required("queue_name", call.text(0))?;
    let timeout = call.interval(1).map_or(30_000_000, Interval::us);
    if timeout < 0 {
        return Err(Error::invalid("timeout cannot be negative"));
    }
    if call.is_atomic() {
        return Err(Error::new(
            error::IN_TRANSACTION,
            "queue.wait cannot run inside a transaction block or a function",
        )
        .hint("Call it on its own, or use queue.claim with wait."));
    }
    let deadline = sys::monotonic_us().saturating_add(longest_wait(timeout));
    let has_jobs = loop {
        let known = Known::now(std::slice::from_ref(&name), None, true)?;
        if has_jobs(&known)? {
            break true;
        }
        if sys::monotonic_us() >= deadline {
            break false;
        }
        if let Some(mut sleeper) = Sleeper::begin(&known)? {
            drop(known);
            drop_snapshots();
            if !sleeper.sleep(deadline) {
                break false;
            }
        }
    };
    call.result_row(&mut [has_jobs.into()], &mut [false]).map(Some)
}

fn has_jobs(known: &Known) -> Result<bool> {
    let number = known.catalog.number;
    for (queue, lanes) in known.each().filter(|(queue, _)| !queue.is_paused && !known.is_dormant) {
        let claimer = queue.limits.map(|limits| limits::looker(queue, limits));
        for &lane in lanes {
            refill::refill(&known.catalog, lane)?;
            let has_jobs = shmem::with(|shared| {
                shared.frontier.heed(number, lane, claimer.as_ref());
                shared.frontier.has_jobs(number, lane)
            });
            if has_jobs {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Lets go of every snapshot of this statement, so that the session's xmin is empty while it sleeps.
fn drop_snapshots() {
    // SAFETY: a procedure in a non-atomic context: the active snapshot belongs to the CALL and is not used
    // after this, which is what PostgreSQL's own pg_wal_replay_wait does. The portal holds the same one, and
    // another for the row that the CALL will return, as a COMMIT here would find and release them, too.
    unsafe {
        if pg_sys::ActiveSnapshotSet() {
            pg_sys::PopActiveSnapshot();
        }
        let portal = pg_sys::ActivePortal;
        if !portal.is_null() {
            (*portal).portalSnapshot = std::ptr::null_mut();
            if !(*portal).holdSnapshot.is_null() {
                pg_sys::UnregisterSnapshotFromOwner((*portal).holdSnapshot, (*portal).resowner);
                (*portal).holdSnapshot = std::ptr::null_mut();
            }
        }
        pg_sys::InvalidateCatalogSnapshot();
    }
}
