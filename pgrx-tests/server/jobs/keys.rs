//! Unique keys: the effect of each `on_duplicate` in each state of the key's job, versions, and how long a key stays
//! taken.

use crate::shared::*;

/// Enqueues under key `k` with these further arguments. Returns the job's id.
fn enqueue(client: &mut Client, q: &str, arguments: &str) -> i64 {
    client.value(&format!("SELECT queue.enqueue('{q}', unique_key => 'k', {arguments})"))
}

/// Returns the state, payload and priority of the waiting and running jobs of a queue.
fn live(client: &mut Client, q: &str) -> Vec<String> {
    client.column(&format!(
        "SELECT concat_ws(' ', state, payload, priority) FROM queue.jobs WHERE queue_name = '{q}'
         AND state IN ('ready', 'scheduled', 'retrying', 'running') ORDER BY job_id"
    ))
}

/// Brings a job with key `k` into a state. The second connection keeps transactions open. Returns the job's id, and the
/// attempt's id if it runs.
fn bring(client: &mut Client, other: &mut Client, q: &str, state: &str) -> (i64, i64) {
    let delay = if state == "scheduled" { "delay => '1 hour'" } else { "delay => NULL" };
    let job = enqueue(client, q, &format!("payload => '1', {delay}"));
    let claim = format!("SELECT id FROM queue.claim('{q}')");
    let id = match state {
        "ready" | "scheduled" => 0,
        "claim open" => {
            other.run("BEGIN");
            other.value(&claim)
        }
        _ => client.value(&claim),
    };
    match state {
        "retrying" => client.run(&format!("SELECT queue.fail({id}, 'boom', retry_in => '1 hour')")),
        "completed" => client.run(&format!("SELECT queue.complete({id})")),
        "dead" => client.run(&format!("SELECT queue.fail({id}, 'boom', fatal => true)")),
        "cancelled" => client.run(&format!("SELECT queue.cancel({job}, force => true)")),
        "end open" => other.run(&format!("BEGIN; SELECT queue.complete({id})")),
        _ => {}
    }
    (job, id)
}

const WAITING: [&str; 3] = ["ready", "scheduled", "retrying"];
const RUNNING: [&str; 3] = ["claim open", "running", "end open"];
const ENDED: [&str; 3] = ["completed", "dead", "cancelled"];

#[test]
fn skip_leaves_a_live_job_alone_and_error_names_it() {
    for state in WAITING.into_iter().chain(RUNNING) {
        let (mut client, q) = queue("");
        let mut other = connect();
        let (job, _) = bring(&mut client, &mut other, &q, state);
        assert_eq!(enqueue(&mut client, &q, "payload => '2'"), job, "{state}");
        assert_eq!(live(&mut client, &q).len(), 1, "{state}");
        assert!(live(&mut client, &q)[0].ends_with(" 1 0"), "{state}");
        let refused = client
            .refused(&format!("SELECT queue.enqueue('{q}', unique_key => 'k', on_duplicate => 'error')"), "23505");
        assert_eq!(refused.message, "duplicate unique_key", "{state}");
        assert_eq!(refused.detail, format!("Key \"k\" is held by job {job}."));
        other.run("ROLLBACK");
    }
}

#[test]
fn after_the_end_the_key_is_free() {
    for state in ENDED {
        for on_duplicate in ["skip", "replace", "rerun", "error"] {
            let (mut client, q) = queue("");
            let mut other = connect();
            let (job, _) = bring(&mut client, &mut other, &q, state);
            let next = enqueue(&mut client, &q, &format!("payload => '2', on_duplicate => '{on_duplicate}'"));
            assert_ne!(next, job, "{state} {on_duplicate}");
            assert_eq!(live(&mut client, &q), ["ready 2 0"]);
        }
    }
}

