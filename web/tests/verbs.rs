//! Verbs: their lines in the audit, changes of many jobs together, and the undo of a cancellation.

use queue_tests::sql::Sql as _;
use serde_json::{Value, json};

use crate::place::{Web, place};

#[test]
fn each_verb_does_what_it_says() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q', max_attempts => 1), queue.create('busy')");
    let web = Web::start(&cluster, &["--allow-actions"]);
    let act = |verb: &str, body: Value| web.act(verb, &body, &[]).ok();
    let text = |client: &mut postgres::Client, job: i64, column: &str| {
        client.value::<Option<String>>(&format!("SELECT {column}::text FROM queue.job({job})"))
    };
    let job = act(
        "enqueue",
        json!({ "queue": "q", "payload": "{\"n\": 12345678901234567890}", "delay": "1 hour", "priority": 3 }),
    );
    let job = job["answer"].as_i64().unwrap();
    assert_eq!(text(&mut client, job, "payload").unwrap(), "{\"n\": 12345678901234567890}");
    assert_eq!(client.state(job), "scheduled");
    act("reprioritize", json!({ "job_id": job, "priority": -5 }));
    assert_eq!(text(&mut client, job, "priority").unwrap(), "-5");
    act("reschedule", json!({ "job_id": job, "run_at": "2999-01-01T00:00:00Z" }));
    assert!(text(&mut client, job, "run_at").unwrap().starts_with("2999-01-01"));
    assert_eq!(act("cancel", json!({ "job_id": job.to_string(), "reason": "ticket 12" }))["answer"], "cancelled");
    assert_eq!(text(&mut client, job, "error").unwrap(), "ticket 12 (local)");
    act("retry", json!({ "job_id": job }));
    assert_eq!(client.state(job), "ready");
    let id = client.claim("q");
    assert_eq!(act("cancel", json!({ "job_id": job }))["answer"], "cancelling");
    assert_eq!(act("cancel", json!({ "job_id": job, "force": true }))["answer"], "cancelled");
    client.refused(&format!("SELECT queue.complete({id})"), "QJ001");
    act("forget", json!({ "job_id": job }));
    assert_eq!(text(&mut client, job, "payload").unwrap(), "{}");
    act("pause", json!({ "queue": "q" }));
    assert!(client.value::<bool>("SELECT is_paused FROM queue.queues WHERE queue_name = 'q'"));
    act("resume", json!({ "queue": "q" }));
    assert!(!client.value::<bool>("SELECT is_paused FROM queue.queues WHERE queue_name = 'q'"));
    act("alter", json!({ "queue": "q", "max_running": 7, "lease": "2 minutes", "reset": ["max_attempts"] }));
    let altered = "SELECT concat_ws(' ', max_running, lease, max_attempts) FROM queue.queues WHERE queue_name = 'q'";
    assert_eq!(client.value::<String>(altered), "7 00:02:00 20");
    client.run("SELECT queue.schedule('s', 'q', every => '1 hour')");
    act("pause_schedule", json!({ "schedule": "s" }));
    assert!(client.value::<bool>("SELECT is_paused FROM queue.schedules"));
    act("resume_schedule", json!({ "schedule": "s" }));
    let ran = act("run_schedule", json!({ "schedule": "s" }))["answer"].as_i64().unwrap();
    assert_eq!(client.state(ran), "ready");

    // Each verb has its line in the audit. The page shows the latest first.
    for verb in ["enqueue", "reprioritize", "reschedule", "retry", "forget", "pause", "resume", "alter", "run_schedule"]
    {
        web.wait_audit(&[&format!("\"verb\":\"{verb}\""), "\"user\":\"local\"", "\"queue\":\"q\""]);
    }
    web.wait_audit(&["\"verb\":\"cancel\"", "\"reason\":\"ticket 12\"", &format!("\"job_ids\":[{job}]")]);
    let audit = web.get("/api/audit").ok();
    assert_eq!(
        (&audit[0]["verb"], &audit[0]["on"], &audit[0]["queue"]),
        (&json!("run_schedule"), &json!("s"), &json!("q"))
    );
    assert_eq!(audit.as_array().unwrap().len(), 14);
}

