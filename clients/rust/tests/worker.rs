//! What a worker does with jobs and their ends, on a server that stays up.

mod support;

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pg_queue_client::{
    Advance, Batch, Done, EventKind, Failure, Fatal, Job, Options, RetryIn, Snooze, Step, StopReason, Suspend, Worker,
    enqueue, enqueue_many,
};
use serde_json::{Value, json};
use support::{Database, EFFECT, running, until};
use tokio::time::sleep;
use tokio_postgres::types::Type;

async fn effect(job: Job) -> Result<(), Failure> {
    let transaction = job.transaction().await?;
    transaction.execute_typed(EFFECT, &[(&job.job_id, Type::INT8), (&job.attempt, Type::INT4)]).await?;
    Ok(transaction.complete(()).await?)
}

async fn jobs(db: &Database, queue: &str, count: i32) -> Vec<i64> {
    enqueue_many(&db.client, queue, 0..count, Options::new()).await.unwrap()
}

fn completed(events: &[pg_queue_client::Event]) -> Vec<i64> {
    let mut ids: Vec<i64> =
        events.iter().filter(|event| event.kind == EventKind::Completed).map(|event| event.job_id).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_each_once_with_its_effect() {
    let db = Database::new().await;
    for prefetch in [0, 50] {
        let ids = jobs(&db, "a", 1000).await;
        let events = db.worker().concurrency(8).prefetch(prefetch).handler("a", effect).drain().await.unwrap();
        assert_eq!(completed(&events), ids);
        assert_eq!(db.effects().await, ids);
        db.client.batch_execute("TRUNCATE effect").await.unwrap();
    }
}

#[tokio::test]
async fn what_returns_nothing_is_completed_by_the_claims() {
    let db = Database::alone().await; // the server counts the transactions of all databases
    let ids = jobs(&db, "a", 3000).await;
    let begun: i64 = db.one("SELECT pg_current_xact_id()::text::bigint", &[]).await;
    let worker = db.worker().concurrency(20).prefetch(100).handler("a", |_| async { Ok(()) });
    assert_eq!(completed(&worker.drain().await.unwrap()), ids);
    let ended: i64 = db.one("SELECT pg_current_xact_id()::text::bigint", &[]).await;
    assert!(ended - begun < 700, "{} transactions for 3000 jobs", ended - begun);
    db.wait_true("all are completed", "SELECT bool_and(state = 'completed') FROM queue.jobs").await;
}

async fn ends(job: Job) -> Result<Done, Failure> {
    match job.payload.as_str().unwrap() {
        "result" => Ok(json!({"a": 1}).into()),
        "retry" => Err(RetryIn(Duration::from_secs(3600), "later".into()).into()),
        "fatal" => Err(Fatal("never".into()).into()),
        "snooze" => Err(Snooze(Duration::from_secs(3600)).into()),
        "error" => {
            "a".parse::<i32>().map_err(|error| std::io::Error::other(format!("a\0b {error}")))?;
            Ok(().into())
        }
        "panic" => panic!("at the disco"),
        _ => Ok(json!("\u{0}").into()),
    }
}

#[tokio::test]
async fn how_attempts_end() {
    let db = Database::new().await;
    db.client.batch_execute("SELECT queue.create('staged', stages => '{x, y}', max_attempts => 1)").await.unwrap();
    let mut ids = Vec::new();
    for kind in ["result", "retry", "fatal", "snooze", "error", "panic", "refused"] {
        let options = Options::new().max_attempts(if kind == "retry" { 20 } else { 1 });
        ids.push(enqueue(&db.client, "a", kind, options).await.unwrap());
    }
    let staged = enqueue(&db.client, "staged", json!({}), Options::new()).await.unwrap();
    let forgets = enqueue(&db.client, "staged", json!({"forgets": true}), Options::new()).await.unwrap();
    let steps = |job: Job| async move {
        let is_first = job.stage.as_deref() == Some("x") && job.payload.get("forgets").is_none();
        let payload = Some(json!({"from": "x"}));
        Ok::<Done, Failure>(if is_first { Advance { payload, ..Advance::default() }.into() } else { ().into() })
    };
    db.worker().handler("a", ends).handler("staged", steps).drain().await.unwrap();
    let mut found = Vec::new();
    for id in ids {
        let sql = "SELECT concat_ws(' ', state, result::text, error) FROM queue.job($1)";
        found.push(db.one::<String>(sql, &[&id]).await);
    }
    assert_eq!(found[..4], ["completed {\"a\": 1}", "retrying later", "dead never", "scheduled"]);
    assert_eq!(found[4], "dead ab invalid digit found in string");
    assert_eq!(found[5], "dead panicked: at the disco");
    assert!(found[6].starts_with("dead result cannot be stored as jsonb"), "{}", found[6]);
    let payload: Value = db.one("SELECT payload FROM queue.job($1) WHERE state = 'completed'", &[&staged]).await;
    assert_eq!(payload, json!({"from": "x"}));
    let error: String = db.one("SELECT error FROM queue.job($1)", &[&forgets]).await;
    assert!(error.starts_with("stage \"x\" is not the last of queue"), "{error}");
}

/// How the attempt of this kind ends, and what its job is then.
fn odd_end(kind: &str) -> (Result<Done, Failure>, &'static str) {
    let advance = |stage: &str| Ok(Advance { stage: Some(stage.to_owned()), ..Advance::default() }.into());
    let seconds = Duration::from_secs;
    match kind {
        "zero" => (Ok(json!({"bad": "\0"}).into()), "dead result cannot be stored as jsonb"),
        "nowhere" => (advance("z"), "dead queue \"a\" has no stage"),
        "retry" => (Err(RetryIn(seconds(u64::MAX / 1_000_000), "too late".into()).into()), "dead too late"),
        "fatal" => (Err(Fatal("never".into()).into()), "dead never"),
        "snooze" => (Err(Snooze(seconds(3600)).into()), "scheduled"),
        _ => (Ok(json!({"a": 1}).into()), "completed {\"a\": 1}"),
    }
}

/// All of them end together, in one call.
#[tokio::test]
async fn an_end_that_is_refused_keeps_no_other_from_ending() {
    let db = Database::new().await;
    let kinds = ["result", "zero", "nowhere", "retry", "fatal", "snooze"];
    let ids = enqueue_many(&db.client, "a", kinds, Options::new().max_attempts(1)).await.unwrap();
    let each = |batch: Batch| async move {
        Ok(batch.iter().map(|job| odd_end(job.payload.as_str().unwrap()).0).collect::<Vec<Result<Done, Failure>>>())
    };
    db.worker().batch_handler("a", 10, each).drain().await.unwrap();
    for (kind, id) in kinds.iter().zip(ids) {
        let found: String =
            db.one("SELECT concat_ws(' ', state, result::text, error) FROM queue.job($1)", &[&id]).await;
        assert!(found.starts_with(odd_end(kind).1), "{kind}: {found}");
    }
}

#[tokio::test]
async fn an_end_is_sent_again_after_an_error_which_is_not_its_own() {
    let db = Database::new().await;
    let sql = "CREATE ROLE clerk LOGIN; SELECT queue.create('c');
        SELECT queue.grant('a', 'clerk', 'consume'), queue.grant('c', 'clerk', 'consume')";
    db.client.batch_execute(sql).await.unwrap();
    let ids = [jobs(&db, "a", 1).await[0], jobs(&db, "c", 1).await[0]];
    let (events, go) = (Arc::new(Mutex::new(Vec::new())), Arc::new(tokio::sync::Semaphore::new(0)));
    let (seen, goes_on) = (events.clone(), go.clone());
    let handler = move |_| {
        let go = goes_on.clone();
        async move {
            go.acquire_owned().await?.forget();
            Ok(json!({"a": 1}))
        }
    };
    let worker = Worker::new(&db.config().replace("user=postgres", "user=clerk")).unwrap();
    let worker = worker.heartbeat(Duration::from_secs(60)).handler("a", handler.clone()).handler("c", handler);
    let worker = worker.on_event(move |event| {
        if event.job_id > 0 && event.kind != EventKind::Started {
            seen.lock().unwrap().push(event.kind)
        }
    });
    running(worker, async {
        db.wait_true("both run", "SELECT bool_and(state = 'running') FROM queue.jobs").await;
        db.client.batch_execute("SELECT queue.revoke('c', 'clerk', 'consume')").await.unwrap();
        go.add_permits(2);
        db.wait_state(ids[0], "completed").await;
        until("it is told", async || (!events.lock().unwrap().is_empty()).then_some(())).await;
        assert_eq!(db.state(ids[1]).await, "running");
        db.client.batch_execute("SELECT queue.grant('c', 'clerk', 'consume')").await.unwrap();
        db.wait_state(ids[1], "completed").await;
    })
    .await;
    assert_eq!(*events.lock().unwrap(), [EventKind::Completed; 2]);
}

#[tokio::test]
async fn a_completion_is_lost_that_goes_along_with_a_claim() {
    let db = Database::new().await;
    let id = jobs(&db, "a", 1).await[0];
    let (events, go) = (Arc::new(Mutex::new(Vec::new())), Arc::new(tokio::sync::Notify::new()));
    let (seen, goes_on) = (events.clone(), go.clone());
    // With one slot the next claim takes along what returns nothing.
    let worker = named(&db, "lost").concurrency(1).heartbeat(Duration::from_secs(60)).on_event(move |event| {
        if event.job_id > 0 {
            seen.lock().unwrap().push(event.kind)
        }
    });
    let handler = move |_| {
        let go = goes_on.clone();
        async move {
            go.notified().await;
            Ok(())
        }
    };
    running(worker.handler("a", handler), async {
        db.wait_state(id, "running").await;
        db.client.execute("SELECT queue.cancel($1, force => true)", &[&id]).await.unwrap();
        go.notify_one();
        until("it has ended", async || (events.lock().unwrap().len() == 2).then_some(())).await;
        let sent = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lost' AND query ~ 'end_batch'";
        assert_eq!(db.one::<i64>(sent, &[]).await, 0, "the claim has told it");
    })
    .await;
    assert_eq!(*events.lock().unwrap(), [EventKind::Started, EventKind::Lost]);
}

#[tokio::test]
async fn an_error_rolls_back_what_the_handler_wrote() {
    let db = Database::new().await;
    let [id] = jobs(&db, "a", 1).await[..] else { panic!("one job") };
    let handler = |job: Job| async move {
        let transaction = job.transaction().await?;
        transaction.execute_typed(EFFECT, &[(&job.job_id, Type::INT8), (&job.attempt, Type::INT4)]).await?;
        if job.attempt == 1 {
            return Err(std::io::Error::other("once").into());
        }
        Ok(transaction.complete(json!({"attempt": job.attempt})).await?)
    };
    running(db.worker().handler("a", handler), db.wait_state(id, "completed")).await;
    assert_eq!(db.effects().await, [id]);
    assert_eq!(db.one::<Value>("SELECT result FROM queue.job($1)", &[&id]).await, json!({"attempt": 2}));
}

#[tokio::test]
async fn heartbeats_keep_a_long_job() {
    let db = Database::new().await;
    jobs(&db, "b", 2).await; // a lease of one second
    let sleeps = |_| async {
        sleep(Duration::from_millis(1500)).await;
        Ok(())
    };
    db.worker().concurrency(1).prefetch(1).handler("b", sleeps).drain().await.unwrap();
    assert_eq!(db.one::<i32>("SELECT max(attempt) FROM queue.attempts WHERE state = 'completed'", &[]).await, 1);
}

/// Says what a handler was told when it was dropped.
struct Told(Arc<Mutex<Vec<Option<StopReason>>>>, Job);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(self.1.stop_reason());
    }
}

