//! Producers: in the caller's own transaction, with every option; flows.

mod support;

use std::time::{Duration, SystemTime};

use pg_queue_client::testing::{advance_time, assert_enqueued, enqueued};
use pg_queue_client::{Flow, Options, Publish, Task, Upon};
use pg_queue_client::{enqueue, enqueue_flow, enqueue_many, publish, reject, resolve, seal};
use serde_json::{Value, json};
use support::Database;

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
async fn every_option_arrives() {
    let db = Database::new().await;
    db.client.batch_execute("SELECT queue.create('staged', stages => '{x, y}')").await.unwrap();
    let now = SystemTime::now();
    let options = || {
        Options::new()
            .priority(70000)
            .run_at(now + Duration::from_secs(3600))
            .unique_key("k")
            .or_replace()
            .version(now)
            .unique_for(Duration::from_secs(60))
            .group_key("g")
            .stage("y")
            .max_attempts(3)
            .lease(Duration::from_secs(120))
            .headers(json!({"h": 1}))
    };
    let job = enqueue(&db.client, "staged", json!(["any", {"json": null}]), options()).await.unwrap();
    let row = db.client.query_one("SELECT * FROM queue.job($1)", &[&job]).await.unwrap();
    assert_eq!(row.get::<_, Value>("payload"), json!(["any", {"json": null}]));
    assert_eq!(row.get::<_, Value>("headers"), json!({"h": 1}));
    assert_eq!((row.get::<_, i32>("priority"), row.get::<_, i32>("max_attempts")), (70000, 3));
    assert_eq!(["stage", "unique_key", "group_key"].map(|name| row.get::<_, String>(name)), ["y", "k", "g"]);
    // An older version does nothing.
    assert_eq!(enqueue(&db.client, "staged", json!({}), options()).await.unwrap(), job);
    let again = enqueue(&db.client, "staged", json!({}), Options::new().unique_key("k").or_error()).await;
    assert_eq!(again.unwrap_err().code().unwrap().code(), "23505");
    let delayed =
        enqueue(&db.client, "a", json!(null), Options::new().delay(Duration::from_millis(500))).await.unwrap();
    let sql = "SELECT run_at - enqueued_at = '500 ms' AND payload = 'null' FROM queue.job($1)";
    assert!(db.one::<bool>(sql, &[&delayed]).await);
    let held = enqueue(&db.client, "a", json!({}), Options::new().after([delayed]).upon(Upon::Ended)).await.unwrap();
    assert_eq!(db.state(held).await, "held");
    let many = enqueue_many(&db.client, "a", [json!({"n": 1}), json!(null)], Options::new().priority(2)).await.unwrap();
    assert_eq!(many.len(), 2);
    assert_eq!(enqueue_many(&db.client, "a", [(); 0], Options::new()).await.unwrap(), [0; 0]);
    let no_json = std::collections::HashMap::from([((1, 2), 3)]);
    let refused = enqueue(&db.client, "a", no_json, Options::new()).await.unwrap_err();
    assert!(std::error::Error::source(&refused).unwrap().to_string().contains("key must be a string"));
}

#[tokio::test]
async fn an_event_is_a_job_in_each_queue_that_is_bound() {
    let mut db = Database::new().await;
    let bind = "SELECT queue.create_topic('orders'), queue.bind('orders', 'a'), queue.bind('orders', 'b', 'order.*')";
    db.client.batch_execute(bind).await.unwrap();
    let options = || Options::new().priority(4).headers(json!({"h": 1})).delay(Duration::from_secs(60));
    let placed = || Publish { options: options(), ..Publish::key("order.placed") };
    let transaction = db.client.transaction().await.unwrap();
    let jobs = publish(&transaction, "orders", json!({"n": 1}), placed()).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(jobs.keys().collect::<Vec<_>>(), ["a", "b"]);
    for job in jobs.values() {
        let row = db.client.query_one("SELECT payload, priority, headers FROM queue.job($1)", &[job]).await.unwrap();
        assert_eq!((row.get::<_, Value>(0), row.get::<_, i32>(1)), (json!({"n": 1}), 4));
        let headers: Value = row.get(2);
        assert_eq!((&headers["h"], &headers["event"]["key"]), (&json!(1), &json!("order.placed")));
        assert_eq!(db.state(*job).await, "scheduled");
    }
    let transaction = db.client.transaction().await.unwrap();
    let undone = publish(&transaction, "orders", json!(null), Publish::default()).await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(db.client.query("SELECT FROM queue.job($1)", &[&undone["a"]]).await.unwrap().len(), 0);
    db.client.batch_execute("SELECT queue.unbind('orders', 'a')").await.unwrap();
    assert!(publish(&db.client, "orders", json!({}), Publish::default()).await.unwrap().is_empty());
    let refused = publish(&db.client, "orders", json!({}), Publish { mandatory: true, ..Publish::default() }).await;
    assert_eq!(refused.unwrap_err().code().unwrap().code(), "P0002");
}

#[tokio::test]
async fn flows() {
    let db = Database::new().await;
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    let tasks = vec![
        Task::new("first").payload(json!({"n": 1})),
        Task::new("second").queue("b").after(["first"]).options(Options::new().priority(4).run_at(at)),
    ];
    let flow = Flow { tasks, open: true, ..Flow::default() };
    let id = enqueue_flow(&db.client, "a", json!({"report": 9}), flow).await.unwrap();
    let third = enqueue(&db.client, "a", json!({}), Options::new().flow(id).task("third")).await.unwrap();
    let sql = "SELECT array_agg(concat_ws(' ', queue_name, state, priority, extract(epoch FROM run_at)::bigint)
        ORDER BY job_id) FROM queue.jobs WHERE job_id <> $1 AND job_id <> $2";
    let members: Vec<String> = db.one(sql, &[&id, &third]).await;
    assert_eq!(members[0].split(' ').take(3).collect::<Vec<_>>(), ["a", "ready", "0"]);
    assert_eq!(members[1], "b held 4 4000000000");
    seal(&db.client, id).await.unwrap();
    let event = |open| enqueue_flow(&db.client, "a", json!({}), Flow { open, ..Flow::default() });
    let (approved, refused) = (event(true).await.unwrap(), event(true).await.unwrap());
    resolve(&db.client, approved, json!({"by": "ada"})).await.unwrap();
    reject(&db.client, refused, "no").await.unwrap();
    db.wait_state(approved, "completed").await;
    db.wait_state(refused, "dead").await;
}

#[tokio::test]
async fn time_passes_for_what_waits() {
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
async fn what_is_not_enqueued_is_said() {
    let db = Database::new().await;
    enqueue(&db.client, "a", json!({"n": 1}), Options::new()).await.unwrap();
    assert_enqueued(&db.client, "a", &json!({"n": 2}), 1).await.unwrap();
}
