//! How an attempt ends, and the statement that tells the server: one for all that end in the same way.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_postgres::types::Type;

use crate::event::EventKind;
use crate::job::Shared;
use crate::outcome::{Advance, Done, Failure, StopReason, Suspend};
use crate::sql::{Parameters, interval, json};

/// After what time an end is sent again that another open transaction was in the way of; twice as long each time, up to a
/// second or so.
const AGAIN: Duration = Duration::from_millis(10);

/// How one attempt ends.
#[derive(Clone)]
pub(crate) struct Ending {
    pub shared: Arc<Shared>,
    pub kind: Kind,
    pub time: Duration,
    /// How often the server has said: later.
    pub delays: u32,
}

#[derive(Clone)]
pub(crate) enum Kind {
    Complete(Value),
    Advance(Advance),
    Suspend(Suspend),
    Fail {
        error: String,
        delay: Option<Duration>,
        is_fatal: bool,
    },
    Release(Duration),
    /// The handler has ended it itself, or it is lost.
    None,
}

impl Ending {
    pub fn id(&self) -> i64 {
        self.shared.facts.id
    }

    /// What a handler's answer means. A job that is to stop and does is given back, which cancels one that is to be cancelled.
    pub fn of(shared: &Arc<Shared>, answer: Result<Done, Failure>) -> Self {
        let has_ended = shared.ended.load(std::sync::atomic::Ordering::Acquire);
        let kind = match answer {
            _ if has_ended => Kind::None,
            Ok(Done::Complete(result)) => Kind::Complete(result),
            Ok(Done::Advance(advance)) => Kind::Advance(advance),
            Ok(Done::Suspend(suspend)) => Kind::Suspend(suspend),
            Err(Failure::Stopped) => return Self::stopped(shared),
            Err(Failure::Lost) => {
                shared.stop(StopReason::Lost);
                Kind::None
            }
            Err(Failure::Snooze(delay)) => Kind::Release(delay),
            Err(Failure::Fatal(error)) => Kind::Fail { error, delay: None, is_fatal: true },
            Err(Failure::Retry { error, delay }) => Kind::Fail { error, delay, is_fatal: false },
        };
        Self::new(shared, kind)
    }

    pub fn new(shared: &Arc<Shared>, kind: Kind) -> Self {
        let kind = match kind {
            // Postgres takes no NUL.
            Kind::Fail { error, delay, is_fatal } => Kind::Fail { error: error.replace('\0', ""), delay, is_fatal },
            kind => kind,
        };
        Self { shared: shared.clone(), kind, time: Duration::ZERO, delays: 0 }
    }

    /// Of a lost one there is nothing to tell.
    pub fn stopped(shared: &Arc<Shared>) -> Self {
        let is_lost = shared.reason() == Some(StopReason::Lost);
        Self::new(shared, if is_lost { Kind::None } else { Kind::Release(Duration::ZERO) })
    }

    /// Whether a claim can take it along: a completion without a result.
    pub fn is_plain(&self) -> bool {
        matches!(&self.kind, Kind::Complete(result) if result.is_null())
    }

    /// Whether one statement can tell of both. What was refused before would have the others refused with it.
    pub fn is_alike(&self, other: &Ending) -> bool {
        let is_single = matches!(self.kind, Kind::Suspend(_)) || self.delays > 0 || other.delays > 0;
        std::mem::discriminant(&self.kind) == std::mem::discriminant(&other.kind)
            && (!is_single || Arc::ptr_eq(&self.shared, &other.shared))
    }

    /// How long to wait until it is sent again.
    pub fn delay(&mut self) -> Duration {
        self.delays += 1;
        AGAIN * (1 << (self.delays - 1).min(7))
    }

    pub fn event(&self) -> EventKind {
        match self.kind {
            Kind::Complete(_) | Kind::None => EventKind::Completed,
            Kind::Advance(_) => EventKind::Advanced,
            Kind::Suspend(_) => EventKind::Suspended,
            Kind::Fail { .. } => EventKind::Failed,
            Kind::Release(_) => EventKind::Released,
        }
    }

    pub fn error(&self) -> Option<String> {
        match &self.kind {
            Kind::Fail { error, .. } => Some(error.clone()),
            _ => None,
        }
    }
}

/// The statement for endings that are alike.
pub(crate) fn statement(endings: &[Ending]) -> (&'static str, Parameters) {
    let ids: Vec<i64> = endings.iter().map(Ending::id).collect();
    let mut lists: [Vec<Option<String>>; 3] = Default::default();
    let mut are_fatal = Vec::new();
    for ending in endings {
        match &ending.kind {
            Kind::Complete(result) => lists[0].push(json(result)),
            Kind::Advance(advance) => {
                lists[0].push(advance.stage.clone());
                lists[1].push(advance.payload.as_ref().map(ToString::to_string));
                lists[2].push(Some(interval(advance.delay)));
            }
            Kind::Suspend(suspend) => return suspension(ending.id(), suspend),
            Kind::Fail { error, delay, is_fatal } => {
                lists[0].push(Some(error.clone()));
                lists[1].push(delay.map(interval));
                are_fatal.push(*is_fatal);
            }
            Kind::Release(delay) => lists[0].push(Some(interval(*delay))),
            Kind::None => {}
        }
    }
    let [first, second, third] = lists;
    let parameters = Parameters::default().with(ids, Type::INT8_ARRAY).with(first, Type::TEXT_ARRAY);
    match endings[0].kind {
        Kind::Complete(_) => ("SELECT queue.complete(i, r::jsonb) FROM unnest($1, $2) AS e(i, r)", parameters),
        Kind::Advance(_) => (
            "SELECT queue.advance(i, s, p::jsonb, d::interval) FROM unnest($1, $2, $3, $4) AS e(i, s, p, d)",
            parameters.with(second, Type::TEXT_ARRAY).with(third, Type::TEXT_ARRAY),
        ),
        Kind::Fail { .. } => (
            "SELECT queue.fail(i, t, retry_in => r::interval, fatal => f) FROM unnest($1, $2, $3, $4) AS e(i, t, r, f)",
            parameters.with(second, Type::TEXT_ARRAY).with(are_fatal, Type::BOOL_ARRAY),
        ),
        _ => ("SELECT queue.release(i, delay => d::interval) FROM unnest($1, $2) AS e(i, d)", parameters),
    }
}

pub(crate) fn advancement(id: i64, advance: &Advance) -> (&'static str, Parameters) {
    let parameters = Parameters::default()
        .with(id, Type::INT8)
        .with(advance.stage.clone(), Type::TEXT)
        .with(advance.payload.clone(), Type::JSONB)
        .with(interval(advance.delay), Type::TEXT);
    ("SELECT queue.advance($1, $2, $3, $4::interval)", parameters)
}

pub(crate) fn suspension(id: i64, suspend: &Suspend) -> (&'static str, Parameters) {
    let parameters = Parameters::default()
        .with(id, Type::INT8)
        .with((!suspend.after.is_empty()).then(|| suspend.after.clone()), Type::INT8_ARRAY)
        .with(suspend.upon.map_or("ended", |upon| upon.name()), Type::TEXT)
        .with(suspend.progress.clone(), Type::JSONB);
    ("SELECT queue.suspend($1, $2, $3, $4)", parameters)
}
