//! What a worker tells its `on_event` hook: for metrics, and for tests.

use std::time::Duration;

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A handler begins.
    Started,
    /// The job is completed.
    Completed,
    /// It goes on in another stage.
    Advanced,
    /// It waits for others.
    Suspended,
    /// The attempt has failed.
    Failed,
    /// It was given back.
    Released,
    /// The lease was lost.
    Lost,
    /// The worker has a connection for its claims.
    Connected,
    /// It has lost it.
    Disconnected,
}

/// Something that has happened. An end is told when the server has confirmed it, each attempt's once.
///
/// `Connected` and `Disconnected` are about the worker's own connection; all others have a job.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// The job's queue.
    pub queue: String,
    /// The job.
    pub job_id: i64,
    /// The attempt.
    pub attempt_id: i64,
    /// Its number.
    pub attempt: i32,
    /// How long the handler ran.
    pub time: Duration,
    /// Why it failed.
    pub error: Option<String>,
}
