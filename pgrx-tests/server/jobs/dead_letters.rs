//! A job that dies is copied to its queue's `dead_letter` by the transaction in which it dies.

use crate::shared::*;

/// Returns `expression` for the newest job of a queue.
fn newest(q: &str, expression: &str) -> String {
    format!("SELECT ({expression})::text FROM queue.jobs WHERE queue_name = '{q}' ORDER BY job_id DESC LIMIT 1")
}

#[test]
fn a_dead_letter_has_the_error_of_the_dead_job() {
    let (mut client, dead) = queue("");
    let (_, q) = queue(&format!(
        "dead_letter => '{dead}', stages => '{{a, b}}', max_attempts => 2, backoff_base => '0', lease => '1 hour'"
    ));
    let large = "x".repeat(5000);
    let job: i64 = client.value(&format!(
        "SELECT queue.enqueue('{q}', jsonb_build_object('n', '{large}'), 7,
            headers => '{{\"trace\": \"t\", \"dead_letter\": 1}}',
             group_key => 'g', max_attempts => 2, lease => '1 min')"
    ));
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.advance({id})"));
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.fail({id}, 'once')"));
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{dead}')")), 0, "it is not dead yet");
    let id = client.claim(&q);
    // The worker's transaction commits the copy or rolls it back.
    client.run(&format!("BEGIN; SELECT queue.fail({id}, 'the \"last\" time'); ROLLBACK"));
    assert_eq!(client.count(&format!("SELECT FROM queue.jobs WHERE queue_name = '{dead}'")), 0);
    client.run(&format!("SELECT queue.fail({id}, 'the \"last\" time')"));
    assert_eq!(client.state(job), "dead");
    let row = client
        .query_one(
            &format!(
                "SELECT job_id, attempt, max_attempts, priority, group_key, length(payload ->> 'n'), stage, last_error,
                     headers ->> 'trace', headers -> 'dead_letter' ->> 'queue',
                     (headers -> 'dead_letter' ->> 'job_id')::bigint,
                     headers -> 'dead_letter' ->> 'stage', (headers -> 'dead_letter' ->> 'attempt')::int,
                     headers -> 'dead_letter' ->> 'error',
                     now() - (headers -> 'dead_letter' ->> 'died_at')::timestamptz < '1 minute',
                     lease_expires_at > now() + interval '4 minutes'
                 FROM queue.claim('{dead}')"
            ),
            &[],
        )
        .unwrap();
    assert_ne!(row.get::<_, i64>(0), job);
    assert_eq!((row.get(1), row.get(2), row.get(3)), (1, 20, 7));
    assert_eq!((row.get(4), row.get(5)), ("g", 5000));
    assert_eq!((row.get(6), row.get(7)), (None::<&str>, None::<&str>));
    assert_eq!((row.get(8), row.get(9), row.get(10)), ("t", q.as_str(), job));
    assert_eq!((row.get(11), row.get(12), row.get(13)), ("b", 2, "the \"last\" time"));
    assert_eq!((row.get(14), row.get(15)), (true, true));
}

#[test]
fn every_death_is_copied_and_no_other_end_is() {
    let (mut client, dead) = queue("max_waiting => 1");
    let (_, q) = queue(&format!("dead_letter => '{dead}', max_attempts => 1, lease => '1 hour'"));
    let errors = format!(
        "SELECT array_to_string(ARRAY(SELECT headers -> 'dead_letter' ->> 'error' FROM queue.jobs \
            WHERE queue_name = '{dead}' ORDER BY job_id), ', ')"
    );
    for _ in 0..8 {
        client.enqueue(&q);
    }
    let ids: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('{q}', 4)"));
    client.run(&format!("SELECT queue.complete({}), queue.release({})", ids[0], ids[1]));
    let cancelled: i64 = client.value(&format!("SELECT job_id FROM queue.attempts WHERE id = {}", ids[2]));
    client.run(&format!("SELECT queue.cancel({cancelled}); SELECT queue.fail({}, 'cancelled')", ids[2]));
    let forced: i64 = client.value(&format!("SELECT job_id FROM queue.attempts WHERE id = {}", ids[3]));
    client.run(&format!("SELECT queue.cancel({forced}, force => true)"));
    assert_eq!(client.value::<String>(&errors), "");

    let ids: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('{q}', 3)"));
    // The dead-letter queue is full after the first copy. The jobs die nevertheless.
    client.run(&format!(
        "SELECT queue.fail({}, 'used up', '1 day'), queue.fail({}, 'fatal', fatal => true)",
        ids[0], ids[1]
    ));
    client.run(&format!("SELECT queue.fail_many(ARRAY[{}], 'many')", ids[2]));
    assert_eq!(client.value::<String>(&errors), "used up, fatal, many");
    let mut bound = connect();
    assert_eq!(bound.count(&format!("SELECT FROM queue.claim('{q}', disconnect => '0')")), 1);
    drop(bound);
    wait::until_true("the connection's end kills", || {
        client.value::<String>(&errors).ends_with(", the connection of the worker ended")
    });
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', lease => '1 ms')")), 1);
    wait::until_true("the lease's end kills", || client.value::<String>(&errors).ends_with(", the lease expired"));
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{dead}', 10)")), 5);
}

