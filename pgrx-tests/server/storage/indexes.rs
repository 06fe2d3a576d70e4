//! amcheck accepts the indexes of the logs on the primary, on a standby and after a crash. This includes leaves that
//! got a batch together, or a single entry without a descent.

use crate::shared::*;

/// The number of batches that each session works off.
const BATCHES: usize = 60;
const SESSIONS: u64 = 4;

/// Reads all rows of the first segment through its indexes.
const LOOKS: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
                     SELECT count(payload) FROM queue_internal.attempt_0 WHERE id > 0; SELECT count(claimed_at)
                     FROM queue_internal.claim_0 WHERE id > 0;
                     SELECT count(ended_at) FROM queue_internal.outcome_0 WHERE id > 0";

/// Enqueues, claims and completes batches of all sizes, priorities and orders, with single jobs between them. Some
/// batches are rolled back.
fn work(cluster: &Cluster, seed: u64) {
    let mut random = Random::new(seed);
    let mut client = cluster.connect();
    for _ in 0..BATCHES {
        let (count, priority) = (random.between(1, 250) as i32, random.between(-1, 2) as i32);
        let sql =
            "SELECT count(*) FROM queue.enqueue_many('q', array_fill('{}'::jsonb, ARRAY[$1::int]), priority => $2)";
        client.query(sql, &[&count, &priority]).unwrap();
        let claimed = client.query("SELECT id FROM queue.claim('q', $1)", &[&count]).unwrap();
        let mut ids: Vec<i64> = claimed.iter().map(|row| row.get(0)).collect();
        if random.percent(50) {
            ids.sort_by_cached_key(|_| random.next());
        }
        client.query("SELECT count(*) FROM queue.complete_many($1)", &[&ids]).unwrap();
        for _ in 0..random.between(0, 40) {
            let end = if random.percent(20) { "ROLLBACK" } else { "COMMIT" };
            client.run(&format!("BEGIN; SELECT queue.enqueue('q', '{{}}'); {end}"));
            client.run("SELECT queue.complete(id) FROM queue.claim('q')");
        }
        // Makes dead rows and reads through the indexes, which marks their entries. These marks are not logged.
        client.run("BEGIN; SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{20}')); ROLLBACK");
        client.run(LOOKS);
    }
}

/// Runs amcheck on every index of the first segment, and checks that each index has each row.
fn check(client: &mut Client) {
    let sql = "SELECT count(*), count(bt_index_check(i.indexrelid, heapallindexed => true))
               FROM pg_index AS i JOIN pg_class AS t ON t.oid = i.indrelid
               WHERE t.relnamespace = 'queue_internal'::regnamespace
               AND t.relname ~ '^(attempt|claim|outcome|note)_0$'";
    let checked: i64 = client.value(sql);
    assert!(checked >= 9, "{checked} indexes");
}

#[test]
fn the_checker_of_postgres_finds_no_fault_after_batches_a_crash_and_on_a_standby() {
    let (cluster, mut client) = Cluster::new().conf("wal_consistency_checking = 'all'").start_with_extension();
    client.run("CREATE EXTENSION amcheck; SELECT queue.create('q')");
    let standby = cluster.standby();
    thread::scope(|scope| {
        for seed in 0..SESSIONS {
            let cluster = &cluster;
            scope.spawn(move || work(cluster, seed));
        }
    });
    check(&mut client);
    standby.wait_replayed(&cluster);
    let mut there = standby.connect();
    check(&mut there);
    let count = "SELECT count(*) FROM queue_internal.attempt_0";
    let rows = |client: &mut Client| -> i64 { client.value(count) };
    assert_eq!(rows(&mut there), rows(&mut client));
    assert!(!standby.log().contains("inconsistent page"), "{}", standby.log());

    let before = rows(&mut client);
    drop(client);
    cluster.restart_immediate();
    let mut client = cluster.connect();
    check(&mut client);
    assert_eq!(rows(&mut client), before);
    // The queue still works.
    work(&cluster, SESSIONS);
    check(&mut client);
    let left = "SELECT count(*) FROM queue.claim('q', 100000)";
    wait::until_true("all waiting jobs are found", || {
        let found: i64 = client.value(left);
        let ready = "SELECT ready FROM queue.stats";
        let ready: i64 = client.value(ready);
        found == 0 && ready == 0
    });
}

