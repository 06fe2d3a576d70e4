//! `queue.extend`, `extend_many`: the heartbeat. It lives in memory and writes nothing, unless the lease
//! becomes longer than any before: that is noted, so that a crash does not shorten it.
//!
//! Not transactional: a rollback does not take the time back.

use pgrx::pg_sys::Datum;

use crate::api::{self, lease_us};
use crate::call::{Call, sql_function};
use crate::error::Result;
use crate::hold::{self, Refusal};
use crate::instance::{self, Catalog};
use crate::log::note;
use crate::permission::{self, Rights};
use crate::transaction::{self, Step};
use crate::{shmem, sys};

sql_function!(pg_queue_extend, pg_finfo_pg_queue_extend => extend);
sql_function!(pg_queue_extend_many, pg_finfo_pg_queue_extend_many => extend_many);

/// Extends one lease: until when it runs now, and whether the job should be cancelled.
fn extend_one(
    catalog: &Catalog,
    id: i64,
    lease: Option<i64>,
    rights: &Rights,
) -> std::result::Result<(i64, bool), Refusal> {
    let held = hold::look(catalog, id, rights)?;
    let entry = held.entry;
    let own = transaction::lease_of(id).unwrap_or(entry.lease);
    let lease = lease.unwrap_or(own);
    let known = transaction::lease_of(id).unwrap_or(entry.longest);
    if lease > known {
        hold::write_note(catalog, id, held.home, note::Kind::Lease, Some(lease), None)?;
        transaction::remember(catalog.number, Step::Lengthened { id, lease });
    }
    if transaction::lease_of(id).is_some() {
        // Claimed in this very transaction: the lease starts when that commits.
        transaction::set_lease(id, lease);
        return Ok((sys::now_us().saturating_add(lease), entry.cancel != 0));
    }
    let deadline = sys::monotonic_us().saturating_add(lease);
    let mut worker = None;
    let extended = shmem::with_instance(catalog.number, |frontier, instance| {
        worker = transaction::plan(instance, deadline);
        frontier.extend(&mut instance.deadlines, catalog.number, id, 0, deadline)
    });
    if let Some(latch) = worker {
        shmem::wake_latch(latch);
    }
    let is_cancelled = extended.flatten().unwrap_or(entry).cancel != 0;
    Ok((sys::now_us().saturating_add(lease), is_cancelled))
}

/// `queue.extend(id, lease)`.
fn extend(call: &Call) -> Result<Option<Datum>> {
    api::writable("extend")?;
    let id = call.required("id", call.i64(0))?;
    let lease = call.interval(1).map(lease_us).transpose()?;
    let catalog = instance::current()?;
    let (expires_at, is_cancelled) = extend_one(&catalog, id, lease, &permission::rights(&catalog))?;
    call.result_row(&mut [expires_at.into(), is_cancelled.into()], &mut [false, false]).map(Some)
}

/// `queue.extend_many(ids, lease)`: those that are lost are left out.
fn extend_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("extend")?;
    let rows = call.rows()?;
    let ids = call.required("ids", call.i64_array(0))?;
    let lease = call.interval(1).map(lease_us).transpose()?;
    let catalog = instance::current()?;
    let rights = permission::rights(&catalog);
    for id in ids.into_iter().flatten() {
        match extend_one(&catalog, id, lease, &rights) {
            Ok((expires_at, is_cancelled)) => {
                rows.add(&mut [id.into(), expires_at.into(), is_cancelled.into()], &mut [false; 3])?;
            }
            Err(Refusal::Lost(_) | Refusal::Busy(_)) => {}
            Err(Refusal::Wrong(e)) => return Err(e),
        }
    }
    Ok(None)
}