#[test]
fn workers_that_wait_on_the_dead_letter_queue_are_woken() {
    let (mut client, dead) = queue("stages => '{look, bury}'");
    let (_, q) = queue(&format!("dead_letter => '{dead}'"));
    let (_, chain) = queue(&format!("dead_letter => '{q}'"));
    let sql = format!("SELECT stage FROM queue.claim('{dead}', wait => '10 s')");
    let waiting = asleep::<String>(&mut client, connect(), sql);
    client.run(&format!("SELECT queue.enqueue('{chain}')"));
    let id = client.claim(&chain);
    client.run(&format!("SELECT queue.fail({id}, 'first', fatal => true)"));
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.fail({id}, 'second', fatal => true)"));
    assert_eq!(waiting.join().unwrap(), ["look"]);
    let from = newest(&dead, "ROW(headers #>> '{dead_letter, queue}', headers #>> '{dead_letter, error}')");
    assert_eq!(client.value::<String>(&from), format!("({q},second)"));
}

#[test]
fn dead_letter_must_name_another_existing_queue() {
    let (mut client, dead) = queue("");
    let (_, q) = queue("");
    for (sql, code) in [
        (format!("alter('{q}', dead_letter => 'nowhere')"), "42704"),
        ("create('other', dead_letter => 'nowhere')".into(), "42704"),
        (format!("alter('{q}', dead_letter => '{q}')"), "22023"),
        ("create('other', dead_letter => 'other')".into(), "22023"),
    ] {
        client.refused(&format!("SELECT queue.{sql}"), code);
    }
    client.run(&format!("SELECT queue.alter('{q}', dead_letter => '{dead}')"));
    let die = format!("SELECT queue.fail(id, 'no', fatal => true) FROM queue.claim('{q}')");
    let copies = format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{dead}'");
    client.enqueue(&q);
    client.run(&die);
    assert_eq!(client.value::<i64>(&copies), 1);
    client.run(&format!("SELECT queue.alter('{q}', reset => '{{dead_letter}}')"));
    client.enqueue(&q);
    client.run(&die);
    assert_eq!(client.value::<i64>(&copies), 1);
}

#[test]
fn without_the_other_queue_a_job_dies_with_a_warning() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    client.run("SELECT queue.create('dead'); SELECT queue.create('q', dead_letter => 'dead', max_attempts => 1)");
    for _ in 0..4 {
        client.enqueue("q");
    }
    // While the dead-letter queue is being dropped, jobs still die: by a worker's `fail` and by an expired lease.
    let mut dropper = cluster.connect_to("app");
    let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 2)");
    dropper.run("BEGIN; SELECT queue.drop('dead', force => true)");
    assert_eq!(client.count("SELECT FROM queue.claim('q', lease => '1 ms')"), 1);
    client.run(&format!("SELECT queue.fail({}, 'no')", ids[0]));
    // Other sessions do not wait for the drop.
    client.run("SELECT queue.create('busy')");
    client.enqueue("busy");
    assert_eq!(client.count("SELECT FROM queue.claim('busy', lease => '1 ms')"), 1);
    wait::until_true("another queue's lease ends", || {
        client.count("SELECT FROM queue.claim('busy', lease => '1 hour')") == 1
    });
    wait::until_true("the job whose lease has ended is dead", || {
        client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'dead'") == 2
    });
    dropper.run("COMMIT");
    client.enqueue("q");
    client.run("SELECT queue.fail(id, 'no') FROM queue.claim('q')");
    client.run("SELECT queue.create('dead')");
    client.run(&format!("SELECT queue.fail({}, 'no')", ids[1]));
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE queue_name = 'dead'"), 1);
    let log = cluster.log();
    let warnings = log.lines().filter(|line| line.contains("WARNING") && line.contains("the copy of dead job")).count();
    assert_eq!(warnings, 3, "one each: {log}");
    for why in ["queue \"dead\" is being dropped", "queue \"dead\" does not exist"] {
        assert!(log.contains(why), "{why}: {log}");
    }
    let told: String = client.value("SELECT detail FROM queue.doctor() WHERE name = 'copies' AND NOT ok");
    assert!(told.contains("3 jobs of queue \"q\" have died without a copy in \"dead\""), "{told}");
}

