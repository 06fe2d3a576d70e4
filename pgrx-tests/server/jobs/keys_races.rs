//! Unique keys with many sessions: which session waits for which, when a key is free again, and that each requested run
//! happens once.

use std::collections::HashMap;
use std::sync::mpsc;

use crate::shared::*;

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// Runs a statement in a new session and thread. Returns the process and a receiver for the answer.
pub fn later(sql: String) -> (i32, mpsc::Receiver<Result<i64, String>>) {
    let mut client = connect();
    let pid = client.pid();
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let _ = send.send(client.query_one(&sql, &[]).map(|row| row.get(0)).map_err(|e| Failure::from(&e).code));
    });
    (pid, receive)
}

pub fn wait_until_it_waits(client: &mut Client, pid: i32) {
    let sql = format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND locktype = 'transactionid' AND NOT granted");
    wait::until_true("it waits for a transaction", || client.value::<i64>(&sql) == 1);
}

pub fn enqueue(q: &str, key: &str, on_duplicate: &str) -> String {
    format!("SELECT queue.enqueue('{q}', unique_key => '{key}', on_duplicate => '{on_duplicate}')")
}

pub fn jobs(client: &mut Client, q: &str) -> i64 {
    client.value(&format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{q}'"))
}

#[test]
fn many_producers_of_few_keys_make_one_job_of_each() {
    for level in LEVELS {
        let (mut client, q) = queue("");
        let producers: Vec<_> = (0..8)
            .map(|n| {
                let (q, level) = (q.clone(), level.to_lowercase());
                thread::spawn(move || {
                    let mut client = connect();
                    client.run(&format!("SET default_transaction_isolation = '{level}'"));
                    for round in 0..40 {
                        let key = (round + n) % 20;
                        let on_duplicate = ["skip", "replace", "rerun"][(round + n) % 3];
                        client.run(&enqueue(&q, &key.to_string(), on_duplicate));
                    }
                })
            })
            .collect();
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        let keys: Vec<String> =
            client.column(&format!("SELECT unique_key FROM queue.claim('{q}', 100) ORDER BY unique_key::int"));
        assert_eq!(keys, (0..20).map(|n| n.to_string()).collect::<Vec<_>>(), "{level}");
    }
}

#[test]
fn producers_of_other_keys_do_not_wait() {
    let (database, mut client) = Database::new().with_queue("q", "");
    let (mut other, q) = (database.connect(), "q");
    client.run(&format!("BEGIN; {}", enqueue(q, "mine", "skip")));
    client.run(&format!(
        "SELECT queue.enqueue_batch('{q}', (SELECT jsonb_agg(jsonb_build_object('unique_key', 'm' || n)) \
            FROM generate_series(1, 100000) AS n))"
    ));
    other.run("SET lock_timeout = '20 s'");
    other.run(&format!("SELECT queue.enqueue('{q}', unique_key => 'o' || n) FROM generate_series(1, 1000) AS n"));
    assert_eq!(jobs(&mut other, q), 1000);
    // Only sessions with the same keys wait.
    other.run("SET lock_timeout = '100ms'");
    for key in ["mine", "m1", "m99999"] {
        other.refused(&enqueue(q, key, "skip"), "55P03");
    }
    client.run("COMMIT");
    other.run(&enqueue(q, "m1", "skip"));
    assert_eq!(jobs(&mut other, q), 101_001);
    // This time all jobs exist.
    other.run(&format!(
        "SELECT queue.enqueue_batch('{q}', (SELECT jsonb_agg(jsonb_build_object('unique_key', 'm' || n)) \
            FROM generate_series(1, 100000) AS n))"
    ));
    assert_eq!(jobs(&mut other, q), 101_001);
}

#[test]
fn bulk_calls_over_the_same_keys_do_not_deadlock() {
    let (database, mut client) = Database::new().with_queue("q", "");
    let producers: Vec<_> = (0..4)
        .map(|n| {
            let mut client = database.connect();
            thread::spawn(move || {
                let order = if n % 2 == 0 { "ASC" } else { "DESC" };
                for _ in 0..5 {
                    client.run(&format!(
                        "SELECT queue.enqueue_batch('q', (SELECT jsonb_agg(jsonb_build_object('unique_key', n::text,
                            'on_duplicate', 'replace') ORDER BY n {order})
                         FROM generate_series(1, 300) AS n))"
                    ));
                }
            })
        })
        .collect();
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    assert_eq!(client.count("SELECT FROM queue.claim('q', 1000)"), 300);
}

