//! `queue.fail`, `fail_many`, and what a timeout shares with them: an attempt that ends badly is followed
//! by another, later, or the job is dead.

use std::rc::Rc;

use pg_queue_core::backoff;
use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::api::{self, LAST_TIME, complete::add_id, in_future};
use crate::call::{Call, Interval, sql_function, text_datum};
use crate::error::{Error, Result};
use crate::hold::{self, Held, Outcomes, Refusal};
use crate::instance::{self, Catalog};
use crate::log::attempt::{self, Attempt, Reader};
use crate::log::note;
use crate::log::outcome::{Kind, New};
use crate::queue;
use crate::segment::Target;
use crate::{dead_letter, guc, ids, rerun, sys};
use pg_queue_core::frontier::Ready;

sql_function!(pg_queue_fail, pg_finfo_pg_queue_fail => fail);
sql_function!(pg_queue_fail_many, pg_finfo_pg_queue_fail_many => fail_many);

/// How an attempt ended badly.
pub enum Failure<'a> {
    /// The worker said so.
    Reported { error: &'a str, retry_in: Option<Interval>, is_fatal: bool },
    /// The lease ended, or the connection did.
    TimedOut { error: &'a str },
}

/// Cuts an error text to the length allowed, between two characters.
pub fn cut(text: &str) -> &str {
    let most = usize::try_from(guc::MAX_ERROR_LENGTH.get()).unwrap_or(8192);
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|&n| text.is_char_boundary(n)).unwrap_or(0);
    &text[..end]
}

/// The attempt's row, for what goes on with the job.
///
/// Errors: XX000 when it is gone, although it has not ended.
pub fn attempt_of(reader: &mut Reader<'_>, held: &Held) -> Result<Attempt> {
    let ready = Ready { id: held.id, ..held.entry.ready() };
    reader.fetch(&ready).ok_or_else(|| Error::internal(format!("attempt {} has a claim and no row", held.id)))
}

/// A successor of `attempt` with a fresh id, to run at `run_at`, and the segment to insert it into.
pub fn successor(catalog: &Catalog, attempt: &Attempt, run_at: Option<i64>) -> Result<(Target, attempt::New)> {
    let (target, id) = fresh(catalog, run_at)?;
    Ok((target, attempt::New { run_at, ..attempt.successor(id) }))
}

/// A fresh id for an attempt that runs at `run_at`, and the segment to insert it into.
pub fn fresh(catalog: &Catalog, run_at: Option<i64>) -> Result<(Target, i64)> {
    let mut count = 0;
    ids::take(catalog, 1, |fresh| count = fresh)?;
    let target = Target::open(catalog, run_at);
    let id = id::attempt(ids::node(), count, target.home.segment);
    Ok((target, id))
}

/// Ends a held attempt badly. Returns when the job runs again (`timestamptz`), `None` when it is dead or
/// cancelled.
pub fn end_badly(
    catalog: &Rc<Catalog>,
    outcomes: &mut Outcomes,
    held: &Held,
    failure: &Failure<'_>,
) -> Result<Option<i64>> {
    let mut reader = Reader::new(catalog);
    let attempt = attempt_of(&mut reader, held)?;
    let queue = queue::by_lane(catalog, attempt.lane())?;
    let now = sys::now_us();
    let (kind, error, retry_in, is_fatal) = match *failure {
        Failure::Reported { error, retry_in, is_fatal } => (Kind::Failed, error, retry_in, is_fatal),
        Failure::TimedOut { error } => (Kind::TimedOut, error, Some(Interval { months: 0, days: 0, time: 0 }), false),
    };
    let words = cut(error);
    let error = text_datum(words);
    let notes = note::summary(catalog, held.home.segment, held.id);
    let mut outcome = New { error: Some(error), ..New::of(held.id, kind) };
    let max_attempts = attempt.max_attempts().or(queue.as_ref().map(|q| q.max_attempts)).unwrap_or(0);
    if held.is_unwanted(&notes) {
        outcome.kind = Kind::Cancelled;
    }
    if let Some((next_id, run_at)) = rerun::follow(catalog, held)? {
        outcomes.add(held.home, New { next_id: Some(next_id), ..outcome });
        return Ok(Some(run_at.unwrap_or(now)));
    }
    if outcome.kind == Kind::Cancelled {
        outcomes.add(held.home, outcome);
        return Ok(None);
    }
    if is_fatal || queue.is_none() || attempt.attempt() >= max_attempts {
        if kind == Kind::Failed {
            outcome.kind = Kind::Dead;
        }
        if let Some(queue) = &queue {
            dead_letter::copy(catalog, queue, &attempt, words)?;
        }
    } else if let Some(queue) = queue {
        let run_at = match retry_in {
            Some(delay) => in_future("retry_in", delay, now)?,
            None => {
                let us = backoff::delay(
                    queue.curve,
                    queue.backoff_base,
                    queue.backoff_max,
                    queue.backoff_jitter,
                    attempt.attempt(),
                    fastrand::f64(),
                );
                (us > 0).then(|| now.saturating_add(us).min(LAST_TIME))
            }
        };
        let (target, mut next) = successor(catalog, &attempt, run_at)?;
        next.attempt += 1;
        next.last_error = Some(error);
        if let Some(progress) = notes.progress() {
            next.progress = Some(progress);
        }
        outcome.next_id = Some(next.id);
        attempt::insert(catalog, &target, &[next])?;
        outcomes.add(held.home, outcome);
        return Ok(Some(run_at.unwrap_or(now)));
    }
    outcomes.add(held.home, outcome);
    Ok(None)
}

/// `queue.fail(id, error, retry_in, fatal)`.
fn fail(call: &Call) -> Result<Option<Datum>> {
    api::writable("fail")?;
    let id = call.required("id", call.i64(0))?;
    let error = call.required("error", call.text(1))?;
    let failure = reported(call, &error)?;
    let catalog = instance::current()?;
    let mut outcomes = Outcomes::new(&catalog);
    let held = hold::running(&mut outcomes, id)?;
    let run_at = end_badly(&catalog, &mut outcomes, &held, &failure)?;
    outcomes.insert()?;
    Ok(run_at.map(Datum::from))
}

/// `queue.fail_many(ids, error, retry_in, fatal)`.
fn fail_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("fail")?;
    let rows = call.rows()?;
    let ids = call.required("ids", call.i64_array(0))?;
    let error = call.required("error", call.text(1))?;
    let failure = reported(call, &error)?;
    let catalog = instance::current()?;
    let mut outcomes = Outcomes::new(&catalog);
    for id in ids.into_iter().flatten() {
        match hold::running(&mut outcomes, id) {
            Ok(held) => {
                end_badly(&catalog, &mut outcomes, &held, &failure)?;
                add_id(&rows, id)?;
            }
            Err(Refusal::Lost(_) | Refusal::Busy(_)) => {}
            Err(Refusal::Wrong(e)) => return Err(e),
        }
    }
    outcomes.insert()?;
    Ok(None)
}

fn reported<'a>(call: &Call, error: &'a str) -> Result<Failure<'a>> {
    let retry_in = call.interval(2);
    // Checked before anything is held, so that the error does not depend on the job's state.
    if let Some(delay) = retry_in {
        in_future("retry_in", delay, sys::now_us())?;
    }
    Ok(Failure::Reported { error, retry_in, is_fatal: call.bool(3).unwrap_or(false) })
}
