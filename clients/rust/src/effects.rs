//! Effects on another server than the queue's, such as the primary of a bridge (docs/bridge.md).
//!
//! Responsible for the begin of transactions there, and for commits without an answer. Not responsible for what the
//! worker does after the commit (`engine`).
//!
//! Invariant: effects are committed once, however often a job runs. Each transaction first asks `queue.once_many`,
//! which lets one transaction with a job commit. The completion commits with the effects, and the bridge carries it to
//! the queue server.
//!
//! If a transaction cannot begin, the job is not at fault: the worker tries again until the job is to stop. If the
//! connection is lost during a commit, the worker asks `once_many` again, which says whether the transaction has
//! committed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_postgres::types::Type;

use crate::backoff::Backoff;
use crate::connection::{Pool, Pooled, Refusal, Users};
use crate::outcome::{Failure, Stopped};

const ONCE: &str = "SELECT queue.once_many($1)";

/// The SQLSTATEs of a database in which bridge/primary.sql has not run, or that does not let this role use it.
const MISSING: [&str; 3] = ["42883", "3F000", "42501"];

/// Checks that this can be a server for effects. One that cannot be reached now passes. The error is the reason.
pub(crate) async fn check(pool: &Arc<Pool>) -> Result<(), String> {
    match ask(pool, &[], Vec::new()).await {
        Ok((client, _)) => {
            roll_back(client).await;
            Ok(())
        }
        Err(Refusal { code, text }) if MISSING.contains(&code.as_str()) => Err(format!(
            "the worker cannot start: effects: {text}; \
             run bridge/primary.sql there, and SELECT queue_bridge.grant(role)"
        )),
        Err(_) => Ok(()),
    }
}

/// Begins a transaction for the effects of these jobs. Errors: [`Failure::AlreadyDone`] if effects are committed
/// already, and that of `check`, which says whether a job is to stop.
pub(crate) async fn begin(
    pool: &Arc<Pool>,
    jobs: &[i64],
    users: &Users,
    check: impl Fn() -> Result<(), Stopped>,
) -> Result<Pooled, Failure> {
    let mut backoff = Backoff::default();
    loop {
        check()?;
        match ask(pool, jobs, users.clone()).await {
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

async fn ask(pool: &Arc<Pool>, jobs: &[i64], users: Users) -> Result<(Pooled, Vec<i64>), Refusal> {
    let client = pool.take(Duration::ZERO, users).await.map_err(Refusal::gone)?;
    let asked = async {
        client.batch_execute("BEGIN").await?;
        client.query_typed(ONCE, &[(&jobs, Type::INT8_ARRAY)]).await
    };
    match asked.await {
        Ok(rows) => Ok((client, rows.iter().map(|row| row.get(0)).collect())),
        Err(error) => Err(Refusal::on(&client, &error)),
    }
}

/// Returns whether the effects of these jobs are committed.
pub(crate) async fn is_done(pool: &Arc<Pool>, jobs: &[i64]) -> bool {
    match begin(pool, jobs, &Vec::new(), || Ok(())).await {
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
