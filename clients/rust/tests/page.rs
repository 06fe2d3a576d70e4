//! The code of docs/testing.md, as it stands: a user's own file of tests.

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

#[test]
fn this_is_the_code_of_the_page() {
    let page = include_str!("../../../docs/testing.md");
    let block = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of Rust");
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(squeezed(include_str!("page.rs")).contains(&squeezed(block)));
}
