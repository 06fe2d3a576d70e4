//! The settings of a run of the worker, and the error if it cannot go on.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::batch::{Batch, Each};
use crate::connection::Connector;
use crate::event::Event;
use crate::job::Job;
use crate::outcome::{Done, Failure};

/// The next function that a middleware calls.
pub type Next = Arc<dyn Fn(Job) -> BoxFuture<'static, Result<Done, Failure>> + Send + Sync>;

pub(crate) type BatchCall = Arc<dyn Fn(Batch) -> BoxFuture<'static, Result<Each, Failure>> + Send + Sync>;

pub(crate) type Around = Arc<dyn Fn(Job, Next) -> BoxFuture<'static, Result<Done, Failure>> + Send + Sync>;

pub(crate) type Hook = Arc<dyn Fn(&Event) + Send + Sync>;

/// A queue's handler.
#[derive(Clone)]
pub(crate) enum Call {
    One(Next),
    Batch { size: usize, call: BatchCall },
}

/// The settings of a run of the worker.
pub(crate) struct Settings {
    pub connector: Connector,
    pub handlers: HashMap<String, Call>,
    pub middleware: Vec<Around>,
    pub concurrency: usize,
    pub prefetch: usize,
    pub wait: Duration,
    pub heartbeat: Duration,
    pub lease: Option<Duration>,
    pub stage: Option<String>,
    pub session_bound: bool,
    pub shutdown_timeout: Duration,
    pub stall_timeout: Option<Duration>,
    pub name: String,
    pub on_event: Option<Hook>,
}

impl Settings {
    /// Returns the handlers within the middleware, of which the first one is the outermost.
    pub fn calls(&self) -> HashMap<String, Call> {
        let within = |call: &Call| match call {
            Call::One(next) => Call::One(self.middleware.iter().rev().fold(next.clone(), |next, around| {
                let around = around.clone();
                Arc::new(move |job| around(job, next.clone()))
            })),
            batch @ Call::Batch { .. } => batch.clone(),
        };
        self.handlers.iter().map(|(queue, call)| (queue.clone(), within(call))).collect()
    }
}

/// Why a worker cannot run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerError(pub(crate) Cow<'static, str>);

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WorkerError {}