#[test]
fn dead_jobs_are_retried_by_their_errors_independently_of_the_copies() {
    let database = Database::new();
    let mut client = database.connect();
    client.run("SELECT queue.create('dead', max_attempts => 1)");
    client.run("SELECT queue.create('q', dead_letter => 'dead', max_attempts => 1, stages => '{a, b}')");
    for error in ["disk full", "disk gone", "no route", "disk full"] {
        client.enqueue("q");
        client.run("SELECT queue.advance(id) FROM queue.claim('q')");
        client.run(&format!("SELECT queue.fail(id, '{error}') FROM queue.claim('q')"));
    }
    let retried = |queue: &str, error: &str, max_jobs: u32| {
        format!(
            "SELECT count(*) FROM queue.retry_many(ARRAY(
                 SELECT job_id FROM queue.search('{queue}', '$.error starts with \"{error}\"', '{{dead}}',
                 max_jobs => {max_jobs})))
             WHERE outcome = 'retried'"
        )
    };
    assert_eq!(client.value::<i64>(&retried("q", "disk ", 2)), 2);
    assert_eq!(client.value::<i64>(&retried("q", "disk ", 1000)), 1);
    assert_eq!(client.column::<String>("SELECT stage FROM queue.claim('q', 10)"), ["b", "b", "b"]);
    let found = client.column::<String>("SELECT error FROM queue.jobs WHERE queue_name = 'q' AND state = 'dead'");
    assert_eq!(found, ["no route"]);
    // The copies are independent jobs.
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats WHERE queue_name = 'dead'"), 4);
    client.run("SELECT queue.fail(id, 'still ' || (headers #>> '{dead_letter, error}')) FROM queue.claim('dead', 10)");
    assert_eq!(client.value::<i64>(&retried("dead", "still disk", 1000)), 3);
}

#[test]
fn dead_jobs_whose_key_is_taken_do_not_keep_others_from_a_retry() {
    let (mut client, q) = queue("max_attempts => 1");
    for n in 0..150 {
        client.run(&format!("SELECT queue.enqueue('{q}', unique_key => 'k{n}')"));
        client.run(&format!("SELECT queue.fail(id, 'no') FROM queue.claim('{q}')"));
        client.run(&format!("SELECT queue.enqueue('{q}', unique_key => 'k{n}', delay => '1 hour')"));
    }
    let free = client.enqueue(&q);
    client.run(&format!("SELECT queue.fail(id, 'no') FROM queue.claim('{q}')"));
    assert_eq!(client.state(free), "dead");
    let answers = format!(
        "SELECT concat_ws(' ', outcome, count(*), min(reason) LIKE '%key%') FROM queue.retry_many(ARRAY(
             SELECT job_id FROM queue.jobs WHERE queue_name = '{q}' AND state = 'dead')) GROUP BY outcome
             ORDER BY outcome"
    );
    assert_eq!(client.column::<String>(&answers), ["refused 150 t", "retried 1"]);
    assert_eq!(client.state(free), "ready");
    assert_eq!(client.column::<String>(&answers), ["refused 150 t"]);
}

#[test]
fn dead_letter_queues_never_form_a_cycle() {
    let (mut client, c) = queue("");
    let (_, b) = queue(&format!("dead_letter => '{c}'"));
    let (_, a) = queue(&format!("dead_letter => '{b}'"));
    let close = format!("SELECT queue.alter('{c}', dead_letter => '{a}')");
    let failure = client.refused(&close, "22023");
    assert!(failure.detail.contains(&format!("\"{c}\" to \"{a}\" to \"{b}\" to \"{c}\"")), "{failure:?}");
    // A dead-letter queue that is dropped and created again is used again.
    client.run(&format!("SELECT queue.drop('{c}')"));
    let again = format!("SELECT queue.create('{c}', dead_letter => '{a}')");
    client.refused(&again, "22023");
    client.refused(&again.replace("')", "', if_not_exists => true)"), "22023");
    client.run(&format!("SELECT queue.create('{c}')"));
    client.refused(&format!("BEGIN; {close}"), "22023");
    client.run("ROLLBACK");
    // After a part of the cycle is removed, another part can be added, even in the same transaction.
    client.run(&format!("BEGIN; SELECT queue.alter('{a}', reset => '{{dead_letter}}'); {close}; COMMIT"));
    client.refused(&format!("SELECT queue.alter('{a}', dead_letter => '{b}')"), "22023");
}

#[test]
fn two_transactions_cannot_close_a_cycle_of_dead_letter_queues() {
    for level in ["READ COMMITTED", "REPEATABLE READ"] {
        let (mut first, a) = queue("");
        let (mut second, b) = queue("");
        second.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT FROM queue.queues"));
        first.run(&format!("BEGIN; SELECT queue.alter('{a}', dead_letter => '{b}')"));
        let sql = format!("SELECT queue.alter('{b}', dead_letter => '{a}')");
        let later = blocked::<i64>(&mut connect(), second, sql);
        first.run("COMMIT");
        assert_eq!(later.join().unwrap().unwrap_err().code, "22023", "{level}");
    }
}