#[test]
fn a_deadlock_of_single_calls_is_found() {
    let (mut client, q) = queue("");
    client.run("SET deadlock_timeout = '100ms'");
    let mut other = connect();
    other.run(&format!("SET deadlock_timeout = '1h'; BEGIN; {}", enqueue(&q, "b", "skip")));
    client.run(&format!("BEGIN; {}", enqueue(&q, "a", "skip")));
    let pid = other.pid();
    let statement = enqueue(&q, "a", "skip");
    let waiting = thread::spawn(move || {
        other.run(&statement);
        other.run("COMMIT");
    });
    let mut third = connect();
    wait_until_it_waits(&mut third, pid);
    client.refused(&enqueue(&q, "b", "skip"), "40P01");
    client.run("ROLLBACK");
    waiting.join().unwrap();
    assert_eq!(jobs(&mut client, &q), 2);
}

#[test]
fn a_rolled_back_savepoint_lets_go_of_its_keys() {
    let (mut client, q) = queue("");
    let mut other = connect();
    other.run("SET lock_timeout = '1 s'");
    client.run(&format!("BEGIN; {}; SAVEPOINT s; {}; SAVEPOINT t", enqueue(&q, "a", "skip"), enqueue(&q, "b", "skip")));
    client.run(&format!("{}; RELEASE t; ROLLBACK TO s", enqueue(&q, "c", "skip")));
    client.run(&format!("SAVEPOINT u; {}; {}; RELEASE u", enqueue(&q, "d", "skip"), enqueue(&q, "a", "replace")));
    for (key, is_held) in [("a", true), ("b", false), ("c", false), ("d", true)] {
        if is_held {
            other.refused(&enqueue(&q, key, "skip"), "55P03");
        } else {
            other.run(&enqueue(&q, key, "skip"));
        }
    }
    client.run("COMMIT");
    assert_eq!(jobs(&mut client, &q), 4);
    // A session waits for the key of a savepoint. When the savepoint is rolled back, the session continues, although
    // the transaction stays open.
    client.run(&format!("BEGIN; SAVEPOINT s; {}", enqueue(&q, "e", "skip")));
    let (pid, answer) = later(enqueue(&q, "e", "error"));
    wait_until_it_waits(&mut other, pid);
    client.run("ROLLBACK TO s");
    assert!(answer.recv_timeout(Duration::from_secs(20)).unwrap().is_ok());
    client.run("ROLLBACK");
}

#[test]
fn neither_a_finisher_nor_the_background_worker_waits_for_a_producer() {
    let database = Database::without_worker();
    let (mut client, mut producer, mut other) = (database.connect(), database.connect(), database.connect());
    create(&mut client, "q", "");
    let job: i64 = client.value(&enqueue("q", "k", "skip"));
    let id = client.claim("q");
    // An idle transaction that has requested another run does not block the end of the attempt.
    producer.run(&format!("BEGIN; {}", enqueue("q", "k", "rerun")));
    client.run(&format!("SET lock_timeout = '20 s'; SELECT queue.complete({id})"));
    other.run("SET lock_timeout = '20 s'; SELECT FROM queue.maintain()");
    assert_eq!(client.state(job), "completed");
    producer.run("COMMIT");
    other.run("SELECT FROM queue.maintain()");
    assert_eq!(client.state(job), "ready");
    let id = client.claim("q");
    // The request for another run comes after the end has begun. Then a producer takes the key before the worker serves
    // the request.
    client.run(&format!("BEGIN; SELECT queue.complete({id})"));
    other.run(&enqueue("q", "k", "rerun"));
    client.run("COMMIT");
    producer.run("BEGIN; SELECT queue.enqueue('q', '3', unique_key => 'k', on_duplicate => 'replace')");
    other.run("SELECT FROM queue.maintain()");
    assert_eq!(client.state(job), "completed");
    // The producer's contents are newer.
    producer.run("COMMIT");
    other.maintain_until(&format!("(SELECT state = 'ready' FROM queue.job({job}))"));
    other.run("SELECT FROM queue.maintain()");
    assert_eq!(client.column::<String>("SELECT payload::text FROM queue.claim('q', 10)"), ["3"]);
}

