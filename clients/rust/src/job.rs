//! What a handler gets: the job, and what it can do with its attempt.
//!
//! A handler that writes to the database should do so in [`Job::transaction`]: its writes and the completion commit
//! together.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};

use crate::codec::{ContextKind, Encoded};
use crate::connection::{PATIENCE, Pooled, Pools, Users};
use crate::effects;
use crate::hooks::Hooks;
use crate::outcome::{Advance, Failure, StopReason, Stopped, Suspend};
use crate::shared::{Committing, Facts, Shared};
use crate::sql::{Parameters, interval};

/// Columns of `queue.claimed_job`, in the order in which [`Job::new`] reads them.
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
    /// The attempt's id. The attempt can be ended once.
    pub id: i64,
    /// The job's.
    pub job_id: i64,
    /// The queue from which it was claimed.
    pub queue: Arc<str>,
    /// Its current stage.
    pub stage: Option<String>,
    /// The payload that the producer gave.
    pub payload: Value,
    /// The headers that the producer gave.
    pub headers: Option<Value>,
    /// The number of this run, from 1 in each stage.
    pub attempt: i32,
    /// After how many attempts the job is dead.
    pub max_attempts: i32,
    /// Smaller runs first.
    pub priority: i32,
    /// The key it has.
    pub unique_key: Option<String>,
    /// The group it belongs to.
    pub group_key: Option<String>,
    /// The progress that the last attempt had reported.
    pub progress: Option<Value>,
    /// How the last attempt failed.
    pub last_error: Option<String>,
    /// When the producer enqueued it.
    pub enqueued_at: SystemTime,
    /// Why the job's JSON could not be read. Then the handler is not called, and the attempt fails.
    pub(crate) unreadable: Option<String>,
    pub(crate) shared: Arc<Shared>,
    pools: Pools,
    stopping: watch::Receiver<u32>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shared.facts)
    }
}