#[test]
fn a_waiting_job_is_replaced() {
    for state in WAITING {
        for on_duplicate in ["replace", "rerun"] {
            let (mut client, q) = queue("");
            let mut other = connect();
            let (job, _) = bring(&mut client, &mut other, &q, state);
            let wish =
                format!("payload => '2', priority => 7, headers => '{{\"n\": 3}}', on_duplicate => '{on_duplicate}'");
            assert_eq!(enqueue(&mut client, &q, &wish), job, "{state}");
            assert_eq!(live(&mut client, &q), ["ready 2 7"], "{state}");
            let later = format!("payload => '3', delay => '1 day', on_duplicate => '{on_duplicate}'");
            assert_eq!(enqueue(&mut client, &q, &later), job);
            assert_eq!(live(&mut client, &q), ["scheduled 3 0"], "{state}");
            assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
            enqueue(&mut client, &q, &wish);
            let claimed = client.query_one(
                &format!(
                    "SELECT job_id, payload::text, headers::text, attempt, unique_key, last_error \
                    FROM queue.claim('{q}', 9)"
                ),
                &[],
            );
            let row = claimed.unwrap();
            assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1), row.get::<_, &str>(2)), (job, "2", "{\"n\": 3}"));
            assert_eq!((row.get::<_, i32>(3), row.get::<_, &str>(4)), (1, "k"));
            assert_eq!(row.get::<_, Option<&str>>(5), None);
        }
    }
}

/// Statements that end a running attempt, and the outcome in `queue.attempts`.
const ENDS: [(&str, &str); 12] = [
    ("complete($)", "completed"),
    ("complete_many(ARRAY[$])", "completed"),
    ("fail($, 'boom')", "failed"),
    ("fail($, 'boom', fatal => true)", "failed"),
    ("release($)", "released"),
    ("cancel(#, force => true)", "cancelled"),
    ("claim('?', completed => ARRAY[$])", "completed"),
    ("end_batch('[{\"complete\": {\"id\": $, \"result\": 7}}]')", "completed"),
    ("end_batch('[{\"fail\": {\"id\": $, \"error\": \"boom\"}}]')", "failed"),
    ("end_batch('[{\"fail\": {\"id\": $, \"error\": \"boom\", \"fatal\": true}}]')", "failed"),
    ("end_batch('[{\"release\": {\"id\": $}}]')", "released"),
    ("end_batch('[{\"suspend\": {\"id\": $, \"until\": \"epoch\"}}]')", "suspended"),
];

#[test]
fn a_running_job_runs_once_more_however_it_ends_and_however_often_that_was_requested() {
    for (end, outcome) in ENDS {
        for asked in [1, 3] {
            let (mut client, q) = queue("");
            let mut other = connect();
            let (job, id) = bring(&mut client, &mut other, &q, "running");
            for n in 1..=asked {
                let on_duplicate = if n % 2 == 0 { "replace" } else { "rerun" };
                let wish = format!("payload => '{n}0', priority => {n}, on_duplicate => '{on_duplicate}'");
                assert_eq!(enqueue(&mut client, &q, &wish), job);
            }
            assert_eq!(live(&mut client, &q), ["running 1 0"]);
            let call = end.replace('$', &id.to_string()).replace('#', &job.to_string()).replace('?', &q);
            client.run(&format!("SELECT FROM queue.{call}"));
            assert_eq!(live(&mut client, &q), [format!("ready {asked}0 {asked}")], "{end}");
            let ended: String = client.value(&format!("SELECT state FROM queue.attempts WHERE id = {id}"));
            assert_eq!(ended, outcome, "{end}");
            let again = client.claim(&q);
            assert_eq!(client.value::<i32>(&format!("SELECT attempt FROM queue.attempts WHERE id = {again}")), 1);
            client.run(&format!("SELECT queue.complete({again})"));
            client.run("SELECT FROM queue.maintain()");
            assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0, "{end}");
            assert_eq!(client.state(job), "completed");
        }
    }
}

#[test]
fn a_job_whose_lease_ends_runs_once_more_with_the_new_payload() {
    // Without a worker the attempt does not end before the test requests another run.
    let database = Database::without_worker();
    let (mut client, mut other, q) = (database.connect(), database.connect(), "q".to_owned());
    create(&mut client, &q, "max_attempts => 1, lease => '1 ms'");
    let (job, id) = bring(&mut client, &mut other, &q, "running");
    enqueue(&mut client, &q, "payload => '2', on_duplicate => 'rerun', lease => '1 hour'");
    client.maintain_until(&format!("EXISTS (SELECT FROM queue.attempts WHERE id = {id} AND state = 'timed_out')"));
    assert_eq!(live(&mut client, &q), ["ready 2 0"]);
    assert_eq!(client.state(job), "ready");
}

