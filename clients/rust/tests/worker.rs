//! The worker's parts that only Rust has: panics, middleware, steps as values, answers of batches, unreadable JSON.
//! clients/conformance tests the promises of all packages.

mod support;

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pg_queue_client::{
    Batch, BoxFuture, Codec, CodecError, Context, Done, EventKind, Failure, Job, Options, RetryIn, Step, Worker,
    enqueue, enqueue_many,
};
use serde_json::{Value, json};
use support::{Database, running, until};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

#[tokio::test]
async fn a_panic_fails_the_attempt() {
    let db = Database::new().await;
    let id = enqueue(&db.client, "a", (), Options::new().max_attempts(1)).await.unwrap();
    let panics = |job: Job| async move { if job.attempt == 1 { panic!("at the disco") } else { Ok(()) } };
    db.worker().handler("a", panics).drain().await.unwrap();
    assert_eq!(db.one::<String>("SELECT error FROM queue.job($1)", &[&id]).await, "panicked: at the disco");
}

#[tokio::test]
async fn the_error_of_the_attempt_names_the_causes() {
    let db = Database::new().await;
    let id = enqueue(&db.client, "a", (), Options::new().max_attempts(1)).await.unwrap();
    let fails = |_| async {
        "a".parse::<i32>().map_err(|error| std::io::Error::other(format!("a\0b {error}")))?;
        Ok(())
    };
    db.worker().handler("a", fails).drain().await.unwrap();
    let error: String = db.one("SELECT error FROM queue.job($1)", &[&id]).await;
    assert_eq!(error, "ab invalid digit found in string");
}

#[tokio::test]
async fn middleware_wraps_handlers_and_a_step_runs_once() {
    let db = Database::new().await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let options = Options::new().headers(json!({ "traceparent": parent }));
    let id = enqueue(&db.client, "a", json!({}), options).await.unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let (outer, inner) = (said.clone(), said.clone());
    let worker = db
        .worker()
        .middleware(move |job, next| {
            outer.lock().unwrap().push("outer");
            async move {
                match next(job).await? {
                    Done::Complete(result) => Ok(json!({ "outer": result }).into()),
                    other => Ok(other),
                }
            }
        })
        .middleware(move |job, next| {
            inner.lock().unwrap().push("inner");
            next(job)
        })
        .handler("a", |job: Job| async move {
            let receipt: i32 = match job.step("charge").await? {
                Step::Done(receipt) => receipt,
                Step::Open(step) => step.done(job.attempt + 6).await?,
            };
            if job.attempt == 1 {
                return Err(RetryIn(Duration::ZERO, "again".into()).into());
            }
            Ok(json!([job.traceparent(), receipt]))
        });
    running(worker, db.wait_state(id, "completed")).await;
    assert_eq!(*said.lock().unwrap(), ["outer", "inner", "outer", "inner"]);
    assert_eq!(db.one::<Value>("SELECT result FROM queue.job($1)", &[&id]).await, json!({"outer": [parent, 7]}));
}

#[tokio::test]
async fn a_lost_job_of_a_batch_does_not_affect_the_others() {
    let db = Database::new().await;
    let ids = enqueue_many(&db.client, "a", 0..2, Options::new()).await.unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let lost = move |batch: Batch| {
        let is_first = counted.fetch_add(batch.len(), Ordering::SeqCst) == 0;
        async move {
            let answer = |job: &Job| {
                let lost = Failure::Lost(format!("lost lease on attempt {}", job.id));
                if is_first && job.payload == json!(1) { Err(lost) } else { Ok(json!("done").into()) }
            };
            Ok(batch.iter().map(answer).collect::<Vec<Result<Done, Failure>>>())
        }
    };
    db.worker().batch_handler("a", 10, lost).drain().await.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    for id in ids {
        let found: String = db.one("SELECT state || attempt FROM queue.job($1)", &[&id]).await;
        assert_eq!(found, "completed1");
    }
}

