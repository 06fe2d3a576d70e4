//! A role without grants, or with weak ones, repeats statements. Other sessions need not read anything again, and their
//! work goes on.

use crate::shared::*;

/// Statements of a role without grants. Each list runs in one session. Most statements fail.
const NOISE: &[&[&str]] = &[
    &["COMMIT PREPARED 'nothing'"],
    &["ROLLBACK PREPARED 'nothing'"],
    &["BEGIN; INSERT INTO scratch VALUES (1); PREPARE TRANSACTION 'own'", "COMMIT PREPARED 'own'"],
    &["BEGIN; INSERT INTO scratch VALUES (1); PREPARE TRANSACTION 'own'", "ROLLBACK PREPARED 'own'"],
    &["BEGIN; INSERT INTO scratch VALUES (1)", "COMMIT PREPARED 'own'", "ROLLBACK"],
    &["COMMIT PREPARED 'held'"],
    &["ALTER ROLE nobody PASSWORD NULL"],
    &["ALTER ROLE nobody SET work_mem = '1MB'"],
    &["ALTER ROLE worker PASSWORD NULL"],
    &["GRANT nobody TO other", "REVOKE nobody FROM other"],
    &["SET ROLE nobody", "RESET ROLE"],
    &["SET SESSION AUTHORIZATION nobody"],
    &["LISTEN noise", "NOTIFY noise", "UNLISTEN *"],
    &["DISCARD ALL"],
    &["CREATE TEMP TABLE t (a int PRIMARY KEY)", "ALTER TABLE t ADD b int", "DROP TABLE t"],
    &["CREATE TABLE t (a int)", "ALTER TABLE t DISABLE TRIGGER ALL", "REINDEX TABLE t", "DROP TABLE t"],
    &["ALTER DATABASE app SET work_mem = '1MB'"],
    &["ALTER DATABASE app RESET ALL"],
    &["DO 'BEGIN ALTER DATABASE app SET work_mem = ''1MB''; EXCEPTION WHEN insufficient_privilege THEN NULL; END'"],
    &["DO 'BEGIN ALTER DATABASE app ALLOW_CONNECTIONS false; EXCEPTION WHEN insufficient_privilege THEN NULL; END'"],
    &["DO 'BEGIN EXECUTE ''COMMIT PREPARED ''''nothing''''''; EXCEPTION WHEN OTHERS THEN NULL; END'"],
    &["ALTER DATABASE app RENAME TO gone", "ALTER DATABASE postgres RENAME TO gone"],
    &["ALTER DATABASE app SET TABLESPACE pg_default", "ALTER DATABASE app OWNER TO nobody"],
    &["DROP DATABASE app", "DROP DATABASE postgres", "DROP DATABASE IF EXISTS nothing"],
    &["CREATE DATABASE copy TEMPLATE app"],
    &["DROP EXTENSION pg_queue", "DROP EXTENSION pg_queue CASCADE", "ALTER EXTENSION pg_queue UPDATE"],
    &["DO 'BEGIN DROP EXTENSION pg_queue; EXCEPTION WHEN OTHERS THEN NULL; END'"],
    &[
        "ALTER TABLE queue_internal.queue DISABLE TRIGGER ALL",
        "CREATE RULE r AS ON INSERT TO queue_internal.queue DO NOTHING",
    ],
    &["ALTER SCHEMA queue RENAME TO other", "DROP SCHEMA queue CASCADE"],
    &["DROP OWNED BY worker", "REASSIGN OWNED BY worker TO nobody"],
];

fn cluster() -> (Cluster, Client) {
    let (cluster, mut admin) = Cluster::new().conf("max_prepared_transactions = 5").start_with_database("app");
    admin.run(
        "CREATE ROLE nobody LOGIN; CREATE ROLE other; CREATE ROLE worker LOGIN; CREATE ROLE producer LOGIN;
         CREATE SCHEMA nobody AUTHORIZATION nobody; CREATE TABLE nobody.scratch (a int);
         ALTER TABLE nobody.scratch OWNER TO nobody;
         SELECT queue.create('q', retention => '0'), queue.grant('q', 'worker', 'consume'), queue.create('own'),
                queue.grant('own', 'producer', 'produce')",
    );
    (cluster, admin)
}

