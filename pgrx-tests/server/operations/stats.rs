//! `queue.stats` always agrees with the logs, and its cost does not depend on the number of jobs.

use crate::shared::*;

/// The numbers of each queue from shared memory, from a walk through the logs, and from the other views.
const COLUMNS: &str =
    "ready, scheduled, retrying, running, dead, enqueued, claimed, completed, failed, timed_out, died";

fn in_memory(client: &mut Client) -> Vec<String> {
    client.column(&format!("SELECT concat_ws(' ', queue_name, {COLUMNS}) FROM queue.stats ORDER BY queue_name"))
}

fn by_walk(client: &mut Client) -> Vec<String> {
    let coalesced: Vec<String> = COLUMNS.split(", ").map(|column| format!("coalesce({column}, 0)")).collect();
    client.column(&format!(
        "SELECT concat_ws(' ', queue_name, {}) FROM queue_internal.queue JOIN queue_internal.lane USING (queue_id)
         LEFT JOIN queue_internal.tallies(walk => true) USING (lane) WHERE NOT is_held ORDER BY queue_name",
        coalesced.join(", ")
    ))
}

fn by_rows(client: &mut Client) -> Vec<String> {
    // Compiling the plan would take longer than running it.
    client.run("SET jit = off");
    client.column(
        "SELECT concat_ws(' ', queue_name,
             (SELECT concat_ws(' ', count(*) FILTER (WHERE state = 'ready'),
             count(*) FILTER (WHERE state = 'scheduled'),
                     count(*) FILTER (WHERE state = 'retrying'), count(*) FILTER (WHERE state = 'running'),
                     count(*) FILTER (WHERE state = 'dead'))
              FROM queue.jobs AS j WHERE j.queue_name = q.queue_name),
             (SELECT concat_ws(' ', count(DISTINCT job_id), count(*) FILTER (WHERE claim_kind <> 's'),
                     count(*) FILTER (WHERE outcome = 'c'), count(*) FILTER (WHERE outcome IN ('f', 'd')),
                     count(*) FILTER (WHERE outcome = 't'),
                     count(*) FILTER (WHERE outcome = 'd' OR outcome = 't' AND next_id IS NULL))
              FROM queue_internal.life AS l JOIN queue_internal.lane USING (lane) WHERE queue_id = q.queue_id))
         FROM queue_internal.queue AS q ORDER BY queue_name",
    )
}

/// Asserts that all three agree and that memory knows its counts. Time alone may change some numbers, so a difference
/// that passes is ignored.
#[track_caller]
fn check(client: &mut Client, when: &str) {
    client.wait_counted();
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        let found = (in_memory(client), by_walk(client), by_rows(client));
        if found.0 == found.1 && found.1 == found.2 && client.is_counted() {
            return;
        }
        if Instant::now() > deadline {
            panic!("{when}: {COLUMNS}\nmemory {:?}\nwalk   {:?}\nrows   {:?}", found.0, found.1, found.2);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the age according to memory and according to the rows, in seconds.
fn ages(client: &mut Client, queue: &str) -> (Option<f64>, Option<f64>) {
    let age = "extract(epoch FROM oldest_ready_age)::float8";
    let row = client
        .query_one(
            &format!(
                "SELECT (SELECT {age} FROM queue.stats WHERE queue_name = $1),
                    extract(epoch FROM clock_timestamp() - (SELECT min(coalesce(run_at, enqueued_at)) FROM queue.jobs
                        WHERE queue_name = $1 AND state = 'ready'))::float8"
            ),
            &[&queue],
        )
        .unwrap();
    (row.get(0), row.get(1))
}

#[track_caller]
fn check_age(client: &mut Client, queue: &str) {
    let (memory, rows) = ages(client, queue);
    match (memory, rows) {
        (None, None) => {}
        (Some(memory), Some(rows)) if (memory - rows).abs() < 0.5 => {}
        _ => panic!("oldest_ready_age of {queue}: memory {memory:?}, rows {rows:?}"),
    }
}

fn cluster() -> Cluster {
    let lines = [
        "pg_queue.segment_rows = 1000",
        "pg_queue.reclaim_delay = 0",
        "pg_queue.restore_quiet = '1s'",
        "max_connections = 60",
        "max_prepared_transactions = 10",
    ];
    let (cluster, mut client) = Cluster::with(&lines).start_with_extension();
    for queue in ["a", "b"] {
        create(
            &mut client,
            queue,
            "retention => '-1', dead_retention => '-1', backoff_base => '50 ms', backoff_max => '200 ms', \
                max_attempts => 3",
        );
    }
    cluster
}

/// If many jobs wait for their time, claims are listed and not looked up one by one.
#[test]
fn many_jobs_that_wait_for_their_time_are_counted() {
    let (_database, mut client) = Database::new().with_queue("q", "retention => '-1'");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{2500}'), delay => '1 hour')");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{10}'))");
    client.run("SELECT queue.cancel(job_id) FROM queue.jobs WHERE state = 'scheduled' ORDER BY job_id DESC LIMIT 100");
    client
        .run("SELECT queue.reprioritize(job_id, 9) FROM queue.jobs WHERE state = 'scheduled' ORDER BY job_id LIMIT 50");
    check(&mut client, "many scheduled");
    assert_eq!(client.value::<i64>("SELECT scheduled FROM queue.stats"), 2400);
    // The work of a transaction counts after its commit, even for itself.
    client.run("BEGIN");
    client.run("SELECT queue.cancel(job_id) FROM queue.jobs WHERE state = 'scheduled' ORDER BY job_id DESC LIMIT 7");
    assert_eq!(client.value::<i64>("SELECT scheduled FROM queue.stats"), 2400);
    client.run("COMMIT");
    assert_eq!(client.value::<i64>("SELECT scheduled FROM queue.stats"), 2393);
    check(&mut client, "some of them cancelled");
}