#[test]
fn a_waiting_job_that_another_transaction_changes_is_replaced_once_that_ends() {
    for change in ["reprioritize(#, 5)", "cancel(#)", "reschedule(#, 'tomorrow')", "purge('q')", "retry(#)"] {
        for end in ["COMMIT", "ROLLBACK"] {
            let database = Database::without_worker();
            let (mut client, mut producer) = (database.connect(), database.connect());
            create(&mut client, "q", "");
            let job: i64 = client.value(&enqueue("q", "k", "skip"));
            client.run(&format!("BEGIN; SELECT queue.{}", change.replace('#', &job.to_string())));
            producer.run("SET lock_timeout = '20 s'");
            let renewed: i64 =
                producer.value("SELECT queue.enqueue('q', '2', unique_key => 'k', on_duplicate => 'replace')");
            assert_eq!(renewed, job);
            client.run("SELECT FROM queue.maintain()");
            producer.run("SELECT FROM queue.maintain()");
            client.run(end);
            client.maintain_until(&format!("(SELECT state = 'ready' AND payload = '2' FROM queue.job({job}))"));
            let found = client.column::<String>("SELECT payload::text FROM queue.claim('q', 10)");
            assert_eq!(found, ["2"], "{change} {end}");
        }
    }
}

#[test]
fn a_newer_payload_is_not_replaced_by_a_late_request() {
    let database = Database::without_worker();
    let (mut client, mut producer) = (database.connect(), database.connect());
    create(&mut client, "q", "backoff_base => '0'");
    let job: i64 = client.value(&enqueue("q", "k", "skip"));
    let id = client.claim("q");
    client.run(&format!("BEGIN; SELECT queue.fail({id}, 'boom')"));
    producer.run("SELECT queue.enqueue('q', '2', unique_key => 'k', on_duplicate => 'rerun')");
    client.run("COMMIT");
    // The job waits with the old payload. The request for another run is not served yet.
    assert_eq!(client.state(job), "ready");
    producer.run("SELECT queue.enqueue('q', '3', unique_key => 'k', on_duplicate => 'replace')");
    for _ in 0..3 {
        client.run("SELECT FROM queue.maintain()");
    }
    let id = client.claim("q");
    assert_eq!(client.value::<String>(&format!("SELECT payload::text FROM queue.job({job})")), "3");
    client.run(&format!("SELECT queue.complete({id}); SELECT FROM queue.maintain()"));
    assert_eq!(client.state(job), "completed");
}

#[test]
fn a_full_table_of_keys_raises_an_error_and_empties_again() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.max_keys = 8", "max_prepared_transactions = 2"]).start_with_extension();
    client.run("SELECT queue.create('q')");
    let many = "SELECT count(queue.enqueue('q', unique_key => 'k' || n)) FROM generate_series(1, $) AS n";
    let failure = client.refused(&many.replace('$', "9"), "53400");
    assert!(failure.hint.contains("pg_queue.max_keys"), "{failure:?}");
    client.run(&many.replace('$', "8"));
    // Prepared transactions free their entries when they end.
    client.run(&format!("BEGIN; {}; PREPARE TRANSACTION 'p'", many.replace('$', "8").replace("'k'", "'p'")));
    client.refused(&enqueue("q", "x", "skip"), "53400");
    client.run("ROLLBACK PREPARED 'p'");
    client.run(&format!("BEGIN; {}", many.replace('$', "8").replace("'k'", "'r'")));
    let mut other = cluster.connect();
    other.refused(&enqueue("q", "x", "skip"), "53400");
    // An enqueue without a key needs no entry.
    other.run("SELECT queue.enqueue('q')");
    client.run("COMMIT");
    other.run(&enqueue("q", "x", "skip"));
}

#[test]
fn requested_runs_survive_a_crash() {
    let (cluster, mut client) = Cluster::new().conf("pg_queue.worker = off").start_with_extension();
    client.run("SELECT queue.create('q')");
    let mut other = cluster.connect();
    let rerun =
        |key: &str| format!("SELECT queue.enqueue('q', '\"again\"', unique_key => '{key}', on_duplicate => 'rerun')");
    // Makes three requests for another run: one that comes too late, one during the run, and one while the claim is
    // open. The crash rolls that claim back.
    let late: i64 = client.value(&enqueue("q", "late", "skip"));
    let id = client.claim("q");
    client.run(&format!("BEGIN; SELECT queue.complete({id})"));
    other.run(&rerun("late"));
    client.run("COMMIT");
    let running: i64 = client.value(&enqueue("q", "running", "skip"));
    let running_id = client.claim("q");
    other.run(&rerun("running"));
    let open: i64 = client.value(&enqueue("q", "open", "skip"));
    client.run("BEGIN");
    client.claim("q");
    other.run(&rerun("open"));
    assert_eq!(other.state(late), "completed");
    cluster.restart_killed();
    let mut client = cluster.connect();
    assert_eq!(client.state(open), "ready");
    assert_eq!(client.state(late), "completed");
    client.maintain_until(&format!("(SELECT state = 'ready' FROM queue.job({late}))"));
    client.run(&format!("SELECT queue.complete({running_id})"));
    for _ in 0..3 {
        client.run("SELECT FROM queue.maintain()");
    }
    let mut claimed: Vec<(i64, String)> = client.rows("SELECT job_id, payload::text FROM queue.claim('q', 10)");
    claimed.sort();
    assert_eq!(claimed, [late, running, open].map(|job| (job, "\"again\"".to_owned())));
    client.run("SELECT queue.complete_many(array_agg(id)) FROM queue.attempts WHERE state = 'running'");
    client.run("SELECT FROM queue.maintain()");
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 0);
}

