//! Writes to the tables by SQL make the database dormant until the rows are adopted.

use crate::durability::restore::{cluster, is_dormant, wait_awake};
use crate::shared::*;

#[test]
fn verbs_refuse_and_claims_find_nothing_while_the_tables_are_written() {
    let (cluster, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "lease => '1 s'");
    create(&mut client, "empty", "");
    let job = client.enqueue("q");
    let attempt = client.claim("q");
    client.run("SELECT queue.enqueue('q'), queue.enqueue('q', delay => '500 ms')");
    let mut writer = cluster.connect_to("app");
    writer.run("BEGIN; UPDATE queue_internal.attempt_0 SET priority = priority");
    let verbs = [
        "enqueue('q')",
        "enqueue_many('q', ARRAY['1'::jsonb])",
        "enqueue_batch('q', '[{}]')",
        "claim('q', completed => ARRAY[$])",
        "complete($)",
        "complete_many(ARRAY[$])",
        "fail($, 'no')",
        "fail_many(ARRAY[$], 'no')",
        "release($)",
        "release_many(ARRAY[$])",
        "extend($)",
        "extend_many(ARRAY[$])",
        "progress($, '1')",
        "cancel(#)",
        "retry(#)",
        "cancel_many(ARRAY[#])",
        "retry_many(ARRAY[#])",
        "reprioritize_many(ARRAY[#], 1)",
        "reschedule_many(ARRAY[#], now())",
        "end_batch('[{\"complete\": {\"id\": $}}]')",
        "reprioritize(#, 1)",
        "reschedule(#, now())",
        "forget(#)",
        "create('new')",
        "alter('q', lease => '1 s')",
        "pause('q')",
        "resume('q')",
        "purge('q')",
        "drop('empty')",
    ];
    for verb in verbs {
        let verb = verb.replace('$', &attempt.to_string()).replace('#', &job.to_string());
        let refused = client.failure(&format!("SELECT FROM queue.{verb}"));
        assert_eq!(refused.code, "55000", "{verb}: {refused:?}");
        assert_eq!(refused.message, "the queues of this database are being restored", "{verb}");
        assert!(refused.hint.contains("queue.adopt()"), "{verb}: {refused:?}");
    }
    for claim in ["claim('q')", "claim_any(ARRAY['empty', 'q'])"] {
        assert_eq!(client.count(&format!("SELECT FROM queue.{claim}")), 0);
    }
    for sleeper in ["SELECT FROM queue.claim('q', wait => '300 ms')", "CALL queue.wait('q', '300 ms')"] {
        let start = Instant::now();
        client.run(sleeper);
        assert!(start.elapsed() >= Duration::from_millis(300), "{sleeper}");
    }
    assert!(!client.value::<bool>("CALL queue.wait('q', '1 ms')"));
    // Meanwhile a lease ends and a job falls due, but nothing happens.
    assert_eq!(client.value::<i64>("SELECT sum(did)::bigint FROM queue.maintain()"), 0);
    for view in ["jobs", "attempts", "stats", "queues", "errors", "workers"] {
        client.run(&format!("SELECT * FROM queue.{view}"));
    }
    assert_eq!(client.state(job), "running");
    client.refused("SELECT queue.adopt()", "55006");
    writer.refused("PREPARE TRANSACTION 'p'", "0A000");

    writer.run("BEGIN; UPDATE queue_internal.attempt_0 SET priority = priority; COMMIT");
    assert!(is_dormant(&mut client), "it is not yet quiet");
    client.run("SELECT queue.adopt()");
    assert!(!is_dormant(&mut client));
    assert_eq!(client.count("SELECT FROM queue_internal.restoring"), 0);
    assert_eq!(client.claim("q") & 15, 0);
    wait::until_true("the lease that had ended is noticed, and the job that had fallen due", || {
        client.run("SELECT FROM queue.claim('q', 3)");
        client.value::<i64>("SELECT count(DISTINCT job_id) FROM queue.attempts WHERE attempt = 2 OR state = 'running'")
            >= 3
    });
}