/// Calls every verb once. Each is counted.
#[test]
fn every_verb_counts() {
    let (database, mut client) = Database::new()
        .with_queue("q", "max_attempts => 2, retention => '-1', dead_retention => '-1', backoff_base => '0'");
    client.run("SELECT queue.enqueue('q')");
    client.wait_counted();
    check(&mut client, "one job");
    let queue = "SELECT FROM queue.claim('q', 2)";
    for statement in [
        "SELECT queue.enqueue('q', priority => n % 3) FROM generate_series(1, 40) AS n",
        "SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{300}'))",
        "SELECT count(*) FROM queue.enqueue_batch('q', '[{}, {\"delay\": \"1 day\"}, {\"priority\": 9}]')",
        queue,
        "SELECT queue.complete(id) FROM queue.claim('q', 3)",
        "SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('q', 70)))",
        "SELECT count(*) FROM queue.claim('q', 5, completed => ARRAY(SELECT id FROM queue.claim('q', 5)))",
        "SELECT queue.fail(id, 'no') FROM queue.claim('q', 3)",
        "SELECT queue.fail(id, 'no', retry_in => '1 day') FROM queue.claim('q', 4)",
        "SELECT queue.fail(id, 'no', fatal => true) FROM queue.claim('q', 3)",
        "SELECT count(*) FROM queue.fail_many(ARRAY(SELECT id FROM queue.claim('q', 20)), 'no')",
        "SELECT count(*) FROM queue.fail_many(ARRAY(SELECT id FROM queue.claim('q', 20)), 'no')",
        "SELECT queue.release(id) FROM queue.claim('q', 2)",
        "SELECT count(*) FROM queue.release_many(ARRAY(SELECT id FROM queue.claim('q', 6)), '1 day')",
        "SELECT queue.cancel(job_id) FROM queue.jobs WHERE state = 'ready' LIMIT 3",
        "SELECT queue.cancel(job_id) FROM queue.jobs WHERE state = 'retrying' LIMIT 1",
        "SELECT queue.cancel(job_id, force => true) FROM queue.claim('q', 2)",
        "SELECT queue.cancel(job_id), queue.fail(id, 'no') FROM queue.claim('q', 2)",
        "SELECT queue.reprioritize(job_id, -1) FROM queue.jobs WHERE state = 'ready' LIMIT 3",
        "SELECT queue.reschedule(job_id, now() + interval '1 day') FROM queue.jobs WHERE state = 'ready' LIMIT 3",
        "SELECT queue.retry(job_id) FROM queue.jobs WHERE state = 'dead' LIMIT 2",
        "SELECT queue.retry(job_id) FROM queue.jobs WHERE state = 'completed' LIMIT 2",
        "SELECT queue.retry(job_id) FROM queue.jobs WHERE state = 'scheduled' LIMIT 1",
        "SELECT queue.retry_many(ARRAY(SELECT job_id FROM queue.search('q', states => '{dead}', max_jobs => 1)))",
        "SELECT queue.cancel_many(ARRAY(SELECT job_id FROM queue.search('q', states => '{ready}', max_jobs => 3)))",
        "SELECT queue.reprioritize_many(ARRAY(SELECT job_id \
            FROM queue.search('q', states => '{ready}', max_jobs => 3)), 2)",
        "SELECT queue.reschedule_many(ARRAY(SELECT job_id \
            FROM queue.search('q', states => '{ready}', max_jobs => 3)), now() + interval '1 day')",
        "SELECT queue.end_batch(json_agg(CASE row_number % 5
             WHEN 0 THEN json_build_object('complete', json_build_object('id', id))
             WHEN 1 THEN json_build_object('fail', json_build_object('id', id, 'error', 'no'))
             WHEN 2 THEN json_build_object('fail', json_build_object('id', id, 'error', 'no', 'fatal', true))
             WHEN 3 THEN json_build_object('release', json_build_object('id', id, 'delay', '1 day'))
             WHEN 4 THEN json_build_object('advance', json_build_object('id', id)) END))
         FROM (SELECT id, row_number() OVER () FROM queue.claim('q', 10)) AS c",
        "BEGIN; SELECT queue.enqueue('q'); SELECT FROM queue.claim('q', 9); ROLLBACK",
        "BEGIN; SELECT queue.enqueue('q'); SAVEPOINT s; SELECT FROM queue.claim('q', 9); ROLLBACK TO s;
         SELECT queue.complete(id) FROM queue.claim('q', 2); COMMIT",
        "BEGIN; SAVEPOINT s; SELECT queue.fail(id, 'no') FROM queue.claim('q', 2); RELEASE s; SAVEPOINT s;
         SELECT queue.purge('q'); ROLLBACK TO s; COMMIT",
        "SELECT FROM queue.claim('q', 3, lease => '1 ms')",
        "SELECT queue.purge('q')",
    ] {
        client.run(statement);
        assert!(client.is_counted(), "{statement}");
        check(&mut client, statement);
        check_age(&mut client, "q");
    }
    wait::until_true("leases end", || {
        client.value::<bool>("SELECT timed_out = 3 FROM queue.stats WHERE queue_name = 'q'")
    });
    check(&mut client, "timeouts");
    // This claim ends with its connection.
    client.run("SELECT queue.enqueue('q') FROM generate_series(1, 2)");
    let mut other = database.connect();
    other.run("SELECT FROM queue.claim('q', 2, disconnect => '0')");
    drop(other);
    wait::until_true("the claims end", || {
        client.value::<bool>("SELECT timed_out = 5 FROM queue.stats WHERE queue_name = 'q'")
    });
    check(&mut client, "a connection ended");
    // A queue of the same name starts at zero.
    client.run("SELECT queue.drop('q', force => true)");
    create(&mut client, "q", "");
    client.run("SELECT queue.enqueue('q'), queue.enqueue('q', delay => '1 day')");
    check(&mut client, "dropped and created");
}