/// Does duties until the ring has turned this many times, so that every row has moved.
fn turn(client: &mut Client, times: usize) {
    for _ in 0..times {
        client.pass_through("filler", 1000);
        for _ in 0..40 {
            client.run("SELECT FROM queue.maintain()");
        }
    }
}

#[test]
fn keys_and_requested_runs_survive_turns_of_the_ring() {
    let cluster =
        Cluster::with(&["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0", "pg_queue.worker = off"]).start();
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION pg_queue; SELECT queue.create('q'), queue.create('filler', retention => '0')");
    let asks = |client: &mut Client, key: &str| -> i64 {
        client.value(&format!("SELECT queue.enqueue('q', '\"again\"', unique_key => '{key}', on_duplicate => 'rerun')"))
    };
    let make = |client: &mut Client, key: &str| -> i64 { client.value(&enqueue("q", key, "skip")) };
    let (running, waiting) = (make(&mut client, "running"), make(&mut client, "waiting"));
    let id = client.claim("q");
    for _ in 0..3 {
        assert_eq!(asks(&mut client, "running"), running);
    }
    // A note of this job belongs to an open transaction.
    let open = make(&mut client, "open");
    client.run(&format!("SELECT queue.reprioritize({open}, -1)"));
    let open_id = client.claim("q");
    let mut producer = cluster.connect();
    producer.run("BEGIN");
    assert_eq!(asks(&mut producer, "open"), open);
    client.run(&format!("SELECT queue.complete({open_id})"));
    turn(&mut client, 12);
    let mut count_in =
        |n: &i32| client.value::<i64>(&format!("SELECT count(*) FROM queue_internal.claim_{n} WHERE id = {id}"));
    let lies_in: Vec<i32> = (0..10).filter(|n| count_in(n) == 1).collect();
    assert!(lies_in.iter().any(|&n| n >= 8), "the running attempt has moved: {lies_in:?}");
    assert_eq!(make(&mut client, "waiting"), waiting);
    assert_eq!(make(&mut client, "running"), running);
    assert_eq!(client.state(open), "completed");
    producer.run("COMMIT");
    client.maintain_until(&format!("(SELECT state = 'ready' FROM queue.job({open}))"));
    client.run(&format!("SELECT queue.complete({id})"));
    turn(&mut client, 4);
    let payloads = client.rows("SELECT job_id, payload::text FROM queue.claim('q', 10)");
    let payloads: HashMap<i64, String> = payloads.into_iter().collect();
    let again = "\"again\"".to_owned();
    assert_eq!(payloads, HashMap::from([(open, again.clone()), (running, again), (waiting, "{}".to_owned())]));
    // The attempt that served a note may be deleted before the attempt with the note. The note still counts as served.
    client.run(
        "SELECT queue.complete_many(ARRAY(SELECT id FROM queue.attempts WHERE queue_name = 'q' AND state = 'running'))",
    );
    turn(&mut client, 10);
    for (key, before) in [("running", running), ("open", open), ("waiting", waiting)] {
        let sql = format!("SELECT queue.enqueue('q', '\"new\"', unique_key => '{key}', on_duplicate => 'replace')");
        assert_ne!(client.value::<i64>(&sql), before, "{key}");
    }
    client.run("SELECT FROM queue.maintain()");
    let payloads: Vec<String> = client.column("SELECT payload::text FROM queue.claim('q', 10)");
    assert_eq!(payloads, ["\"new\""; 3]);
}

