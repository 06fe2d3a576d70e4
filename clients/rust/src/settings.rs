//! The settings of a run of the worker, its claims, and the error if it cannot go on.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_postgres::types::Type;

use crate::batch::{Batch, Each};
use crate::connection::Connector;
use crate::endings::Ending;
use crate::event::Event;
use crate::hooks::Hooks;
use crate::job::{COLUMNS, Job};
use crate::outcome::{Done, Failure};
use crate::sql::{Parameters, interval};

/// The next function that a middleware calls.
pub type Next = Arc<dyn Fn(Job) -> BoxFuture<'static, Result<Done, Failure>> + Send + Sync>;

pub(crate) type BatchCall = Arc<dyn Fn(Batch) -> BoxFuture<'static, Result<Each, Failure>> + Send + Sync>;

pub(crate) type Around = Arc<dyn Fn(Job, Next) -> BoxFuture<'static, Result<Done, Failure>> + Send + Sync>;

pub(crate) type Hook = Arc<dyn Fn(&Event) + Send + Sync>;

/// What becomes of a job whose codec or key this worker does not have, such as one that a newer producer has enqueued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnknown {
    /// It is released for 30 seconds, without counting the attempt, so that another worker runs it.
    #[default]
    Release,
    /// The attempt fails.
    Fail,
}

/// A handler.
#[derive(Clone)]
pub(crate) enum Call {
    One(Next),
    Batch { size: usize, call: BatchCall },
}

/// The handlers of a queue.
#[derive(Clone, Default)]
pub(crate) struct Calls {
    pub by_stage: HashMap<String, Call>,
    /// The handler of all stages that have none of their own.
    pub of_queue: Option<Call>,
}

impl Calls {
    /// Returns the handler of a stage's jobs, and the stage if the handler is for that stage only. `None`: there is
    /// none.
    pub fn get<'a>(&'a self, stage: Option<&'a str>) -> Option<(&'a Call, Option<&'a str>)> {
        let own = stage.and_then(|stage| self.by_stage.get(stage));
        own.map(|call| (call, stage)).or_else(|| self.of_queue.as_ref().map(|call| (call, None)))
    }
}

/// The settings of a run of the worker.
pub(crate) struct Settings {
    pub connector: Connector,
    /// To the server of the effects, if that is another one.
    pub effects: Option<Connector>,
    pub handlers: HashMap<String, Calls>,
    pub middleware: Vec<Around>,
    pub concurrency: usize,
    pub prefetch: usize,
    pub max_connections: Option<usize>,
    pub wait: Duration,
    pub linger: Duration,
    pub heartbeat: Duration,
    pub lease: Option<Duration>,
    pub disconnect: Option<Duration>,
    pub shutdown_timeout: Duration,
    pub stall_timeout: Option<Duration>,
    pub timeout: Option<Duration>,
    /// In place of it, for the handlers of these queues.
    pub timeouts: HashMap<String, Duration>,
    pub codec: Hooks,
    pub on_unknown: OnUnknown,
    pub name: String,
    pub on_event: Option<Hook>,
}

impl Settings {
    /// Returns how many jobs a claim collects if it lingers. `None`: it cannot.
    pub fn collected(&self) -> Option<usize> {
        let mut calls = self.handlers.values().flat_map(|calls| calls.by_stage.values().chain(&calls.of_queue));
        match (calls.next()?, calls.next()) {
            (Call::Batch { size, .. }, None) => Some(*size),
            _ => None,
        }
    }

    /// Returns whether a time is 0 that must be longer.
    pub fn has_zero(&self) -> bool {
        let times = [Some(self.heartbeat), self.timeout, self.stall_timeout];
        times.into_iter().flatten().chain(self.timeouts.values().copied()).any(|time| time.is_zero())
    }

    /// Returns whether claims collect full batches.
    pub fn lingers(&self) -> bool {
        !self.linger.is_zero()
    }

    /// Returns the statement of a claim for up to `room` jobs, and its parameters. The first claim of a worker does not
    /// sleep: it finds out whether the queues exist.
    pub fn claim(&self, room: usize, sleeps: bool, completed: &[Ending]) -> (String, Parameters) {
        let (mut room, mut wait) = (room, if sleeps { self.wait } else { Duration::ZERO });
        if self.lingers() {
            // A full batch is not kept waiting for more jobs. A call that lingers has to wait.
            room = room.min(self.collected().unwrap_or(1));
            wait = wait.max(self.wait.min(Duration::from_millis(1)));
        }
        let wanted = self.handlers.iter().flat_map(|(queue, calls)| {
            let stages = calls.by_stage.keys().cloned().map(Some).chain(calls.of_queue.as_ref().map(|_| None));
            stages.map(|stage| (queue.clone(), stage))
        });
        let (queues, stages): (Vec<String>, Vec<Option<String>>) = wanted.unzip();
        let mut parameters = Parameters::default()
            .with(queues, Type::TEXT_ARRAY)
            .with(stages, Type::TEXT_ARRAY)
            .with(i32::try_from(room).unwrap_or(i32::MAX), Type::INT4)
            .with(interval(wait), Type::TEXT)
            .with(self.lease.map(interval), Type::TEXT)
            .with(self.name.clone(), Type::TEXT)
            .with(self.disconnect.map(interval), Type::TEXT)
            .with(completed.iter().map(Ending::id).collect::<Vec<_>>(), Type::INT8_ARRAY)
            .with(results(completed), Type::TEXT);
        let mut linger = "";
        if self.lingers() {
            parameters.push(interval(self.linger), Type::TEXT);
            linger = ", linger => $10::interval";
        }
        let sql = format!(
            "SELECT {COLUMNS}, extract(epoch FROM lease_expires_at - clock_timestamp())::float8 \
             FROM queue.claim_any($1, stages => $2, max_jobs => $3, wait => $4::interval, lease => $5::interval, \
             worker => $6, disconnect => $7::interval, completed => $8, results => $9::json{linger})"
        );
        (sql, parameters)
    }

    /// Returns the handlers within the middleware. The first middleware is the outermost one.
    pub fn calls(&self) -> HashMap<String, Calls> {
        let within = |call: &Call| match call {
            Call::One(next) => Call::One(self.middleware.iter().rev().fold(next.clone(), |next, around| {
                let around = around.clone();
                Arc::new(move |job| around(job, next.clone()))
            })),
            batch @ Call::Batch { .. } => batch.clone(),
        };
        let all_within = |calls: &Calls| Calls {
            by_stage: calls.by_stage.iter().map(|(stage, call)| (stage.clone(), within(call))).collect(),
            of_queue: calls.of_queue.as_ref().map(within),
        };
        self.handlers.iter().map(|(queue, calls)| (queue.clone(), all_within(calls))).collect()
    }
}

/// Returns the results of completions as a JSON array. `None`: no completion has one.
fn results(completed: &[Ending]) -> Option<String> {
    let has_any = completed.iter().any(|ending| ending.result().is_some());
    let result = |ending: &Ending| ending.result().map_or_else(|| "null".to_owned(), Value::to_string);
    has_any.then(|| format!("[{}]", completed.iter().map(result).collect::<Vec<_>>().join(",")))
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
