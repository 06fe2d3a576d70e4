//! Adds jobs, on the caller's own connection and in its transaction: a job exists if and only if the transaction
//! commits.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::GenericClient;
use tokio_postgres::error::Error;
use tokio_postgres::types::Type;

use crate::codec::{Codec, ContextKind};
use crate::hooks::Hooks;
use crate::sql::{Json, Parameters, interval, timestamp};
use crate::tracing;
use crate::upon::Upon;

/// The options of `queue.enqueue`. The defaults are those of the function.
#[derive(Debug, Clone, Default)]
pub struct Options {
    priority: Option<i32>,
    delay: Option<Duration>,
    run_at: Option<SystemTime>,
    unique_key: Option<String>,
    on_duplicate: Option<&'static str>,
    version: Option<SystemTime>,
    unique_for: Option<Duration>,
    group_key: Option<String>,
    stage: Option<String>,
    max_attempts: Option<i32>,
    lease: Option<Duration>,
    headers: Option<Value>,
    after: Option<Vec<i64>>,
    upon: Option<Upon>,
    flow: Option<i64>,
    task: Option<String>,
    start_by: Option<SystemTime>,
    start_within: Option<Duration>,
    max_delay: Option<Duration>,
    pub(crate) codec: Hooks,
}

impl Options {
    /// Returns options that are all at their defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// A smaller priority runs first. Default: 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// The job does not run before this time has passed.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// The job does not run before this time.
    pub fn run_at(mut self, time: SystemTime) -> Self {
        self.run_at = Some(time);
        self
    }

    /// A queue has at most one living job for each key. A second one is skipped.
    pub fn unique_key(mut self, key: impl Into<String>) -> Self {
        self.unique_key = Some(key.into());
        self
    }

    /// A living job under the key gets this call's contents.
    pub fn or_replace(mut self) -> Self {
        self.on_duplicate = Some("replace");
        self
    }

    /// A living job under the key runs once more.
    pub fn or_rerun(mut self) -> Self {
        self.on_duplicate = Some("rerun");
        self
    }

    /// A living job under the key is an error, `23505`.
    pub fn or_error(mut self) -> Self {
        self.on_duplicate = Some("error");
        self
    }

    /// A call does nothing unless its version is larger than the known version of the key.
    pub fn version(mut self, version: SystemTime) -> Self {
        self.version = Some(version);
        self
    }

    /// The key stays taken for this time, even if the job has ended.
    pub fn unique_for(mut self, time: Duration) -> Self {
        self.unique_for = Some(time);
        self
    }

    /// The group that the queue's limits per group count.
    pub fn group_key(mut self, key: impl Into<String>) -> Self {
        self.group_key = Some(key.into());
        self
    }

    /// The stage in which the job begins.
    pub fn stage(mut self, stage: impl Into<String>) -> Self {
        self.stage = Some(stage.into());
        self
    }