#[test]
fn the_memory_of_keys_is_turned_and_keeps_what_counts() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.reclaim_delay = 0", "pg_queue.worker = off"]).start_with_extension();
    client.run("SELECT queue.create('q'), queue.create('gone')");
    client.run(
        "SELECT queue.enqueue('gone', unique_key => 'g', version => now()); SELECT queue.drop('gone', force => true)",
    );
    let kept: i64 = client.value("SELECT queue.enqueue('q', unique_key => 'kept', unique_for => '1 day')");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    let versioned: i64 = client.value("SELECT queue.enqueue('q', unique_key => 'v', version => '2024-01-05')");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    // A reader holds back the xmin horizon all the time.
    let mut reader = cluster.connect();
    reader.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class");
    let size = |client: &mut Client| -> i64 {
        client.value("SELECT pg_relation_size('queue_internal.key_0') + pg_relation_size('queue_internal.key_1')")
    };
    let mut largest = 0;
    for round in 0..12 {
        // Many keys are used once and soon forgotten. One key is used again and again.
        client.run(&format!(
            "SELECT queue.enqueue_batch('q', (SELECT jsonb_agg(jsonb_build_object('unique_key',
                'r{round} ' || n % 15000,
             'unique_for', '1 ms', 'on_duplicate', 'replace', 'payload', n)) FROM generate_series(1, 30000) AS n))"
        ));
        client.run("SELECT queue.purge('q')");
        largest = largest.max(size(&mut client));
        client.maintain_until("true");
        for _ in 0..20 {
            client.run("SELECT FROM queue.maintain()");
        }
    }
    wait::until_true("a half was emptied", || {
        client.run("SELECT FROM queue.maintain()");
        size(&mut client) < largest
    });
    assert!(largest < 40 << 20, "{largest} bytes");
    let dead: i64 = client.value(
        "SELECT coalesce(sum(n_dead_tup), 0)::int8 FROM pg_stat_user_tables WHERE relname IN ('key_0', 'key_1')",
    );
    assert_eq!(dead, 0);
    assert_eq!(client.value::<i64>("SELECT queue.enqueue('q', unique_key => 'kept')"), kept);
    assert_eq!(client.value::<i64>("SELECT queue.enqueue('q', unique_key => 'v', version => '2024-01-04')"), versioned);
    assert_ne!(client.value::<i64>("SELECT queue.enqueue('q', unique_key => 'v', version => '2024-01-06')"), versioned);
    let rest: i64 = client.value(
        "SELECT count(*) FROM (TABLE queue_internal.key_0 UNION ALL TABLE queue_internal.key_1) AS k
            WHERE unique_key = 'g'",
    );
    assert_eq!(rest, 0);
}

#[test]
fn a_dump_remembers_keys() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    let job: i64 = client.value("SELECT queue.enqueue('q', unique_key => 'k', unique_for => '1 day')");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    let config: Vec<String> = client.column(
        "SELECT relname::text FROM pg_extension, unnest(extconfig) AS oid JOIN pg_class USING (oid)
         WHERE extname = 'pg_queue' AND relname LIKE 'key%' ORDER BY 1",
    );
    assert_eq!(config, ["key_0", "key_1"]);
    // After a write by SQL, keys are read from the logs.
    client.run("UPDATE queue_internal.key_0 SET job_id = job_id");
    client.refused("SELECT queue.enqueue('q')", "55000");
    client.run("SELECT queue.adopt()");
    assert_eq!(client.value::<i64>("SELECT queue.enqueue('q', unique_key => 'k')"), job);
    let _ = server();
}

#[test]
fn a_queue_that_is_being_dropped_does_not_delay_reruns_of_other_queues() {
    let database = Database::new();
    let (mut client, mut other, mut dropper) = (database.connect(), database.connect(), database.connect());
    client.run("SELECT queue.create('first'); SELECT queue.create('second')");
    // Both requests for another run come too late. The worker would serve the first queue's request first.
    let jobs: Vec<i64> = ["first", "second"].map(|q| client.value(&enqueue(q, "k", "skip"))).into();
    let ids: Vec<i64> = ["first", "second"].map(|q| client.claim(q)).into();
    client.run(&format!("BEGIN; SELECT count(*) FROM queue.complete_many('{{{}, {}}}')", ids[0], ids[1]));
    for q in ["first", "second"] {
        other.run(&enqueue(q, "k", "rerun"));
    }
    dropper.run("BEGIN; SELECT queue.drop('first', force => true)");
    client.run("COMMIT");
    wait::until_true("the other's job runs again", || client.state(jobs[1]) == "ready");
    dropper.run("ROLLBACK");
    wait::until_true("and then this one's", || client.state(jobs[0]) == "ready");
}