#[test]
fn a_job_with_a_request_to_cancel_still_runs_again() {
    let (mut client, q) = queue("");
    let mut other = connect();
    let (job, id) = bring(&mut client, &mut other, &q, "running");
    enqueue(&mut client, &q, "payload => '2', on_duplicate => 'rerun'");
    assert_eq!(client.value::<String>(&format!("SELECT queue.cancel({job})")), "cancelling");
    client.run(&format!("SELECT queue.fail({id}, 'stopped')"));
    assert_eq!(live(&mut client, &q), ["ready 2 0"]);
    assert_eq!(client.value::<String>(&format!("SELECT state FROM queue.attempts WHERE id = {id}")), "cancelled");
}

#[test]
fn a_request_while_the_claim_is_open_gives_one_run_after_the_run_or_instead_of_it() {
    for end in ["COMMIT", "ROLLBACK"] {
        let (mut client, q) = queue("");
        let mut other = connect();
        let (job, id) = bring(&mut client, &mut other, &q, "claim open");
        assert_eq!(enqueue(&mut client, &q, "payload => '2', on_duplicate => 'replace'"), job);
        other.run(end);
        if end == "COMMIT" {
            assert_eq!(live(&mut client, &q), ["running 1 0"]);
            other.run(&format!("SELECT queue.complete({id})"));
        }
        wait::until_true("it waits with the new payload", || live(&mut client, &q) == ["ready 2 0"]);
        let again = client.claim(&q);
        client.run(&format!("SELECT queue.complete({again})"));
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0, "{end}");
    }
}

#[test]
fn a_request_while_the_end_is_open_gives_one_run_in_every_order_of_commits() {
    for (producer_first, end) in [(true, "COMMIT"), (true, "ROLLBACK"), (false, "COMMIT"), (false, "ROLLBACK")] {
        let (mut client, q) = queue("");
        let mut other = connect();
        let (job, id) = bring(&mut client, &mut other, &q, "end open");
        client.run("BEGIN");
        assert_eq!(enqueue(&mut client, &q, "payload => '2', on_duplicate => 'rerun'"), job);
        if producer_first {
            client.run("COMMIT");
            other.run(end);
        } else {
            other.run(end);
            client.run("COMMIT");
        }
        if end == "ROLLBACK" {
            assert_eq!(live(&mut client, &q), ["running 1 0"]);
            client.run(&format!("SELECT queue.complete({id})"));
        }
        wait::until_true("it waits once more", || live(&mut client, &q) == ["ready 2 0"]);
        let again = client.claim(&q);
        client.run(&format!("SELECT queue.complete({again})"));
        client.run("SELECT FROM queue.maintain()");
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0, "{producer_first} {end}");
        assert_eq!(client.state(job), "completed");
    }
}

#[test]
fn a_rolled_back_request_for_another_run_has_no_effect() {
    let (mut client, q) = queue("");
    let mut other = connect();
    let (job, id) = bring(&mut client, &mut other, &q, "running");
    client.run("BEGIN");
    enqueue(&mut client, &q, "payload => '2', on_duplicate => 'rerun'");
    client.run("ROLLBACK; BEGIN; SAVEPOINT s");
    enqueue(&mut client, &q, "payload => '3', on_duplicate => 'rerun'");
    client.run("ROLLBACK TO s; COMMIT");
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(client.state(job), "completed");
}

#[test]
fn a_worker_can_ask_for_its_own_next_run() {
    let (mut client, q) = queue("");
    let mut other = connect();
    let (job, id) = bring(&mut client, &mut other, &q, "running");
    client.run("BEGIN");
    assert_eq!(enqueue(&mut client, &q, "payload => '2', on_duplicate => 'rerun', delay => '1 hour'"), job);
    client.run(&format!("SELECT queue.complete({id}); COMMIT"));
    wait::until_true("it waits once more", || live(&mut client, &q) == ["scheduled 2 0"]);
    // The same transaction claims the job and ends it.
    let (mut client, q) = queue("");
    enqueue(&mut client, &q, "payload => '1'");
    client.run("BEGIN");
    let id = client.claim(&q);
    enqueue(&mut client, &q, "payload => '2', on_duplicate => 'rerun'");
    client.run(&format!("SELECT queue.complete({id}); COMMIT"));
    wait::until_true("it waits once more", || live(&mut client, &q) == ["ready 2 0"]);
    // If the attempt has already ended, the enqueue makes another job.
    client.run("BEGIN");
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.complete({id})"));
    enqueue(&mut client, &q, "payload => '3', on_duplicate => 'rerun'");
    client.run("COMMIT");
    assert_eq!(live(&mut client, &q), ["ready 3 0"]);
}

