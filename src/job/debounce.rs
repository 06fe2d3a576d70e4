//! The bound of a debounced job. Each call under the job's key replaces the waiting job and puts it off. The header
//! `max_delay` says for how long, counted from the first of these calls.
//!
//! The first call writes its time into the header `delayed_since`, and each later call takes the time over from the
//! waiting job, or from the last request for another run of a running one. So the time is wherever the job's headers
//! are: in moved segments, dumps and other servers.
//!
//! Responsible for both headers. Not responsible for who has the key and what becomes of a call (`unique`).
//!
//! Invariant: only this file writes `delayed_since` into headers that have `max_delay`.

use pgrx::pg_sys::Datum;
use serde_json::json;

use crate::catalog::queue::Queue;
use crate::error::{Error, Result};
use crate::log::attempt::Attempt;
use crate::pg::datum::Interval;
use crate::pg::jsonb;
use crate::pg::time::{self, LAST_TIME};

/// The header with the longest time for which a job is put off.
const MAX_DELAY: &str = "max_delay";
/// The header with the time of the first call that put it off.
const DELAYED_SINCE: &str = "delayed_since";

/// The bound that a call sets.
#[derive(Clone, Copy)]
pub struct Bound {
    headers: Datum,
    max_delay: Interval,
}

impl Bound {
    /// Reads the bound of a call from its headers. `None`: it sets none.
    ///
    /// Errors: 22023 unless it is a positive interval.
    pub fn of_call(headers: Option<Datum>) -> Result<Option<Self>> {
        let Some((headers, given)) = headers.and_then(|headers| Some((headers, jsonb::field(headers, MAX_DELAY)?)))
        else {
            return Ok(None);
        };
        let interval = given.as_str().and_then(|text| jsonb::interval(&text));
        match interval {
            Some(max_delay) if max_delay.us() > 0 => Ok(Some(Self { headers, max_delay })),
            _ => Err(Error::invalid("max_delay in headers must be a positive interval")
                .detail(format!("It is {}.", given.brief(100)))
                .hint("Write it as text, such as {\"max_delay\": \"5 minutes\"}.")),
        }
    }

    /// Returns the headers and the time of a job that was put off since then, or is put off by this call for the first
    /// time.
    pub fn apply(&self, run_at: Option<i64>, since: Option<i64>, now: i64) -> (Option<Datum>, Option<i64>) {
        let since = since.map_or(now, |since| since.min(now));
        let latest = self.max_delay.after_or(since, LAST_TIME).min(LAST_TIME);
        let mark = jsonb::of(&json!({ DELAYED_SINCE: time::iso_time(since) }));
        let headers = mark.map_or(self.headers, |mark| jsonb::merged(self.headers, mark));
        (Some(headers), run_at.map(|at| at.min(latest)).filter(|&at| at > now))
    }
}

/// Returns since when a waiting job is put off. `None`: it has no bound, or it has run since, so that the next call is
/// the first one.
pub fn since_of(queue: &Queue, attempt: &Attempt) -> Option<i64> {
    // A job that was advanced waits in a later stage. One that has just been enqueued may have begun there.
    let is_at_begin = attempt.lane() == queue.entry() || queue.is_held(attempt.lane()) || attempt.is_first();
    if attempt.last_error().is_some() || !is_at_begin {
        return None;
    }
    since(attempt.headers()?)
}

/// Reads the time from the headers of a job with a bound.
pub fn since(headers: Datum) -> Option<i64> {
    jsonb::field(headers, MAX_DELAY)?;
    jsonb::timestamp(&jsonb::text_field(headers, DELAYED_SINCE)?)
}

/// Returns the headers of an ended job that is to run again, without the time: the job is not put off any more.
pub fn ended(headers: Datum) -> Datum {
    if since(headers).is_some() { jsonb::without(headers, DELAYED_SINCE) } else { headers }
}
