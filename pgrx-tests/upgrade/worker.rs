//! The worker for Rust of the drill (`run`), built once with the package of each release: it calls what both have.
//!
//! Usage: upgrade CONNINFO NAME. Invariant: the effect of a job of `load` and its end commit together, so it takes
//! effect once. The other handlers only return, or fail at first.

use std::env::args;
use std::time::Duration;

use pg_queue_client::{Failure, Job, Worker};
use tokio_postgres::types::Type;

async fn handle(job: Job) -> Result<(), Failure> {
    let (insert, who) = ("INSERT INTO effect VALUES ($1, $2)", args().nth(2));
    let transaction = job.transaction().await?;
    transaction.execute_typed(insert, &[(&job.job_id, Type::INT8), (&who, Type::TEXT)]).await?;
    Ok(transaction.complete(()).await?)
}

async fn fail_once(job: Job) -> Result<(), Failure> {
    if job.attempt == 1 { Err(std::io::Error::other("once").into()) } else { Ok(()) }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let conninfo = args().nth(1).ok_or("usage: upgrade CONNINFO NAME")?;
    let worker = Worker::new(&conninfo)?.concurrency(4).wait(Duration::from_secs(1)).handler("load", handle);
    let worker = worker.handler("returns", |_| async { Ok(()) }).handler("fails", fail_once);
    Ok(worker.run().await?)
}
