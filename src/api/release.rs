//! `queue.release`, `release_many`: give an attempt back, uncounted, for a shutdown or a snooze.

use std::rc::Rc;

use pgrx::pg_sys::Datum;

use crate::api::{self, complete::add_id, fail, in_future};
use crate::call::{Call, Interval, VOID, sql_function};
use crate::error::Result;
use crate::hold::{self, Held, Outcomes, Refusal};
use crate::instance::{self, Catalog};
use crate::log::attempt::{self, Reader};
use crate::log::note;
use crate::log::outcome::{Kind, New};
use crate::{rerun, sys};

sql_function!(pg_queue_release, pg_finfo_pg_queue_release => release);
sql_function!(pg_queue_release_many, pg_finfo_pg_queue_release_many => release_many);

const AT_ONCE: Interval = Interval { months: 0, days: 0, time: 0 };

/// Ends a held attempt as released: the next one has the same number and keeps the job's place.
fn give_back(catalog: &Rc<Catalog>, outcomes: &mut Outcomes, held: &Held, delay: Interval) -> Result<()> {
    let mut reader = Reader::new(catalog);
    let attempt = fail::attempt_of(&mut reader, held)?;
    let notes = note::summary(catalog, held.home.segment, held.id);
    let is_cancelled = held.is_unwanted(&notes);
    if let Some((next_id, _)) = rerun::follow(catalog, held)? {
        let kind = if is_cancelled { Kind::Cancelled } else { Kind::Released };
        outcomes.add(held.home, New { next_id: Some(next_id), ..New::of(held.id, kind) });
        return Ok(());
    }
    if is_cancelled {
        outcomes.add(held.home, New::of(held.id, Kind::Cancelled));
        return Ok(());
    }
    let run_at = in_future("delay", delay, sys::now_us())?;
    let (target, mut next) = fail::successor(catalog, &attempt, run_at)?;
    if let Some(progress) = notes.progress() {
        next.progress = Some(progress);
    }
    attempt::insert(catalog, &target, &[next])?;
    outcomes.add(held.home, New { next_id: Some(next.id), ..New::of(held.id, Kind::Released) });
    Ok(())
}

/// `queue.release(id, delay)`.
fn release(call: &Call) -> Result<Option<Datum>> {
    api::writable("release")?;
    let id = call.required("id", call.i64(0))?;
    let delay = call.interval(1).unwrap_or(AT_ONCE);
    in_future("delay", delay, sys::now_us())?;
    let catalog = instance::current()?;
    let mut outcomes = Outcomes::new(&catalog);
    let held = hold::running(&mut outcomes, id)?;
    give_back(&catalog, &mut outcomes, &held, delay)?;
    outcomes.insert()?;
    Ok(Some(VOID))
}

/// `queue.release_many(ids, delay)`.
fn release_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("release")?;
    let rows = call.rows()?;
    let ids = call.required("ids", call.i64_array(0))?;
    let delay = call.interval(1).unwrap_or(AT_ONCE);
    in_future("delay", delay, sys::now_us())?;
    let catalog = instance::current()?;
    let mut outcomes = Outcomes::new(&catalog);
    for id in ids.into_iter().flatten() {
        match hold::running(&mut outcomes, id) {
            Ok(held) => {
                give_back(&catalog, &mut outcomes, &held, delay)?;
                add_id(&rows, id)?;
            }
            Err(Refusal::Lost(_) | Refusal::Busy(_)) => {}
            Err(Refusal::Wrong(e)) => return Err(e),
        }
    }
    outcomes.insert()?;
    Ok(None)
}
