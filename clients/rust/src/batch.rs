//! Several jobs of a queue that one handler runs together.

use std::ops::Deref;
use std::sync::Arc;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connection::{Pool, Pooled};
use crate::job::{self, Job};
use crate::outcome::{Done, Failure};
use crate::shared::Committing;

/// The jobs of a batch, oldest first.
#[derive(Debug)]
pub struct Batch {
    pub(crate) jobs: Vec<Job>,
    pub(crate) pool: BatchPool,
}

pub(crate) struct BatchPool(pub Arc<Pool>);

impl std::fmt::Debug for BatchPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("pool")
    }
}

impl Deref for Batch {
    type Target = [Job];

    fn deref(&self) -> &[Job] {
        &self.jobs
    }
}

impl Batch {
    /// Begins a transaction on one of the worker's connections. It rolls back when it is dropped.
    pub async fn transaction(&self) -> Result<BatchTransaction<'_>, Failure> {
        for job in &self.jobs {
            job.check()?;
        }
        Ok(BatchTransaction { batch: self, client: job::begin(&self.pool.0).await? })
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
        let sql = "SELECT FROM queue.complete_many($1) WHERE outcome = 'completed'";
        let rows = self.client.query_typed(sql, &[(&ids, Type::INT8_ARRAY)]).await?;
        if rows.len() < ids.len() {
            // The rollback is immediate, so that the other jobs can be released. The server also rolls back when the
            // connection ends.
            if self.client.batch_execute("ROLLBACK").await.is_ok() {
                self.client.give_back();
            }
            return Err(Failure::Lost);
        }
        let committing = Committing::begin(self.batch.iter().map(|job| &*job.shared));
        self.client.batch_execute("COMMIT").await?;
        committing.confirmed();
        self.client.give_back();
        Ok(())
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
