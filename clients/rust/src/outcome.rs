//! How a handler says how an attempt has ended: what it returns, [`Done`], and what it fails with, [`Failure`].

use std::error::Error;
use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::connection::{self, LOST, code};
use crate::upon::Upon;

/// What a handler returns when the attempt has succeeded. `()` and a `Value` are turned into it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Done {
    /// The job is completed, with a result unless it is null.
    Complete(Value),
    /// It goes on in another stage.
    Advance(Advance),
    /// It waits for others, and runs on then.
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

/// The job goes on in another of the queue's stages, in the next one unless `stage` says so. It keeps its payload where
/// that is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Advance {
    /// The stage; none: the next one.
    pub stage: Option<String>,
    /// The payload from now on; none: the one it has.
    pub payload: Option<Value>,
    /// How long it waits before that.
    pub delay: Duration,
}

/// The job is held until others have ended, and then runs on with the same number of the attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Suspend {
    /// The jobs; none: the members of the job's own flow, which were enqueued with `flow` its job's id.
    pub after: Vec<i64>,
    /// How they are to end; none: however.
    pub upon: Option<Upon>,
    /// What the next run gets as progress; none: what this one has saved.
    pub progress: Option<Value>,
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
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StopReason::Cancelled => "cancelled",
            StopReason::Lost => "lost",
            StopReason::Shutdown => "shutdown",
        })
    }
}

/// What a handler fails with. Every error is turned into one by `?`: then the queue decides when the job runs again.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Failure {
    /// The attempt has failed. The job runs again after the delay, or when the queue says.
    Retry {
        /// What is stored.
        error: String,
        /// After what time; none: the queue's.
        delay: Option<Duration>,
    },
    /// The job is dead, however many attempts it has left.
    Fatal(String),
    /// The attempt is given back, uncounted. The job runs again after the delay.
    Snooze(Duration),
    /// The handler has heeded [`crate::Job::check`].
    Stopped,
    /// The server has said that the lease is lost.
    Lost,
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
        if any.is::<Stopped>() {
            return Failure::Stopped;
        }
        let (mut text, mut at) = (String::new(), Some(any));
        while let Some(error) = at {
            let postgres = error.downcast_ref::<tokio_postgres::Error>();
            if postgres.is_some_and(|error| code(error) == LOST) {
                return Failure::Lost;
            }
            let colon = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{colon}{}", postgres.map_or_else(|| error.to_string(), connection::text));
            // The driver says less than its cause, which is what the server has said.
            at = error.source().filter(|_| postgres.is_none());
        }
        Failure::Retry { error: text, delay: None }
    }
}

/// Fails the attempt; the job runs again after the delay, instead of the queue's own.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryIn(pub Duration, pub String);

/// Fails the job for good.
#[derive(Debug, Clone, PartialEq)]
pub struct Fatal(pub String);

/// Gives the attempt back, uncounted: the job's time has not come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snooze(pub Duration);

/// The handler is to stop: what [`crate::Job::check`] returns.
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

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the handler is to stop: {}", self.0)
    }
}

impl Error for RetryIn {}
impl Error for Fatal {}
impl Error for Snooze {}
impl Error for Stopped {}
