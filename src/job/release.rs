//! Releases attempts: the job is given back, and the attempt does not count.

use std::rc::Rc;

use crate::catalog::Catalog;
use crate::job::held::{Held, Refusal};
use crate::job::options::in_future;
use crate::job::outcomes::Outcomes;
use crate::job::{next_attempt, rerun};
use crate::log::attempt;
use crate::log::note;
use crate::log::outcome::{Kind, New};
use crate::log::reader::Reader;
use crate::pg::datum::Interval;
use crate::pg::time;

/// Ends a held attempt as released. The next attempt has the same number and keeps the job's place in the order. If a
/// cancellation was requested, the job is cancelled instead. Returns which of both.
pub fn give_back(
    catalog: &Rc<Catalog>,
    outcomes: &mut Outcomes,
    held: &Held,
    delay: Interval,
) -> std::result::Result<Kind, Refusal> {
    let mut reader = Reader::new(catalog);
    let attempt = next_attempt::row_of(catalog, &mut reader, held)?;
    let notes = note::summary(catalog, held.home.segment, held.id);
    let is_cancelled = held.is_unwanted(&notes);
    if let Some((next_id, _)) = rerun::follow(catalog, held)? {
        let kind = if is_cancelled { Kind::Cancelled } else { Kind::Released };
        outcomes.add(held, New { next_id: Some(next_id), ..New::of(held.id, kind) });
        return Ok(kind);
    }
    if is_cancelled {
        outcomes.add(held, New::of(held.id, Kind::Cancelled));
        return Ok(Kind::Cancelled);
    }
    let run_at = in_future("delay", delay, time::now_us())?;
    let (target, mut next) = next_attempt::make(catalog, &attempt, run_at)?;
    notes.hand_on(&mut next);
    attempt::insert(catalog, &target, &[next])?;
    outcomes.add(held, New { next_id: Some(next.id), ..New::of(held.id, Kind::Released) });
    Ok(Kind::Released)
}
