//! `queue.end_batch`: ends many attempts, each in its own way, and extends others.
//!
//! Not responsible for how an attempt ends (`job`).
//!
//! Invariant: a failure for one attempt does not prevent that the others end. An element that is not an object of a
//! known form is an error of the call, before any attempt is held.

use std::collections::BTreeMap;

use pgrx::pg_sys::Datum;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::api::answers::Answers;
use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission;
use crate::catalog::queue::Queue;
use crate::error::{Error, Result};
use crate::job::advance::{self, To};
use crate::job::fail::{Failure, end_badly};
use crate::job::held::Refusal;
use crate::job::options::{in_future, lease_us};
use crate::job::outcomes::{Kind, Outcomes};
use crate::job::release::{self, Back};
use crate::job::suspend::{self, Wait};
use crate::job::{complete, extend, hold, throttle};
use crate::pg::datum::Interval;
use crate::pg::function::Call;
use crate::pg::{jsonb, memory, process, stored_json, time};

sql_function!(pg_queue_end_batch, pg_finfo_pg_queue_end_batch => end_batch);

/// How much of a wrong element is shown.
const MAX_SHOWN_BYTES: usize = 200;

/// How one attempt ends or goes on: the verb with its arguments by their names. A null counts as left out.
enum End {
    Complete(Complete),
    Fail(Fail),
    Release(Release),
    Advance(Advance),
    Suspend(Suspend),
    Extend(Extend),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Complete {
    id: i64,
    result: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fail {
    id: i64,
    #[serde(deserialize_with = "text")]
    error: String,
    retry_in: Option<String>,
    fatal: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    id: i64,
    delay: Option<String>,
    #[serde(default, deserialize_with = "optional_text")]
    reason: Option<String>,
    throttle: Option<Throttled>,
}

/// What waits as long as a released job.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Throttled {
    Queue,
    Group,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Advance {
    id: i64,
    stage: Option<String>,
    payload: Option<Box<RawValue>>,
    delay: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Suspend {
    id: i64,
    after: Option<Vec<i64>>,
    upon: Option<String>,
    progress: Option<Box<RawValue>>,
    until: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Extend {
    id: i64,
    lease: Option<String>,
}

/// Reads a text of any program. Half of a surrogate pair, which JSON can write and no text can hold, becomes U+FFFD.
fn text<'de, D: Deserializer<'de>>(json: D) -> std::result::Result<String, D::Error> {
    text_of(&Box::<RawValue>::deserialize(json)?).map_err(D::Error::custom)
}

/// As `text`, for a text that may be left out or null.
fn optional_text<'de, D: Deserializer<'de>>(json: D) -> std::result::Result<Option<String>, D::Error> {
    let written = Option::<Box<RawValue>>::deserialize(json)?;
    written.map(|written| text_of(&written)).transpose().map_err(D::Error::custom)
}

fn text_of(written: &RawValue) -> serde_json::Result<String> {
    serde_json::from_str(written.get()).or_else(|_| {
        let mut whole = memory::text(written.get().len());
        let mut rest = written.get();
        while let Some(at) = rest.find('\\') {
            // An escape has two characters, six with a number, and twelve if it is a pair.
            let (before, escape) = rest.split_at(at);
            whole += before;
            let length = [12, 6, 2].into_iter().find(|&length| {
                let escape = escape.get(..length).unwrap_or_default();
                escape.len() == length
                    && serde_json::from_str::<String>(&format!("\"{escape}\""))
                        .is_ok_and(|text| text.chars().count() == 1)
            });
            match length {
                Some(length) => whole += &escape[..length],
                None => whole.push(char::REPLACEMENT_CHARACTER),
            }
            rest = escape.get(length.unwrap_or(6)..).unwrap_or_default();
        }
        serde_json::from_str(&(whole + rest))
    })
}

/// An element of the array: the verb, with its arguments unread.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Element<'a> {
    #[serde(borrow)]
    Complete(&'a RawValue),
    Fail(&'a RawValue),
    Release(&'a RawValue),
    Advance(&'a RawValue),
    Suspend(&'a RawValue),
    Extend(&'a RawValue),
}

/// Reads an element of the array.
///
/// Errors: what is wrong with it, in words.
fn read(element: &RawValue) -> std::result::Result<End, String> {
    let element = serde_json::from_str(element.get()).map_err(|_| {
        "an end is an object with one field: complete, fail, release, advance, suspend or extend".to_owned()
    })?;
    match element {
        Element::Complete(arguments) => arguments_of(arguments).map(End::Complete),
        Element::Fail(arguments) => arguments_of(arguments).map(End::Fail),
        Element::Release(arguments) => arguments_of(arguments).map(End::Release),
        Element::Advance(arguments) => arguments_of(arguments).map(End::Advance),
        Element::Suspend(arguments) => arguments_of(arguments).map(End::Suspend),
        Element::Extend(arguments) => arguments_of(arguments).map(End::Extend),
    }
}

/// Reads the arguments of a verb.
///
/// Errors: what is wrong with them, in words.
fn arguments_of<'a, T: Deserialize<'a>>(arguments: &'a RawValue) -> std::result::Result<T, String> {
    if !arguments.get().starts_with('{') {
        return Err("the arguments are an object".to_owned());
    }
    serde_json::from_str(arguments.get()).map_err(|e| {
        let what = e.to_string();
        let what = what.rsplit_once(" at line ").map_or(&*what, |(what, _)| what);
        what[..what.floor_char_boundary(MAX_SHOWN_BYTES)].replace("i64", "bigint")
    })
}

impl End {
    fn id(&self) -> i64 {
        match self {
            Self::Complete(Complete { id, .. })
            | Self::Fail(Fail { id, .. })
            | Self::Release(Release { id, .. })
            | Self::Advance(Advance { id, .. })
            | Self::Suspend(Suspend { id, .. })
            | Self::Extend(Extend { id, .. }) => *id,
        }
    }

    /// Ends or extends the attempt. Adds its outcome to `outcomes`. Returns what became of it, in a word.
    fn run(self, outcomes: &mut Outcomes, now: i64) -> std::result::Result<&'static str, Refusal> {
        let kind = match self {
            Self::Complete(Complete { id, result }) => {
                let result = stored("result", result)?;
                let held = hold::hold_for_end(outcomes, id)?;
                complete::complete(outcomes, held, result)
            }
            Self::Fail(Fail { id, error, retry_in, fatal }) => {
                let retry_in = span("retry_in", retry_in, now)?;
                // A text cannot hold it.
                let error = error.replace('\0', "");
                let failure = Failure::Reported { error: &error, retry_in, is_fatal: fatal.unwrap_or(false) };
                let held = hold::hold_for_end(outcomes, id)?;
                end_badly(outcomes, &held, &failure).map(|(kind, _)| kind)
            }
            Self::Release(Release { id, delay, reason, throttle }) => {
                let delay = span("delay", delay, now)?.unwrap_or(Interval::ZERO);
                // A text cannot hold it.
                let reason = reason.map(|reason| reason.replace('\0', ""));
                let held = hold::hold_for_end(outcomes, id)?;
                if let Some(what) = throttle {
                    throttle_for(&*hold::queue_of(outcomes, &held)?, what, held.entry.group, delay);
                }
                release::give_back(outcomes, &held, Back { delay, reason: reason.as_deref() })
            }
            Self::Advance(Advance { id, stage, payload, delay }) => {
                let payload = stored("payload", payload)?;
                let delay = span("delay", delay, now)?.unwrap_or(Interval::ZERO);
                let run_at = in_future("delay", delay, now)?;
                let held = hold::hold_for_end(outcomes, id)?;
                let queue = hold::queue_of(outcomes, &held)?;
                let lane = advance::target(&queue, held.entry.lane, stage.as_deref());
                let lane = lane.map_err(|e| hold::unfit(&held, e))?;
                advance::advance(outcomes, &held, &To { queue: &queue, lane, run_at, payload })
            }
            Self::Suspend(Suspend { id, after, upon, progress, until }) => {
                let after = after.map(|ids| ids.into_iter().map(Some).collect());
                let until = until.map(|text| {
                    jsonb::timestamp(&text).ok_or_else(|| Refusal::Unfit(Error::invalid("until is no time")))
                });
                let (progress, until) = (stored("progress", progress)?, until.transpose()?);
                let wait = Wait { after, upon: upon.map(Into::into), progress, until };
                let held = hold::hold_for_end(outcomes, id)?;
                suspend::suspend(outcomes, &held, wait)
            }
            Self::Extend(Extend { id, lease }) => {
                let lease = span("lease", lease, now)?.map(lease_us).transpose().map_err(Refusal::Unfit)?;
                let (_, is_cancelled) = extend::extend(id, lease, &permission::rights())?;
                return Ok(if is_cancelled { "cancelling" } else { "extended" });
            }
        };
        kind.map(Kind::name)
    }
}

/// Throttles a queue, or a group if the job has one that takes turns. If that is not possible, only the job waits.
fn throttle_for(queue: &Queue, what: Throttled, group: i64, delay: Interval) {
    let group = match what {
        Throttled::Queue => None,
        Throttled::Group if group == 0 || !queue.has_groups() => return,
        Throttled::Group => Some(group),
    };
    // Without a delay there is nothing to wait for, and the throttle of another worker goes on.
    let period = Interval { months: 0, days: 0, time: delay.us().clamp(0, throttle::MAX_PERIOD_US) };
    if period == Interval::ZERO {
        return;
    }
    if let Err(error) = throttle::throttle(queue, period, group) {
        error.warn();
    }
}

/// Returns JSON as it is stored.
///
/// Errors: unfit when it cannot be stored.
fn stored(name: &str, value: Option<Box<RawValue>>) -> std::result::Result<Option<Datum>, Refusal> {
    value.map(|value| stored_json::parse(value.get(), name).map_err(Refusal::Unfit)).transpose()
}

/// Reads a span of time from now on.
///
/// Errors: unfit when it is none, or out of range.
fn span(name: &str, text: Option<String>, now: i64) -> std::result::Result<Option<Interval>, Refusal> {
    let Some(text) = text else { return Ok(None) };
    let span = jsonb::interval(&text).ok_or_else(|| Error::invalid(format!("{name} is no interval")));
    // What is beyond the times that Postgres knows would raise.
    let is_known = |span: &Interval| span.after_or(now, i64::MAX) != i64::MAX;
    let span = span.and_then(|span| match is_known(&span) {
        true => in_future(name, span, now).map(|_| Some(span)),
        false => Err(Error::invalid(format!("{name} must be finite"))),
    });
    span.map_err(Refusal::Unfit)
}

/// Returns the id of the attempt that an element names, if its arguments are an object that has one. For the cluster.
pub fn id_of(element: &str) -> Option<i64> {
    let verbs: BTreeMap<String, &RawValue> = serde_json::from_str(element).ok()?;
    let arguments: BTreeMap<String, &RawValue> = serde_json::from_str(verbs.values().next()?.get()).ok()?;
    serde_json::from_str(arguments.get("id")?.get()).ok()
}

/// `queue.end_batch(ends)`.
///
/// Errors: 22023 names the element, from 0, that is no end; 22023 not the id of an attempt, 42501.
fn end_batch(call: &Call) -> Result<Option<Datum>> {
    api::writable("end")?;
    let answers = Answers::begin(call)?;
    // A json is stored as a text is.
    let text = call.need(args::end_batch::ENDS)?;
    let elements: Vec<&RawValue> = stored_json::elements(&text).ok_or_else(|| {
        Error::invalid("ends must be a JSON array of objects").hint(
            "For instance: '[{\"complete\": {\"id\": 16}}, {\"fail\": {\"id\": 17, \"error\": \
                \"no route to host\"}}]'.",
        )
    })?;
    let mut ends = memory::list(elements.len());
    for (n, element) in elements.into_iter().enumerate() {
        let end = read(element).map_err(|what| {
            Error::invalid(format!("ends[{n}]: {what}")).hint(
                "An end is one of {\"complete\": …}, {\"fail\": …}, {\"release\": …}, {\"advance\": …}, \
                 {\"suspend\": …}, {\"extend\": …}, with the id of the attempt and the arguments of that function.",
            )
        })?;
        ends.push(end);
    }
    let now = time::now_us();
    let mut outcomes = Outcomes::new();
    for end in ends {
        process::check_for_interrupts();
        let id = end.id();
        let ended = end.run(&mut outcomes, now);
        answers.ended(id, ended)?;
    }
    outcomes.insert()?;
    Ok(None)
}
