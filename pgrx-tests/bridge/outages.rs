//! Failures between the two servers and their repair. No call is lost, and none arrives twice.

use std::process::Command;

use postgres::Client;
use queue_tests::sql::Sql;
use queue_tests::{Cluster, integrity, wait};

use crate::pair::{DATABASE, Pair, conninfo};

/// Enqueues jobs with the payloads `from..to`.
fn enqueue(app: &mut Client, from: i64, to: i64) {
    app.run(&format!("SELECT queue.enqueue('q', to_jsonb(n)) FROM generate_series({from}, {to} - 1) AS n"));
}

/// Checks that each of the jobs with the payloads `0..to` exists once.
#[track_caller]
fn check_all(pair: &Pair, to: i64) {
    let mut server = pair.server();
    let found = server.column::<i64>("SELECT payload::bigint FROM queue.jobs ORDER BY 1");
    assert_eq!(found, (0..to).collect::<Vec<_>>());
    assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
    integrity::check(&mut server);
}

/// Cuts a standby off from its primary.
pub fn cut_off(standby: &Cluster) {
    let mut client = standby.connect();
    client.run("ALTER SYSTEM SET primary_conninfo = ''");
    standby.reload();
    let receiver = "SELECT FROM pg_stat_activity WHERE backend_type = 'walreceiver'";
    wait::until("nothing is received", || (client.count(receiver) == 0).then_some(()));
}

/// Puts a two-hour-old call into the partition that is emptied next. Returns the name of the partition.
pub fn put_old(owner: &mut Client, payload: i64) -> String {
    let next: i32 = owner.value("SELECT (queue_bridge.ring_at(now()) + 1) % 3");
    owner.run(&format!(
        "INSERT INTO queue_bridge.outbox
         SELECT queue_bridge.new_id(), now() - interval '2 hours', {next}, 'e', 'q', NULL, '{payload}', NULL"
    ));
    format!("queue_bridge.outbox_{next}")
}

#[test]
fn a_queue_server_that_was_away_gets_the_calls_made_meanwhile() {
    let pair = Pair::new();
    let mut app = pair.app();
    enqueue(&mut app, 0, 10);
    pair.wait_arrived();
    pair.server.stop_fast();
    enqueue(&mut app, 10, 20);
    pair.server.start_again();
    pair.wait_arrived();
    pair.server.kill_server();
    enqueue(&mut app, 20, 30);
    pair.server.start_again();
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    check_all(&pair, 30);
}

#[test]
fn a_primary_that_crashes_loses_nothing_that_it_has_committed() {
    let pair = Pair::new();
    for round in 0..3 {
        enqueue(&mut pair.app(), round * 10, round * 10 + 10);
        pair.primary.restart_killed();
    }
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    check_all(&pair, 30);
}

#[test]
fn a_lost_slot_is_repaired_and_calls_that_had_arrived_are_passed_over() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    server.run(
        "SELECT queue.create_topic('t'); SELECT queue.bind('t', 'q', '#'); SELECT queue_bridge.allow('shop', 't')",
    );
    assert_eq!(pair.contact(), None);
    enqueue(&mut app, 0, 10);
    app.run("SELECT queue.publish('t', '10'); SELECT queue.enqueue('q', '11', unique_key => 'k')");
    app.run("SELECT queue.enqueue('q', '0', unique_key => 'k')");
    pair.wait_arrived();
    // Some jobs have ended, and the key is free.
    let ids = server.column::<i64>("SELECT id FROM queue.claim('q', 20)");
    assert_eq!(ids.len(), 12);
    server.run(&format!(
        "SELECT queue.complete_many('{{{}}}')",
        ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
    ));
    // Drops the slot while it holds calls.
    server.run("ALTER SUBSCRIPTION queue_bridge_shop DISABLE");
    enqueue(&mut app, 12, 20);
    let mut primary = pair.primary.connect_to(DATABASE);
    wait::until("the slot is free", || {
        let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active";
        (primary.count(sql) > 0).then_some(())
    });
    enqueue(&mut app, 20, 30);
    assert_eq!(pair.contact().as_deref(), Some("its slot is lost"));
    enqueue(&mut app, 30, 40);
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    check_all(&pair, 40);
    // A second repair changes nothing and leaves no slot behind.
    server.run("SELECT queue_bridge.repair('shop')");
    pair.wait_arrived();
    check_all(&pair, 40);
    wait::until("the old slots are dropped", || {
        pair.contact();
        (primary.count("SELECT FROM pg_replication_slots") == 1).then_some(())
    });
}

