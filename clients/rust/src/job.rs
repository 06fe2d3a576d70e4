//! What a handler gets: the job, and what it may do with the attempt that it runs.
//!
//! A handler that writes to the database does so in [`Job::transaction`]: what it writes and the completion commit
//! together.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};

use crate::connection::{Pool, Pooled};
use crate::outcome::{Advance, Failure, StopReason, Stopped, Suspend};
use crate::shared::{Committing, Facts, Shared};
use crate::sql::{Json, Parameters, interval};

/// Of `queue.claimed_job`, in the order in which [`Job::new`] reads them.
pub(crate) const COLUMNS: &str = "id, job_id, queue_name, stage, payload, headers, attempt, max_attempts, priority, \
    unique_key, group_key, progress, last_error, enqueued_at";

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} of {}, attempt {} (id {})", self.job_id, self.queue, self.attempt, self.id)
    }
}

/// A job that runs.
#[non_exhaustive]
pub struct Job {
    /// The attempt's id, good for one end.
    pub id: i64,
    /// The job's.
    pub job_id: i64,
    /// The queue it came from.
    pub queue: Arc<str>,
    /// The stage it is at.
    pub stage: Option<String>,
    /// What the producer gave.
    pub payload: Value,
    /// What the producer gave beside it.
    pub headers: Option<Value>,
    /// Which run this is, from 1 in each stage.
    pub attempt: i32,
    /// After how many it is dead.
    pub max_attempts: i32,
    /// Smaller runs first.
    pub priority: i32,
    /// The key it has.
    pub unique_key: Option<String>,
    /// The group it belongs to.
    pub group_key: Option<String>,
    /// What the last attempt had reported.
    pub progress: Option<Value>,
    /// How the last attempt failed.
    pub last_error: Option<String>,
    /// When the producer enqueued it.
    pub enqueued_at: SystemTime,
    /// Why its JSON could not be read. Its handler is not called then: the attempt fails.
    pub(crate) unreadable: Option<String>,
    pub(crate) shared: Arc<Shared>,
    pool: Arc<Pool>,
    stopping: watch::Receiver<u32>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shared.facts)
    }
}

impl Job {
    pub(crate) fn new(row: &Row, pool: Arc<Pool>, stopping: watch::Receiver<u32>) -> Self {
        let queue: Arc<str> = row.get::<_, String>(2).into();
        let facts = Facts { id: row.get(0), job_id: row.get(1), queue: queue.clone(), attempt: row.get(6) };
        let json = |n: usize| row.try_get::<_, Option<Value>>(n);
        let (payload, headers, progress) = (json(4), json(5), json(11));
        // Such as a number of 400 digits, or what is nested more than 128 deep.
        let unreadable = [&payload, &headers, &progress].into_iter().find_map(|read| read.as_ref().err());
        let unreadable = unreadable.map(|error| format!("what the job carries cannot be read: {}", reason(error)));
        let shared = Shared { facts, stop: watch::channel(None).0, ended: AtomicBool::new(false) };
        Self {
            id: row.get(0),
            job_id: row.get(1),
            queue,
            stage: row.get(3),
            payload: payload.ok().flatten().unwrap_or_default(),
            headers: headers.ok().flatten(),
            attempt: row.get(6),
            max_attempts: row.get(7),
            priority: row.get(8),
            unique_key: row.get(9),
            group_key: row.get(10),
            progress: progress.ok().flatten(),
            last_error: row.get(12),
            enqueued_at: row.get(13),
            unreadable,
            shared: Arc::new(shared),
            pool,
            stopping,
        }
    }

    /// The payload as a type of yours.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(&self.payload)
    }

    /// The trace context that the producer has given.
    pub fn traceparent(&self) -> Option<&str> {
        self.headers.as_ref()?.get("traceparent")?.as_str()
    }

    /// Why the handler is to stop; none: it is not.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.shared.reason()
    }

    /// An error if the handler is to stop. For code that does not await: elsewhere it is dropped.
    pub fn check(&self) -> Result<(), Stopped> {
        self.stop_reason().map_or(Ok(()), |reason| Err(Stopped(reason)))
    }

    /// Whether the worker shuts down. The handler may go on until `stop_reason` says otherwise.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow() > 0
    }

    /// Tells the worker that the handler has ended the attempt by other means than ours.
    pub fn set_ended(&self) {
        self.shared.ended.store(true, Ordering::Release);
    }

    /// A transaction on a connection of the worker's. It rolls back when it is dropped.
    pub async fn transaction(&self) -> Result<JobTransaction<'_>, Failure> {
        self.check()?;
        Ok(JobTransaction { job: self, client: begin(&self.pool).await? })
    }

    /// Remembers what was done so far: the next attempt, if there is one, finds it in `progress`.
    pub async fn save_progress(&self, progress: impl Serialize) -> Result<(), Failure> {
        let client = taken(&self.pool).await?;
        let parameters = Parameters::default().with(self.id, Type::INT8).with(Json::of(progress), Type::JSONB);
        client.execute_typed("SELECT queue.progress($1, $2)", &parameters.list()).await?;
        client.give_back();
        Ok(())
    }

    /// A step that a retry skips: what it has returned, or a transaction in which to do it.
    pub async fn step<T: DeserializeOwned>(&self, name: &str) -> Result<Step<T>, Failure> {
        self.check()?;
        let client = begin(&self.pool).await?;
        let parameters = [(&self.id as _, Type::INT8), (&name as _, Type::TEXT)];
        let found = client.query_typed_one("SELECT queue.step($1, $2)", &parameters).await?;
        match found.try_get::<_, Option<Value>>(0)? {
            Some(result) => {
                client.batch_execute("COMMIT").await?;
                client.give_back();
                Ok(Step::Done(T::deserialize(result)?))
            }
            None => Ok(Step::Open(OpenStep { id: self.id, name: name.to_owned(), client })),
        }
    }

    /// What became of the jobs that this one was after, and of its members.
    pub async fn inputs(&self) -> Result<Vec<Input>, Failure> {
        let client = taken(&self.pool).await?;
        let sql = "SELECT job_id, queue_name, task, state, result, error FROM queue.inputs($1)";
        let rows = client.query_typed(sql, &[(&self.id, Type::INT8)]).await?;
        client.give_back();
        let input = |row: &Row| {
            Ok(Input {
                job_id: row.get(0),
                queue: row.get(1),
                task: row.get(2),
                state: row.get(3),
                result: row.try_get(4)?,
                error: row.get(5),
            })
        };
        rows.iter().map(input).collect()
    }
}