/// Delayed, dead and old jobs are not in memory.
#[test]
fn an_open_transaction_does_not_count() {
    let (database, mut client) = Database::new().with_queue("q", "");
    client.run("SELECT queue.enqueue('q'), queue.enqueue('q', delay => '1 day')");
    client.wait_counted();
    let before = in_memory(&mut client);
    let mut tx = client.transaction().unwrap();
    tx.batch_execute(
        "SELECT queue.enqueue('q', delay => '1 day'), queue.enqueue('q');
         SELECT queue.cancel(job_id) FROM queue.jobs WHERE state = 'scheduled'",
    )
    .unwrap();
    let mut other = database.connect();
    assert_eq!(in_memory(&mut other), before);
    let sql = format!("SELECT concat_ws(' ', queue_name, {COLUMNS}) FROM queue.stats");
    assert_eq!(tx.query_one(&sql, &[]).unwrap().get::<_, String>(0), before[0]);
    tx.rollback().unwrap();
    check(&mut client, "rolled back");
}

#[test]
fn prepared_transactions_count_when_they_are_committed() {
    let cluster = cluster();
    let mut client = cluster.connect();
    client.run("SELECT queue.enqueue('a')");
    client.wait_counted();
    // A prepared transaction without jobs does not matter.
    client.run("CREATE TABLE t (); BEGIN; INSERT INTO t DEFAULT VALUES; PREPARE TRANSACTION 'other'");
    client.run("COMMIT PREPARED 'other'");
    assert!(client.is_counted());
    for (name, end) in [("one", "COMMIT"), ("two", "ROLLBACK")] {
        client.run(&format!("BEGIN; SELECT queue.enqueue('a', delay => '1 day'); PREPARE TRANSACTION '{name}'"));
        check(&mut client, "prepared");
        client.run(&format!("{end} PREPARED '{name}'"));
        check(&mut client, end);
    }
    // A transaction is prepared before a crash and committed after it. A count comes in between.
    client.run("BEGIN; SELECT queue.enqueue('a'); PREPARE TRANSACTION 'three'");
    drop(client);
    cluster.restart_killed();
    let mut client = cluster.connect();
    check(&mut client, "prepared before a crash");
    client.run("COMMIT PREPARED 'three'");
    check(&mut client, "and committed after it");
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats WHERE queue_name = 'a'"), 2);
}