/// A codec with hooks that fail, panic or hang. The value says which.
struct Odd;

impl Codec for Odd {
    fn encode<'a>(&'a self, value: Value, context: &'a Context) -> BoxFuture<'a, Result<Value, CodecError>> {
        let refused = Err(CodecError::Failed(format!("no vault for {context}")));
        Box::pin(async move { if value == "refuse" { refused } else { Ok(json!({"odd": value})) } })
    }

    fn decode<'a>(&'a self, stored: Value, _: &'a Context) -> BoxFuture<'a, Result<Value, CodecError>> {
        Box::pin(async move {
            match stored["odd"].as_str() {
                Some("panic") => panic!("at the disco"),
                Some("hang") => std::future::pending().await,
                _ => Ok(stored["odd"].clone()),
            }
        })
    }
}

#[tokio::test]
async fn hooks_that_fail_panic_or_hang_do_not_block_the_worker() {
    let db = Database::new().await;
    let options = || Options::new().max_attempts(1).codec(Arc::new(Odd));
    let payloads = ["panic", "hang", "return", "fine"];
    let jobs = enqueue_many(&db.client, "a", payloads, options()).await.unwrap();
    let [panics, hangs, returns, fine] = jobs.try_into().unwrap();
    let refused = enqueue(&db.client, "a", "refuse", options()).await.unwrap_err();
    assert!(format!("{refused:?}").contains("no vault for the payload of a"), "{refused:?}");
    let handler =
        |job: Job| async move { if job.payload == "return" { Ok(json!("refuse")) } else { Ok(job.payload.clone()) } };
    let worker = db.worker().codec(Odd).shutdown_timeout(Duration::ZERO).handler("a", handler);
    running(worker, async {
        for (job, state) in [(panics, "dead"), (returns, "dead"), (fine, "completed"), (hangs, "running")] {
            db.wait_state(job, state).await;
        }
        // The worker drops a waiting hook when the job is to stop.
        db.client.execute("SELECT queue.cancel($1)", &[&hangs]).await.unwrap();
    })
    .await;
    db.wait_state(hangs, "cancelled").await;
    let error = "SELECT error FROM queue.job($1)";
    assert_eq!(db.one::<String>(error, &[&panics]).await, "panicked: at the disco");
    assert_eq!(db.one::<String>(error, &[&returns]).await, "no vault for the result of a");
    assert_eq!(db.one::<Value>("SELECT result FROM queue.job($1)", &[&fine]).await, json!({"odd": "fine"}));
}

/// Returns a folder with a socket that forwards to this server. It delays the answer to each COMMIT.
fn socket_with_late_commits(config: &Config) -> PathBuf {
    let Some(Host::Unix(server)) = config.get_hosts().first() else { panic!("{config:?}") };
    let (server, folder) = (server.join(".s.PGSQL.5432"), server.join("late"));
    std::fs::create_dir_all(&folder).unwrap();
    let listener = UnixListener::bind(folder.join(".s.PGSQL.5432")).unwrap();
    let forward = |mut from: UnixStream, mut to: UnixStream, late: &[u8]| {
        let mut buffer = [0; 8192];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if buffer[..length].windows(late.len()).any(|part| part == late) {
                std::thread::sleep(Duration::from_millis(1500));
            }
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    };
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = UnixStream::connect(&server).unwrap();
            let (to_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || forward(client, to_server, b"no such request"));
            std::thread::spawn(move || forward(server, to_client, b"COMMIT\0"));
        }
    });
    folder
}