#[test]
fn a_worker_that_sleeps_is_not_woken_before_the_end() {
    let (cluster, mut client) = cluster().conf("pg_queue.restore_quiet = '1h'").start_with_database("app");
    create(&mut client, "q", "");
    for sql in ["SELECT payload::text FROM queue.claim('q', wait => '20 s')", "CALL queue.wait('q', '20 s')"] {
        let mut sleeper = cluster.connect_to("app");
        sleeper.run("SET pg_queue.max_wait = '30 s'");
        let pid = sleeper.pid();
        let thread = thread::spawn(move || (sleeper.count(sql), Instant::now()));
        wait_asleep(&mut client, pid);
        // SQL inserts the lane's row.
        client.run(
            "INSERT INTO queue_internal.attempt_0 (id, job_id, enqueued_at, lane, priority, attempt, payload)
             SELECT id + 16, id + 31, now(), (SELECT min(lane) FROM queue_internal.lane), 0, 1, '7'
             FROM (SELECT coalesce(max(id), 16) AS id FROM queue_internal.attempt_0) AS newest",
        );
        wait_asleep(&mut client, pid);
        assert!(!thread.is_finished());
        let before = Instant::now();
        client.run("SELECT queue.adopt()");
        let (rows, at) = thread.join().unwrap();
        assert_eq!(rows, 1, "{sql}");
        assert!(at > before && before.elapsed() < Duration::from_secs(10), "{sql}");
        client.run("SELECT queue.complete(id) FROM queue.claim('q', 10)");
    }
    // Later requests wake it as usual.
    let sql = "SELECT id FROM queue.claim('q', wait => '10 s')";
    let thread = asleep::<i64>(&mut client, cluster.connect_to("app"), sql);
    client.enqueue("q");
    assert_eq!(thread.join().unwrap().len(), 1);
}

#[test]
fn rows_written_by_hand_count_after_adoption() {
    let (cluster, mut client) = cluster().conf("pg_queue.restore_quiet = '1h'").start_with_database("app");
    // The worker is off, so that this test's claim is the first to find that memory's entries are wrong.
    client.switch_worker_off();
    let mut other = cluster.connect_to("app");
    create(&mut client, "q", "lease => '1 hour'");
    let jobs: Vec<i64> = (0..4).map(|_| client.enqueue("q")).collect();
    let (gone, kept) = (client.claim("q"), client.claim("q"));
    // Memory has the other jobs in this order. The other session has read the queue's settings.
    assert_eq!(other.value::<i32>("SELECT max_attempts FROM queue.claim('q') AS c, queue.release(c.id)"), 20);

    client.run(&format!("UPDATE queue_internal.attempt_0 SET priority = -1 WHERE job_id = {}", jobs[3]));
    client.run(&format!("DELETE FROM queue_internal.claim_0 WHERE id = {gone}"));
    client.run("UPDATE queue_internal.queue SET max_attempts = 3; SELECT queue.adopt()");
    let order: Vec<(i64, i32)> = other.rows("SELECT job_id, max_attempts FROM queue.claim('q', 10)");
    // The job whose claim was deleted waits until a session finds that its entry in memory is wrong.
    assert_eq!(order[0], (jobs[3], 3));
    assert!(order.contains(&(jobs[2], 3)), "{order:?}");
    assert_eq!(order.len(), 2, "{order:?}");
    client.run("SELECT FROM queue.maintain()");
    assert_eq!(other.column::<i64>("SELECT job_id FROM queue.claim('q', 10)"), [jobs[0]]);
    client.run(&format!("SELECT queue.complete({kept})"));

    // All rows are deleted.
    client.run(
        "TRUNCATE queue_internal.attempt_0, queue_internal.claim_0, queue_internal.outcome_0, queue_internal.note_0;
         SELECT queue.adopt()",
    );
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 0);
    client.run("SELECT FROM queue.maintain()");
    assert_eq!(client.count("SELECT FROM queue_internal.running_now()"), 0);
    assert!(client.enqueue("q") > jobs[3], "ids go on");
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 1);
    assert!(!cluster.log().contains("WARNING"), "{}", cluster.log());
}