#[tokio::test]
async fn a_handler_is_dropped_when_its_job_is_cancelled_or_lost() {
    for (force, reason, end) in
        [(false, StopReason::Cancelled, EventKind::Released), (true, StopReason::Lost, EventKind::Lost)]
    {
        let db = Database::new().await;
        let id = jobs(&db, "a", 1).await[0];
        let (told, events) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (to, seen) = (told.clone(), events.clone());
        let worker = db
            .worker()
            .heartbeat(Duration::from_millis(100))
            .on_event(move |event| {
                if event.job_id > 0 {
                    seen.lock().unwrap().push(event.kind)
                }
            })
            .handler("a", move |job| {
                let told = Told(to.clone(), job);
                async move {
                    sleep(Duration::from_secs(20)).await;
                    drop(told);
                    Ok(())
                }
            });
        running(worker, async {
            db.wait_state(id, "running").await;
            db.client.execute("SELECT queue.cancel($1, force => $2)", &[&id, &force]).await.unwrap();
            until("it was told", async || (!told.lock().unwrap().is_empty()).then_some(())).await;
        })
        .await;
        assert_eq!(*told.lock().unwrap(), [Some(reason)]);
        assert_eq!(db.state(id).await, "cancelled");
        assert_eq!(*events.lock().unwrap(), [EventKind::Started, end]);
    }
}

