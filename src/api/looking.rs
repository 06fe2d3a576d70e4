//! What the views ask memory and the logs for: leases, running attempts, payloads. Also `queue.assert_loaded`.

use pg_queue_core::frontier::State;
use pgrx::pg_sys::Datum;

use crate::call::{Call, VOID, sql_function, text_datum};
use crate::error::{self, Error, Result};
use crate::instance::{self, Catalog};
use crate::log::attempt::Reader;
use crate::log::outcome::{Kind, Outcome};
use crate::log::{claim, history};
use crate::permission::{self, Privilege, Rights};
use crate::{segment, shmem, sys};

sql_function!(pg_queue_assert_loaded, pg_finfo_pg_queue_assert_loaded => assert_loaded);
sql_function!(pg_queue_running_now, pg_finfo_pg_queue_running_now => running_now);
sql_function!(pg_queue_claims_now, pg_finfo_pg_queue_claims_now => claims_now);
sql_function!(pg_queue_lease_expires_at, pg_finfo_pg_queue_lease_expires_at => lease_expires_at);
sql_function!(pg_queue_payload_of, pg_finfo_pg_queue_payload_of => payload_of);

/// `queue.assert_loaded()`, by CREATE EXTENSION: that there is shared memory `call::run` has checked already.
///
/// Errors: 0A000 in a database that is not in UTF8.
fn assert_loaded(_call: &Call) -> Result<Option<Datum>> {
    match sys::other_encoding() {
        None => Ok(Some(VOID)),
        Some(encoding) => Err(Error::new(error::NOT_SUPPORTED, "pg_queue needs a database whose encoding is UTF8")
            .detail(format!("That of this one is {encoding}."))
            .hint("CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0 makes one.")),
    }
}

/// `queue.payload_of(id)`, which may lie in the row of another attempt: a function and not a subquery in the views, whose plans would be priced as if it
/// were run for every row.
fn payload_of(call: &Call) -> Result<Option<Datum>> {
    let Some(mut id) = call.i64(0) else { return Ok(None) };
    let catalog = instance::current()?;
    let rights = permission::rights(&catalog);
    let may = |lane: i32| rights.on_lane(lane, Privilege::Observe);
    let mut reader = Reader::new(&catalog);
    loop {
        if let Some(attempt) = reader.payload_in(id).or_else(|| reader.trace(id)) {
            if !may(attempt.lane()) {
                return Ok(None);
            }
            if let Some(payload) = reader.payload(&attempt, |payload| payload.map(crate::jsonb::copy)) {
                return Ok(Some(payload));
            }
        }
        // Its segment, or the holder's, was emptied after the view had read it: looking at many takes long, and so does a
        // cursor.
        let Some(past) = history::find(&catalog, id).filter(|past| may(past.lane())) else { return Ok(None) };
        if let Some(payload) = past.get(history::column::PAYLOAD) {
            return Ok(Some(crate::jsonb::copy(payload)));
        }
        // Only a job's last attempt has it there; these hand it on as it is.
        let Outcome { kind: Kind::Failed | Kind::TimedOut | Kind::Released, next_id: Some(next), .. } = past.outcome()
        else {
            return Ok(None);
        };
        id = next;
        sys::check_for_interrupts();
    }
}

fn wall_time(deadline: i64) -> i64 {
    sys::now_us().saturating_add(deadline.saturating_sub(sys::monotonic_us()))
}

/// `queue.running_now()`: what memory knows of taken attempts, this moment.
fn running_now(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let catalog = instance::current()?;
    let rights = permission::rights(&catalog);
    for entry in shmem::each_running(catalog.number).filter(|e| rights.on_lane(e.lane, Privilege::Observe)) {
        let state = match entry.state {
            State::Taken => "claiming",
            State::Ending => "ending",
            State::Running | State::Free => "running",
        };
        rows.add_options(&[
            Some(entry.id.into()),
            Some(entry.lane.into()),
            Some(text_datum(state)),
            Some(entry.pid.into()),
            (entry.state == State::Running && entry.deadline > i64::MIN).then(|| wall_time(entry.deadline).into()),
            Some((entry.bound != 0).into()),
            Some((entry.cancel != 0).into()),
        ])?;
    }
    Ok(None)
}

/// `queue.claims_now()`: the claims of what memory knows to be taken, each found by its place.
fn claims_now(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let catalog = instance::current()?;
    let rights = permission::rights(&catalog);
    for entry in shmem::each_running(catalog.number).filter(|e| rights.on_lane(e.lane, Privilege::Observe)) {
        // One that is moving this moment is there or here.
        let places = [entry.place.segment, segment::open_old(&catalog)];
        let Some(row) = places.into_iter().find_map(|place| claim::find_row(&catalog, place, entry.id)) else {
            continue;
        };
        let found = claim::read(&row);
        if matches!(found.kind, claim::Kind::Worker | claim::Kind::Bound) {
            rows.add_options(&[
                Some(entry.lane.into()),
                Some(found.pid.into()),
                Some(found.claimed_at.into()),
                claim::worker(&row).as_deref().map(text_datum),
            ])?;
        }
    }
    Ok(None)
}

/// `queue.lease_expires_at(id)`: NULL when memory does not know.
fn lease_expires_at(call: &Call) -> Result<Option<Datum>> {
    let Some(id) = call.i64(0) else { return Ok(None) };
    let catalog = instance::current()?;
    let rights = permission::rights(&catalog);
    Ok(lease_end(&catalog, id, &rights).map(Datum::from))
}

/// When the lease of a running attempt ends, wall time, if memory knows and the user may.
pub fn lease_end(catalog: &Catalog, id: i64, rights: &Rights) -> Option<i64> {
    let entry = shmem::with(|shared| shared.frontier.entry(catalog.number, id));
    entry
        .filter(|e| e.claimed != 0 && e.deadline > i64::MIN && rights.on_lane(e.lane, Privilege::Observe))
        .map(|e| wall_time(e.deadline))
}
