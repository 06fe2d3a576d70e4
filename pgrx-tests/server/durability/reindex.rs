//! An administrator rebuilds indexes while sessions use them.

use crate::shared::*;

/// Postgres has several ways to replace an index.
#[test]
fn indexes_may_be_rebuilt_while_sessions_know_the_old_ones() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "lease => '1 s', max_attempts => 1000");
    let mut other = cluster.connect_to("app");
    let life = |client: &mut Client| {
        let job = client.enqueue("q");
        let id = client.claim("q");
        client.run(&format!("SELECT queue.complete({id})"));
        assert_eq!(client.state(job), "completed");
        // This call reads the privileges.
        client.run("SELECT queue.create('passing'); SELECT queue.drop('passing')");
    };
    life(&mut client);
    for sql in [
        "REINDEX INDEX CONCURRENTLY queue_internal.claim_0_pkey",
        "REINDEX INDEX CONCURRENTLY queue_internal.outcome_0_pkey",
        "REINDEX INDEX CONCURRENTLY queue_internal.attempt_0_lane_idx",
        "REINDEX TABLE CONCURRENTLY queue_internal.attempt_0",
        "REINDEX TABLE CONCURRENTLY queue_internal.note_0",
        "REINDEX TABLE CONCURRENTLY queue_internal.permission",
        "REINDEX SCHEMA CONCURRENTLY queue",
        "REINDEX TABLE queue_internal.claim_0",
    ] {
        other.run(sql);
        life(&mut client);
        life(&mut other);
    }
    // The worker has used the old indexes too.
    let job = client.enqueue("q");
    client.claim("q");
    other.run("REINDEX TABLE CONCURRENTLY queue_internal.outcome_0");
    wait::until_true("the lease has ended", || client.state(job) != "running");
    assert!(!cluster.log().contains("could not open relation"), "{}", cluster.log());
}

#[test]
fn indexes_rebuilt_under_work_miss_no_row() {
    let (cluster, mut client) = Cluster::new().conf("max_connections = 30").start_with_database("app");
    client.run("CREATE EXTENSION amcheck");
    create(&mut client, "q", "");
    create(&mut client, "strict", "strict_order => true");
    create(&mut client, "batch", "");
    // One index belongs to the user. It is kept.
    client.run(
        "CREATE INDEX mine ON queue_internal.attempt_0 (enqueued_at) WHERE group_key IS NOT NULL; CREATE INDEX \
        ON queue_internal.claim_0 (pid)",
    );
    let is_over = AtomicBool::new(false);
    let done: i64 = thread::scope(|scope| {
        let worker = |queue: &'static str| {
            let mut client = cluster.connect_to("app");
            let is_over = &is_over;
            scope.spawn(move || {
                let mut done = 0;
                while !is_over.load(Ordering::Relaxed) {
                    client.run(&format!("SELECT queue.enqueue('{queue}', group_key => 'g')"));
                    client.run(
                        "SELECT count(*) FROM queue.enqueue_many('batch', array_fill('1'::jsonb, '{20}'), \
                        delay => '1 ms')",
                    );
                    client.run(
                        "SELECT count(*) FROM queue.complete_many((
                             SELECT coalesce(array_agg(id), '{}') FROM queue.claim('batch', 20)))",
                    );
                    let claim = format!("SELECT id FROM queue.claim('{queue}', 3, wait => '1 ms')");
                    for id in client.column::<i64>(&claim) {
                        client.run(&format!("SELECT queue.complete({id})"));
                        done += 1;
                    }
                }
                done
            })
        };
        let workers = [worker("q"), worker("q"), worker("q"), worker("strict")];
        for _ in 0..4 {
            for table in ["attempt_0", "claim_0", "outcome_0", "parked_0"] {
                client.run(&format!("REINDEX TABLE CONCURRENTLY queue_internal.{table}"));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert!(done > 0);
    integrity::check(&mut client);
    let left: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 1000)");
    client.run(&format!("SELECT count(*) FROM queue.complete_many(ARRAY{left:?}::bigint[])"));
    let mut done = done + left.len() as i64;
    while let Some(row) = client.query_opt("SELECT id FROM queue.claim('strict')", &[]).unwrap() {
        client.run(&format!("SELECT queue.complete({})", row.get::<_, i64>(0)));
        done += 1;
    }
    let completed = "SELECT FROM queue.jobs WHERE state = 'completed' AND queue_name <> 'batch'";
    assert_eq!(client.count(completed) as i64, done);
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state <> 'completed' AND queue_name <> 'batch'"), 0);
}

#[test]
fn claims_made_while_an_index_waits_for_old_snapshots_are_in_it() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    client.run("CREATE EXTENSION amcheck");
    create(&mut client, "q", "");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{10}'))");
    for index in ["claim_0_pkey", "attempt_0_lane_idx"] {
        let mut holder = cluster.connect_to("app");
        holder.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class");
        let mut other = cluster.connect_to("app");
        thread::scope(|scope| {
            let built = scope.spawn(move || other.run(&format!("REINDEX INDEX CONCURRENTLY queue_internal.{index}")));
            wait::until_true("it waits for the snapshot", || {
                let phase = "SELECT FROM pg_stat_progress_create_index WHERE phase = 'waiting for old snapshots'";
                client.count(phase) > 0
            });
            assert_eq!(client.count("SELECT FROM queue.claim('q', 5)"), 5);
            client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('2'::jsonb, '{5}'))");
            client.enqueue("q");
            holder.run("COMMIT");
            built.join().unwrap();
        });
        client.run(&format!("SELECT bt_index_check('queue_internal.{index}', heapallindexed => true)"));
    }
    cluster.restart_killed();
    let mut client = cluster.connect_to("app");
    assert_eq!(client.count("SELECT FROM queue.claim('q', 100)"), 12);
}

/// While an index is rebuilt there are two, and ON CONFLICT knows only the older one.
#[test]
fn sessions_may_make_the_same_schedule_while_its_index_is_rebuilt() {
    const SESSIONS: usize = 4;
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    client.run(
        "CREATE UNIQUE INDEX newer ON queue_internal.schedule (schedule_name);
         UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'queue_internal.newer'::regclass",
    );
    let ready = std::sync::Barrier::new(SESSIONS);
    let failures: Vec<Failure> = thread::scope(|scope| {
        let sessions = [(); SESSIONS].map(|_| {
            let (mut client, ready) = (cluster.connect_to("app"), &ready);
            scope.spawn(move || {
                let make = |n| {
                    ready.wait();
                    client.batch_execute(&format!("SELECT queue.schedule('{n}', 'q', every => '1 day')")).err()
                };
                (0..300).filter_map(make).map(|e| Failure::from(&e)).collect::<Vec<_>>()
            })
        });
        sessions.into_iter().flat_map(|session| session.join().unwrap()).collect()
    });
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(client.count("SELECT FROM queue.schedules"), 300);
}