    /// After this many attempts the job is dead.
    pub fn max_attempts(mut self, attempts: i32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// How long a claim of the job lasts.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// An object that is kept beside the payload.
    pub fn headers(mut self, headers: Value) -> Self {
        self.headers = Some(headers);
        self
    }

    /// The job is held until these jobs have ended as `upon` says.
    pub fn after(mut self, jobs: impl IntoIterator<Item = i64>) -> Self {
        self.after = Some(jobs.into_iter().collect());
        self
    }

    /// How the jobs of `after` have to end. Default: `Completed`.
    pub fn upon(mut self, upon: Upon) -> Self {
        self.upon = Some(upon);
        self
    }

    /// The job is a member of this flow, or of this running job, which waits for it.
    pub fn flow(mut self, job: i64) -> Self {
        self.flow = Some(job);
        self
    }

    /// The job's name in the flow.
    pub fn task(mut self, name: impl Into<String>) -> Self {
        self.task = Some(name.into());
        self
    }

    /// If no worker has claimed the job before this time, it expires.
    pub fn start_by(mut self, time: SystemTime) -> Self {
        self.start_by = Some(time);
        self
    }

    /// If no worker has claimed the job within this time, it expires. The time begins when the job may run.
    pub fn start_within(mut self, time: Duration) -> Self {
        self.start_within = Some(time);
        self
    }

    /// Calls under the job's unique key put it off at most this long after the first of them. A flow has no such bound.
    pub fn max_delay(mut self, time: Duration) -> Self {
        self.max_delay = Some(time);
        self
    }

    /// Encodes the payload, and in a flow those of its tasks.
    pub fn codec(mut self, codec: impl Codec + 'static) -> Self {
        self.codec = Hooks::new(codec);
        self
    }

    /// Returns the named arguments of a call, each after a comma. Adds their values to the parameters.
    pub(crate) fn arguments(&self, parameters: &mut Parameters) -> String {
        let mut text = String::new();
        let mut add = |name: &str, cast: &str, number: usize| text.push_str(&format!(", {name} => ${number}{cast}"));
        let mut texts = |name: &str, cast: &str, value: Option<String>| {
            if let Some(value) = value {
                add(name, cast, parameters.push(value, Type::TEXT));
            }
        };
        texts("delay", "::interval", self.delay.map(interval));
        texts("unique_key", "", self.unique_key.clone());
        texts("on_duplicate", "", self.on_duplicate.map(str::to_owned));
        texts("unique_for", "::interval", self.unique_for.map(interval));
        texts("group_key", "", self.group_key.clone());
        texts("stage", "", self.stage.clone());
        texts("lease", "::interval", self.lease.map(interval));
        texts("headers", "::jsonb", tracing::inject(self.headers.clone()).map(|headers| headers.to_string()));
        texts("upon", "", self.upon.map(|upon| upon.name().to_owned()));
        texts("task", "", self.task.clone());
        texts("start_within", "::interval", self.start_within.map(interval));
        texts("max_delay", "::interval", self.max_delay.map(interval));
        if let Some(priority) = self.priority {
            add("priority", "", parameters.push(priority, Type::INT4));
        }
        if let Some(time) = self.run_at {
            add("run_at", "", parameters.push(time, Type::TIMESTAMPTZ));
        }
        if let Some(time) = self.start_by {
            add("start_by", "", parameters.push(time, Type::TIMESTAMPTZ));
        }
        if let Some(version) = self.version {
            add("version", "", parameters.push(version, Type::TIMESTAMPTZ));
        }
        if let Some(attempts) = self.max_attempts {
            add("max_attempts", "", parameters.push(attempts, Type::INT4));
        }
        if let Some(after) = &self.after {
            add("after", "", parameters.push(after.clone(), Type::INT8_ARRAY));
        }
        if let Some(flow) = self.flow {
            add("flow", "", parameters.push(flow, Type::INT8));
        }
        text
    }

    /// Returns the options as fields of an object, for `tasks`.
    pub(crate) fn fields(&self) -> Value {
        let mut fields = serde_json::Map::new();
        let mut add = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value);
            }
        };
        add("priority", self.priority.map(Value::from));
        add("delay", self.delay.map(interval).map(Value::from));
        add("run_at", self.run_at.map(timestamp).map(Value::from));
        add("unique_key", self.unique_key.clone().map(Value::from));
        add("on_duplicate", self.on_duplicate.map(Value::from));
        add("version", self.version.map(timestamp).map(Value::from));
        add("unique_for", self.unique_for.map(interval).map(Value::from));
        add("group_key", self.group_key.clone().map(Value::from));
        add("stage", self.stage.clone().map(Value::from));
        add("max_attempts", self.max_attempts.map(Value::from));
        add("lease", self.lease.map(interval).map(Value::from));
        add("headers", tracing::inject(self.headers.clone()));
        add("upon", self.upon.map(|upon| Value::from(upon.name())));
        add("start_by", self.start_by.map(timestamp).map(Value::from));
        add("start_within", self.start_within.map(interval).map(Value::from));
        add("max_delay", self.max_delay.map(interval).map(Value::from));
        Value::Object(fields)
    }
}

/// Adds a job and returns its id. If the payload cannot be written as JSON, that is an error of the driver.
pub async fn enqueue<C: GenericClient + Sync>(
    client: &C,
    queue: &str,
    payload: impl Serialize,
    options: Options,
) -> Result<i64, Error> {
    let payload = options.codec.json(payload, ContextKind::Payload, queue);
    let mut parameters = Parameters::default().with(queue.to_owned(), Type::TEXT).with(payload.await, Type::JSONB);
    let arguments = options.arguments(&mut parameters);
    let sql = format!("SELECT queue.enqueue($1, $2{arguments})");
    Ok(client.query_typed_one(&sql, &parameters.list()).await?.get(0))
}

/// Adds one job for each payload, all with the same options, and returns their ids in the order of the payloads.
pub async fn enqueue_many<C: GenericClient + Sync, P: Serialize>(
    client: &C,
    queue: &str,
    payloads: impl IntoIterator<Item = P>,
    options: Options,
) -> Result<Vec<i64>, Error> {
    let payloads = payloads.into_iter().map(|payload| options.codec.json(payload, ContextKind::Payload, queue));
    let payloads: Vec<Json> = join_all(payloads.collect::<Vec<_>>()).await;
    let mut parameters = Parameters::default().with(queue.to_owned(), Type::TEXT).with(payloads, Type::JSONB_ARRAY);
    let arguments = options.arguments(&mut parameters);
    let sql = format!("SELECT queue.enqueue_many($1, $2{arguments})");
    Ok(client.query_typed(&sql, &parameters.list()).await?.iter().map(|row| row.get(0)).collect())
}