#[test]
fn a_call_that_is_not_newer_does_nothing() {
    let (mut client, q) = queue("");
    let job = enqueue(&mut client, &q, "payload => '2', version => '2024-01-02'");
    let call = |client: &mut Client, payload: i32, version: &str| {
        let version = if version.is_empty() { "NULL".to_owned() } else { format!("'2024-01-0{version}'") };
        let wish = format!("payload => '{payload}', on_duplicate => 'replace', version => {version}");
        enqueue(client, &q, &wish)
    };
    for old in ["1", "2"] {
        assert_eq!(call(&mut client, 9, old), job);
        assert_eq!(live(&mut client, &q), ["ready 2 0"]);
    }
    assert_eq!(call(&mut client, 3, "3"), job);
    assert_eq!(live(&mut client, &q), ["ready 3 0"]);
    // An enqueue without a version is accepted. The known version stays.
    assert_eq!(call(&mut client, 4, ""), job);
    assert_eq!(call(&mut client, 9, "3"), job);
    assert_eq!(live(&mut client, &q), ["ready 4 0"]);
    // The version is known while the requested run waits.
    let id = client.claim(&q);
    assert_eq!(call(&mut client, 5, "5"), job);
    assert_eq!(call(&mut client, 9, "4"), job);
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(live(&mut client, &q), ["ready 5 0"]);
    // The version is known after the end.
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(call(&mut client, 9, "5"), job);
    assert!(live(&mut client, &q).is_empty());
    assert_ne!(call(&mut client, 6, "6"), job);
    assert_eq!(live(&mut client, &q), ["ready 6 0"]);
    client.refused(&format!("SELECT queue.enqueue('{q}', version => now())"), "22023");
}

#[test]
fn a_key_stays_taken_for_its_unique_for() {
    let (mut client, q) = queue("");
    let job = enqueue(&mut client, &q, "payload => '1', unique_for => '1 hour'");
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.complete({id})"));
    for on_duplicate in ["skip", "replace", "rerun"] {
        assert_eq!(enqueue(&mut client, &q, &format!("on_duplicate => '{on_duplicate}'")), job);
    }
    let failure =
        client.refused(&format!("SELECT queue.enqueue('{q}', unique_key => 'k', on_duplicate => 'error')"), "23505");
    assert!(failure.detail.contains(&job.to_string()), "{failure:?}");
    assert!(live(&mut client, &q).is_empty());
    let (mut client, q) = queue("");
    let job = enqueue(&mut client, &q, "unique_for => '300 ms'");
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(enqueue(&mut client, &q, "priority => 1"), job);
    wait::until_true("the key is free", || enqueue(&mut client, &q, "priority => 1") != job);
    // A living job keeps its key for longer.
    let job = enqueue(&mut client, &q, "unique_for => '1 us'");
    assert_eq!(enqueue(&mut client, &q, "unique_for => '1 us'"), job);
    client.refused(&format!("SELECT queue.enqueue('{q}', unique_key => 'x', unique_for => '-1 s')"), "22023");
}

#[test]
fn a_remembered_key_can_be_read_with_any_retention() {
    for retention in ["-1", "290000 years", "0"] {
        let (mut client, q) = queue(&format!("retention => '{retention}'"));
        let job = enqueue(&mut client, &q, "version => '2024-01-02'");
        let (expires, memory) = (
            "expires_at > now() + interval '59 min'",
            "(TABLE queue_internal.key_0 UNION ALL TABLE queue_internal.key_1) AS k",
        );
        assert!(client.value::<bool>(&format!("SELECT {expires} FROM {memory} WHERE job_id = {job}")));
        let row: String = client.value(&format!("SELECT k::text FROM {memory} WHERE job_id = {job}"));
        assert_eq!(row.contains("infinity"), retention == "-1", "{row}");
    }
}

