//! Releases attempts: the job is given back, and the attempt does not count.

use crate::job::held::{Held, Refusal};
use crate::job::options::in_future;
use crate::job::outcomes::Outcomes;
use crate::job::{fail, next_attempt, rerun};
use crate::log::note;
use crate::log::outcome::{Kind, New};
use crate::log::reader::Reader;
use crate::pg::datum::{Interval, text_datum};
use crate::pg::time;

/// How a worker gives an attempt back.
#[derive(Clone, Copy)]
pub struct Back<'a> {
    /// How long the job waits.
    pub delay: Interval,
    /// Why, for operators. `None`: the worker has not said.
    pub reason: Option<&'a str>,
}

impl Back<'_> {
    /// Returns a release without a reason.
    pub fn after(delay: Interval) -> Self {
        Self { delay, reason: None }
    }
}

/// Ends a held attempt as released. The next attempt has the same number and keeps the job's place in the order. If a
/// cancellation was requested, the job is cancelled instead. Returns which of both. The reason is kept as the attempt's
/// error and as the last error of the job.
pub fn give_back(outcomes: &mut Outcomes, held: &Held, back: Back<'_>) -> std::result::Result<Kind, Refusal> {
    let error = back.reason.map(|reason| text_datum(fail::cut(reason)));
    let ended = |kind| New { error, ..New::of(held.id, kind) };
    let mut reader = Reader::new();
    let attempt = next_attempt::row_of(&mut reader, held)?;
    let notes = note::summary(held.home.segment, held.id);
    let is_cancelled = held.is_unwanted(&notes);
    if let Some((next_id, _)) = rerun::follow(held)? {
        let kind = if is_cancelled { Kind::Cancelled } else { Kind::Released };
        outcomes.add(held, New { next_id: Some(next_id), ..ended(kind) });
        return Ok(kind);
    }
    if is_cancelled {
        outcomes.add(held, ended(Kind::Cancelled));
        return Ok(Kind::Cancelled);
    }
    let run_at = in_future("delay", back.delay, time::now_us())?;
    let (target, mut next) = next_attempt::make(&attempt, run_at)?;
    notes.hand_on(&mut next);
    next.last_error = error.or(next.last_error);
    next_attempt::insert(held, &target, next)?;
    outcomes.add(held, New { next_id: Some(next.id), ..ended(Kind::Released) });
    Ok(Kind::Released)
}
