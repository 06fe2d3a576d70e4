//! Events that a worker passes to its `on_event` hook, for metrics and tests.

use std::time::Duration;

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A handler begins.
    Started,
    /// The job is completed.
    Completed,
    /// The job goes on in another stage.
    Advanced,
    /// The job waits for other jobs.
    Suspended,
    /// The attempt has failed.
    Failed,
    /// The job was released.
    Released,
    /// The lease was lost.
    Lost,
    /// The worker has a connection for its claims.
    Connected,
    /// The worker has lost that connection.
    Disconnected,
}

/// An event. The worker reports the end of each attempt once, when the server has confirmed it.
///
/// `Connected` and `Disconnected` are about the worker's own connection; all others have a job.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// What has happened.
    pub kind: EventKind,
    /// The job's queue.
    pub queue: String,
    /// The job.
    pub job_id: i64,
    /// The attempt.
    pub attempt_id: i64,
    /// The attempt's number.
    pub attempt: i32,
    /// How long the handler ran.
    pub time: Duration,
    /// Why the attempt failed.
    pub error: Option<String>,
}