impl Job {
    pub(crate) fn new(row: &Row, pools: Pools, codec: Hooks, stopping: watch::Receiver<u32>) -> Self {
        let queue: Arc<str> = row.get::<_, &str>(2).into();
        let facts = Facts { id: row.get(0), job_id: row.get(1), queue: queue.clone(), attempt: row.get(6) };
        let json = |n: usize| row.try_get::<_, Option<Value>>(n);
        let (payload, headers, progress) = (json(4), json(5), json(11));
        // Such as a number of 400 digits, or JSON that is nested more than 128 levels deep.
        let unreadable = [&payload, &headers, &progress].into_iter().find_map(|read| read.as_ref().err());
        let unreadable = unreadable.map(|error| format!("what the job carries cannot be read: {}", reason(error)));
        let shared = Shared {
            facts,
            codec,
            reason: Mutex::default(),
            stopped: Notify::new(),
            ended: AtomicBool::new(false),
            steps: Mutex::default(),
            connections: Arc::default(),
            limit: OnceLock::new(),
            committed: OnceLock::new(),
        };
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
            pools,
            stopping,
        }
    }

    /// Returns whether the handler can be called: nothing has to be decoded, and it is not to stop.
    pub(crate) fn is_ready(&self) -> bool {
        let is_plain = |value| Encoded::read(value).is_none();
        let is_decoded = self.shared.codec.is_none() && [&self.payload].into_iter().chain(&self.progress).all(is_plain);
        is_decoded && self.unreadable.is_none() && self.stop_reason().is_none()
    }

    /// Decodes what the job carries.
    pub(crate) async fn decode(&mut self) -> Result<(), Failure> {
        if let Some(error) = self.unreadable.take() {
            return Err(Failure::Retry { error, delay: None });
        }
        let payload = std::mem::take(&mut self.payload);
        self.payload = self.shared.codec.decode(payload, ContextKind::Payload, &self.queue).await?;
        if let Some(progress) = self.progress.take_if(|progress| !progress.is_null()) {
            self.progress = Some(self.shared.codec.decode(progress, ContextKind::Progress, &self.queue).await?);
        }
        Ok(self.check()?)
    }

    /// Returns the payload as a type of the caller.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(&self.payload)
    }

    /// The producer's trace context.
    pub fn traceparent(&self) -> Option<&str> {
        self.headers.as_ref()?.get("traceparent")?.as_str()
    }

    /// Returns why the handler is to stop; none if it may go on.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.shared.reason()
    }

    /// Returns an error if the handler is to stop. It is for code that does not await: a handler that awaits is
    /// dropped.
    pub fn check(&self) -> Result<(), Stopped> {
        self.stop_reason().map_or(Ok(()), |reason| Err(Stopped(reason)))
    }

    /// True if the worker shuts down. The handler may go on until `stop_reason` is set.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow() > 0
    }

    /// Tells the worker that the handler has ended the attempt without this crate's functions.
    pub fn set_ended(&self) {
        self.shared.ended.store(true, Ordering::Release);
    }

    pub(crate) fn has_effects(&self) -> bool {
        self.pools.effects.is_some()
    }

    /// Begins a transaction on one of the worker's connections. It rolls back when it is dropped.
    ///
    /// If the worker has [`effects`](crate::Worker::effects), the transaction is there. If an earlier attempt has
    /// committed the effects, the error is [`Failure::AlreadyDone`]: return it, and the worker completes the job.
    pub async fn transaction(&self) -> Result<JobTransaction<'_>, Failure> {
        Ok(JobTransaction { job: self, client: begin_ending(std::slice::from_ref(self)).await? })
    }

    /// Stores what was done so far. The next attempt, if there is one, finds it in `progress`.
    pub async fn save_progress(&self, progress: impl Serialize) -> Result<(), Failure> {
        let progress = self.shared.codec.json(progress, ContextKind::Progress, &self.queue);
        let (progress, client) = (progress.await, taken(std::slice::from_ref(self)).await?);
        let parameters = Parameters::default().with(self.id, Type::INT8).with(progress, Type::JSONB);
        client.execute_typed("SELECT queue.progress($1, $2)", &parameters.list()).await?;
        client.give_back();
        Ok(())
    }

    /// Says how much of the rates of a queue with `rate_cost` the job has used so far.
    pub async fn charge(&self, used: i32) -> Result<(), Failure> {
        let client = taken(std::slice::from_ref(self)).await?;
        let parameters = Parameters::default().with(self.id, Type::INT8).with(used, Type::INT4);
        client.execute_typed("SELECT queue.charge($1, $2)", &parameters.list()).await?;
        client.give_back();
        Ok(())
    }

    /// Returns the result of a step that is done, or a transaction in which to do it. So a retry skips the steps that
    /// are done. Each step of an attempt has a name of its own.
    pub async fn step<T: DeserializeOwned>(&self, name: &str) -> Result<Step<T>, Failure> {
        self.check()?;
        if self.shared.has_run(name) {
            let advice = format!("give each step a name of its own, such as \"{name} 2\"");
            let error = format!("step \"{name}\" has already run in this attempt: {advice}");
            return Err(Failure::Retry { error, delay: None });
        }
        let client = begin(std::slice::from_ref(self)).await?;
        let parameters = [(&self.id as _, Type::INT8), (&name as _, Type::TEXT)];
        let found = client.query_typed_one("SELECT queue.step($1, $2)", &parameters).await?;
        match found.try_get::<_, Option<Value>>(0)? {
            Some(result) => {
                client.batch_execute("COMMIT").await?;
                client.give_back();
                let result = self.shared.codec.decode(result, ContextKind::Step, &self.queue).await?;
                self.shared.note_step(name);
                Ok(Step::Done(T::deserialize(result)?))
            }
            None => Ok(Step::Open(OpenStep {
                shared: self.shared.clone(),
                name: name.to_owned(),
                client: Box::new(client),
            })),
        }
    }

    /// Returns the outcomes of the jobs that this job was after, and of the members of its flow.
    pub async fn inputs(&self) -> Result<Vec<Input>, Failure> {
        let client = taken(std::slice::from_ref(self)).await?;
        let sql = "SELECT job_id, queue_name, task, state, result, error FROM queue.inputs($1)";
        let rows = client.query_typed(sql, &[(&self.id, Type::INT8)]).await?;
        client.give_back();
        let mut inputs = Vec::new();
        for row in &rows {
            let queue: Option<String> = row.get(1);
            let mut result: Option<Value> = row.try_get(4)?;
            if let Some(stored) = result.take_if(|stored| !stored.is_null()) {
                let queue = queue.as_deref().unwrap_or(&self.queue);
                result = Some(self.shared.codec.decode(stored, ContextKind::Result, queue).await?);
            }
            let (job_id, task, state, error) = (row.get(0), row.get(2), row.get(3), row.get(5));
            inputs.push(Input { job_id, queue, task, state, result, error });
        }
        Ok(inputs)
    }
}

