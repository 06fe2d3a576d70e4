//! The producers' parts that only Rust has: payloads that are no JSON, the helpers for tests. The rest is in
//! clients/conformance.

mod support;

use std::time::Duration;

use pg_queue_client::testing::{Server, advance_time, assert_enqueued, enqueued};
use pg_queue_client::{Options, enqueue, enqueue_many};
use serde_json::json;
use support::{Database, until};

#[tokio::test]
async fn a_job_exists_if_and_only_if_the_transaction_commits() {
    let db = Database::new().await;
    let mut producer = db.server.connect(&db.name).await.unwrap();
    let transaction = producer.transaction().await.unwrap();
    let job = enqueue(&transaction, "a", json!({"n": 1}), Options::new()).await.unwrap();
    assert_enqueued(&transaction, "a", &json!({"n": 1}), 1).await.unwrap();
    assert_enqueued(&transaction, "a", &json!({"n": 2}), 0).await.unwrap();
    assert_eq!(enqueued(&db.client, "a", None).await.unwrap(), []);
    transaction.commit().await.unwrap();
    assert_eq!(db.state(job).await, "ready");
    let transaction = producer.transaction().await.unwrap();
    let undone = enqueue(&transaction, "a", json!({}), Options::new()).await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(db.client.query("SELECT FROM queue.job($1)", &[&undone]).await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_payload_that_is_no_json_is_an_error() {
    let db = Database::new().await;
    let no_json = std::collections::HashMap::from([((1, 2), 3)]);
    let refused = enqueue(&db.client, "a", no_json, Options::new()).await.unwrap_err();
    assert!(std::error::Error::source(&refused).unwrap().to_string().contains("key must be a string"));
    assert_eq!(enqueue_many(&db.client, "a", [(); 0], Options::new()).await.unwrap(), [0; 0]);
}

#[tokio::test]
async fn advance_time_makes_jobs_ready() {
    let db = Database::new().await;
    let hours = |hours: u64| Options::new().delay(Duration::from_secs(3600 * hours));
    let soon = enqueue(&db.client, "a", json!({}), hours(1)).await.unwrap();
    let late = enqueue(&db.client, "a", json!({}), hours(2)).await.unwrap();
    assert_eq!(advance_time(&db.client, Duration::from_secs(3600)).await.unwrap(), [soon]);
    db.wait_state(soon, "ready").await;
    assert_eq!(advance_time(&db.client, Duration::from_secs(3600)).await.unwrap(), [late]);
}

#[tokio::test]
#[should_panic(expected = "queue a should have 1 jobs with payload {\"n\":2}: 0 found. It has: ready {\"n\":1}")]
async fn a_failed_assert_enqueued_lists_the_jobs() {
    let db = Database::new().await;
    enqueue(&db.client, "a", json!({"n": 1}), Options::new()).await.unwrap();
    assert_enqueued(&db.client, "a", &json!({"n": 2}), 1).await.unwrap();
}

#[tokio::test]
async fn a_server_ends_with_its_program() {
    const FILE: &str = "PG_QUEUE_TEST_SERVER";
    if let Ok(file) = std::env::var(FILE) {
        std::fs::write(file, Server::start().dir().as_os_str().as_encoded_bytes()).unwrap();
        std::process::abort();
    }
    let file = std::env::temp_dir().join(format!("pg_queue-server-{}", std::process::id()));
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    let ended = program.args(["--exact", "a_server_ends_with_its_program"]).env(FILE, &file).output().unwrap();
    assert!(!ended.status.success());
    let folder = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(folder.contains("pg_queue-"), "{folder}");
    until("its folder is gone", async || (!std::path::Path::new(&folder).exists()).then_some(())).await;
}
