//! Flows: jobs that wait for any number of other jobs, their members.

use futures_util::future::{join, try_join_all};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::types::Type;
use tokio_postgres::{Error, GenericClient};

use crate::codec::{CodecError, ContextKind};
use crate::enqueue::Options;
use crate::sql::{Json, Parameters};

/// What a flow has in addition to the options of a job.
#[derive(Debug, Clone, Default)]
pub struct Flow {
    /// The first members.
    pub tasks: Vec<Task>,
    /// True: when its members have ended, it goes to its queue, and a worker runs it. False: it completes by itself.
    pub runs: bool,
    /// True: it waits for [`seal`], too.
    pub open: bool,
    /// True: the first dead member cancels the others, and the flow is dead.
    pub fail_fast: bool,
    /// The options of the flow itself.
    pub options: Options,
}

/// A member, with its name in the flow.
#[derive(Debug, Clone)]
pub struct Task {
    name: String,
    queue: Option<String>,
    payload: Value,
    after: Vec<String>,
    options: Options,
}

impl Task {
    /// Returns a task in the flow's own queue.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), queue: None, payload: json!({}), after: Vec::new(), options: Options::new() }
    }

    /// Its queue.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Its payload.
    pub fn payload(mut self, payload: Value) -> Self {
        self.payload = payload;
        self
    }

    /// The tasks that it waits for.
    pub fn after<N: Into<String>>(mut self, tasks: impl IntoIterator<Item = N>) -> Self {
        self.after = tasks.into_iter().map(Into::into).collect();
        self
    }

    /// Its options. Their `after`, `flow` and `task` are ignored.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Returns it as `queue.enqueue_flow` reads it. The flow's codec encodes the payload.
    async fn json(&self, flow: &Options, queue: &str) -> Result<Value, CodecError> {
        let queue = self.queue.as_deref().unwrap_or(queue);
        let payload = flow.codec.encode(self.payload.clone(), ContextKind::Payload, queue).await?;
        let mut fields = self.options.fields();
        fields.remove("flow");
        let own = [("task", json!(self.name)), ("payload", payload), ("after", json!(self.after))];
        fields.extend(own.map(|(name, value)| (name.to_owned(), value)));
        if let Some(queue) = &self.queue {
            fields.insert("queue".to_owned(), json!(queue));
        }
        Ok(Value::Object(fields))
    }
}

/// Adds a flow and returns its id, which is a job id.
pub async fn enqueue_flow<C: GenericClient + Sync>(
    client: &C,
    queue: &str,
    payload: impl Serialize,
    flow: Flow,
) -> Result<i64, Error> {
    let payload = flow.options.codec.json(payload, ContextKind::Payload, queue);
    let tasks = try_join_all(flow.tasks.iter().map(|task| task.json(&flow.options, queue)));
    let (payload, tasks) = join(payload, tasks).await;
    let tasks = tasks.map_or_else(|error| Json::error(&error), Json::of);
    let mut parameters = Parameters::default()
        .with(queue.to_owned(), Type::TEXT)
        .with(tasks, Type::JSONB)
        .with(payload, Type::JSONB)
        .with(flow.runs, Type::BOOL)
        .with(flow.open, Type::BOOL)
        .with(flow.fail_fast, Type::BOOL);
    let arguments = flow.options.arguments(&mut parameters);
    let sql = format!("SELECT queue.enqueue_flow($1, $2, $3, runs => $4, open => $5, fail_fast => $6{arguments})");
    Ok(client.query_typed_one(&sql, &parameters.list()).await?.get(0))
}

/// Lets an open flow end when its members have ended.
pub async fn seal<C: GenericClient + Sync>(client: &C, flow: i64) -> Result<(), Error> {
    client.execute_typed("SELECT queue.seal($1)", &[(&flow, Type::INT8)]).await.map(drop)
}

/// Completes an open flow without members: the event that it stands for has occurred. The result is stored as it is:
/// encode it with the codec before.
pub async fn resolve<C: GenericClient + Sync>(client: &C, flow: i64, result: impl Serialize) -> Result<(), Error> {
    let parameters = Parameters::default().with(flow, Type::INT8).with(Json::of(result), Type::JSONB);
    client.execute_typed("SELECT queue.resolve($1, $2)", &parameters.list()).await.map(drop)
}

/// Ends an open flow without members as dead: the event that it stands for has failed.
pub async fn reject<C: GenericClient + Sync>(client: &C, flow: i64, error: &str) -> Result<(), Error> {
    client.execute_typed("SELECT queue.reject($1, $2)", &[(&flow, Type::INT8), (&error, Type::TEXT)]).await.map(drop)
}