/// Returns the innermost cause of an error of the driver.
fn reason(error: &tokio_postgres::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// How long a job is released if there is no connection for its handler.
const LACK_PAUSE: Duration = Duration::from_secs(5);

/// Returns a connection. If none can be made, the job is not at fault: it is released.
async fn taken(jobs: &[Job]) -> Result<Pooled, Failure> {
    let job = &jobs[0];
    job.pools.own.take(PATIENCE, users(jobs)).await.map_err(|error| {
        let pause = LACK_PAUSE.as_secs();
        log::warn!(target: "pg_queue", "{job:?} lacks a connection: {error}: it is released for {pause} seconds");
        Failure::Snooze(LACK_PAUSE)
    })
}

fn users(jobs: &[Job]) -> Users {
    jobs.iter().map(|job| job.shared.connections.clone()).collect()
}

async fn begin(jobs: &[Job]) -> Result<Pooled, Failure> {
    let client = taken(jobs).await?;
    client.batch_execute("BEGIN").await?;
    Ok(client)
}

/// Begins a transaction that is to end these jobs.
pub(crate) async fn begin_ending(jobs: &[Job]) -> Result<Pooled, Failure> {
    if jobs.iter().any(|job| job.shared.ended.load(Ordering::Acquire)) {
        let error = "this job has ended: job.transaction completes it, so call it once".into();
        return Err(Failure::Retry { error, delay: None });
    }
    let check = || jobs.iter().try_for_each(Job::check);
    match &jobs[0].pools.effects {
        Some(pool) => effects::begin(pool, &job_ids(jobs), &users(jobs), check).await,
        None => {
            check()?;
            begin(jobs).await
        }
    }
}

/// Commits a transaction that has completed these jobs with this result, or has ended the job in another way.
pub(crate) async fn commit_ending(jobs: &[Job], client: Pooled, result: Value) -> Result<(), Error> {
    let committing = Committing::begin(jobs.iter().map(|job| &*job.shared));
    let answer = client.batch_execute("COMMIT").await;
    if answer.is_ok() {
        client.give_back();
    }
    if let Some(pool) = &jobs[0].pools.effects {
        if answer.is_err() && !effects::is_done(pool, &job_ids(jobs)).await {
            return answer;
        }
        for job in jobs {
            _ = job.shared.committed.set(result.clone());
        }
    } else {
        answer?;
    }
    committing.confirmed();
    Ok(())
}

fn job_ids(jobs: &[Job]) -> Vec<i64> {
    jobs.iter().map(|job| job.job_id).collect()
}

/// The outcome of a job that this job waited for. If that job is no longer kept, only its id is there.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Input {
    /// The job.
    pub job_id: i64,
    /// Its queue.
    pub queue: Option<String>,
    /// Its name in the flow.
    pub task: Option<String>,
    /// Its state: how it has ended, or what it is doing.
    pub state: Option<String>,
    /// The result that it has returned.
    pub result: Option<Value>,
    /// Why it has failed.
    pub error: Option<String>,
}

