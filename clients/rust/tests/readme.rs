//! The code of README.md runs without changes: this file has each block of it.

#![allow(clippy::items_after_statements)]

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::types::Type;

#[derive(Serialize, Deserialize)]
struct Email {
    to: String,
}

type Any = Result<(), Box<dyn std::error::Error>>;

// The blocks have the format that they have in README.md.
#[rustfmt::skip]
mod page {
    use super::*;

    use pg_queue_client::{Failure, Fatal, Job, Worker};

    async fn send(job: Job) -> Result<(), Failure> {
        let email: Email = job.parse()?;
        if !email.to.contains('@') {
            // Dead. RetryIn and Snooze run it again; other errors: by the queue.
            return Err(Fatal("no address".into()).into());
        }
        let transaction = job.transaction().await?; // what it writes and its completion commit together: exactly once
        transaction.execute_typed("INSERT INTO sent (job_id, recipient) VALUES ($1, $2)",
            &[(&job.job_id, Type::INT8), (&email.to, Type::TEXT)]).await?;
        Ok(transaction.complete(()).await?)
    }

    fn worker(config: &str) -> Result<Worker, tokio_postgres::Error> {
        Ok(Worker::new(config)?.concurrency(20).handler("emails", send)) // `.run().await`: until SIGTERM
    }

    pub async fn produce(client: &mut tokio_postgres::Client) -> Any {
        use std::time::Duration;
        use pg_queue_client::{Options, enqueue, enqueue_many};

        let transaction = client.transaction().await?;
        transaction.execute("INSERT INTO account (name) VALUES ('Ada')", &[]).await?;
        let options = Options::new().priority(5).delay(Duration::from_millis(100)).unique_key("welcome Ada");
        enqueue(&transaction, "emails", Email { to: "ada@example.org".into() }, options).await?;
        let more = ["grace@example.org", "nobody"].map(|to| Email { to: to.into() });
        enqueue_many(&transaction, "emails", more, Options::new()).await?;
        transaction.commit().await?;
        Ok(())
    }

    pub async fn watch(config: String) -> Result<u32, Box<dyn std::error::Error>> {
        use std::sync::atomic::{AtomicU32, Ordering};

        static CALLS: AtomicU32 = AtomicU32::new(0);

        let worker = worker(&config)?
            .on_event(|event| println!("{:?} {} {:?}", event.kind, event.queue, event.time))
            .middleware(|job, next| async move {
                CALLS.fetch_add(1, Ordering::Relaxed); // around each handler
                next(job).await
            });
        worker.drain().await?;
        Ok(CALLS.load(Ordering::Relaxed))
    }

    pub async fn test() -> Any {
        use std::time::Duration;
        use pg_queue_client::{Options, enqueue};

        use pg_queue_client::testing::{Server, advance_time, assert_enqueued};

        let server = Server::start();
        let database = server.create_database().await?;
        let client = server.connect(&database).await?;
        client.batch_execute("SELECT queue.create('emails')").await?;
        let in_an_hour = Options::new().delay(Duration::from_secs(3600));
        enqueue(&client, "emails", Email { to: "nobody".into() }, in_an_hour).await?;
        assert_enqueued(&client, "emails", &json!({"to": "nobody"}), 1).await?;
        advance_time(&client, Duration::from_secs(3600)).await?; // what waits for its time is an hour earlier
        let events = worker(&server.config(&database))?.drain().await?;
        assert_eq!(events.last().and_then(|event| event.error.as_deref()), Some("no address"));
        Ok(())
    }
}

#[tokio::test]
async fn the_readme() -> Any {
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let here = squeezed(include_str!("readme.rs"));
    let page = include_str!("../README.md");
    let blocks: Vec<&str> = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 4);
    for block in blocks {
        assert!(here.contains(&squeezed(block)), "not the code that runs here:\n{block}");
    }

    let server = pg_queue_client::testing::Server::start();
    // From an empty database, as the page says.
    let database = "as_the_page_has_it".to_owned();
    server.connect("postgres").await?.batch_execute("CREATE DATABASE as_the_page_has_it").await?;
    let mut client = server.connect(&database).await?;
    let setup =
        page.split("```sql\n").nth(1).and_then(|rest| rest.split("```").next()).expect("what the page begins with");
    client.batch_execute(setup).await?;
    page::produce(&mut client).await?;
    pg_queue_client::testing::advance_time(&client, std::time::Duration::from_secs(1)).await?;
    assert_eq!(page::watch(server.config(&database)).await?, 3);
    let sent: Vec<String> =
        client.query_one("SELECT array_agg(recipient ORDER BY recipient) FROM sent", &[]).await?.get(0);
    assert_eq!(sent, ["ada@example.org", "grace@example.org"]);
    page::test().await
}
