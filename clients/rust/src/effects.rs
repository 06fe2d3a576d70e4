//! Effects on another server than the queue's, such as the primary of a bridge (docs/bridge.md).
//!
//! There a transaction belongs to whoever is the first to ask `queue.once_many` for its jobs and commits. So an effect
//! is committed once, however often a job runs. The completion commits with it, and comes back to the queue server by
//! the bridge.
//!
//! If a transaction cannot be begun, that is no fault of the job: it is tried again until the handler is dropped. If the
//! connection is lost during a commit, `once_many` is asked once more: it says whether the transaction has committed.

use std::sync::Arc;

use tokio::time::sleep;
use tokio_postgres::types::Type;

use crate::backoff::Backoff;
use crate::connection::{Pool, Pooled, Refusal};
use crate::outcome::Failure;

const ONCE: &str = "SELECT queue.once_many($1)";

/// Begins a transaction in which the effects of these jobs are the caller's. Otherwise the error is
/// [`Failure::AlreadyDone`].
pub(crate) async fn begin(pool: &Arc<Pool>, jobs: &[i64]) -> Result<Pooled, Failure> {
    let mut backoff = Backoff::default();
    loop {
        match ask(pool, jobs).await {
            Ok((client, mine)) => {
                let done: Vec<i64> = jobs.iter().copied().filter(|job| !mine.contains(job)).collect();
                if done.is_empty() {
                    return Ok(client);
                }
                roll_back(client).await;
                return Err(Failure::AlreadyDone(done));
            }
            Err(refusal) => sleep(backoff.failed("transaction", &refusal)).await,
        }
    }
}

async fn ask(pool: &Arc<Pool>, jobs: &[i64]) -> Result<(Pooled, Vec<i64>), Refusal> {
    let client = pool.take().await.map_err(Refusal::gone)?;
    let asked = async {
        client.batch_execute("BEGIN").await?;
        client.query_typed(ONCE, &[(&jobs, Type::INT8_ARRAY)]).await
    };
    match asked.await {
        Ok(rows) => Ok((client, rows.iter().map(|row| row.get(0)).collect())),
        Err(error) => Err(Refusal::on(&client, &error)),
    }
}

/// Returns whether a transaction with these jobs' effects has committed.
pub(crate) async fn is_done(pool: &Arc<Pool>, jobs: &[i64]) -> bool {
    match begin(pool, jobs).await {
        Ok(client) => {
            roll_back(client).await;
            false
        }
        Err(failure) => matches!(failure, Failure::AlreadyDone(_)),
    }
}

/// Rolls back immediately. The server also rolls back when the connection ends.
pub(crate) async fn roll_back(client: Pooled) {
    if client.batch_execute("ROLLBACK").await.is_ok() {
        client.give_back();
    }
}