#[test]
fn a_single_job_s_entries_need_no_descent_wherever_indexes_have_their_last_leaf() {
    /// The number of pages read from a segment's key index.
    const LOOKS: &str =
        "SELECT idx_blks_hit + idx_blks_read FROM pg_statio_all_indexes WHERE indexrelname = 'attempt_0_pkey'";
    const JOBS: i64 = 1_000;
    let (cluster, mut client) = Cluster::new().start_with_extension();
    client.run("CREATE EXTENSION amcheck; SELECT queue.create('q')");
    let fill = "SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{3000}'))";
    client.run(fill);
    client.flush_statistics();
    let looks = |client: &mut Client| -> i64 { client.value(LOOKS) };
    let before = looks(&mut client);
    client.run(&format!("DO $$ BEGIN FOR i IN 1..{JOBS} LOOP PERFORM queue.enqueue('q'); END LOOP; END $$"));
    client.flush_statistics();
    let looks = looks(&mut client) - before;
    // Each entry reads one page. After a split some more pages are read to find the last leaf.
    assert!((JOBS..JOBS * 12 / 10).contains(&looks), "{looks} looks");
    // A session that has remembered the last leaf meets another file or another last leaf.
    for meanwhile in ["REINDEX TABLE queue_internal.attempt_0", fill, "VACUUM queue_internal.attempt_0"] {
        let mut session = cluster.connect();
        session.run("SELECT queue.enqueue('q')");
        client.run(meanwhile);
        session.run("BEGIN; SELECT queue.enqueue('q'); ROLLBACK");
        session.run("SELECT queue.enqueue('q'), queue.enqueue('q', priority => -1)");
    }
    check(&mut client);
}

/// A job that waits for its group has one entry, which also goes into the last leaf. This holds over rolled-back
/// claims, a restart, moved rows and sessions that meet the same groups.
#[test]
fn a_job_that_waits_for_its_group_has_one_entry() {
    const SESSIONS: u64 = 3;
    let (cluster, mut client) =
        Cluster::with(&["wal_consistency_checking = 'all'", "pg_queue.max_ready = 256"]).start_with_extension();
    client.run(
        "CREATE EXTENSION amcheck; CREATE EXTENSION pageinspect; SELECT queue.create('q', max_running_per_group => 1)",
    );
    let standby = cluster.standby();
    // In one case each group has 60 consecutive jobs with two priorities. In the other case jobs of groups alternate,
    // so that no leaf takes several of them.
    let fill = |group: &str| {
        format!(
            "SELECT count(*) FROM queue.enqueue_batch('q', (
                 SELECT jsonb_agg(jsonb_build_object('group_key', {group}, 'priority', n % 60 / 40))
                 FROM generate_series(1, 1800) AS n))"
        )
    };
    let work = &|seed: u64| {
        let mut random = Random::new(seed);
        let mut client = cluster.connect();
        for _ in 0..40 {
            let (jobs, is_undone) = (random.between(1, 60), random.percent(40));
            let claim = format!("SELECT count(queue.complete(id)) FROM queue.claim('q', {jobs})");
            client.run(&format!("BEGIN; {claim}; {}", if is_undone { "ROLLBACK" } else { "COMMIT" }));
        }
    };
    let entries = |client: &mut Client| -> (i64, i64) {
        let sql = "SELECT count(*), count(DISTINCT (htid, data))
                   FROM generate_series(1, pg_relation_size('queue_internal.parked_0_idx') / 8192 - 1) AS n,
                        LATERAL (SELECT type FROM bt_page_stats('queue_internal.parked_0_idx', n::int)) AS page,
                        LATERAL bt_page_items('queue_internal.parked_0_idx', n::int)
                   WHERE page.type = 'l' AND htid IS NOT NULL";
        client.row(sql)
    };
    let mut seen = 0;
    for (round, group) in (0..).zip(["'g' || n / 60", "'t' || n % 300", "'g' || n / 60", "'t' || n % 300"]) {
        client.run(&fill(group));
        thread::scope(|scope| {
            for n in 0..SESSIONS {
                scope.spawn(move || work(round * SESSIONS + n));
            }
        });
        let (all, distinct) = entries(&mut client);
        assert!(all > seen, "{all} entries, and {seen} before");
        assert_eq!(all, distinct, "round {round}");
        seen = all;
        client.run("SELECT bt_index_parent_check('queue_internal.parked_0_idx', false, true)");
        standby.wait_replayed(&cluster);
        let mut there = standby.connect();
        there.run("SELECT bt_index_check('queue_internal.parked_0_idx')");
        assert_eq!(entries(&mut there), (all, distinct));
        assert!(!standby.log().contains("inconsistent page"), "{}", standby.log());
        drop(client);
        cluster.restart_immediate();
        client = cluster.connect();
    }
}