#[test]
fn foreign_writes_without_effect_are_soon_forgotten() {
    let (cluster, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "");
    client.enqueue("q");
    let mut writer = cluster.connect_to("app");
    let touch = "UPDATE queue_internal.attempt_0 SET priority = priority";

    writer.run(&format!("BEGIN; {touch}"));
    assert!(is_dormant(&mut client));
    writer.run("ROLLBACK");
    wait_awake(&mut client);

    assert!(writer.batch_execute("COPY queue_internal.claim_0 FROM PROGRAM 'echo nonsense'").is_err());
    wait_awake(&mut client);

    // The transaction rolls back a subtransaction and then writes in another one.
    writer.run(&format!("BEGIN; SAVEPOINT a; {touch}; ROLLBACK TO a"));
    assert!(!is_dormant(&mut client));
    writer.run(&format!("SAVEPOINT b; {touch}; RELEASE b; {touch}"));
    assert!(is_dormant(&mut client));
    writer.run("COMMIT");
    assert_eq!(client.count("SELECT FROM queue_internal.restoring"), 1, "one row, that of the second part");
    drop(writer);
    wait_awake(&mut client);
    assert_eq!(client.count("SELECT FROM queue_internal.restoring"), 0);

    let mut writer = cluster.connect_to("app");
    writer.run(&format!("BEGIN; {touch}"));
    let pid = writer.pid();
    client.run(&format!("SELECT pg_terminate_backend({pid})"));
    wait_awake(&mut client);

    let mut writer = cluster.connect_to("app");
    writer.run(&format!("BEGIN; {touch}"));
    cluster.crash(writer.pid());
    let mut client = cluster.connect_to("app");
    client.enqueue("q");
}

#[test]
fn a_write_that_changes_nothing_or_is_rolled_back_has_no_effect() {
    let (cluster, mut client) = Cluster::new().conf("pg_queue.restore_quiet = '1h'").start_with_database("app");
    create(&mut client, "q", "");
    create(&mut client, "empty", "");
    client.run("SELECT queue.enqueue('q') FROM generate_series(1, 10)");
    let mut writer = cluster.connect_to("app");
    let mut other = cluster.connect_to("app");
    let touch = "UPDATE queue_internal.attempt_0 SET priority = priority";
    let nothing = "DELETE FROM queue_internal.attempt_0 WHERE false";

    for sql in [
        nothing.to_owned(),
        format!("BEGIN; {nothing}; UPDATE queue_internal.queue SET is_paused = true WHERE false; COMMIT"),
        format!("BEGIN; SELECT queue.enqueue('q'); {nothing}; COMMIT"),
        format!("BEGIN; {touch}; ROLLBACK"),
        format!("BEGIN; SELECT queue.enqueue('q'); SAVEPOINT a; {touch}; ROLLBACK TO a; {nothing}; COMMIT"),
        format!("BEGIN; {nothing}; ROLLBACK"),
        "BEGIN; TRUNCATE queue_internal.note_5; ROLLBACK".into(),
        "BEGIN; ALTER TABLE queue_internal.note_5 DISABLE TRIGGER ALL; ROLLBACK".into(),
        format!("DO $$ BEGIN BEGIN {touch}; RAISE division_by_zero; EXCEPTION WHEN OTHERS THEN END; END $$"),
    ] {
        writer.run(&sql);
        assert!(!is_dormant(&mut client), "{sql}");
        assert_eq!(client.count("SELECT FROM queue_internal.restoring"), 0, "{sql}");
    }
    assert!(writer.batch_execute("UPDATE queue_internal.attempt_0 SET priority = 1 / 0").is_err());
    assert!(!is_dormant(&mut client));
    // A write is rolled back in the middle of a transaction that goes on.
    writer.run(&format!("BEGIN; SAVEPOINT a; {touch}"));
    assert!(is_dormant(&mut client));
    writer.run("ROLLBACK TO a; SELECT queue.enqueue('q')");
    assert!(!is_dormant(&mut client));
    writer.run("COMMIT");

    // One transaction still writes when another one ends. Sleepers miss wake-ups until the last one ends.
    writer.run(&format!("BEGIN; {nothing}"));
    other.run(
        "BEGIN; INSERT INTO queue_internal.claim_0 SELECT (jsonb_populate_record(NULL::queue_internal.claim_0,
             jsonb_build_object('id', id, 'claimed_at', now(), 'lease_us', 1, 'pid', 1, 'kind', 'w'))).*
             FROM queue_internal.attempt_0",
    );
    let sql = "SELECT id FROM queue.claim('q', 100, wait => '20 s')";
    let thread = asleep::<i64>(&mut client, cluster.connect_to("app"), sql);
    writer.run("COMMIT");
    assert!(is_dormant(&mut client));
    other.run("ROLLBACK");
    assert_eq!(thread.join().unwrap().len(), 13);
    assert!(!is_dormant(&mut client));

    // A rolled-back write leaves the database awake after a crash too.
    writer.run(nothing);
    other.run(&format!("BEGIN; {touch}"));
    cluster.restart_killed();
    let mut client = cluster.connect_to("app");
    let mut writer = cluster.connect_to("app");
    let mut other = cluster.connect_to("app");
    assert!(!is_dormant(&mut client));

    // If a transaction has written rows, or its rows were not counted, the database stays dormant.
    writer.run(&format!("BEGIN; {touch}"));
    other.run("UPDATE queue_internal.lane SET stage = stage");
    writer.run("ROLLBACK");
    assert!(is_dormant(&mut client));
    writer.run(nothing);
    assert!(is_dormant(&mut client));
    client.run("SELECT queue.adopt()");
    for sql in [
        format!("SET track_counts = off; {nothing}; RESET track_counts"),
        "TRUNCATE queue_internal.note_5".into(),
        format!("BEGIN; {touch}; SAVEPOINT a; {nothing}; ROLLBACK TO a; COMMIT"),
        "ALTER TABLE queue_internal.note_5 DISABLE TRIGGER ALL;
         ALTER TABLE queue_internal.note_5 ENABLE ALWAYS TRIGGER foreign_write"
            .into(),
    ] {
        writer.run(&sql);
        assert!(is_dormant(&mut client), "{sql}");
        assert!(client.count("SELECT FROM queue_internal.restoring") > 0, "{sql}");
        client.run("SELECT queue.adopt()");
    }
    assert!(!is_dormant(&mut client));
}

