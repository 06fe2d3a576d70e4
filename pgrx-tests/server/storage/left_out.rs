//! The storage duty leaves out jobs whose rows cannot be copied or moved, and goes on with the others.

use crate::shared::*;
use crate::storage::segments::{cluster, fillings};

/// A server with small segments and a queue whose jobs fill them.
fn with_filler() -> (Cluster, Client) {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    create(&mut client, "filler", "retention => '0'");
    (cluster, client)
}

/// Turns the ring of segments by this number of segments.
fn turn(client: &mut Client, turns: i64) {
    let end = fillings(client) + turns;
    wait::until_true("the ring turns", || {
        client.pass_through("filler", 500);
        fillings(client) >= end
    });
}

/// Waits until a job is in history.
fn wait_in_history(client: &mut Client, job: i64) {
    wait::until_true("the job is in history", || {
        client.pass_through("filler", 500);
        client.count(&format!("SELECT FROM queue_internal.history WHERE job_id = {job}")) > 0
    });
}

/// Enqueues, claims and completes a job with this payload and these steps.
fn done(client: &mut Client, payload: &str, steps: &str) -> i64 {
    let job: i64 = client.value(&format!("SELECT queue.enqueue('q', '{payload}')"));
    let id = client.claim("q");
    client.run(&format!("SELECT queue.step_done({id}, 'a', '{steps}'); SELECT queue.complete({id}, '\"fine\"')"));
    job
}

