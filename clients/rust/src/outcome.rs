//! How a handler ends its attempt: by what it returns, [`Done`], or by its error, [`Failure`].

use std::error::Error;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::codec::CodecError;
use crate::connection::{self, LOST, code};
use crate::upon::Upon;

/// What a handler returns if the attempt has succeeded. `()` and a `Value` are converted into it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Done {
    /// The job is completed, with a result unless it is null.
    Complete(Value),
    /// The job goes on in another stage.
    Advance(Advance),
    /// The job waits for other jobs, and then goes on.
    Suspend(Suspend),
}

impl From<()> for Done {
    fn from((): ()) -> Self {
        Done::Complete(Value::Null)
    }
}

impl From<Value> for Done {
    fn from(result: Value) -> Self {
        Done::Complete(result)
    }
}

impl From<Advance> for Done {
    fn from(advance: Advance) -> Self {
        Done::Advance(advance)
    }
}

impl From<Suspend> for Done {
    fn from(suspend: Suspend) -> Self {
        Done::Suspend(suspend)
    }
}

/// The job goes on in the stage `stage` of its queue, by default in the next one. If `payload` is none, it keeps its
/// payload.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Advance {
    /// The stage; none means the next one.
    pub stage: Option<String>,
    /// The new payload; none keeps the old one.
    pub payload: Option<Value>,
    /// How long the job waits before that stage.
    pub delay: Duration,
}

/// The job is held until other jobs have ended. Then it goes on with the same attempt number.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Suspend {
    /// The jobs; none means the members of the job's own flow, which were enqueued with `flow` = this job's id.
    pub after: Vec<i64>,
    /// How these jobs have to end; none means in any way.
    pub upon: Option<Upon>,
    /// The progress for the next run; none means what this run has saved.
    pub progress: Option<Value>,
    /// When the job goes on at the latest; none means that it waits as long as it takes.
    pub until: Option<SystemTime>,
}

/// Why a handler is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The job is to be cancelled.
    Cancelled,
    /// The lease is lost: another worker may have the job.
    Lost,
    /// The worker's time to shut down is over.
    Shutdown,
    /// The handler's time is over.
    Timeout,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StopReason::Cancelled => "cancelled",
            StopReason::Lost => "lost",
            StopReason::Shutdown => "shutdown",
            StopReason::Timeout => "timeout",
        })
    }
}

/// The error of a handler. `?` converts every error into one; then the queue decides when the job runs again.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Failure {
    /// The attempt has failed. The job runs again after the delay, or when the queue says.
    Retry {
        /// The error text that is stored.
        error: String,
        /// The time before the next attempt; none means the queue's backoff.
        delay: Option<Duration>,
    },
    /// The job is dead, even if it has attempts left.
    Fatal(String),
    /// The job is released, and the attempt is not counted. The job runs again after the delay.
    Snooze(Duration),
    /// As `Snooze`, and no worker starts a job of the queue, or of the group, during the delay.
    Throttle(Throttle),
    /// The handler has stopped because of [`crate::Job::check`].
    Stopped,
    /// The server has said this of a lost lease, of this attempt or of another one.
    Lost(String),
    /// An earlier attempt has committed the effects of these jobs on the server of the worker's `effects`. The worker
    /// completes them, and releases the other jobs of a batch.
    AlreadyDone(Vec<i64>),
    /// This worker has no codec or no key for a value: the worker's `on_unknown` decides.
    Unknown(String),
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let any: &(dyn Error + 'static) = &error;
        if let Some(RetryIn(delay, text)) = any.downcast_ref() {
            return Failure::Retry { error: text.clone(), delay: Some(*delay) };
        }
        if let Some(Fatal(text)) = any.downcast_ref() {
            return Failure::Fatal(text.clone());
        }
        if let Some(Snooze(delay)) = any.downcast_ref() {
            return Failure::Snooze(*delay);
        }
        if let Some(throttle) = any.downcast_ref() {
            return Failure::Throttle(*throttle);
        }
        if any.is::<Stopped>() {
            return Failure::Stopped;
        }
        if let Some(CodecError::Unknown(text)) = any.downcast_ref() {
            return Failure::Unknown(text.clone());
        }
        let (mut text, mut at, mut is_lost) = (String::new(), Some(any), false);
        while let Some(error) = at {
            let postgres = error.downcast_ref::<tokio_postgres::Error>();
            is_lost |= postgres.is_some_and(|error| code(error) == LOST);
            let colon = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{colon}{}", postgres.map_or_else(|| error.to_string(), connection::text));
            // The driver's own text says less than its cause, the server's message.
            at = error.source().filter(|_| postgres.is_none());
        }
        if is_lost { Failure::Lost(text) } else { Failure::Retry { error: text, delay: None } }
    }
}

/// Fails the attempt. The job runs again after this delay instead of the queue's backoff.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryIn(pub Duration, pub String);

/// Fails the job for good.
#[derive(Debug, Clone, PartialEq)]
pub struct Fatal(pub String);

/// Releases the job, and does not count the attempt, because the job's time has not come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snooze(pub Duration);

/// Releases the job as [`Snooze`] does. Until then no worker starts a job of its queue or group: for instance because a
/// service has answered 429.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Throttle {
    /// How long the job, and the queue or the group, have to wait.
    pub delay: Duration,
    /// Whether only the job's group waits.
    pub group: bool,
}

impl Throttle {
    /// Returns the throttle of a queue that a header `Retry-After` asks for. `None`: it is neither seconds nor a date.
    pub fn retry_after(header: &str) -> Option<Self> {
        let delay = match header.trim().parse() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => {
                let at = httpdate::parse_http_date(header).ok()?;
                at.duration_since(SystemTime::now()).unwrap_or_default()
            }
        };
        Some(Self { delay, group: false })
    }
}

/// The error that [`crate::Job::check`] returns if the handler is to stop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stopped(pub StopReason);

impl fmt::Display for RetryIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.1)
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Snooze {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("snoozed")
    }
}

impl fmt::Display for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("throttled")
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the handler is to stop: {}", self.0)
    }
}

impl Error for RetryIn {}
impl Error for Fatal {}
impl Error for Snooze {}
impl Error for Throttle {}
impl Error for Stopped {}