#[test]
fn a_repair_does_not_end_a_job_that_was_retried_since() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    app.run("SELECT queue.enqueue('q') FROM generate_series(1, 8)");
    let flow: i64 = app.value("SELECT queue.enqueue_flow('q', open => true)");
    pair.wait_arrived();
    let jobs = server.column::<i64>("SELECT job_id FROM queue.jobs WHERE job_id <> 0 ORDER BY job_id");
    let claim = "SELECT id FROM queue.claim('q', 7) ORDER BY job_id";
    let [completed, one, failed, released, late, late_one, dead] =
        server.column::<i64>(claim).try_into().expect("seven attempts");
    let waiting = jobs[7];
    for id in [late, late_one] {
        server.run(&format!("SELECT queue.fail({id}, 'lost', retry_in => '1 hour')"));
    }
    app.run(&format!(
        "SELECT queue.complete({completed}), queue.complete_many('{{{one}}}'),
                queue.fail({failed}, 'no', fatal => true),
                queue.release({released}, '1 hour'), queue.complete({late}), queue.complete_many('{{{late_one}}}'),
                queue.fail({dead}, 'no', fatal => true), queue.cancel({waiting}), queue.seal({flow})"
    ));
    pair.wait_arrived();
    assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
    let states = "SELECT string_agg(state, ' ' ORDER BY job_id) FROM queue.jobs";
    wait::until("the flow ends", || (server.state(flow) == "completed").then_some(()));
    assert_eq!(
        server.value::<String>(states),
        "completed completed dead scheduled completed completed dead cancelled completed"
    );
    let ended = server.column::<i64>("SELECT job_id FROM queue.jobs WHERE state <> 'scheduled' ORDER BY job_id");
    for job in ended {
        server.run(&format!("SELECT queue.retry({job}, '2100-01-01')"));
    }
    wait::until("the flow without members ends again", || (server.state(flow) == "completed").then_some(()));
    let retried = server.value::<String>(states);
    // A cancellation that arrives first by a repair is carried out. A second repair passes it over.
    server.run("ALTER SUBSCRIPTION queue_bridge_shop DISABLE");
    app.run(&format!("SELECT queue.cancel({})", jobs[0]));
    for _ in 0..2 {
        server.run("SELECT queue_bridge.repair('shop')");
        pair.wait_arrived();
        let cancelled = retried.replacen("scheduled", "cancelled", 1);
        assert_eq!(server.value::<String>(states), cancelled);
        assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
    }
    server.run(&format!("SELECT queue.retry({}, '2100-01-01'), queue_bridge.repair('shop')", jobs[0]));
    pair.wait_arrived();
    assert_eq!(server.value::<String>(states), retried);
    // A dump that is restored in place inserts an old row in the same way.
    let mut owner = pair.primary_as("owner");
    for state in ["cancelled", "scheduled"] {
        owner.run(&format!(
            "INSERT INTO queue_bridge.outbox (id, made_at, ring, verb)
             SELECT {}, at, queue_bridge.ring_at(at), 'x' FROM date_trunc('day', now() - interval '1 day') AS at",
            jobs[1]
        ));
        pair.wait_arrived();
        assert_eq!(server.state(jobs[1]), state);
        server.run(&format!("SELECT queue.retry({}, '2100-01-01')", jobs[1]));
    }
    integrity::check(&mut server);
}

#[test]
fn a_queue_server_that_goes_back_in_time_gets_the_calls_that_it_has_forgotten() {
    let pair = Pair::new();
    let mut app = pair.app();
    enqueue(&mut app, 0, 10);
    pair.wait_arrived();
    pair.server.stop_fast();
    let (data, backup) = (pair.server.data(), pair.server.dir().join("backup"));
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let status = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
        assert!(status.success());
    };
    copy(&data, &backup);
    pair.server.start_again();
    enqueue(&mut app, 10, 19);
    let (mut owner, mut reader) = (pair.primary_as("owner"), pair.primary_as("owner"));
    let partition = put_old(&mut owner, 19);
    pair.wait_arrived();
    // Begins to empty the outbox.
    reader.run(&format!("BEGIN; LOCK TABLE {partition} IN ACCESS SHARE MODE"));
    owner.run(&format!(
        "UPDATE queue_bridge.ring SET lsn = pg_current_wal_insert_lsn(), rows = 1
         WHERE ring = right('{partition}', 1)::integer"
    ));
    assert_eq!(pair.contact(), None);
    assert_eq!(pair.contact(), None);
    pair.server.stop_fast();
    std::fs::remove_dir_all(&data).expect("the data directory");
    copy(&backup, &data);
    pair.server.start_again();
    enqueue(&mut app, 20, 30);
    // PostgreSQL skips the gap silently.
    pair.wait_arrived();
    assert_eq!(pair.server().count("SELECT FROM queue.jobs"), 20);
    reader.run("COMMIT");
    assert_eq!(pair.contact().as_deref(), Some("this server has gone back in time"));
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    check_all(&pair, 30);
}