#[test]
fn what_history_cannot_take_of_a_job_is_left_out_and_the_others_are_copied() {
    let (cluster, mut client) = with_filler();
    let first = done(&mut client, "{}", "1");
    wait_in_history(&mut client, first);
    // A user's index rejects some values.
    let day: String =
        client.value(&format!("SELECT tableoid::regclass::text FROM queue_internal.history WHERE job_id = {first}"));
    client.run(&format!(
        "CREATE INDEX ON {day} (((payload ->> 'n')::integer)); CREATE INDEX ON {day} (((steps ->> 'a')::integer))"
    ));
    let before = done(&mut client, "{\"n\": 1}", "1");
    let document = done(&mut client, "{\"n\": \"x\"}", "1");
    let steps = done(&mut client, "{\"n\": 2}", "\"x\"");
    let behind = done(&mut client, "{\"n\": 3}", "1");
    // Rows are read from the segment until all of it is copied.
    turn(&mut client, 12);
    let mut row = |job: i64| -> String {
        client.value(&format!(
            "SELECT concat_ws(' ', state, payload, result,
                              (SELECT string_agg(s::text, ' ') FROM queue.job_steps({job}) AS s))
             FROM queue.job({job})"
        ))
    };
    assert_eq!(row(before), r#"completed {"n": 1} "fine" (a,1)"#);
    assert_eq!(row(behind), r#"completed {"n": 3} "fine" (a,1)"#);
    let why = r#"invalid input syntax for type integer: \"x\""#;
    assert_eq!(
        row(document),
        format!(
            r#"completed {{"left out": "{why}"}} ("left out","""{}""")"#,
            why.replace('"', r#""""#).replace('\\', r"\\")
        )
    );
    assert_eq!(
        row(steps),
        format!(r#"completed {{"n": 2}} "fine" ("left out","""{}""")"#, why.replace('"', r#""""#).replace('\\', r"\\"))
    );
    let log = cluster.log();
    assert!(log.contains(&format!("of job {document} goes to history without its contents")), "{log}");
    assert!(log.contains(&format!("of job {steps} goes to history without its steps")), "{log}");
    client.check();
}

#[test]
fn an_attempt_that_cannot_be_moved_is_left_and_the_others_move() {
    let (cluster, mut client) = with_filler();
    for segment in [8, 9] {
        client.run(&format!("CREATE INDEX ON queue_internal.attempt_{segment} (((payload ->> 'n')::integer))"));
    }
    let jobs: Vec<i64> = ["1", "\"x\"", "3"]
        .iter()
        .map(|n| client.value(&format!("SELECT queue.enqueue('q', '{{\"n\": {n}}}')")))
        .collect();
    let is_old = |client: &mut Client, job: i64| {
        [8, 9].iter().any(|segment| {
            client.count(&format!("SELECT FROM queue_internal.attempt_{segment} WHERE job_id = {job}")) > 0
        })
    };
    wait::until_true("the others have moved", || {
        client.pass_through("filler", 500);
        [0, 2].iter().all(|&n| is_old(&mut client, jobs[n]))
    });
    // The ring turns without that segment.
    turn(&mut client, 12);
    assert!(!is_old(&mut client, jobs[1]));
    assert!(cluster.log().contains("could not be moved to another segment"));
    assert_eq!(client.work_off("q", 10), 3);
    let states: Vec<String> = jobs.iter().map(|&job| client.state(job)).collect();
    assert_eq!(states, ["completed"; 3]);
}

#[test]
fn attempts_of_two_segments_that_cannot_be_moved_are_looked_at_once_a_minute() {
    let (cluster, mut client) = with_filler();
    for segment in [8, 9] {
        client.run(&format!("CREATE INDEX ON queue_internal.attempt_{segment} (((payload ->> 'n')::integer))"));
    }
    let attempts = [(); 2].map(|()| {
        let job: i64 = client.value("SELECT queue.enqueue('q', '{\"n\": \"x\"}')");
        turn(&mut client, 1);
        client.value::<i64>(&format!("SELECT id FROM queue.attempts WHERE job_id = {job}"))
    });
    let reports = |id: i64| cluster.log().matches(&format!("attempt {id} could not be moved")).count();
    wait::until_true("both are reported", || {
        client.pass_through("filler", 500);
        attempts.iter().all(|&id| reports(id) > 0)
    });
    turn(&mut client, 4);
    // On a slow machine a second minute may begin.
    let known = attempts.map(reports);
    assert!(known.iter().all(|&reports| reports <= 3), "{known:?}");
    assert_eq!(client.work_off("q", 10), 2);
}

#[test]
fn the_steps_of_a_job_have_a_bound_so_that_joining_them_never_fails() {
    let (cluster, mut client) = with_filler();
    client.run("CREATE ROLE worker LOGIN; SELECT queue.grant('q', 'worker', 'consume')");
    let giant = client.enqueue("q");
    let other = client.enqueue("q");
    let mut worker = cluster.connect_as("postgres", "worker");
    let ids: Vec<i64> = worker.column("SELECT id FROM queue.claim('q', 2) ORDER BY job_id");
    let step = |name: &str, bytes: usize| {
        format!("SELECT queue.step_done({}, '{name}', to_jsonb(repeat('x', {bytes})))", ids[0])
    };
    // Each step is small when compressed.
    worker.run(&step("a", 8_000_000));
    worker.run(&step("b", 8_000_000));
    let refusal = worker.refused(&step("c", 1_000_000), "22023");
    assert!(
        refusal.message.starts_with(&format!("the steps of job {giant} take too many bytes: 17000")),
        "{refusal:?}"
    );
    worker.refused(&step("c", 100_000_000), "22023");
    // This value is small when stored and long as text.
    let numbers = "(SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 60))";
    worker.refused(&format!("SELECT queue.step_done({}, 'c', {numbers})", ids[0]), "22023");
    // Two sessions share one limit.
    let mut second = cluster.connect_as("postgres", "worker");
    worker.run(&format!("BEGIN; {}", step("c", 500_000)));
    second.refused(&step("d", 500_000), "22023");
    worker.run("ROLLBACK");
    second.run(&step("d", 500_000));
    // The next attempt has the steps, and so has history. The time for many small steps is proportional to their size.
    worker.run(&format!("SELECT queue.release({})", ids[0]));
    worker.run(&format!("SELECT queue.complete({})", ids[1]));
    let again: i64 = worker.value("SELECT id FROM queue.claim('q')");
    worker.refused(&format!("SELECT queue.step_done({again}, 'e', to_jsonb(repeat('x', 500000)))"), "22023");
    worker.run(&format!("SELECT queue.complete({again})"));
    wait_in_history(&mut client, giant);
    wait_in_history(&mut client, other);
    let found = client.column::<String>(&format!("SELECT name FROM queue.job_steps({giant}) ORDER BY name"));
    assert_eq!(found, ["a", "b", "d"]);
    let many = client.enqueue("q");
    let id = client.claim("q");
    client.run(&format!(
        "DO $$ BEGIN FOR n IN 1..3000 LOOP
             PERFORM queue.step_done({id}, 's' || n, to_jsonb(repeat('x', 3000)));
         END LOOP; END $$"
    ));
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(client.count(&format!("SELECT FROM queue.job_steps({many})")), 3000);
    assert!(!cluster.log().contains("duty \"storage\" failed"));
}
