//! How an attempt ends, as `queue.end_batch` reads it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::event::EventKind;
use crate::outcome::{Advance, Done, Failure, StopReason, Suspend, Throttle};
use crate::shared::Shared;
use crate::sql::{interval, timestamp};

/// The pause before a busy attempt's end is sent again. It doubles each time, up to about a second, or ten
/// seconds after an error.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// A completion that is committed on another server, and comes back from there.
#[derive(Clone, Copy)]
pub(crate) struct Ride {
    /// The length of the attempt's lease.
    pub lease: Duration,
    /// When the attempt is extended next.
    pub beat_at: Instant,
}

/// How one attempt ends.
pub(crate) struct Ending {
    pub shared: Arc<Shared>,
    /// The function that ends the attempt. `none`: the handler itself has ended it, or its lease is lost.
    pub kind: &'static str,
    /// Its arguments except the attempt's id.
    arguments: Map<String, Value>,
    pub time: Duration,
    /// When the control sends it.
    pub due: Instant,
    /// How often the worker has postponed it.
    pub pauses: u32,
    /// How often a call for it alone has failed.
    pub errors: u32,
    pub ride: Option<Ride>,
}

impl Ending {
    pub fn new<'a>(
        shared: &Arc<Shared>,
        kind: &'static str,
        arguments: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Self {
        let arguments = arguments.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let due = Instant::now();
        Self { shared: shared.clone(), kind, arguments, time: Duration::ZERO, due, pauses: 0, errors: 0, ride: None }
    }

    pub fn failure(shared: &Arc<Shared>, error: &str, delay: Option<Duration>, is_fatal: bool) -> Self {
        let retry_in = delay.map(interval);
        Self::new(shared, "fail", [("error", error.into()), ("retry_in", retry_in.into()), ("fatal", is_fatal.into())])
    }

    /// Returns the end that a handler's answer stands for. If the handler has stopped as it was told, the job is
    /// released. The release cancels the job if it is to be cancelled.
    pub fn of(shared: &Arc<Shared>, answer: Result<Done, Failure>) -> Self {
        if shared.ended.load(Ordering::Acquire) {
            return Self::new(shared, "none", []);
        }
        match answer {
            Ok(Done::Complete(Value::Null)) => Self::new(shared, "complete", []),
            Ok(Done::Complete(result)) => Self::new(shared, "complete", [("result", result)]),
            Ok(Done::Advance(Advance { stage, payload, delay })) => {
                let delay = interval(delay).into();
                Self::new(shared, "advance", [("stage", stage.into()), ("payload", payload.into()), ("delay", delay)])
            }
            Ok(Done::Suspend(Suspend { after, upon, progress, until })) => {
                let after = (!after.is_empty()).then_some(after).into();
                let upon = upon.map(|upon| upon.name()).into();
                let arguments = [("after", after), ("upon", upon), ("progress", progress.into())];
                let until = until.map(|until| ("until", timestamp(until).into()));
                Self::new(shared, "suspend", arguments.into_iter().chain(until))
            }
            Err(Failure::AlreadyDone(_)) => Self::new(shared, "complete", []),
            Err(Failure::Stopped) => Self::stopped(shared),
            Err(Failure::Lost(error)) => Self::failure(shared, &error, None, false),
            Err(Failure::Snooze(delay)) => Self::new(shared, "release", [("delay", interval(delay).into())]),
            Err(Failure::Throttle(Throttle { delay, group })) => {
                let what = if group { "group" } else { "queue" };
                Self::new(shared, "release", [("delay", interval(delay).into()), ("throttle", what.into())])
            }
            Err(Failure::Fatal(error)) => Self::failure(shared, &error, None, true),
            Err(Failure::Retry { error, delay }) => Self::failure(shared, &error, delay, false),
            Err(Failure::Unknown(error)) => Self::failure(shared, &error, None, false),
        }
    }

    /// Returns the end of a stopped attempt. If its lease is lost, nothing is sent.
    pub fn stopped(shared: &Arc<Shared>) -> Self {
        match shared.reason() {
            Some(StopReason::Lost) => Self::new(shared, "none", []),
            Some(StopReason::Timeout) => {
                let limit = shared.limit.get().map_or(0.0, Duration::as_secs_f64);
                let error = format!("the handler has not ended within its timeout of {limit} s");
                Self::failure(shared, &error, None, false)
            }
            _ => Self::new(shared, "release", []),
        }
    }

    pub fn id(&self) -> i64 {
        self.shared.facts.id
    }

    pub fn json(&self) -> String {
        let arguments = self.arguments.iter().map(|(name, value)| format!(",\"{name}\":{value}"));
        format!("{{\"{}\":{{\"id\":{}{}}}}}", self.kind, self.id(), arguments.collect::<String>())
    }

    pub fn error(&self) -> Option<&str> {
        self.arguments.get("error")?.as_str()
    }

    pub fn event(&self) -> EventKind {
        match self.kind {
            "advance" => EventKind::Advanced,
            "suspend" => EventKind::Suspended,
            "fail" => EventKind::Failed,
            "release" => EventKind::Released,
            _ => EventKind::Completed,
        }
    }

    /// The result of a completion.
    pub fn result(&self) -> Option<&Value> {
        self.arguments.get("result")
    }

    /// True if the next claim can carry it: a completion that was not postponed.
    pub fn is_carried(&self) -> bool {
        self.kind == "complete" && self.pauses == 0 && self.ride.is_none()
    }

    /// True if nothing else can be sent in its place when the server refuses it: a failure with the queue's own
    /// backoff.
    pub fn is_last_resort(&self) -> bool {
        self.kind == "fail" && self.arguments.get("retry_in").is_none_or(Value::is_null)
    }

    /// Postpones it. Returns how long to wait before it is sent again.
    pub fn pause(&mut self) -> Duration {
        self.pauses += 1;
        RETRY_PAUSE * (1 << (self.pauses - 1).min(if self.errors > 0 { 10 } else { 7 }))
    }
}
