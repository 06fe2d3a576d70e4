//! Ends failed attempts: the job is retried after a delay, or it dies and leaves a dead letter.

use pg_queue_core::backoff;

use crate::catalog::queue;
use crate::guc;
use crate::job::held::{Held, Refusal};
use crate::job::options::in_future;
use crate::job::outcomes::Outcomes;
use crate::job::{dead_letter, next_attempt, rerun};
use crate::log::note;
use crate::log::outcome::{Kind, New};
use crate::log::reader::Reader;
use crate::pg::datum::{Interval, text_datum};
use crate::pg::time::{self, LAST_TIME};
use crate::transaction::{self, FlowStep};

/// How an attempt failed.
pub enum Failure<'a> {
    /// The worker reported the failure.
    Reported { error: &'a str, retry_in: Option<Interval>, is_fatal: bool },
    /// The lease has expired, or the connection has ended.
    TimedOut { error: &'a str },
}

/// Cuts an error text to the permitted length, between two characters.
pub fn cut(text: &str) -> &str {
    let most = usize::try_from(guc::MAX_ERROR_LENGTH.get()).unwrap_or(8192);
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|&n| text.is_char_boundary(n)).unwrap_or(0);
    &text[..end]
}

/// Ends a held attempt as failed. Returns how it has ended, and when the job runs again (`timestamptz`). `None`: the
/// job is dead or cancelled.
pub fn end_badly(
    outcomes: &mut Outcomes,
    held: &Held,
    failure: &Failure<'_>,
) -> std::result::Result<(Kind, Option<i64>), Refusal> {
    let mut reader = Reader::new();
    let attempt = next_attempt::row_of(&mut reader, held)?;
    let queue = queue::by_lane(attempt.lane())?;
    let now = time::now_us();
    let (kind, error, retry_in, is_fatal) = match *failure {
        Failure::Reported { error, retry_in, is_fatal } => (Kind::Failed, error, retry_in, is_fatal),
        Failure::TimedOut { error } => (Kind::TimedOut, error, Some(Interval::ZERO), false),
    };
    let words = cut(error);
    let error = text_datum(words);
    let notes = note::summary(held.home.segment, held.id);
    let mut outcome = New { error: Some(error), ..New::of(held.id, kind) };
    let max_attempts = attempt.max_attempts().or(queue.as_ref().map(|q| q.max_attempts)).unwrap_or(0);
    if held.is_unwanted(&notes) {
        outcome.kind = Kind::Cancelled;
    }
    if let Some((next_id, run_at)) = rerun::follow(held)? {
        outcomes.add(held, New { next_id: Some(next_id), ..outcome });
        return Ok((outcome.kind, Some(run_at.unwrap_or(now))));
    }
    if outcome.kind == Kind::Cancelled {
        outcomes.add(held, outcome);
        return Ok((outcome.kind, None));
    }
    let is_last = is_fatal || queue.is_none() || attempt.attempt() >= max_attempts;
    let run_at = match (retry_in, &queue) {
        (Some(delay), Some(_)) if !is_last => in_future("retry_in", delay, now)?,
        (None, Some(queue)) if !is_last => {
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
        _ => None,
    };
    let is_late = attempt.start_by().is_some_and(|start_by| run_at.unwrap_or(now) >= start_by);
    if is_last || is_late {
        if kind == Kind::Failed {
            outcome.kind = Kind::Dead;
        }
        // The job's flow may end with it, or successors that wait for a death may be released.
        if attempt.flow().is_some() {
            transaction::record(FlowStep::Awaited { job_id: attempt.job_id(), mark: None });
        }
        if let Some(queue) = &queue {
            dead_letter::copy(queue, &attempt, words);
        }
    } else {
        let (target, mut next) = next_attempt::make(&attempt, run_at)?;
        next.attempt += 1;
        next.last_error = Some(error);
        notes.hand_on(&mut next);
        outcome.next_id = Some(next.id);
        next_attempt::insert(held, &target, next)?;
        outcomes.add(held, outcome);
        return Ok((outcome.kind, Some(run_at.unwrap_or(now))));
    }
    outcomes.add(held, outcome);
    Ok((outcome.kind, None))
}