/// Jobs that are neighbours in a batch need not be neighbours in the index, for example jobs of many groups or the
/// slowest jobs.
#[test]
fn entries_on_many_leaves_take_no_more_wal_in_a_batch_than_alone() {
    const JOBS: usize = 40_000;
    let (_cluster, mut client) = Cluster::with(&["full_page_writes = off", "autovacuum = off"]).start_with_extension();
    client.run("SELECT queue.create('q', lease => '1 hour')");
    client.run(&format!("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{{{JOBS}}}'))"));
    let ids: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('q', {JOBS}) ORDER BY id"));
    let nth = |of: usize, at: usize| -> Vec<i64> { ids.iter().copied().skip(at).step_by(of).collect() };
    let others: Vec<i64> = (0..ids.len()).filter(|n| n % 50 != 0).map(|n| ids[n]).collect();
    let mut wal = |sql: &str, ids: &[i64]| -> i64 {
        let before: String = client.value("SELECT pg_current_wal_insert_lsn()::text");
        client.query(sql, &[&ids]).unwrap();
        client.value(&format!("SELECT (pg_current_wal_insert_lsn() - '{before}'::pg_lsn)::bigint"))
    };
    let batch = "SELECT FROM queue.complete_many($1)";
    wal(batch, &others);
    let (together, alone) =
        (wal(batch, &nth(100, 0)), wal("SELECT queue.complete(id) FROM unnest($1::bigint[]) AS id", &nth(100, 50)));
    assert!(together <= alone, "{together} bytes in a batch, {alone} alone");
}

/// REINDEX and VACUUM FULL lock a table's indexes in the order of their oids and keep each lock until the end. A reader
/// that held one lock and waited for an earlier one would deadlock with them.
#[test]
fn no_reader_deadlocks_with_a_reindex() {
    const LOOKS: [&str; 9] = [
        "SELECT FROM queue.stats",
        "SELECT FROM queue.jobs",
        "SELECT FROM queue.attempts",
        "SELECT FROM queue.metrics()",
        "SELECT FROM queue_internal.tallies(walk => true)",
        "SELECT queue.cancel(job_id) FROM retried",
        "SELECT queue.retry(job_id) FROM retried",
        "SELECT FROM queue.claim('q', 10)",
        "SELECT queue.complete(id) FROM running",
    ];
    let cluster = Cluster::new().conf("pg_queue.worker = off").start();
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE EXTENSION pg_queue; SELECT queue.create('q', max_attempts => 9),
                queue.create('mortal', max_attempts => 1);
             SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{30}'));
             SELECT queue.enqueue('q', delay => '1 day');
             SELECT queue.create('unclaimed'); SELECT queue.enqueue('unclaimed');
             SELECT queue.enqueue('mortal');
             SELECT queue.fail(id, 'e') FROM queue.claim('mortal');
             CREATE TABLE retried AS SELECT job_id FROM queue.claim('q', 1), queue.fail(id, 'e', retry_in => '1 day');
             CREATE TABLE running AS SELECT id FROM queue.claim('q', 1)",
        )
        .unwrap();
    wait::until_true("stats need no walk", || {
        client.run("SELECT FROM queue.maintain()");
        client.is_counted()
    });
    let mut administrator = cluster.connect();
    for log in ["attempt", "claim", "outcome", "note"] {
        let sql = "SELECT i.indexrelid::regclass::text FROM pg_index AS i
                   WHERE i.indrelid = format('queue_internal.%s_0', $1::text)::regclass ORDER BY i.indexrelid";
        let indexes: Vec<String> = client.query(sql, &[&log]).unwrap().iter().map(|row| row.get(0)).collect();
        for (n, first) in indexes.iter().enumerate() {
            for second in &indexes[n + 1..] {
                for look in LOOKS {
                    administrator.run(&format!("BEGIN; REINDEX INDEX {first}"));
                    thread::scope(|scope| {
                        let mut reader = cluster.connect();
                        let pid: i32 = reader.value("SELECT pg_backend_pid()");
                        let looking =
                            scope.spawn(move || reader.batch_execute(&format!("BEGIN; {look}; ROLLBACK")).unwrap());
                        wait::until_true("the reader has ended, or waits for the index", || {
                            let sql = "SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'";
                            let waits = !client.query(sql, &[&pid]).unwrap().is_empty();
                            waits || looking.is_finished()
                        });
                        let done = administrator.batch_execute(&format!("REINDEX INDEX {second}; COMMIT"));
                        assert!(done.is_ok(), "{look} beside {first} and {second}: {done:?}");
                        assert!(looking.join().is_ok(), "{look} beside {first} and {second}");
                    });
                }
            }
        }
    }
}
