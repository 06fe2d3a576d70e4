//! A worker begins: with a queue that is missing, which is an error, without a server, which is waited for quietly, and with a
//! queue that goes and comes back.

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use pg_queue_client::{EventKind, Failure, Job, Options, Worker, enqueue};
use support::{Database, running, until};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.target() == "pg_queue" {
            LINES.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Listens to what workers log. The tests of this file run side by side: each looks for its own words.
fn listen() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        log::set_logger(&Log).unwrap();
        log::set_max_level(log::LevelFilter::Info);
    });
}

fn said(word: &str) -> Vec<String> {
    LINES.lock().unwrap().iter().filter(|line| line.contains(word)).cloned().collect()
}

async fn nothing(_: Job) -> Result<(), Failure> {
    Ok(())
}

#[tokio::test]
async fn a_missing_queue_is_an_error() {
    let db = Database::new().await;
    db.client.batch_execute("SELECT queue.create('emails')").await.unwrap();
    let worker = || db.worker().handler("a", nothing).handler("emials", nothing);
    for error in [worker().run().await.unwrap_err(), worker().drain().await.unwrap_err()] {
        let text = error.to_string();
        assert!(text.starts_with("the worker cannot start: queue \"emials\" does not exist"), "{text}");
        assert!(text.contains("Hint: ") && text.contains("\"emails\""), "{text}");
    }
    db.client.batch_execute("SELECT queue.create('emials')").await.unwrap();
    let kinds: Vec<EventKind> = worker().drain().await.unwrap().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Connected]);
}

#[tokio::test]
async fn a_database_without_the_extension_is_an_error() {
    let db = Database::new().await;
    let worker = Worker::new(&db.server.config("postgres")).unwrap().handler("a", nothing);
    let text = worker.run().await.unwrap_err().to_string();
    assert!(text.starts_with("the worker cannot start: ") && text.contains("queue"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_dropped_later_is_tried_again() {
    listen();
    let db = Database::new().await;
    db.client.batch_execute("SELECT queue.create('comes')").await.unwrap();
    let config = format!("{} application_name=of_the_dropped", db.config());
    let worker = Worker::new(&config).unwrap().wait(Duration::from_millis(200)).handler("comes", nothing);
    running(worker, async {
        let job = enqueue(&db.client, "comes", (), Options::new()).await.unwrap();
        db.wait_state(job, "completed").await;
        db.client.batch_execute("SELECT queue.drop('comes', force => true)").await.unwrap();
        until("the worker says so", async || (!said("\"comes\"").is_empty()).then_some(())).await;
        let tries = Mutex::new(std::collections::HashSet::new());
        until("it tries again", async || {
            let claims = "SELECT max(query_start)::text FROM pg_stat_activity
                WHERE application_name = 'of_the_dropped' AND query ~ 'claim_any'";
            let at: Option<String> = db.one(claims, &[]).await;
            let mut tries = tries.lock().unwrap();
            tries.extend(at);
            (tries.len() >= 4).then_some(())
        })
        .await;
        db.client.batch_execute("SELECT queue.create('comes')").await.unwrap();
        let job = enqueue(&db.client, "comes", (), Options::new()).await.unwrap();
        db.wait_state(job, "completed").await;
    })
    .await;
    let lines = said("\"comes\"");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("a claim has failed, the worker tries again: "), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_waited_for_quietly() {
    listen();
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let worker = Worker::new("host=/nonexistent user=nobody").unwrap().handler("a", nothing).on_event(move |event| {
        counted.fetch_add(u32::from(event.kind == EventKind::Disconnected), Ordering::AcqRel);
    });
    running(worker, until("it has tried a few times", async || (tries.load(Ordering::Acquire) >= 4).then_some(())))
        .await;
    let lines = said("no connection");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("no connection, the worker tries again: "), "{lines:?}");
    assert!(lines[0].contains("/nonexistent, port 5432: ") && lines[0].contains("No such file"), "{lines:?}");
}
