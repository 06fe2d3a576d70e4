//! A worker of queue `greetings`, with tokio-postgres. Connects as DATABASE_URL says.

use std::time::Duration;

use serde_json::Value;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch::{Receiver, channel};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, NoTls, Row};

const CLAIM: &str = "
    SELECT id, job_id, payload,
           greatest(extract(epoch FROM lease_expires_at - clock_timestamp()) / 3, 0.1)::float8 AS beat
    FROM queue.claim('greetings', wait => '5 seconds')";

/// The job itself. It is dropped when it should stop, at any `await`.
async fn work(payload: Value) -> Result<String, String> {
    sleep(Duration::from_secs(payload["seconds"].as_u64().unwrap_or(0))).await;
    let name = payload["name"].as_str().ok_or("nobody to greet")?;
    Ok(format!("Hello, {name}!"))
}

/// What the job writes and its completion: both or neither. The typed calls prepare no statements: a pooler in
/// transaction mode has another connection for each transaction.
async fn finish(client: &mut Client, id: i64, job_id: i64, greeting: &str) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    let row = [(&job_id as _, Type::INT8), (&greeting as _, Type::TEXT)];
    transaction.execute_typed("INSERT INTO greeting VALUES ($1, $2)", &row).await?;
    transaction.execute_typed("SELECT queue.complete($1)", &[(&id, Type::INT8)]).await?;
    transaction.commit().await
}

/// Extends the lease every third of it, until the job was cancelled or is lost.
async fn heartbeat(client: &Client, id: i64, beat: Duration) {
    let mut until = Instant::now() + 3 * beat;
    while Instant::now() < until {
        sleep(beat).await;
        let begun = Instant::now();
        let extend = "SELECT is_cancelled FROM queue.extend($1)";
        match timeout_at(until, client.query_typed_one(extend, &[(&id, Type::INT8)])).await {
            Ok(Ok(row)) if !row.get::<_, bool>("is_cancelled") => until = begun + 3 * beat,
            // After any other error than a lost lease there is time to try again.
            Ok(Err(error)) if !client.is_closed() && !is_lost(&error) => eprintln!("{}", text(&error)),
            _ => return,
        }
    }
}

/// Does one job and tells the queue how it ended.
async fn run(client: &mut Client, job: &Row, stopping: &mut Receiver<bool>) -> Result<(), Error> {
    let id: i64 = job.get("id");
    let worked = select! {
        biased;
        _ = stopping.wait_for(|&stop| stop) => None,
        () = heartbeat(client, id, Duration::from_secs_f64(job.get("beat"))) => None,
        result = work(job.get("payload")) => Some(result),
    };
    let error = match worked {
        // Not counted; cancels a job that is to be cancelled.
        None => return client.execute_typed("SELECT queue.release($1)", &[(&id, Type::INT8)]).await.map(drop),
        Some(Err(error)) => error,
        Some(Ok(greeting)) => match finish(client, id, job.get("job_id"), &greeting).await {
            Ok(()) => return Ok(()),
            // Without a connection the next call fails as well.
            Err(error) => text(&error),
        },
    };
    let arguments = [(&id as _, Type::INT8), (&error as _, Type::TEXT)];
    client.execute_typed("SELECT queue.fail($1, $2)", &arguments).await.map(drop)
}

/// The job is no longer ours, and what we wrote is rolled back.
fn is_lost(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code() == "QJ001")
}

fn text(error: &Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Does jobs until it is to stop or the connection fails.
async fn serve(stopping: &mut Receiver<bool>) -> Result<(), Error> {
    let url = std::env::var("DATABASE_URL").unwrap_or_default();
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection); // its errors are those of the client's calls
    while !*stopping.borrow() {
        let Some(job) = client.query_typed_opt(CLAIM, &[]).await? else { continue };
        match run(&mut client, &job, stopping).await {
            Err(error) if is_lost(&error) => eprintln!("{}", text(&error)),
            other => other?,
        }
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let (stop, mut stopping) = channel(false);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        let _ = stop.send(true);
    });
    while !*stopping.borrow() {
        if let Err(error) = serve(&mut stopping).await {
            eprintln!("{}", text(&error));
            sleep(Duration::from_secs(1)).await;
        }
    }
    Ok(())
}
