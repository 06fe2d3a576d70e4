//! `queue.release`, `release_many`: give an attempt back, uncounted, for a shutdown or a snooze.
//!
//! Not here: how the next attempt is made of the last one (`job::successor`), and another run (`job::rerun`).

use std::rc::Rc;

use pgrx::pg_sys::Datum;

use crate::api::{self, add_id, sql_function};
use crate::catalog::{self, Catalog};
use crate::error::Result;
use crate::job::held::{Held, Refusal};
use crate::job::options::in_future;
use crate::job::outcomes::Outcomes;
use crate::job::{hold, rerun, successor};
use crate::log::attempt;
use crate::log::note;
use crate::log::outcome::{Kind, New};
use crate::log::reader::Reader;
use crate::pg::datum::Interval;
use crate::pg::function::{Call, VOID};
use crate::pg::time;

sql_function!(pg_queue_release, pg_finfo_pg_queue_release => release);
sql_function!(pg_queue_release_many, pg_finfo_pg_queue_release_many => release_many);

const NO_DELAY: Interval = Interval { months: 0, days: 0, time: 0 };

/// Ends a held attempt as released: the next one has the same number and keeps the job's place in the order. If the job
/// is to be cancelled, it is cancelled.
fn give_back(
    catalog: &Rc<Catalog>,
    outcomes: &mut Outcomes,
    held: &Held,
    delay: Interval,
) -> std::result::Result<(), Refusal> {
    let mut reader = Reader::new(catalog);
    let attempt = successor::attempt_of(catalog, &mut reader, held)?;
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
    let run_at = in_future("delay", delay, time::now_us())?;
    let (target, mut next) = successor::successor(catalog, &attempt, run_at)?;
    if let Some(progress) = notes.progress() {
        next.progress = Some(progress);
    }
    attempt::insert(catalog, &target, &[next])?;
    outcomes.add(held.home, New { next_id: Some(next.id), ..New::of(held.id, Kind::Released) });
    Ok(())
}

/// `queue.release(id, delay)`. If `delay` is NULL, the next attempt is ready at once.
fn release(call: &Call) -> Result<Option<Datum>> {
    api::writable("release")?;
    let id = call.required("id", call.i64(0))?;
    let delay = call.interval(1).unwrap_or(NO_DELAY);
    in_future("delay", delay, time::now_us())?;
    let catalog = catalog::current()?;
    let mut outcomes = Outcomes::new(&catalog);
    let held = hold::hold_for_end(&mut outcomes, id)?;
    give_back(&catalog, &mut outcomes, &held, delay)?;
    outcomes.insert()?;
    Ok(Some(VOID))
}

/// `queue.release_many(ids, delay)`: returns the ids of the attempts that it has given back.
fn release_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("release")?;
    let rows = call.rows()?;
    let ids = call.required("ids", call.i64_array(0))?;
    let delay = call.interval(1).unwrap_or(NO_DELAY);
    in_future("delay", delay, time::now_us())?;
    let catalog = catalog::current()?;
    let mut outcomes = Outcomes::new(&catalog);
    for id in ids.into_iter().flatten() {
        let ended =
            hold::hold_for_end(&mut outcomes, id).and_then(|held| give_back(&catalog, &mut outcomes, &held, delay));
        match ended {
            Ok(()) => add_id(&rows, id)?,
            Err(Refusal::Lost(_) | Refusal::Busy(_)) => {}
            Err(Refusal::Wrong(e)) => return Err(e),
        }
    }
    outcomes.insert()?;
    Ok(None)
}
