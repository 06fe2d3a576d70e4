//! No session waits for another session's open transaction, work leaves no dead rows, and an idle server does nothing.

use crate::shared::*;

#[test]
fn no_verb_waits_for_an_open_transaction() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    create(&mut client, "purged", "");
    let jobs: Vec<i64> = (0..16).map(|_| client.enqueue("q")).collect();
    client.enqueue("purged");
    // The first four jobs run. The open transaction ends each in a different way.
    let running: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 5)");
    let mut open = cluster.connect_to("app");
    open.run("BEGIN");
    open.run(&format!("SELECT queue.complete({})", running[0]));
    open.run(&format!("SELECT queue.fail({}, 'no')", running[1]));
    open.run(&format!("SELECT queue.release({})", running[2]));
    open.run(&format!("SELECT queue.progress({}, '1'), queue.cancel({})", running[3], jobs[3]));
    open.run(&format!("SELECT queue.extend({}, '1 hour')", running[4]));
    let taken: Vec<i64> = open.column("SELECT id FROM queue.claim('q', 2)");
    open.run(&format!("SELECT queue.complete({})", taken[1]));
    open.run(&format!("SELECT queue.cancel({})", jobs[7]));
    open.run(&format!("SELECT queue.reprioritize({}, 3)", jobs[8]));
    open.run(&format!("SELECT queue.reschedule({}, now() + interval '1 hour')", jobs[9]));
    open.run("SELECT queue.enqueue('q'), queue.purge('purged')");
    let ids: Vec<i64> = running.iter().chain(&taken).copied().collect();

    // A statement that waits fails with 55P03.
    let mut other = cluster.connect_to("app");
    other.run("SET lock_timeout = '20 s'; SET statement_timeout = '60 s'");
    let mut outcomes = Vec::new();
    let mut attempt = |sql: String| {
        let result = other.query(&sql, &[]);
        let code = result.as_ref().err().map_or("", |e| error::code(e)).to_owned();
        assert!(["", "QJ001", "55006", "55000", "53400"].contains(&code.as_str()), "{sql}: {result:?}");
        outcomes.push((sql, code));
    };
    for id in &ids {
        attempt(format!("SELECT queue.extend({id})"));
        attempt(format!("SELECT queue.progress({id}, '2')"));
        for verb in [
            "complete({})",
            "fail({}, 'x')",
            "release({})",
            "complete_many('{{}}')",
            "fail_many('{{}}', 'x')",
            "release_many('{{}}')",
            "end_batch('[{\"complete\": {\"id\": {}}}]')",
            "end_batch('[{\"release\": {\"id\": {}}}]')",
        ] {
            let call = verb.replace("{}", &id.to_string());
            attempt(format!("SELECT queue.{call}"));
        }
    }
    for job_id in &jobs[..10] {
        for verb in [
            "cancel_many('{{}}', force => true)",
            "cancel({}, force => true)",
            "cancel({})",
            "reprioritize_many('{{}}', -1)",
            "reprioritize({}, -1)",
            "reschedule_many('{{}}', now())",
            "reschedule({}, now())",
            "retry_many('{{}}')",
            "retry({})",
        ] {
            let call = verb.replace("{}", &job_id.to_string());
            attempt(format!("SELECT queue.{call}"));
        }
        attempt(format!("SELECT * FROM queue.job({job_id})"));
    }
    for sql in [
        "SELECT * FROM queue.claim('purged')",
        "SELECT queue.purge('purged')",
        "SELECT queue.drop('purged')",
        "SELECT queue.pause('q')",
        "SELECT * FROM queue.claim('q')",
        "SELECT queue.resume('q')",
        "SELECT queue.alter('q', max_attempts => 4)",
        "SELECT queue.enqueue('q')",
        "SELECT queue.enqueue('purged')",
        "SELECT * FROM queue.claim('q', 2)",
        "SELECT queue.purge('q')",
        "SELECT * FROM queue.claim('q', wait => '100 ms')",
        "SELECT * FROM queue.maintain()",
        "SELECT * FROM queue.stats",
        "SELECT * FROM queue.jobs",
        "CALL queue.wait('q', '10 ms')",
    ] {
        attempt(sql.into());
    }
    assert_eq!(client.count("SELECT FROM pg_locks WHERE NOT granted"), 0);
    // The open transaction's work counts.
    open.run("COMMIT");
    assert_eq!(client.state(jobs[0]), "completed");
    assert_eq!(client.state(jobs[6]), "completed");
    assert_eq!(client.state(jobs[7]), "cancelled");
}