#[test]
fn a_promoted_queue_server_takes_over() {
    let mut pair = Pair::new();
    let mut app = pair.app();
    enqueue(&mut app, 0, 10);
    pair.wait_arrived();
    let standby = pair.server.standby();
    enqueue(&mut app, 10, 20);
    pair.wait_arrived();
    standby.wait_replayed(&pair.server);
    // Calls that arrive after this are lost with the old server.
    cut_off(&standby);
    enqueue(&mut app, 20, 30);
    pair.wait_arrived();
    pair.server.kill_server();
    standby.promote();
    pair.server = standby;
    assert_eq!(pair.contact().as_deref(), Some("this server has gone back in time"));
    pair.wait_arrived();
    enqueue(&mut app, 30, 40);
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    check_all(&pair, 40);
}

#[test]
fn a_promoted_primary_without_the_slot_is_repaired_and_the_jobs_that_it_has_lost_are_listed() {
    let mut pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    server.run(
        "SELECT queue.create_topic('t'); SELECT queue.bind('t', 'q', '#'); SELECT queue_bridge.allow('shop', 't')",
    );
    assert_eq!(pair.contact(), None);
    enqueue(&mut app, 0, 10);
    pair.wait_arrived();
    let standby: Cluster = pair.primary.standby();
    standby.wait_replayed(&pair.primary);
    cut_off(&standby);
    // The standby never gets these calls, so their jobs are phantoms.
    enqueue(&mut app, 100, 109);
    app.run("SELECT queue.publish('t', '109')");
    // This server's job has the key, so the call makes no job.
    server.run("SELECT queue.enqueue('q', '50', unique_key => 'k')");
    app.run("SELECT queue.enqueue('q', '51', unique_key => 'k')");
    pair.wait_arrived();
    pair.primary.kill_server();
    standby.promote();
    pair.primary = standby;
    enqueue(&mut pair.app(), 10, 20);
    let repair = format!(
        "SELECT concat_ws(' ', copied, known, renumbered, phantoms) FROM queue_bridge.repair('shop', '{}'",
        conninfo(&pair.primary)
    );
    assert_eq!(server.value::<String>(&format!("{repair})")), "20 10 0 10");
    enqueue(&mut pair.app(), 20, 30);
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE payload::bigint < 50"), 30);
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE payload::bigint >= 100"), 10);
    assert_eq!(server.value::<i64>("SELECT count(DISTINCT job_id) FROM queue.jobs"), 41);
    let phantoms = "SELECT payload::bigint FROM queue_bridge.phantom AS p, queue.job(p.job_id) ORDER BY 1";
    assert_eq!(server.column::<i64>(phantoms), (100..110).collect::<Vec<_>>());
    assert_eq!(server.value::<i64>("SELECT phantoms FROM queue_bridge.sources"), 10);
    // One of the phantoms runs and stays. The others are cancelled.
    let claimed = "SELECT queue.reprioritize(job_id, -9) FROM queue.jobs WHERE payload = '104'";
    server.run(claimed);
    server.claim("q");
    server.refused("SELECT queue_bridge.repair('shop', phantoms => 'all')", "22023");
    assert_eq!(server.value::<String>(&format!("{repair}, phantoms => 'cancel')")), "30 30 0 10");
    assert_eq!(server.column::<i64>(phantoms), [104]);
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE state = 'cancelled' AND payload::bigint >= 100"), 9);
    assert_eq!(server.value::<String>(&format!("{repair})")), "30 30 0 1", "what was cancelled is dealt with");
    pair.wait_arrived();
    assert_eq!(server.count("SELECT FROM queue.jobs"), 41);
    integrity::check(&mut server);
}

#[test]
fn a_call_with_the_id_of_another_job_gets_a_new_id() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    let job = app.enqueue("q");
    pair.wait_arrived();
    // Another life of the primary has given the same id, and the repair reads both rows.
    server.run("ALTER SUBSCRIPTION queue_bridge_shop DISABLE");
    let mut primary = pair.primary.connect();
    let is_active = "SELECT FROM pg_replication_slots WHERE active";
    wait::until("the source is not read", || (primary.count(is_active) == 0).then_some(()));
    let mut owner = pair.primary_as("owner");
    owner.run(&format!(
        "INSERT INTO queue_bridge.outbox (id, made_at, ring, verb, target, body)
         SELECT {job}, now(), queue_bridge.ring_at(now()), 'e', 'q', '\"another\"'"
    ));
    let repair = "SELECT concat_ws(' ', copied, known, renumbered, phantoms) FROM queue_bridge.repair('shop')";
    assert_eq!(server.value::<String>(repair), "2 1 1 0");
    pair.wait_arrived();
    assert_eq!(server.value::<String>(repair), "2 2 0 0");
    pair.wait_arrived();
    let metrics = "SELECT count(*) FROM queue.metrics() WHERE name = 'pg_queue_bridge_renumbered_total' AND value = 1
                   OR name = 'pg_queue_bridge_lag_seconds' AND value < 3600";
    wait::until("both are told", || (server.value::<i64>(metrics) == 2).then_some(()));
    let sql = "SELECT concat_ws(' ', payload, headers) FROM queue.jobs ORDER BY enqueued_at";
    assert_eq!(server.column::<String>(sql), ["{}".to_owned(), format!("\"another\" {{\"primary_id\": {job}}}")]);
    assert_eq!(server.count("SELECT FROM queue_bridge.passed"), 1);
    integrity::check(&mut server);
}

