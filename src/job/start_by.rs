//! The time by which a job must start: read from the headers of a call, or from its queue.
//!
//! Responsible for that time of each new attempt. Not responsible for refusing late claims (`claim`), nor for ending
//! jobs that have expired (`duty::expire_waiting`).
//!
//! Invariant: an attempt that is made from another one of a job that has started gets no time from its queue.

use pgrx::pg_sys::Datum;

use crate::catalog::Catalog;
use crate::catalog::queue::Queue;
use crate::error::{self, Error, Result};
use crate::log::attempt::New;
use crate::pg::datum::Interval;
use crate::pg::jsonb::{self, Value};
use crate::pg::time::LAST_TIME;

/// The time that a held attempt has if its release must not give it one: the job has started before.
pub const NEVER: i64 = i64::MAX;

/// The header with the time.
const AT: &str = "start_by";
/// The header with the span.
const WITHIN: &str = "start_within";

/// By when a job must start, as its producer has said.
#[derive(Clone, Copy)]
pub enum StartBy {
    /// At this `timestamptz`.
    At(i64),
    /// After this span, which begins when the job may start.
    Within(Interval),
}

impl StartBy {
    /// Reads the headers of a job. `None`: they do not say.
    ///
    /// Errors: 22023 when they say both, or the value is no text, not finite, not positive or cannot be read.
    pub fn of_headers(headers: Option<Datum>) -> Result<Option<Self>> {
        let Some(headers) = headers else { return Ok(None) };
        let [at, within] = [AT, WITHIN].map(|name| jsonb::field(headers, name).filter(|value| !value.is_null()));
        match (at, within) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(Error::invalid("headers start_by and start_within cannot be given together")
                .hint("Give one of the two.")),
            (Some(at), None) => read_time(&at).map(|at| Some(Self::At(at))),
            (None, Some(within)) => read_span(&within).map(|span| Some(Self::Within(span))),
        }
    }

    /// Returns the time for a job that may start at `from`.
    fn time(self, from: i64) -> i64 {
        match self {
            Self::At(at) => at,
            Self::Within(span) => span.after_or(from, LAST_TIME).min(LAST_TIME),
        }
    }
}

fn text_of(value: &Value, name: &str) -> Result<String> {
    const MAX_SHOWN_BYTES: usize = 100;
    value.as_str().ok_or_else(|| {
        Error::invalid(format!("header \"{name}\" must be a string"))
            .detail(format!("It is {}.", value.brief(MAX_SHOWN_BYTES)))
    })
}

fn unreadable(name: &str, text: &str, example: &str) -> Error {
    Error::invalid(format!("invalid value for header \"{name}\": \"{text}\""))
        .hint(format!("For instance: \"{name}\": \"{example}\"."))
}

fn read_time(value: &Value) -> Result<i64> {
    let text = text_of(value, AT)?;
    let at = jsonb::timestamp(&text).ok_or_else(|| unreadable(AT, &text, "2030-01-31 12:00:00+00"))?;
    if at == i64::MAX || at == i64::MIN {
        return Err(Error::invalid(format!("header \"{AT}\" must be finite"))
            .hint("Leave it out for a job that may start at any time."));
    }
    Ok(at)
}

fn read_span(value: &Value) -> Result<Interval> {
    let text = text_of(value, WITHIN)?;
    let span = jsonb::interval(&text).ok_or_else(|| unreadable(WITHIN, &text, "5 minutes"))?;
    check_span(&format!("header \"{WITHIN}\""), span)?;
    Ok(span)
}

/// Checks how long jobs may wait.
///
/// Errors: 22023 unless it is positive and finite.
pub fn check_span(name: &str, span: Interval) -> Result<()> {
    if span.us() <= 0 {
        return Err(Error::invalid(format!("{name} must be positive")).detail(format!("It is {}.", span.text())));
    }
    if span.us() == i64::MAX {
        return Err(Error::invalid(format!("{name} must be finite")));
    }
    Ok(())
}

/// Checks that a waiting job may start before the time by which it must.
///
/// Errors: 55000 otherwise.
pub fn check_goes_on(job_id: i64, start_by: Option<i64>, run_at: Option<i64>) -> Result<()> {
    check_after(start_by, run_at).map_err(|_| {
        Error::new(error::WRONG_STATE, format!("job {job_id} would expire before it may start"))
            .detail("It must start before that time: start_by of view queue.jobs.")
            .hint("Give an earlier time, or cancel it and enqueue another one.")
    })
}

/// Checks that a new job may start before the time by which it must.
///
/// Errors: 22023 otherwise.
pub fn check_after(start_by: Option<i64>, run_at: Option<i64>) -> Result<()> {
    match (start_by, run_at) {
        (Some(start_by), Some(run_at)) if run_at >= start_by => {
            Err(Error::invalid("the job would expire before it may start")
                .detail("Its start_by is not after its run_at.")
                .hint("Give a later start_by, or an earlier run_at."))
        }
        _ => Ok(()),
    }
}

/// Returns the time by which a new job must start. `None`: it may start at any time.
pub fn of_new(catalog: &Catalog, queue: &Queue, own: Option<StartBy>, run_at: Option<i64>, now: i64) -> Option<i64> {
    let wanted = own.or(queue.start_within.map(StartBy::Within))?;
    catalog.knows_expiry().then(|| wanted.time(run_at.unwrap_or(now)))
}

/// Returns the time for an attempt that is held: the one that its producer gave. A span begins with its release.
pub fn of_held(own: Option<StartBy>) -> Option<i64> {
    match own {
        Some(StartBy::At(at)) => Some(at),
        Some(StartBy::Within(_)) | None => None,
    }
}

/// Returns the time for an attempt that is released, made from a held one.
pub fn of_released(catalog: &Catalog, queue: &Queue, held: &New, now: i64) -> Option<i64> {
    match held.start_by {
        Some(NEVER) => None,
        Some(at) => Some(at),
        // The headers were checked when the job was enqueued.
        None => of_new(catalog, queue, StartBy::of_headers(held.headers).ok().flatten(), held.run_at, now),
    }
}

/// Returns the headers without those that say by when a job must start.
pub fn without(headers: Datum) -> Datum {
    [AT, WITHIN].into_iter().fold(headers, |headers, name| {
        if jsonb::field(headers, name).is_some() { jsonb::without(headers, name) } else { headers }
    })
}

/// Checks the headers of a schedule, whose jobs are many.
///
/// Errors: as `StartBy::of_headers`; 22023 for a time.
pub fn check_schedule(headers: Option<Datum>) -> Result<()> {
    match StartBy::of_headers(headers)? {
        Some(StartBy::At(_)) => Err(Error::invalid("a schedule cannot have the header \"start_by\"")
            .detail("It would be the same time for all its jobs.")
            .hint("Use \"start_within\".")),
        _ => Ok(()),
    }
}