/// The innermost reason of an error of the driver's.
fn reason(error: &tokio_postgres::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

pub(crate) async fn taken(pool: &Arc<Pool>) -> Result<Pooled, Failure> {
    pool.take().await.map_err(|error| Failure::Retry { error, delay: None })
}

pub(crate) async fn begin(pool: &Arc<Pool>) -> Result<Pooled, Failure> {
    let client = taken(pool).await?;
    client.batch_execute("BEGIN").await?;
    Ok(client)
}

/// What became of a job that this one waited for. Of one that is kept no longer there is no more than its id.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Input {
    /// The job.
    pub job_id: i64,
    /// Its queue.
    pub queue: Option<String>,
    /// Its name in the flow.
    pub task: Option<String>,
    /// How it has ended, or where it is.
    pub state: Option<String>,
    /// What it has returned.
    pub result: Option<Value>,
    /// Why it has failed.
    pub error: Option<String>,
}

/// A transaction on a connection of the worker's: a client of tokio-postgres. Behind a pooler use its `…_typed`
/// methods.
///
/// What ends the job commits; dropped without, all is rolled back, and the worker ends the job as the handler returns.
pub struct JobTransaction<'a> {
    job: &'a Job,
    client: Pooled,
}

impl Deref for JobTransaction<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl JobTransaction<'_> {
    /// Completes the job and commits: what was written and the completion, or neither.
    pub async fn complete(self, result: impl Serialize) -> Result<(), Error> {
        let parameters = Parameters::default().with(self.job.id, Type::INT8).with(Json::of(result), Type::JSONB);
        self.end("SELECT queue.complete($1, nullif($2, 'null'))", parameters).await
    }

    /// Takes the job on to another stage and commits.
    pub async fn advance(self, advance: Advance) -> Result<(), Error> {
        let parameters = Parameters::default()
            .with(self.job.id, Type::INT8)
            .with(advance.stage, Type::TEXT)
            .with(advance.payload, Type::JSONB)
            .with(interval(advance.delay), Type::TEXT);
        self.end("SELECT queue.advance($1, $2, $3, $4::interval)", parameters).await
    }

    /// Lets the job wait for others and commits: those that were enqueued in this transaction with `flow` its job's id,
    /// say.
    pub async fn suspend(self, suspend: Suspend) -> Result<(), Error> {
        let after = (!suspend.after.is_empty()).then_some(suspend.after);
        let parameters = Parameters::default()
            .with(self.job.id, Type::INT8)
            .with(after, Type::INT8_ARRAY)
            .with(suspend.upon.map_or("ended", |upon| upon.name()), Type::TEXT)
            .with(suspend.progress, Type::JSONB);
        self.end("SELECT queue.suspend($1, $2, $3, $4)", parameters).await
    }

    /// Commits, and the job goes on.
    pub async fn commit(self) -> Result<(), Error> {
        self.client.batch_execute("COMMIT").await?;
        self.client.give_back();
        Ok(())
    }

    async fn end(self, sql: &str, parameters: Parameters) -> Result<(), Error> {
        self.client.execute_typed(sql, &parameters.list()).await?;
        let committing = Committing::begin(std::iter::once(&*self.job.shared));
        self.client.batch_execute("COMMIT").await?;
        committing.confirmed();
        self.client.give_back();
        Ok(())
    }
}

/// A step of a job.
pub enum Step<T> {
    /// It was done, by this attempt or one before: what it has returned.
    Done(T),
    /// It is to be done.
    Open(OpenStep),
}

/// A step that is to be done, in a transaction: a client of tokio-postgres. It rolls back when it is dropped.
pub struct OpenStep {
    id: i64,
    name: String,
    client: Pooled,
}

impl Deref for OpenStep {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl OpenStep {
    /// Notes that it is done, with its result, and commits. Returns the result.
    pub async fn done<T: Serialize>(self, result: T) -> Result<T, Error> {
        let parameters = Parameters::default()
            .with(self.id, Type::INT8)
            .with(self.name.clone(), Type::TEXT)
            .with(Json::of(&result), Type::JSONB);
        self.client.execute_typed("SELECT queue.step_done($1, $2, $3)", &parameters.list()).await?;
        self.client.batch_execute("COMMIT").await?;
        self.client.give_back();
        Ok(result)
    }
}