#[tokio::test]
async fn the_transaction_of_a_lost_lease_is_rolled_back() {
    let db = Database::new().await;
    let id = jobs(&db, "a", 1).await[0];
    let (goes_on, lost) = (Arc::new(tokio::sync::Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (go, count) = (goes_on.clone(), lost.clone());
    let worker = db
        .worker()
        .on_event(move |event| {
            count.fetch_add(usize::from(event.kind == EventKind::Lost), Ordering::SeqCst);
        })
        .handler("a", move |job| {
            let go = go.clone();
            async move {
                let transaction = job.transaction().await?;
                transaction.execute_typed(EFFECT, &[(&job.job_id, Type::INT8), (&job.attempt, Type::INT4)]).await?;
                go.notified().await;
                Ok(transaction.complete(()).await?)
            }
        });
    running(worker, async {
        db.wait_state(id, "running").await;
        db.client.execute("SELECT queue.cancel($1, force => true)", &[&id]).await.unwrap();
        goes_on.notify_one();
        until("it is told", async || (lost.load(Ordering::SeqCst) == 1).then_some(())).await;
    })
    .await;
    assert_eq!(db.effects().await, [0; 0]);
}

#[tokio::test]
async fn progress_steps_and_middleware() {
    let db = Database::new().await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let options = Options::new().headers(json!({ "traceparent": parent }));
    let id = enqueue(&db.client, "a", json!({}), options).await.unwrap();
    static CHARGED: AtomicUsize = AtomicUsize::new(0);
    let said = Arc::new(Mutex::new(Vec::new()));
    let (outer, inner, own) = (said.clone(), said.clone(), said.clone());
    let worker = db
        .worker()
        .middleware(move |job, next| {
            outer.lock().unwrap().push("outer".to_owned());
            async move {
                match next(job).await? {
                    Done::Complete(result) => Ok(json!({ "outer": result }).into()),
                    other => Ok(other),
                }
            }
        })
        .middleware(move |job, next| {
            inner.lock().unwrap().push("inner".to_owned());
            next(job)
        })
        .handler("a", move |job| {
            own.lock().unwrap().push(job.progress.clone().unwrap_or_default().to_string());
            async move {
                let receipt = match job.step("charge").await? {
                    Step::Done(receipt) => receipt,
                    Step::Open(step) => {
                        let receipt = CHARGED.fetch_add(1, Ordering::SeqCst) + 7;
                        step.execute_typed(EFFECT, &[(&job.job_id, Type::INT8), (&job.attempt, Type::INT4)]).await?;
                        step.done(receipt).await?
                    }
                };
                if job.attempt == 1 {
                    job.save_progress(json!({"pages": 12})).await?;
                    return Err(RetryIn(Duration::ZERO, "again".into()).into());
                }
                Ok(json!([job.traceparent(), receipt]))
            }
        });
    running(worker, db.wait_state(id, "completed")).await;
    assert_eq!(*said.lock().unwrap(), ["outer", "inner", "null", "outer", "inner", "{\"pages\":12}"]);
    assert_eq!(db.one::<Value>("SELECT result FROM queue.job($1)", &[&id]).await, json!({"outer": [parent, 7]}));
    assert_eq!(db.one::<i32>("SELECT attempt FROM effect", &[]).await, 1);
}

#[tokio::test]
async fn a_job_splits_itself_and_waits_for_its_members() {
    let db = Database::new().await;
    let id = enqueue(&db.client, "a", json!({}), Options::new()).await.unwrap();
    let split = |job: Job| async move {
        if job.progress.is_none() {
            let transaction = job.transaction().await?;
            enqueue_many(&*transaction, "b", [1, 2, 3], Options::new().flow(job.job_id)).await?;
            transaction.suspend(Suspend { progress: Some(json!(true)), ..Suspend::default() }).await?;
            return Ok(Value::Null);
        }
        let inputs = job.inputs().await?;
        let results: Vec<i64> = inputs.iter().filter_map(|input| input.result.as_ref()?.as_i64()).collect();
        Ok(json!(results.iter().sum::<i64>()))
    };
    let double = |job: Job| async move { Ok(json!(job.parse::<i64>()? * 2)) };
    running(db.worker().handler("a", split).handler("b", double), db.wait_state(id, "completed")).await;
    assert_eq!(db.one::<Value>("SELECT result FROM queue.job($1)", &[&id]).await, json!(12));
    // Returned, without a transaction.
    let first = enqueue(&db.client, "b", 0, Options::new().delay(Duration::from_millis(200))).await.unwrap();
    let id = enqueue(&db.client, "a", json!({}), Options::new()).await.unwrap();
    let waits = move |job: Job| async move {
        let suspend = Suspend { after: vec![first], progress: Some(json!(1)), ..Suspend::default() };
        Ok::<Done, Failure>(if job.progress.is_none() { suspend.into() } else { json!("on").into() })
    };
    let double = |job: Job| async move { Ok(json!(job.parse::<i64>()? * 2)) };
    running(db.worker().handler("a", waits).handler("b", double), db.wait_state(id, "completed")).await;
    assert_eq!(db.one::<Value>("SELECT result FROM queue.job($1)", &[&id]).await, json!("on"));
}

#[tokio::test]
async fn batches() {
    let db = Database::new().await;
    let ids = jobs(&db, "a", 250).await;
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = sizes.clone();
    let all = move |batch: Batch| {
        seen.lock().unwrap().push(batch.len());
        async move {
            let transaction = batch.transaction().await?;
            for job in batch.iter() {
                transaction.execute_typed(EFFECT, &[(&job.job_id, Type::INT8), (&job.attempt, Type::INT4)]).await?;
            }
            transaction.complete().await
        }
    };
    let events = db.worker().concurrency(100).batch_handler("a", 100, all).drain().await.unwrap();
    assert_eq!(completed(&events), ids);
    assert_eq!(db.effects().await, ids);
    assert!(sizes.lock().unwrap().iter().all(|size| (1..=100).contains(size)));
    assert_eq!(sizes.lock().unwrap()[0], 100);

    // Each ends in its own way; a wrong number of answers fails all.
    let ids = jobs(&db, "a", 3).await;
    let each = |batch: Batch| async move {
        let answer = |job: &Job| match job.payload.as_i64() {
            Some(0) => Ok(json!("done").into()),
            Some(1) => Err(Fatal("odd".into()).into()),
            _ => Err(Snooze(Duration::from_secs(60)).into()),
        };
        Ok(batch.iter().map(answer).collect::<Vec<Result<Done, Failure>>>())
    };
    db.worker().batch_handler("a", 10, each).drain().await.unwrap();
    let states = ["completed", "dead", "scheduled"];
    for (id, state) in ids.iter().zip(states) {
        assert_eq!(db.state(*id).await, state);
    }
    // One that is answered to be lost says nothing of the others.
    let ids = jobs(&db, "a", 2).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let lost = move |batch: Batch| {
        let is_first = counted.fetch_add(batch.len(), Ordering::SeqCst) == 0;
        async move {
            let answer = |job: &Job| {
                if is_first && job.payload == json!(1) { Err(Failure::Lost) } else { Ok(json!("done").into()) }
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
    let ids = jobs(&db, "a", 2).await;
    let none = |_: Batch| async move { Ok(Vec::<Result<Done, Failure>>::new()) };
    db.worker().batch_handler("a", 10, none).drain().await.unwrap();
    let error: String = db.one("SELECT error FROM queue.job($1)", &[&ids[0]]).await;
    assert_eq!(error, "0 answers for 2 jobs");
}

/// A worker whose connections have this name.
fn named(db: &Database, name: &str) -> Worker {
    Worker::new(&format!("{} application_name={name}", db.config())).unwrap()
}

/// Ends the attempt in a transaction, and rolls that back once the server has refused what the worker has told it since.
async fn rolled_back_late(db: &Database, name: &str, attempt: i64, go: &tokio::sync::Notify) {
    let other = db.server.connect(&db.name).await.unwrap();
    other.batch_execute(&format!("BEGIN; SELECT queue.complete({attempt})")).await.unwrap();
    go.notify_one();
    let refused = format!(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'
            AND application_name = '{name}' AND query ~ 'queue.end_batch'"
    );
    db.wait_true("the server has been told, and has refused it", &refused).await;
    other.batch_execute("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn what_an_open_transaction_is_in_the_way_of_is_told_again() {
    let db = Database::new().await;
    for (kind, event, end) in [
        ("nothing", EventKind::Completed, "completed"),
        ("result", EventKind::Completed, "completed {\"a\": 1}"),
        ("fatal", EventKind::Failed, "dead never"),
        ("snooze", EventKind::Released, "scheduled"),
    ] {
        let job = enqueue(&db.client, "a", kind, Options::new()).await.unwrap();
        let (events, go) = (Arc::new(Mutex::new(Vec::new())), Arc::new(tokio::sync::Notify::new()));
        let (attempt, seen, goes_on) = (Arc::new(AtomicI64::new(0)), events.clone(), go.clone());
        let told = attempt.clone();
        let handler = move |job: Job| {
            told.store(job.id, Ordering::SeqCst);
            let go = goes_on.clone();
            async move {
                go.notified().await;
                if job.payload == json!("nothing") { Ok(().into()) } else { ends(job).await }
            }
        };
        // With one slot the next claim takes along what returns nothing.
        let worker = named(&db, kind).concurrency(1).handler("a", handler).on_event(move |event| {
            if event.job_id > 0 {
                seen.lock().unwrap().push(event.kind)
            }
        });
        running(worker, async {
            let id = until("it runs", async || Some(attempt.load(Ordering::SeqCst)).filter(|id| *id > 0)).await;
            rolled_back_late(&db, kind, id, &go).await;
            until("it has ended", async || (events.lock().unwrap().len() == 2).then_some(())).await;
        })
        .await;
        assert_eq!(*events.lock().unwrap(), [EventKind::Started, event], "{kind}");
        let found: String =
            db.one("SELECT concat_ws(' ', state, result::text, error) FROM queue.job($1)", &[&job]).await;
        assert_eq!(found, end);
    }
}

#[tokio::test]
async fn a_batch_with_a_lost_job_is_done_by_none() {
    done_by_none(async |_, _, go| go.notify_one()).await;
}

#[tokio::test]
async fn a_batch_gives_back_what_is_still_being_rolled_back() {
    done_by_none(async |db, attempt, go| rolled_back_late(db, "batches", attempt, go).await).await;
}

/// Runs a batch of which one job is cancelled amidst. `goes_on` lets it go on, and is told an attempt of it that is not
/// cancelled: then the batch finds the job lost, and the others are given back and done.
async fn done_by_none(goes_on: impl AsyncFnOnce(&Database, i64, &tokio::sync::Notify)) {
    let db = Database::new().await;
    let ids = jobs(&db, "a", 3).await;
    let (attempt, go) = (Arc::new(AtomicI64::new(0)), Arc::new(tokio::sync::Notify::new()));
    let (told, gone) = (attempt.clone(), go.clone());
    let all = move |batch: Batch| {
        let (first, go) = (told.swap(batch[0].id, Ordering::SeqCst) == 0, gone.clone());
        async move {
            let transaction = batch.transaction().await?;
            for job in batch.iter() {
                transaction.execute_typed(EFFECT, &[(&job.job_id, Type::INT8), (&job.attempt, Type::INT4)]).await?;
            }
            if first {
                go.notified().await;
            }
            transaction.complete().await
        }
    };
    running(named(&db, "batches").batch_handler("a", 10, all), async {
        let id = until("it runs", async || Some(attempt.load(Ordering::SeqCst)).filter(|id| *id > 0)).await;
        db.client.execute("SELECT queue.cancel($1, force => true)", &[&ids[1]]).await.unwrap();
        goes_on(&db, id, &go).await;
        db.wait_state(ids[0], "completed").await;
        db.wait_state(ids[2], "completed").await;
    })
    .await;
    assert_eq!(db.effects().await, [ids[0], ids[2]]);
    assert_eq!(db.one::<i32>("SELECT max(attempt) FROM effect", &[]).await, 1, "to be given back does not count");
}

#[tokio::test]
async fn a_heartbeat_leaves_alone_a_handler_that_has_yet_to_commit() {
    let db = Database::new().await;
    let id = jobs(&db, "b", 1).await[0]; // a lease of one second
    let (go, lost) = (Arc::new(tokio::sync::Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (goes_on, count) = (go.clone(), lost.clone());
    let handler = move |job: Job| {
        let go = goes_on.clone();
        async move {
            let transaction = job.transaction().await?;
            transaction.execute_typed(EFFECT, &[(&job.job_id, Type::INT8), (&job.attempt, Type::INT4)]).await?;
            transaction.execute_typed("SELECT queue.complete($1)", &[(&job.id, Type::INT8)]).await?;
            go.notified().await;
            transaction.commit().await?;
            job.set_ended();
            Ok(())
        }
    };
    let worker = db.worker().heartbeat(Duration::from_millis(100)).handler("b", handler).on_event(move |event| {
        count.fetch_add(usize::from(event.kind == EventKind::Lost), Ordering::SeqCst);
    });
    running(worker, async {
        let late =
            "SELECT max(clock_timestamp() - claimed_at) > '2.5 seconds' FROM queue.attempts WHERE state = 'running'";
        db.wait_true("the lease would be over", late).await;
        assert_eq!(lost.load(Ordering::SeqCst), 0);
        go.notify_one();
        db.wait_state(id, "completed").await;
    })
    .await;
    assert_eq!(db.effects().await, [id]);
    assert_eq!(db.one::<i32>("SELECT attempt FROM effect", &[]).await, 1);
    assert_eq!(lost.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn no_more_run_at_once_than_asked() {
    let db = Database::new().await;
    jobs(&db, "a", 40).await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (running, highest) = (now.clone(), most.clone());
    let handler = move |_| {
        highest.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let running = running.clone();
        async move {
            sleep(Duration::from_millis(5)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    };
    db.worker().concurrency(3).prefetch(5).handler("a", handler).drain().await.unwrap();
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn what_cannot_work_is_refused_at_once() {
    let worker = || Worker::new("host=/nowhere").unwrap();
    assert_eq!(worker().serve().await.unwrap_err().to_string(), "a worker needs a handler");
    let idle = worker().concurrency(0).handler("a", |_| async { Ok(()) });
    assert_eq!(idle.serve().await.unwrap_err().to_string(), "concurrency must be at least 1");
    let many = "abcdefghi".split("").filter(|name| !name.is_empty());
    let many = many.fold(worker(), |worker, queue| worker.handler(queue, |_| async { Ok(()) }));
    assert_eq!(many.serve().await.unwrap_err().to_string(), "a worker has at most eight queues");
    assert!(Worker::new("host=").is_err() || Worker::new("nonsense").is_err());
}