#[test]
fn a_refused_verb_says_why() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    let web = Web::start(&cluster, &["--allow-actions"]);
    let refused = |verb: &str, body: Value, status: u16| web.act(verb, &body, &[]).refused(status);
    assert!(refused("retry", json!({}), 400).contains("job_id is missing"));
    assert!(refused("drop", json!({ "queue": "q" }), 404).contains("no verb"));
    refused("retry", json!({ "job_id": "1; SELECT queue.drop('q')" }), 400);
    refused("pause", json!({ "queue": "gone" }), 404);
    refused("enqueue", json!({ "queue": "q", "payload": "{not json" }), 400);
    refused("enqueue", json!({ "queue": "q", "unique_key": "a\u{0}b" }), 400);
    refused("alter", json!({ "queue": "q", "lease": "a while" }), 400);
    refused("cancel_many", json!({ "queue": "q" }), 400);
    refused("cancel_many", json!({ "queue": "q", "states": ["gone"] }), 400);
    refused("retry_jobs", json!({ "job_ids": [] }), 400);
    refused("cancel_jobs", json!({ "job_ids": ["1); SELECT queue.drop('q'"] }), 400);
    web.send("POST", "/api/act/pause", &crate::http::OURS, "[1]").refused(400);
    let large = "x".repeat(2 << 20);
    assert_eq!(web.act("enqueue", &json!({ "queue": "q", "payload": large }), &[]).status, 413);
    // If another job has the key, the answer has the message of Postgres.
    client.run("SELECT queue.enqueue('q', unique_key => 'k')");
    let job: i64 = client.value("SELECT job_id FROM queue.jobs");
    client.run(&format!("SELECT queue.cancel({job}), queue.enqueue('q', unique_key => 'k')"));
    let told = web.act("retry", &json!({ "job_id": job }), &[]);
    assert_eq!(told.status, 409, "{told:?}");
    web.wait_audit(&["\"verb\":\"retry\"", "\"error\":\"23505"]);
}

#[test]
fn jobs_are_cancelled_by_their_ids() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    let jobs: [i64; 3] = client.column("SELECT queue.enqueue('q') FROM generate_series(1, 3)").try_into().unwrap();
    let web = Web::start(&cluster, &["--allow-actions"]);
    client.run(&format!("SELECT queue.complete(id) FROM queue.claim('q'); SELECT queue.job({})", jobs[0]));
    let done = web.act("cancel_jobs", &json!({ "job_ids": [jobs[0], jobs[2]], "reason": "ticket 7" }), &[]).ok();
    assert_eq!(done["job_ids"], json!([jobs[2]]));
    assert!(done["refused"].as_str().unwrap().contains("ended"), "{done}");
    assert_eq!(jobs.map(|job| client.state(job)), ["completed", "ready", "cancelled"]);
    let reason: String = client.value(&format!("SELECT error FROM queue.job({})", jobs[2]));
    assert_eq!(reason, "ticket 7 (local)");
    web.wait_audit(&["\"verb\":\"cancel_jobs\"", "\"count\":1", "\"reason\":\"ticket 7\""]);
}

#[test]
fn many_jobs_are_changed_in_parts_and_a_cancel_is_undone() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q', max_attempts => 1)");
    client.run("SELECT count(queue.enqueue('q', jsonb_build_object('n', n))) FROM generate_series(1, 1200) AS n");
    let web = Web::start(&cluster, &["--allow-actions"]);
    let filter = "$.payload.n <= 700";
    let (mut cancelled, mut beyond, mut calls) = (Vec::new(), Value::Null, 0);
    loop {
        let body = json!({ "queue": "q", "filter": filter, "states": ["ready"], "beyond": beyond,
            "max_jobs": 300, "reason": "too many" });
        let done = web.act("cancel_many", &body, &[]).ok();
        cancelled.extend(done["job_ids"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()));
        calls += 1;
        beyond = done["here"].clone();
        if beyond.is_null() {
            break;
        }
    }
    assert_eq!(cancelled.len(), 700);
    assert!(calls >= 3, "{calls}");
    let left = "SELECT count(*) FROM queue.jobs WHERE state = 'ready'";
    assert_eq!(client.value::<i64>(left), 500);
    let line = web.wait_audit(&["\"verb\":\"cancel_many\"", "\"count\":300", "\"reason\":\"too many\"", "payload.n"]);
    assert!(line.len() < 2_000, "{line}");
    // The undo leaves out a job that was retried meanwhile.
    client.run(&format!("SELECT queue.retry({})", cancelled[0]));
    client.claim("q");
    let mut undone = 0;
    for part in cancelled.chunks(500) {
        let done = web.act("retry_jobs", &json!({ "job_ids": part }), &[]).ok();
        undone += done["job_ids"].as_array().unwrap().len();
    }
    assert_eq!(undone, 699);
    assert_eq!(client.value::<i64>(left), 1199);
    let done = web.act(
        "reprioritize_many",
        &json!({ "queue": "q", "states": ["ready"], "priority": 4, "field": "job_id", "value": cancelled[9] }),
        &[],
    );
    assert_eq!(done.ok()["job_ids"], json!([cancelled[9]]));
    client.run("SELECT queue.fail(id, 'refused ' || id % 2, fatal => true) FROM queue.claim('q', 100)");
    let body = json!({ "queue": "q", "states": ["dead"], "field": "error", "op": "starts", "value": "refused 0" });
    let retried = web.act("retry_many", &body, &[]).ok()["job_ids"].as_array().unwrap().len();
    let dead: i64 = client.value("SELECT count(*) FROM queue.jobs WHERE state = 'dead'");
    assert_eq!(retried as i64 + dead, 100);
}