/// A transaction on one of the worker's connections: a client of tokio-postgres. Behind a pooler use its `…_typed`
/// methods.
///
/// The methods that end the job commit. If the transaction is dropped before, it rolls back, and the worker ends the
/// job as the handler returns.
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
    /// Completes the job and commits. The writes and the completion commit together, or neither does.
    pub async fn complete(self, result: impl Serialize) -> Result<(), Error> {
        let result = self.job.shared.codec.json(result, ContextKind::Result, &self.job.queue).await;
        let value = if self.job.has_effects() { result.value() } else { Value::Null };
        let parameters = Parameters::default().with(self.job.id, Type::INT8).with(result, Type::JSONB);
        self.end("SELECT queue.complete($1, nullif($2, 'null'))", parameters, value).await
    }

    /// Moves the job to another stage and commits.
    pub async fn advance(self, advance: Advance) -> Result<(), Error> {
        let Job { shared, queue, .. } = self.job;
        let payload = shared.codec.json_if(advance.payload, ContextKind::Payload, queue).await;
        let parameters = Parameters::default()
            .with(self.job.id, Type::INT8)
            .with(advance.stage, Type::TEXT)
            .with(payload, Type::JSONB)
            .with(interval(advance.delay), Type::TEXT);
        self.end("SELECT queue.advance($1, $2, $3, $4::interval)", parameters, Value::Null).await
    }

    /// Lets the job wait for other jobs and commits. For instance, it waits for jobs that this transaction has enqueued
    /// with `flow` = this job's id.
    pub async fn suspend(self, suspend: Suspend) -> Result<(), Error> {
        let Job { shared, queue, .. } = self.job;
        let progress = shared.codec.json_if(suspend.progress, ContextKind::Progress, queue).await;
        let after = (!suspend.after.is_empty()).then_some(suspend.after);
        let parameters = Parameters::default()
            .with(self.job.id, Type::INT8)
            .with(after, Type::INT8_ARRAY)
            .with(suspend.upon.map_or("ended", |upon| upon.name()), Type::TEXT)
            .with(progress, Type::JSONB);
        match suspend.until {
            None => self.end("SELECT queue.suspend($1, $2, $3, $4)", parameters, Value::Null).await,
            Some(until) => {
                let parameters = parameters.with(until, Type::TIMESTAMPTZ);
                self.end("SELECT queue.suspend($1, $2, $3, $4, $5)", parameters, Value::Null).await
            }
        }
    }

    /// Commits without ending the job.
    pub async fn commit(self) -> Result<(), Error> {
        self.client.batch_execute("COMMIT").await?;
        self.client.give_back();
        Ok(())
    }

    async fn end(self, sql: &str, parameters: Parameters, result: Value) -> Result<(), Error> {
        self.client.execute_typed(sql, &parameters.list()).await?;
        commit_ending(std::slice::from_ref(self.job), self.client, result).await
    }
}

/// A step of a job.
pub enum Step<T> {
    /// The step was done, by this attempt or an earlier one. This is its result.
    Done(T),
    /// The step is not done yet.
    Open(OpenStep),
}

/// A transaction in which to do a step: a client of tokio-postgres. It rolls back when it is dropped.
pub struct OpenStep {
    shared: Arc<Shared>,
    name: String,
    client: Box<Pooled>,
}

impl Deref for OpenStep {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl OpenStep {
    /// Stores that the step is done, with its result, and commits. Returns the result.
    pub async fn done<T: Serialize>(self, result: T) -> Result<T, Error> {
        let Shared { facts, codec, .. } = &*self.shared;
        let stored = codec.json(&result, ContextKind::Step, &facts.queue).await;
        let parameters = Parameters::default()
            .with(facts.id, Type::INT8)
            .with(self.name.clone(), Type::TEXT)
            .with(stored, Type::JSONB);
        self.client.execute_typed("SELECT queue.step_done($1, $2, $3)", &parameters.list()).await?;
        self.client.batch_execute("COMMIT").await?;
        self.client.give_back();
        self.shared.note_step(&self.name);
        Ok(result)
    }
}