#[test]
fn the_outbox_is_emptied_only_when_all_of_it_has_arrived() {
    let pair = Pair::new();
    let mut owner = pair.primary_as("owner");
    let partition = put_old(&mut owner, 1);
    let rows = format!("SELECT count(*) FROM {partition}");
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    assert_eq!(owner.value::<i64>(&rows), 1, "the first contact notes it");
    put_old(&mut owner, 1);
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    assert_eq!(owner.value::<i64>(&rows), 2, "a row was added");
    // An open transaction has written into the partition.
    let mut open = pair.primary_as("owner");
    open.run("BEGIN");
    put_old(&mut open, 1);
    assert_eq!(pair.contact(), None);
    assert_eq!(owner.value::<i64>(&rows), 2, "it is in use");
    // The queue server does not read the source for a while.
    pair.server().run("ALTER SUBSCRIPTION queue_bridge_shop DISABLE");
    let mut primary = pair.primary.connect();
    let is_active = "SELECT FROM pg_replication_slots WHERE active";
    wait::until("the source is not read", || (primary.count(is_active) == 0).then_some(()));
    open.run("COMMIT");
    assert_eq!(pair.contact(), None);
    assert_eq!(pair.contact(), None);
    assert_eq!(owner.value::<i64>(&rows), 3, "it has not arrived");
    pair.server().run("ALTER SUBSCRIPTION queue_bridge_shop ENABLE");
    pair.wait_arrived();
    wait::until("it is emptied", || {
        assert_eq!(pair.contact(), None);
        (owner.value::<i64>(&rows) == 0).then_some(())
    });
    assert_eq!(pair.server().count("SELECT FROM queue.jobs"), 3);
    assert_eq!(
        owner.value::<i64>(
            "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'outbox%'"
        ),
        0
    );
}

#[test]
fn phantoms_are_cancelled_once_while_workers_run_some_of_them() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    let flow: i64 = app.value("SELECT queue.enqueue_flow('q', '[{\"task\": \"a\"}, {\"after\": [\"a\"]}]')");
    app.run("SELECT queue.enqueue('q', delay => '1 day'), queue.enqueue('q', after => ARRAY[queue.enqueue('q')])");
    pair.wait_arrived();
    // A failover loses the whole outbox.
    pair.primary_as("owner").run("TRUNCATE queue_bridge.outbox");
    let cancel = "SELECT (queue_bridge.repair('shop', phantoms => 'cancel')).phantoms";
    assert_eq!(server.value::<i64>(cancel), 6);
    server.maintain_until(&format!("(SELECT state = 'cancelled' FROM queue.job({flow}))"));
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE state <> 'cancelled' AND queue_name = 'q'"), 0);
    assert_eq!(server.count("SELECT FROM queue_bridge.phantom"), 0);
    app.run("SELECT queue.enqueue('q') FROM generate_series(1, 400)");
    pair.wait_arrived();
    pair.primary_as("owner").run("TRUNCATE queue_bridge.outbox");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut worker = pair.server();
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    worker.run("SELECT queue.complete(id) FROM queue.claim('q', 3)");
                }
            });
        }
        let found = [0; 3].map(|_| server.value::<i64>(cancel));
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(found[0] == 400 && found[1] == found[2], "{found:?}");
    });
    // Each phantom was run or cancelled. The list has the phantoms that were run.
    let states = "SELECT concat_ws(' ', j.state, p.job_id IS NOT NULL) FROM queue.jobs AS j
        LEFT JOIN queue_bridge.phantom AS p USING (job_id) WHERE j.payload = '{}' AND j.flow IS NULL AND j.after IS NULL
        GROUP BY 1 ORDER BY 1";
    assert_eq!(server.column::<String>(states), ["cancelled f", "completed t"]);
    integrity::check(&mut server);
}