#[test]
fn the_log_names_the_role_and_the_table_of_a_foreign_write() {
    let (cluster, mut client) = Cluster::new().conf("pg_queue.restore_quiet = '1h'").start_with_database("app");
    create(&mut client, "q", "");
    let mut writer = cluster.connect_to("app");
    writer.run("SET application_name = 'fix it'; CREATE ROLE mender SUPERUSER; SET SESSION AUTHORIZATION mender");
    writer.run("BEGIN; UPDATE queue_internal.queue SET max_attempts = 3");
    let by =
        format!("process {} of role \"mender\" (application \"fix it\") on table queue_internal.queue", writer.pid());
    let refused = client.failure("SELECT queue.enqueue('q')");
    assert!(refused.detail.contains(&by), "{refused:?}");
    let found: String = client.value("SELECT detail FROM queue.doctor() WHERE name = 'restore'");
    assert!(found.contains(&by), "{found}");
    assert!(cluster.log().contains(&by));
}

#[test]
fn views_cannot_be_written_to() {
    let (cluster, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "");
    let views: Vec<String> = client.column(
        "SELECT format('%s.%s', relnamespace::regnamespace, relname) FROM pg_class
         WHERE relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND relkind = 'v'",
    );
    assert!(views.len() > 18);
    client.run("CREATE ROLE anybody; GRANT USAGE ON SCHEMA queue TO anybody");
    for view in views {
        let column: String = client.value(&format!(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = '{view}'::regclass AND attnum = 1"
        ));
        for sql in [
            format!("DELETE FROM {view}"),
            format!("DELETE FROM {view} WHERE false"),
            format!("UPDATE {view} SET {column} = NULL WHERE false"),
            format!("INSERT INTO {view} DEFAULT VALUES"),
            format!("COPY {view} FROM PROGRAM 'true'"),
            format!("WITH gone AS (DELETE FROM {view} RETURNING 1) SELECT FROM gone"),
        ] {
            let refused = client.failure(&sql);
            assert_eq!(refused.code, "0A000", "{sql}: {refused:?}");
            assert_eq!(refused.message, format!("view \"{view}\" cannot be written to"), "{sql}");
            assert!(refused.hint.contains("queue"), "{sql}: {refused:?}");
        }
        client.run("SET ROLE anybody");
        client.refused(&format!("DELETE FROM {view}"), "42501");
        client.run("RESET ROLE");
    }
    assert!(!cluster.log().contains("is dormant"), "{}", cluster.log());
    assert_eq!(client.count("SELECT FROM queue.queues"), 1);
}

#[test]
fn the_worker_waits_for_a_session_that_has_restored_and_is_busy_with_other_tables() {
    let (cluster, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "");
    let mut writer = cluster.connect_to("app");
    writer.run("UPDATE queue_internal.lane SET stage = stage");
    let start = Instant::now();
    let busy = thread::spawn(move || {
        writer.run("SELECT pg_sleep(3)");
        writer
    });
    wait_awake(&mut client);
    assert!(start.elapsed() >= Duration::from_secs(3));
    drop(busy.join().unwrap());
    assert_eq!(cluster.log().matches("which has restored and is still busy").count(), 1, "{}", cluster.log());
}

