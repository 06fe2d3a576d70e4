//! `queue.extend`, `extend_many`: the heartbeat. It changes shared memory and writes nothing, unless the lease becomes
//! longer than any before: then a note records it, so that a crash does not shorten it.
//!
//! Not here: the end of a lease (`duty::expire`).
//!
//! It is not transactional: a rollback does not take the time back.

use pg_queue_core::frontier::State;
use pgrx::pg_sys::Datum;

use crate::api::{self, answers, sql_function};
use crate::catalog::permission::{self, Rights};
use crate::catalog::{self, Catalog};
use crate::error::Result;
use crate::job::held::Refusal;
use crate::job::hold;
use crate::job::options::lease_us;
use crate::log::note;
use crate::pg::datum::text_datum;
use crate::pg::function::Call;
use crate::pg::time;
use crate::shmem;
use crate::transaction::{self, Step};

sql_function!(pg_queue_extend, pg_finfo_pg_queue_extend => extend);
sql_function!(pg_queue_extend_many, pg_finfo_pg_queue_extend_many => extend_many);

/// Extends one lease. Returns when it ends now, in wall time, and whether the job is to be cancelled. `lease` is in
/// microseconds; `None`: as long as before.
fn extend_one(
    catalog: &Catalog,
    id: i64,
    lease: Option<i64>,
    rights: &Rights,
) -> std::result::Result<(i64, bool), Refusal> {
    let held = hold::check_claimed(catalog, id, rights)?;
    let mut entry = held.entry;
    let own = transaction::lease_of(id).unwrap_or(entry.lease);
    let lease = lease.unwrap_or(own);
    let known = transaction::lease_of(id).unwrap_or(entry.longest);
    let is_longer = lease > known;
    if is_longer {
        hold::write_note(catalog, id, held.home, note::Kind::Lease, Some(lease), None)?;
        transaction::record(catalog.number, Step::Lengthened { id, lease, deadline: i64::MIN });
    }
    if transaction::lease_of(id).is_some() {
        // This very transaction has claimed it: the lease starts with its commit.
        transaction::set_lease(id, lease);
        return Ok((time::now_us().saturating_add(lease), entry.cancel != 0));
    }
    loop {
        let expires_at = time::now_us().saturating_add(lease);
        let deadline = time::monotonic_us().saturating_add(lease);
        let mut worker = None;
        let extended = shmem::with_instance(catalog.number, |frontier, instance| {
            worker = instance.wake_worker_by(deadline);
            frontier.extend(&mut instance.deadlines, catalog.number, id, 0, deadline)
        });
        if let Some(latch) = worker {
            shmem::wake_latch(latch);
        }
        if let Some(entry) = extended.flatten() {
            return Ok((expires_at, entry.cancel != 0));
        }
        // The attempt's end has begun since the look; or memory has no room for the attempt, and no deadline ends it.
        let is_known = entry.state != State::Free;
        entry = hold::check_claimed(catalog, id, rights)?.entry;
        if !is_known && entry.state == State::Free {
            if is_longer {
                // A session that finds room for the attempt before the commit does not see the note.
                transaction::record(catalog.number, Step::Lengthened { id, lease, deadline });
            }
            return Ok((expires_at, entry.cancel != 0));
        }
    }
}

/// `queue.extend(id, lease)`.
fn extend(call: &Call) -> Result<Option<Datum>> {
    api::writable("extend")?;
    let id = call.required("id", call.i64(0))?;
    let lease = call.interval(1).map(lease_us).transpose()?;
    let catalog = catalog::current()?;
    let (expires_at, is_cancelled) = extend_one(&catalog, id, lease, &permission::rights(&catalog))?;
    call.result_row(&mut [expires_at.into(), is_cancelled.into()], &mut [false, false]).map(Some)
}

/// `queue.extend_many(ids, lease)`: as other verbs for many, with what `queue.extend` returns beside it.
fn extend_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("extend")?;
    let rows = call.rows()?;
    let ids = call.required("ids", call.i64_array(0))?;
    let lease = call.interval(1).map(lease_us).transpose()?;
    let catalog = catalog::current()?;
    let rights = permission::rights(&catalog);
    for id in ids.into_iter().flatten() {
        match extend_one(&catalog, id, lease, &rights) {
            Ok((expires_at, is_cancelled)) => {
                // The SQL of 0.3.0, until ALTER EXTENSION UPDATE.
                if rows.has_columns(3) {
                    rows.add(&mut [id.into(), expires_at.into(), is_cancelled.into()], &mut [false; 3])?;
                    continue;
                }
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
                if rows.has_columns(3) {
                    continue;
                }
                let reason = Some(text_datum(&answers::reason(&error)));
                rows.add_options(&[Some(id.into()), Some(text_datum(outcome)), reason, None, None])?;
            }
        }
    }
    Ok(None)
}
