//! The functions by which the views read leases, running attempts and payloads from memory and the logs. Also
//! `queue_internal.assert_loaded`.
//!
//! Not responsible for all attempts by the snapshot of the statement (`view::attempts`). What this file reads from
//! memory is of the present moment.

use pg_queue_core::frontier::State;
use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege, Rights};
use crate::error::{self, Error, Result};
use crate::log::outcome::{Kind, Outcome};
use crate::log::reader::Reader;
use crate::log::{claim, history, segment};
use crate::pg::datum::text_datum;
use crate::pg::function::{Call, VOID};
use crate::pg::{process, session, time};
use crate::shmem::{self, here};

sql_function!(pg_queue_assert_loaded, pg_finfo_pg_queue_assert_loaded => assert_loaded, api::run_unpinned);
sql_function!(pg_queue_running_now, pg_finfo_pg_queue_running_now => running_now, api::run_briefly);
sql_function!(pg_queue_claims_now, pg_finfo_pg_queue_claims_now => claims_now, api::run_briefly);
sql_function!(pg_queue_sleepers_now, pg_finfo_pg_queue_sleepers_now => sleepers_now, api::run_briefly);
sql_function!(pg_queue_lease_expires_at, pg_finfo_pg_queue_lease_expires_at => lease_expires_at);
sql_function!(pg_queue_payload_of, pg_finfo_pg_queue_payload_of => payload_of);

/// `queue_internal.assert_loaded()`: called by CREATE EXTENSION. Before it `api::run` has checked that shared memory
/// exists.
///
/// Errors: 0A000 in a database whose encoding is not UTF8.
fn assert_loaded(_call: &Call) -> Result<Option<Datum>> {
    match session::other_encoding() {
        None => Ok(Some(VOID)),
        Some(encoding) => Err(Error::new(error::NOT_SUPPORTED, "pg_queue needs a database whose encoding is UTF8")
            .detail(format!("The encoding of this database is {encoding}."))
            .hint("CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0 creates one.")),
    }
}

/// `queue_internal.payload_of(id)`: returns the payload of an attempt, which may lie in the row of another attempt. It
/// is no subquery of the views, because the planner would price it as if it ran for every row. Returns NULL if the
/// attempt does not exist, or the current user may not observe it.
fn payload_of(call: &Call) -> Result<Option<Datum>> {
    let Some(mut id) = call.get(args::payload_of::ID) else { return Ok(None) };
    let rights = permission::rights();
    let may = |lane: i32| rights.on_lane(lane, Privilege::Observe);
    let mut reader = Reader::new();
    loop {
        if let Some(attempt) = reader.payload_in(id).or_else(|| reader.trace(id)) {
            if !may(attempt.lane()) {
                return Ok(None);
            }
            if let Some(payload) = reader.payload(&attempt, |payload| payload.map(crate::pg::jsonb::copy)) {
                return Ok(Some(payload));
            }
        }
        // The segment of the attempt or of its payload may have been emptied since the view read it. A query over many
        // rows takes long, and so does a cursor.
        let Some(past) = history::find(id).filter(|past| may(past.lane())) else { return Ok(None) };
        if let Some(payload) = past.get(history::column::PAYLOAD) {
            return Ok(Some(crate::pg::jsonb::copy(payload)));
        }
        // In history only a job's last attempt has the payload. Attempts with these outcomes pass it on unchanged.
        let Outcome {
            kind: Kind::Failed | Kind::TimedOut | Kind::Released | Kind::Suspended, next_id: Some(next), ..
        } = past.outcome()
        else {
            return Ok(None);
        };
        id = next;
        process::check_for_interrupts();
    }
}

fn wall_time(deadline: i64) -> i64 {
    time::now_us().saturating_add(deadline.saturating_sub(time::monotonic_us()))
}

/// `queue_internal.running_now()`: returns the attempts that are taken now, as memory knows.
fn running_now(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let rights = permission::rights();
    for entry in shmem::each_running().filter(|e| rights.on_lane(e.lane, Privilege::Observe)) {
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
            Some((entry.cancel != 0).into()),
        ])?;
    }
    Ok(None)
}

/// `queue_internal.claims_now()`: returns the claims of the attempts that are taken now, as memory knows. Each is found
/// by its place.
fn claims_now(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let rights = permission::rights();
    for entry in shmem::each_running().filter(|e| rights.on_lane(e.lane, Privilege::Observe)) {
        // If the attempt is being moved now, its claim is in one of the two segments.
        let places = [entry.place.segment, segment::open_old()];
        let Some(row) = places.into_iter().find_map(|place| claim::find_row(place, entry.id)) else {
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

/// `queue_internal.sleepers_now()`: returns the sessions that sleep until there is a job, as memory knows. There is a
/// row for each lane that the session waits for and the user may observe.
fn sleepers_now(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let rights = permission::rights();
    for sleeper in shmem::each_sleeper() {
        let since = wall_time(sleeper.since);
        for &lane in sleeper.lanes().iter().filter(|&&lane| rights.on_lane(lane, Privilege::Observe)) {
            rows.add_options(&[Some(lane.into()), Some(sleeper.pid.into()), Some(since.into())])?;
        }
    }
    Ok(None)
}

/// `queue_internal.lease_expires_at(id)`: returns NULL if memory does not know the lease.
fn lease_expires_at(call: &Call) -> Result<Option<Datum>> {
    let Some(id) = call.get(args::lease_expires_at::ID) else { return Ok(None) };
    let rights = permission::rights();
    Ok(lease_end(id, &rights).map(Datum::from))
}

/// Returns the wall time at which the lease of a running attempt ends. `None`: memory does not know it, or the user may
/// not observe its queue.
pub fn lease_end(id: i64, rights: &Rights) -> Option<i64> {
    let entry = shmem::with(|shared| shared.frontier.entry(here::number(), id));
    entry
        .filter(|e| e.claimed != 0 && e.deadline > i64::MIN && rights.on_lane(e.lane, Privilege::Observe))
        .map(|e| wall_time(e.deadline))
}
