//! Adds jobs, on the caller's own connection and in its transaction: a job exists if and only if that commits.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;
use tokio_postgres::GenericClient;
use tokio_postgres::error::Error;
use tokio_postgres::types::Type;

use crate::sql::{Json, Parameters, interval, timestamp};
use crate::tracing;
use crate::upon::Upon;

/// The options of `queue.enqueue`. What is not said is as the function has it by default.
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
}

impl Options {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Smaller runs first; 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Not before this long from now.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Not before this time.
    pub fn run_at(mut self, time: SystemTime) -> Self {
        self.run_at = Some(time);
        self
    }

    /// Under each key of a queue one job lives at a time. A second one is skipped.
    pub fn unique_key(mut self, key: impl Into<String>) -> Self {
        self.unique_key = Some(key.into());
        self
    }

    /// A live job under the key gets this call's contents.
    pub fn or_replace(mut self) -> Self {
        self.on_duplicate = Some("replace");
        self
    }

    /// A live job under the key runs once more.
    pub fn or_rerun(mut self) -> Self {
        self.on_duplicate = Some("rerun");
        self
    }

    /// A live job under the key is an error, `23505`.
    pub fn or_error(mut self) -> Self {
        self.on_duplicate = Some("error");
        self
    }

    /// A call whose version is not larger than the one known under the key does nothing.
    pub fn version(mut self, version: SystemTime) -> Self {
        self.version = Some(version);
        self
    }

    /// The key stays taken for so long, even if the job has ended.
    pub fn unique_for(mut self, time: Duration) -> Self {
        self.unique_for = Some(time);
        self
    }

    /// The group that the queue's limits per group count.
    pub fn group_key(mut self, key: impl Into<String>) -> Self {
        self.group_key = Some(key.into());
        self
    }

    /// The stage in which it begins.
    pub fn stage(mut self, stage: impl Into<String>) -> Self {
        self.stage = Some(stage.into());
        self
    }

    /// After so many attempts it is dead.
    pub fn max_attempts(mut self, attempts: i32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// How long a claim of it lasts.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Kept beside the payload.
    pub fn headers(mut self, headers: Value) -> Self {
        self.headers = Some(headers);
        self
    }

    /// It is held until these jobs have ended, as `upon` says.
    pub fn after(mut self, jobs: impl IntoIterator<Item = i64>) -> Self {
        self.after = Some(jobs.into_iter().collect());
        self
    }

    /// For what end of these; `Completed`.
    pub fn upon(mut self, upon: Upon) -> Self {
        self.upon = Some(upon);
        self
    }

    /// It is a member of this flow, or of this job that runs, which waits for it.
    pub fn flow(mut self, job: i64) -> Self {
        self.flow = Some(job);
        self
    }

    /// Its name in the flow.
    pub fn task(mut self, name: impl Into<String>) -> Self {
        self.task = Some(name.into());
        self
    }

    /// The arguments of a call by name, each with what comes before it; its values are added to the parameters.
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
        if let Some(priority) = self.priority {
            add("priority", "", parameters.push(priority, Type::INT4));
        }
        if let Some(time) = self.run_at {
            add("run_at", "", parameters.push(time, Type::TIMESTAMPTZ));
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

    /// The same as fields of an object, for `tasks`.
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
        Value::Object(fields)
    }
}

/// Adds a job and returns its id. A payload that cannot be JSON is an error of the driver's.
pub async fn enqueue<C: GenericClient + Sync>(
    client: &C,
    queue: &str,
    payload: impl Serialize,
    options: Options,
) -> Result<i64, Error> {
    let mut parameters = Parameters::default().with(queue.to_owned(), Type::TEXT).with(Json::of(payload), Type::JSONB);
    let arguments = options.arguments(&mut parameters);
    let sql = format!("SELECT queue.enqueue($1, $2{arguments})");
    Ok(client.query_typed_one(&sql, &parameters.list()).await?.get(0))
}

/// Adds a job per payload, all with the same options, and returns their ids in the order of the payloads.
pub async fn enqueue_many<C: GenericClient + Sync, P: Serialize>(
    client: &C,
    queue: &str,
    payloads: impl IntoIterator<Item = P>,
    options: Options,
) -> Result<Vec<i64>, Error> {
    let payloads: Vec<Json> = payloads.into_iter().map(Json::of).collect();
    let mut parameters = Parameters::default().with(queue.to_owned(), Type::TEXT).with(payloads, Type::JSONB_ARRAY);
    let arguments = options.arguments(&mut parameters);
    let sql = format!("SELECT queue.enqueue_many($1, $2{arguments})");
    Ok(client.query_typed(&sql, &parameters.list()).await?.iter().map(|row| row.get(0)).collect())
}
