//! The code of docs/testing.md, which is a user's file of tests, and of docs/encryption.md, without changes.

use pg_queue_client::testing::{Server, advance_time, assert_enqueued};
use pg_queue_client::{EventKind, Options, Worker, enqueue};
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn what_is_done() {
    let server = Server::start();
    let database = server.create_database().await.unwrap();
    let mut client = server.connect(&database).await.unwrap();
    client.batch_execute("SELECT queue.create('emails')").await.unwrap();

    let transaction = client.transaction().await.unwrap();
    let to_ada = json!({"to": "ada@example.org"});
    enqueue(&transaction, "emails", &to_ada, Options::new().delay(Duration::from_secs(3600))).await.unwrap();
    assert_enqueued(&transaction, "emails", &to_ada, 1).await.unwrap();
    transaction.commit().await.unwrap();

    advance_time(&client, Duration::from_secs(3600)).await.unwrap();
    let worker = Worker::new(&server.config(&database)).unwrap();
    let worker = worker.handler("emails", |job| async move { Ok(json!({"sent": job.payload["to"]})) });
    let kinds: Vec<EventKind> = worker.drain().await.unwrap().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Connected, EventKind::Started, EventKind::Completed]);
    assert_enqueued(&client, "emails", &to_ada, 0).await.unwrap();
}

mod encryption {
    use serde_json::{Value, json};
    use tokio_postgres::Client;

    use pg_queue_client::{AesGcm, Failure, Job, Options, Worker, enqueue};

    async fn send(job: Job) -> Result<Value, Failure> {
        Ok(json!({"sent": job.payload["to"]})) // readable here, ciphertext in the table
    }

    pub fn worker(config: &str, codec: AesGcm) -> Result<Worker, tokio_postgres::Error> {
        Ok(Worker::new(config)?.codec(codec).handler("emails", send))
    }

    pub async fn register(client: &Client, address: &str, codec: AesGcm) -> Result<i64, tokio_postgres::Error> {
        enqueue(client, "emails", json!({"to": address}), Options::new().codec(codec)).await
    }
}

#[tokio::test]
async fn the_code_of_docs_encryption_works() {
    use pg_queue_client::{AesGcm, Codec as _, Context, ContextKind};

    let server = Server::start();
    let database = server.create_database().await.unwrap();
    let client = server.connect(&database).await.unwrap();
    client.batch_execute("SELECT queue.create('emails')").await.unwrap();
    let codec = AesGcm::new("k7", &[7; 32]);
    let job = encryption::register(&client, "ada@example.org", codec.clone()).await.unwrap();
    encryption::worker(&server.config(&database), codec.clone()).unwrap().drain().await.unwrap();
    let row = client.query_one("SELECT payload, result FROM queue.job($1)", &[&job]).await.unwrap();
    assert_eq!(row.get::<_, serde_json::Value>(0)["codec"], "aes-gcm/1");
    let context = Context { kind: ContextKind::Result, name: "emails".into() };
    assert_eq!(codec.decode(row.get(1), &context).await, Ok(json!({"sent": "ada@example.org"})));
}

#[test]
fn this_is_the_code_of_the_pages() {
    let squeezed = |text: &str| text.replace("pub ", "").split_whitespace().collect::<Vec<_>>().join(" ");
    for page in [include_str!("../../../docs/testing.md"), include_str!("../../../docs/encryption.md")] {
        let block = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of Rust");
        assert!(squeezed(include_str!("page.rs")).contains(&squeezed(block)));
    }
}