#[test]
fn ids_behind_the_rows_keep_it_dormant_until_adopt_sets_them() {
    let (cluster, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "");
    client.enqueue("q");
    let id: i64 = 1_000_000 << 4;
    let row = |id: i64| {
        format!(
            "INSERT INTO queue_internal.attempt_2 (id, job_id, enqueued_at, lane, priority, attempt, payload)
             VALUES ({}, {}, now(), (SELECT min(lane) FROM queue_internal.lane), 0, 1, '7')",
            id + 2,
            id + 15
        )
    };
    // Ids of another node do not matter for this node.
    client.run(&row((5 << 46) + id));
    wait_awake(&mut cluster.connect_to("app"));
    assert!(client.enqueue("q") < id);

    client.run(&row(id));
    client.run(
        "INSERT INTO queue_internal.queue OVERRIDING SYSTEM VALUE SELECT (q).* FROM (
                    SELECT jsonb_populate_record(q, '{\"queue_id\": 900, \"queue_name\": \"restored\"}') AS q
                    FROM queue_internal.queue AS q) AS r",
    );
    client.run("INSERT INTO queue_internal.lane VALUES (700, 900)");
    let told = "stays dormant after a restore";
    wait::until_true("the worker says why", || cluster.log().contains(told));
    assert!(cluster.log().contains("queue_internal.id_seq has reached"), "{}", cluster.log());
    assert!(is_dormant(&mut client));
    let mut strict = cluster.connect_to("app");
    strict.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
    strict.refused("SELECT queue.adopt()", "25001");
    client.run("SELECT queue.adopt()");
    assert!(client.enqueue("q") > id + 15);
    client.enqueue("restored");
    create(&mut client, "another", "");
    assert_eq!(client.value::<i32>("SELECT max(queue_id) FROM queue_internal.queue"), 901);
    // The restored queue and the new one have lanes of their own.
    assert_eq!(client.value::<i32>("SELECT max(lane) FROM queue_internal.lane"), 703);
    assert_eq!(cluster.log().matches(told).count(), 1);
}

#[test]
fn adoption_counts_from_its_commit_and_not_for_later_writes() {
    let (cluster, mut client) = cluster().conf("pg_queue.restore_quiet = '1h'").start_with_database("app");
    let mut other = cluster.connect_to("app");
    create(&mut client, "q", "");
    let touch = "UPDATE queue_internal.lane SET stage = stage";
    // The adoption stands at the end of a script that restores in one transaction.
    client.run(&format!("BEGIN; {touch}; SELECT queue.adopt()"));
    assert!(is_dormant(&mut other));
    client.run("COMMIT");
    assert!(!is_dormant(&mut other));
    client.run(touch);
    client.run("BEGIN; SELECT queue.adopt(); ROLLBACK");
    assert!(is_dormant(&mut other));
    client.run(&format!("BEGIN; SELECT queue.adopt(); {touch}; COMMIT"));
    assert!(is_dormant(&mut other));
    assert_eq!(other.count("SELECT FROM queue_internal.restoring"), 1);
    client.run("BEGIN; SELECT queue.adopt()");
    other.run(touch);
    client.run("COMMIT");
    assert!(is_dormant(&mut other));
    client.run("SELECT queue.adopt()");
    // In an awake database `adopt` reads everything again.
    client.run("SELECT queue.enqueue('q'); SELECT queue.adopt()");
    assert_eq!(client.count("SELECT FROM queue.claim('q', 2)"), 1);
}

#[test]
fn the_extension_s_own_sql_is_not_foreign() {
    let (cluster, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "");
    client.run("SELECT queue.alter('q', lease => '1 s'), queue.pause('q'), queue.resume('q')");
    let job = client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    client.run(&format!("SELECT queue.forget({job})"));
    client.run("SELECT queue.drop('q', force => true)");
    assert!(!is_dormant(&mut client));
    assert!(!cluster.log().contains("is dormant"), "{}", cluster.log());
    client.run("SELECT FROM queue.maintain()");
    client.refused("SELECT queue_internal.foreign_write()", "0A000");
}
