//! Several jobs of a queue that one handler runs together.

use std::ops::Deref;

use serde_json::Value;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connection::Pooled;
use crate::effects;
use crate::job::{self, Job};
use crate::outcome::{Done, Failure};

/// The jobs of a batch, oldest first.
#[derive(Debug)]
pub struct Batch {
    pub(crate) jobs: Vec<Job>,
}

impl Deref for Batch {
    type Target = [Job];

    fn deref(&self) -> &[Job] {
        &self.jobs
    }
}

impl Batch {
    /// Begins a transaction on one of the worker's connections. It rolls back when it is dropped.
    ///
    /// If the worker has [`effects`](crate::Worker::effects), the transaction is there. If an earlier attempt has
    /// committed effects of a job, the error is [`Failure::AlreadyDone`]: that job is completed, and the others are
    /// released.
    pub async fn transaction(&self) -> Result<BatchTransaction<'_>, Failure> {
        Ok(BatchTransaction { batch: self, client: job::begin_ending(self).await? })
    }
}

/// A transaction that completes all jobs of a batch: a client of tokio-postgres.
pub struct BatchTransaction<'a> {
    batch: &'a Batch,
    client: Pooled,
}

impl Deref for BatchTransaction<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl BatchTransaction<'_> {
    /// Completes all jobs and commits. If the lease of one job is lost, no job is completed, and the others are
    /// released.
    pub async fn complete(self) -> Result<(), Failure> {
        let ids: Vec<i64> = self.batch.iter().map(|job| job.id).collect();
        let parameters = [(&ids as _, Type::INT8_ARRAY)];
        if self.batch.iter().any(|job| job.has_effects()) {
            self.client.execute_typed("SELECT queue.complete_many($1)", &parameters).await?;
        } else {
            let sql = "SELECT FROM queue.complete_many($1) WHERE outcome = 'completed'";
            if self.client.query_typed(sql, &parameters).await?.len() < ids.len() {
                // The rollback is immediate, so that the other jobs can be released.
                effects::roll_back(self.client).await;
                return Err(Failure::Stopped);
            }
        }
        Ok(job::commit_ending(self.batch, self.client, Value::Null).await?)
    }
}

/// What a batch's handler returns: `()` if all jobs are completed, or an answer for each job in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Each {
    /// All jobs are completed.
    All,
    /// One answer for each job.
    One(Vec<Result<Done, Failure>>),
}

impl From<()> for Each {
    fn from((): ()) -> Self {
        Each::All
    }
}

impl From<Vec<Result<Done, Failure>>> for Each {
    fn from(each: Vec<Result<Done, Failure>>) -> Self {
        Each::One(each)
    }
}