#[test]
fn keys_are_per_queue_and_need_not_be_short() {
    let (mut client, q) = queue("");
    let (mut other, r) = queue("");
    let job = enqueue(&mut client, &q, "payload => '1'");
    assert_ne!(enqueue(&mut other, &r, "payload => '1'"), job);
    let long = format!("SELECT queue.enqueue('{q}', unique_key => repeat('é', $))");
    assert_eq!(client.value::<i64>(&long.replace('$', "512")), client.value::<i64>(&long.replace('$', "512")));
    assert_ne!(client.value::<i64>(&long.replace('$', "511")), client.value::<i64>(&long.replace('$', "512")));
    client.refused(&long.replace('$', "513"), "22023");
    client.refused(&format!("SELECT queue.enqueue('{q}', unique_key => 'k', on_duplicate => 'x')"), "22023");
}

#[test]
fn a_batch_has_the_effect_of_single_calls_in_order() {
    let (mut client, q) = queue("");
    let there = enqueue(&mut client, &q, "payload => '0', version => '2024-01-05'");
    let jobs = r#"[{"payload": 1}, {"payload": 2, "unique_key": "a"}, {"payload": 3, "unique_key": "a"},
        {"payload": 4, "unique_key": "b"}, {"payload": 5, "unique_key": "b", "on_duplicate": "replace", "priority": 5},
        {"payload": 6, "unique_key": "k", "on_duplicate": "replace"},
        {"payload": 7, "unique_key": "k", "on_duplicate": "rerun", "version": "2024-01-06"},
        {"payload": 8, "unique_key": "k", "on_duplicate": "rerun", "version": "2024-01-06"},
        {"payload": 9, "unique_key": "c", "unique_for": "1 hour"}]"#;
    let ids: Vec<i64> = client.column(&format!("SELECT queue.enqueue_batch('{q}', '{jobs}')"));
    assert_eq!((ids[1], ids[3]), (ids[2], ids[4]));
    assert_eq!(ids[5..8], [there; 3]);
    assert!(ids[0] < ids[1] && ids[1] < ids[3] && ids[3] < ids[8]);
    let mut all = live(&mut client, &q);
    all.sort();
    assert_eq!(all, ["ready 1 0", "ready 2 0", "ready 5 5", "ready 7 0", "ready 9 0"]);
    // The call refuses all elements or none.
    let failure = client.failure(&format!(
        r#"SELECT queue.enqueue_batch('{q}',
            '[{{"unique_key": "d"}}, {{"unique_key": "d", "on_duplicate": "error"}}]')"#
    ));
    assert_eq!((failure.code.as_str(), failure.detail.contains("same call")), ("23505", true));
    let failure = client.failure(&format!(r#"SELECT queue.enqueue_batch('{q}', '[{{"unique_key": 7}}]')"#));
    assert!(failure.message.starts_with("jobs[0]: field \"unique_key\" must be a string"), "{failure:?}");
    assert_eq!(live(&mut client, &q).len(), 5);
    // Many payloads under one key make one job.
    let (mut client, q) = queue("");
    let many = format!(
        "SELECT queue.enqueue_many('{q}', ARRAY['1', '2', '3']::jsonb[], unique_key => 'k', on_duplicate => 'replace')"
    );
    let ids: Vec<i64> = client.column(&many);
    assert_eq!(ids, [ids[0]; 3]);
    assert_eq!(live(&mut client, &q), ["ready 3 0"]);
    client.column::<i64>(&many.replace("'replace'", "'skip'"));
    assert_eq!(live(&mut client, &q), ["ready 3 0"]);
}

#[test]
fn an_ended_job_cannot_be_retried_while_another_has_its_key() {
    let (mut client, q) = queue("");
    let mut other = connect();
    let (job, _) = bring(&mut client, &mut other, &q, "dead");
    other.run("BEGIN");
    let next = enqueue(&mut other, &q, "payload => '2'");
    client.refused(&format!("SELECT queue.retry({job})"), "55006");
    let answer = format!("SELECT outcome FROM queue.retry_many(ARRAY[{job}])");
    assert_eq!(client.value::<String>(&answer), "busy");
    other.run("COMMIT");
    let failure = client.refused(&format!("SELECT queue.retry({job})"), "23505");
    assert!(failure.detail.contains(&next.to_string()), "{failure:?}");
    assert_eq!(client.value::<String>(&answer), "refused");
    client.run(&format!("SELECT queue.cancel({next})"));
    client.run(&format!("SELECT queue.retry({job})"));
    assert_eq!(live(&mut client, &q), ["ready 1 0"]);
    // The retried job has its key again.
    assert_eq!(enqueue(&mut client, &q, "payload => '3'"), job);
}