/// The heartbeat learns that the attempt has ended before the answer to the COMMIT arrives.
#[tokio::test]
async fn a_heartbeat_does_not_stop_a_handler_that_commits() {
    let db = Database::new().await;
    let config: Config = db.config().parse().unwrap();
    let folder = socket_with_late_commits(&config);
    let config = format!("host={} user=postgres dbname={}", folder.display(), db.name);
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let worker = Worker::new(&config)
        .unwrap()
        .heartbeat(Duration::from_millis(100))
        .on_event(move |event| tell.lock().unwrap().push(event.kind))
        .handler("a", |job: Job| async move { Ok(job.transaction().await?.complete("done").await?) })
        .batch_handler("b", 2, |batch: Batch| async move { batch.transaction().await?.complete().await });
    let ids = [
        enqueue(&db.client, "a", (), Options::new()).await.unwrap(),
        enqueue(&db.client, "b", (), Options::new().lease(Duration::from_secs(30))).await.unwrap(),
    ];
    running(worker, async {
        for id in ids {
            db.wait_state(id, "completed").await;
        }
        until("both are told", async || (told.lock().unwrap().len() >= 5).then_some(())).await;
    })
    .await;
    use EventKind::{Completed, Connected, Started};
    assert_eq!(*told.lock().unwrap(), [Connected, Started, Started, Completed, Completed]);
}

#[tokio::test]
async fn a_run_that_is_dropped_leaves_no_claim_behind() {
    let db = Database::new().await;
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ~ 'claim_any' \
                  AND wait_event_type = 'Extension' AND pid <> pg_backend_pid()";
    let worker = db.worker().wait(Duration::from_secs(60)).handler("a", |_| async { Ok(()) });
    tokio::select! {
        result = worker.serve() => panic!("it has ended: {result:?}"),
        () = until("its claim sleeps", async || (db.one::<i64>(asleep, &[]).await == 1).then_some(())) => {}
    }
    for _ in 0..3 {
        let id = enqueue(&db.client, "a", (), Options::new()).await.unwrap();
        assert_eq!(db.one::<i64>("SELECT job_id FROM queue.claim('a', wait => '10 s')", &[]).await, id);
    }
}

#[tokio::test]
async fn unreadable_json_fails_its_job_and_no_other() {
    for is_batch in [false, true] {
        let db = Database::new().await;
        db.client.batch_execute("SELECT queue.alter('a', max_attempts => 1)").await.unwrap();
        let mut jobs = Vec::new();
        for payload in ["'1'", "'1e400'", "(repeat('[', 200) || repeat(']', 200))", "'2'"] {
            jobs.push(db.one::<i64>(&format!("SELECT queue.enqueue('a', {payload}::jsonb)"), &[]).await);
        }
        let worker = match is_batch {
            false => db.worker().handler("a", |_| async { Ok(()) }),
            true => db.worker().batch_handler("a", 10, |_: Batch| async { Ok(()) }),
        };
        running(worker, async {
            for (job, state) in jobs.iter().zip(["completed", "dead", "dead", "completed"]) {
                db.wait_state(*job, state).await;
            }
        })
        .await;
        let error: String = db.one("SELECT error FROM queue.job($1)", &[&jobs[1]]).await;
        assert!(error.contains("cannot be read: number out of range"), "{error}");
    }
}

#[tokio::test]
async fn an_invalid_configuration_is_an_error() {
    assert!(Worker::new("host=").is_err() || Worker::new("nonsense").is_err());
}

/// The program of `a_blocked_runtime_ends_the_process`: a worker whose handler blocks its only thread.
#[test]
fn process() {
    let Ok(config) = std::env::var("QUEUE_TEST_WORKER") else { return };
    let blocks = |_| async {
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    };
    let worker = Worker::new(&config).unwrap().stall_timeout(Duration::from_millis(500)).handler("a", blocks);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(worker.run()).unwrap();
}

#[tokio::test]
async fn a_blocked_runtime_ends_the_process() {
    let db = Database::new().await;
    enqueue(&db.client, "a", (), Options::new()).await.unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["process", "--exact"]).env("QUEUE_TEST_WORKER", db.config());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let child = Mutex::new(&mut child);
    let status = until("it has ended", async || child.lock().unwrap().try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(70));
}