fn background_worker(admin: &mut Client) -> i32 {
    wait::until("the background worker runs", || {
        let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'pg_queue worker%' AND datname = 'app'";
        admin.column::<i32>(sql).first().copied()
    })
}

#[test]
fn statements_of_a_role_without_grants_make_no_session_read_again() {
    let (cluster, mut admin) = cluster();
    admin.run("BEGIN; SELECT queue.enqueue('q'); PREPARE TRANSACTION 'held'");
    let background = background_worker(&mut admin);
    let mut worker = cluster.connect_as("app", "worker");
    let pid = worker.pid();
    let work = "SELECT queue.complete(id) FROM queue.claim('q')";
    for statements in NOISE {
        admin.run("SELECT queue.enqueue('q') FROM generate_series(1, 2)");
        assert_eq!(worker.count(work), 1);
        let points = [
            cluster.fault_of(pid, "rights.read", "error"),
            cluster.fault("prepared.ended", "error"),
            cluster.fault("worker.renewed", "error"),
        ];
        let mut nobody = cluster.connect_as("app", "nobody");
        for _ in 0..3 {
            for statement in *statements {
                let _ = nobody.batch_execute(statement);
            }
        }
        assert_eq!(worker.count(work), 1, "{statements:?}");
        for point in points {
            assert!(!point.release(), "{statements:?} was noticed");
        }
    }
    assert_eq!(background_worker(&mut admin), background);
    // The test would have noticed such work: the commit of a prepared enqueue reaches the point.
    let point = cluster.fault("prepared.ended", "error");
    admin.run("COMMIT PREPARED 'held'");
    assert!(point.release());
    assert_eq!(worker.count(work), 1);
}

#[test]
fn a_worker_restarts_for_new_settings_only_if_the_command_commits() {
    let (cluster, mut admin) = cluster();
    background_worker(&mut admin);
    for (end, expected) in [("ROLLBACK", false), ("ROLLBACK TO s; COMMIT", false), ("RELEASE s; COMMIT", true)] {
        let point = cluster.fault("worker.renewed", "error");
        admin.run(&format!("BEGIN; SAVEPOINT s; ALTER DATABASE app SET work_mem = '1MB'; {end}"));
        assert_eq!(point.release(), expected, "{end}");
    }
}

#[test]
fn a_transaction_prepared_before_a_restart_counts_as_one_of_ours() {
    let (cluster, mut admin) = cluster();
    admin.run("BEGIN; SELECT queue.enqueue('q'); PREPARE TRANSACTION 'kept'");
    admin.run("BEGIN; INSERT INTO nobody.scratch VALUES (1); PREPARE TRANSACTION 'other'");
    drop(admin);
    cluster.restart();
    let mut admin = cluster.connect_to("app");
    assert_eq!(admin.count("SELECT FROM queue.claim('q')"), 0);
    for (gid, jobs) in [("other", 0), ("kept", 1)] {
        let point = cluster.fault("prepared.ended", "error");
        admin.run(&format!("COMMIT PREPARED '{gid}'"));
        assert!(point.release(), "{gid}");
        assert_eq!(admin.count("SELECT FROM queue.claim('q')"), jobs, "{gid}");
    }
}

#[test]
fn claims_get_through_many_ended_jobs_while_memory_is_invalidated_all_the_time() {
    let (cluster, mut admin) = cluster();
    // There are more jobs than one refill reads.
    admin.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, ARRAY[5000]))");
    admin.run("SELECT queue.purge('q'); SELECT queue.enqueue('q') FROM generate_series(1, 3)");
    let (mut producer, mut worker) = (cluster.connect_as("app", "producer"), cluster.connect_as("app", "worker"));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                producer.run("BEGIN; SELECT queue.enqueue('own'); PREPARE TRANSACTION 'own'");
                producer.run("COMMIT PREPARED 'own'");
            }
        });
        worker.run("SET statement_timeout = '60 s'");
        let claimed = (0..3).map(|_| worker.query("SELECT FROM queue.claim('q')", &[]).map_or(0, |rows| rows.len()));
        let claimed: usize = claimed.sum();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(claimed, 3);
    });
}