#[test]
fn rows_written_by_sql_count() {
    let cluster = cluster();
    let mut client = cluster.connect();
    client.run("SELECT queue.enqueue('a') FROM generate_series(1, 5)");
    client.wait_counted();
    client.run("DELETE FROM queue_internal.attempt_0 WHERE id = (SELECT max(id) FROM queue_internal.attempt_0)");
    assert!(!client.is_counted());
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats WHERE queue_name = 'a'"), 4);
    client.run("SELECT queue.adopt()");
    check(&mut client, "adopted");
    client.run("SELECT queue.complete(id) FROM queue.claim('a', 2)");
    check(&mut client, "and worked on");
}

/// Totals stay when minutes of the rollup, segments and history are deleted.
#[test]
fn totals_survive_all_deletions() {
    let cluster = cluster();
    let mut client = cluster.connect();
    create(&mut client, "short", "retention => '0', dead_retention => '0', backoff_base => '0'");
    const JOBS: i64 = 12_000;
    let mut rounds = 0;
    while rounds < JOBS / 1_000 {
        client.run("SELECT count(*) FROM queue.enqueue_many('short', array_fill('1'::jsonb, '{1000}'))");
        client.run(
            "SELECT count(*) FROM queue.fail_many(ARRAY(SELECT id FROM queue.claim('short', 10)), 'no', fatal => true)",
        );
        client.work_off("short", 990);
        rounds += 1;
    }
    let left = || "SELECT count(*) FROM queue.attempts WHERE queue_name = 'short'";
    wait::within("the ring turns", Duration::from_secs(30), || (client.value::<i64>(left()) < JOBS / 2).then_some(()));
    client.run("ALTER SYSTEM SET pg_queue.statistics_retention = 0");
    drop(client);
    cluster.restart();
    let mut client = cluster.connect();
    client.wait_counted();
    let sql = "SELECT concat_ws(' ', ready, running, enqueued, claimed, completed, failed, died) FROM queue.stats \
        WHERE queue_name = 'short'";
    assert_eq!(client.value::<String>(sql), "0 0 12000 12000 11880 120 120");
    // Dead jobs are deleted with their segments. That may happen between the two queries.
    wait::within("memory and walk agree", Duration::from_secs(15), || {
        (by_walk(&mut client) == in_memory(&mut client)).then_some(())
    });
}

/// The cost does not grow with the number of ready or ended jobs.
#[test]
fn stats_read_few_blocks_however_many_jobs_there_are() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    const JOBS: i64 = 200_000;
    for _ in 0..JOBS / 20_000 {
        client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{20000}'))");
    }
    client.work_off("q", 5000);
    client.wait_counted();
    let mut buffers = |sql: &str| -> i64 {
        let plan: serde_json::Value = client.value(&format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {sql}"));
        let plan = &plan[0]["Plan"];
        ["Shared Hit Blocks", "Shared Read Blocks"].iter().map(|key| plan[key].as_i64().unwrap()).sum()
    };
    // The first call reads the catalogs.
    buffers("SELECT * FROM queue.stats");
    let memory = buffers("SELECT * FROM queue.stats");
    let walk = buffers("SELECT * FROM queue_internal.tallies(walk => true)");
    assert!(memory < 1_000, "{memory} buffers");
    assert!(walk > memory * 20, "{memory} buffers, and {walk} for a walk");
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats WHERE queue_name = 'q'"), JOBS - 5000);
    check_age(&mut client, "q");
}

/// A dump has the totals of deleted jobs. A standby counts rows, and knows once it is promoted.
#[test]
fn a_restored_database_and_a_promoted_standby_count() {
    let cluster = cluster();
    let mut client = cluster.connect();
    client.run("SELECT count(*) FROM queue.enqueue_many('b', array_fill('1'::jsonb, '{50}'), delay => '1 day')");
    for _ in 0..8 {
        client.run("SELECT count(*) FROM queue.enqueue_many('a', array_fill('1'::jsonb, '{500}'))");
        client.work_off("a", 480);
        client.run("SELECT queue.fail(id, 'no', fatal => true) FROM queue.claim('a', 3)");
    }
    client.run("SELECT FROM queue.claim('a', 7, lease => '1 hour')");
    wait::until_true("a segment is gone", || client.count("SELECT FROM queue_internal.total") > 0);
    check(&mut client, "the original");
    let original = in_memory(&mut client);

    let standby = cluster.standby();
    standby.wait_replayed(&cluster);
    let mut there = standby.connect();
    assert_eq!(in_memory(&mut there), original);
    assert!(!there.is_counted());
    drop(there);
    standby.promote();
    let mut there = standby.connect();
    check(&mut there, "promoted");
    assert_eq!(in_memory(&mut there), original);

    let copy = Cluster::new().conf("pg_queue.restore_quiet = '1s'").start();
    copy.psql(&cluster.pg_dump(&["postgres"]));
    let mut there = copy.connect();
    check(&mut there, "restored");
    assert_eq!(in_memory(&mut there), original);
    there.work_off("a", 5);
    check(&mut there, "worked on");
}