#[test]
fn no_verb_waits_for_another_database_session_that_claims_and_ends_at_the_same_time() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "lease => '50 ms', max_attempts => 1000");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[300]))");
    // The leases are so short that workers, the background worker and their calls often end the same attempt.
    thread::scope(|scope| {
        for n in 0..6 {
            let cluster = &cluster;
            scope.spawn(move || {
                let mut client = cluster.connect_to("app");
                client.run("SET lock_timeout = '20 s'");
                for _ in 0..25 {
                    let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 4)");
                    let mut tx = client.transaction().unwrap();
                    let result = match n % 3 {
                        0 => tx.execute("SELECT queue.complete_many($1)", &[&ids]),
                        1 => tx.execute("SELECT queue.release_many($1)", &[&ids]),
                        _ => tx.execute("SELECT queue.fail_many($1, 'no', '0')", &[&ids]),
                    };
                    result.unwrap_or_else(|e| panic!("{e:?}"));
                    tx.execute("SELECT pg_sleep(0.02)", &[]).unwrap();
                    tx.commit().unwrap();
                }
            });
        }
    });
    assert!(!cluster.log().contains("deadlock"), "{}", cluster.log());
}

/// Returns the number of updated or deleted rows and of dead rows in the logs, according to the statistics.
fn dead(client: &mut Client) -> (i64, i64) {
    let sql = "SELECT coalesce(sum(n_tup_ins), 0)::bigint, coalesce(sum(n_tup_upd + n_tup_del + n_dead_tup), 0)::bigint
               FROM pg_stat_all_tables WHERE schemaname = 'queue_internal'
               AND relname ~ '^(attempt|claim|outcome|note)_[0-9]+$'";
    client.row(sql)
}

#[test]
fn committed_work_leaves_no_dead_rows_and_is_not_slowed_by_an_old_snapshot() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    let mut old = cluster.connect_to("app");
    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue.jobs");
    for round in 0..20 {
        client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[100]))");
        let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 100)");
        assert_eq!(ids.len(), 100, "round {round}");
        client.query("SELECT queue.complete_many($1)", &[&&ids[..60]]).unwrap();
        client.query("SELECT queue.fail_many($1, 'no', '0')", &[&&ids[60..80]]).unwrap();
        client.query("SELECT queue.release_many($1)", &[&&ids[80..]]).unwrap();
        let again: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 100)");
        assert_eq!(again.len(), 40, "round {round}");
        client.run("SELECT queue.cancel(job_id, force => true) FROM queue.jobs WHERE state = 'running' LIMIT 10");
        client.query("SELECT queue.complete_many($1)", &[&again]).unwrap();
    }
    assert_eq!(old.value::<i64>("SELECT count(*) FROM queue.jobs"), 0, "the old snapshot sees what it saw");
    old.run("COMMIT");
    drop(client);
    let mut client = cluster.connect_to("app");
    // These are 2,000 jobs and 800 more attempts, each with a claim and an outcome.
    let rows = wait::until("the statistics are there", || {
        let rows = dead(&mut client);
        (rows.0 >= 8400).then_some(rows)
    });
    assert_eq!(rows.1, 0, "rows of the logs were updated or deleted, or are dead: {rows:?}");
}

#[test]
fn idle_takes_no_transaction_id_and_writes_no_log() {
    let (cluster, mut client) =
        Cluster::with(&["autovacuum = off", "checkpoint_timeout = '1h'", "bgwriter_lru_maxpages = 0"])
            .start_with_database("app");
    create(&mut client, "q", "lease => '1 hour'");
    client.enqueue("q");
    client.claim("q");
    client.run("SELECT queue.enqueue('q', delay => '1 hour')");
    let mut sleeper = cluster.connect_to("app");
    let thread = thread::spawn(move || sleeper.count("SELECT FROM queue.claim('q', wait => '8 s')"));
    const STATE: &str = "SELECT pg_current_wal_insert_lsn()::text || ' ' || pg_snapshot_xmax(pg_current_snapshot())";
    let started = "worker of database \"app\" has started";
    wait::until_true("the worker has started", || cluster.log().contains(started));
    let (logged, mut last) = (cluster.log().len(), client.value::<String>(STATE));
    // If nothing has changed for a while, earlier work has ended.
    let mut since = std::time::Instant::now();
    wait::within("nothing happens for three seconds", Duration::from_secs(25), || {
        let now = client.value::<String>(STATE);
        if now != last {
            (last, since) = (now, std::time::Instant::now());
        }
        (since.elapsed() > Duration::from_secs(3)).then_some(())
    });
    let log = cluster.log().split_off(logged);
    assert!(!log.contains("pg_queue"), "{log}");
    assert_eq!(thread.join().unwrap(), 0);
}
