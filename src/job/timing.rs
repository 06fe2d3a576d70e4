//! What a producer has said about the times of a job, and its stored form: the column `timing` of the logs and of
//! history. It is an object with the fields `start_by`, `start_within` and `max_delay` that were given. With
//! `max_delay` it has `delayed_since`, too.
//!
//! Responsible for checking these options, for writing the object and for reading it. Not responsible for what follows
//! from its fields (`start_by`, `debounce`).
//!
//! Invariant: a stored time or span means the same in every session, whatever its settings are.

use pg_queue_core::span;
use pgrx::pg_sys::Datum;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::pg::datum::Interval;
use crate::pg::{jsonb, time};

const START_BY: &str = "start_by";
const START_WITHIN: &str = "start_within";
const MAX_DELAY: &str = "max_delay";
/// The time of the first call that has put the job off.
const DELAYED_SINCE: &str = "delayed_since";

/// By when a job must start, as its producer has said.
#[derive(Clone, Copy)]
pub enum StartBy {
    /// At this `timestamptz`.
    At(i64),
    /// After this span, which begins when the job may start.
    Within(Interval),
}

impl StartBy {
    /// Returns what the two arguments say. `None`: they say nothing.
    ///
    /// Errors: 22023 when both are given, the time is not finite, or the span is not positive and finite.
    pub fn new(at: Option<i64>, within: Option<Interval>) -> Result<Option<Self>> {
        match (at, within) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => {
                Err(Error::invalid("start_by and start_within cannot be given together").hint("Give one of the two."))
            }
            (Some(i64::MIN | i64::MAX), None) => Err(Error::invalid("start_by must be finite")
                .hint("Leave start_by out for a job that may start at any time.")),
            (Some(at), None) => Ok(Some(Self::At(at))),
            (None, Some(span)) => check_span(START_WITHIN, span).map(|()| Some(Self::Within(span))),
        }
    }
}

/// Checks a span that a call gives.
///
/// Errors: 22023 unless it is positive and finite.
pub fn check_span(name: &str, span: Interval) -> Result<()> {
    let error = match span.us() {
        i64::MAX => Error::invalid(format!("{name} must be finite")),
        us if us <= 0 => Error::invalid(format!("{name} must be positive")),
        _ => return Ok(()),
    };
    Err(error
        .detail(format!("It is {}.", span.text()))
        .hint(format!("For instance {name} => '30 minutes'. NULL is no limit.")))
}

/// What a call has said.
#[derive(Clone, Copy)]
pub struct Timing {
    /// By when the job must start. `None`: as its queue says.
    pub start_by: Option<StartBy>,
    /// The longest time for which calls under the job's key put it off.
    pub max_delay: Option<Interval>,
    /// The stored form.
    pub stored: Datum,
}

impl Timing {
    /// Checks what a call has said. `None`: nothing. `has_key`: the call has a unique key.
    ///
    /// Errors: 22023 as `StartBy::new`, and for a `max_delay` that is not positive and finite, or has no key.
    pub fn new(start_by: Option<StartBy>, max_delay: Option<Interval>, has_key: bool) -> Result<Option<Self>> {
        if start_by.is_none() && max_delay.is_none() {
            return Ok(None);
        }
        if let Some(max_delay) = max_delay {
            check_span(MAX_DELAY, max_delay)?;
            if !has_key {
                return Err(Error::invalid(format!("{MAX_DELAY} needs a unique_key"))
                    .detail("It bounds for how long calls under the same key put a waiting job off.")
                    .hint("Give the job a unique_key, with on_duplicate => 'replace' and a delay."));
            }
        }
        Ok(Some(Self { start_by, max_delay, stored: stored(start_by, max_delay, None) }))
    }

    /// Returns it for a job that has been put off since this time.
    pub fn delayed_since(&self, since: i64) -> Self {
        Self { stored: stored(self.start_by, self.max_delay, Some(since)), ..*self }
    }
}

fn stored(start_by: Option<StartBy>, max_delay: Option<Interval>, since: Option<i64>) -> Datum {
    let text = |span: Interval| span::text(span.months, span.days, span.time);
    let mut fields = Map::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), Value::from(value));
        }
    };
    match start_by {
        Some(StartBy::At(at)) => add(START_BY, Some(time::iso_time(at))),
        Some(StartBy::Within(span)) => add(START_WITHIN, Some(text(span))),
        None => {}
    }
    add(MAX_DELAY, max_delay.map(text));
    add(DELAYED_SINCE, since.map(time::iso_time));
    jsonb::of(&Value::Object(fields)).unwrap_or_else(jsonb::empty_object)
}

/// Reads from the stored form by when the job must start. `None`: as its queue says.
pub fn start_by(stored: Option<Datum>) -> Option<StartBy> {
    let stored = stored?;
    let at = || jsonb::timestamp(&jsonb::text_field(stored, START_BY)?).map(StartBy::At);
    let within = || jsonb::interval(&jsonb::text_field(stored, START_WITHIN)?).map(StartBy::Within);
    at().or_else(within)
}

/// Reads from the stored form since when the job has been put off. `None`: it has no bound.
pub fn since(stored: Option<Datum>) -> Option<i64> {
    jsonb::timestamp(&jsonb::text_field(stored?, DELAYED_SINCE)?)
}

/// Returns the stored form of an ended job that is to run again: it is not put off any more.
pub fn ended(stored: Datum) -> Datum {
    if jsonb::field(stored, DELAYED_SINCE).is_some() { jsonb::without(stored, DELAYED_SINCE) } else { stored }
}
