//! Calls that fail on their way but could be carried out later. They are tried again, and no call is passed over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use queue_tests::installation::{self, Installation};
use queue_tests::sql::Sql;
use queue_tests::{Cluster, integrity, wait};

use crate::arrivals::each_call_is_the_same;
use crate::pair::{DATABASE, Pair, conninfo, primary_sql};

/// Checks that nothing was refused, and that the jobs have these payloads.
#[track_caller]
fn check_payloads(pair: &Pair, wanted: std::ops::Range<i64>) {
    pair.wait_arrived();
    let mut server = pair.server();
    let found = server.column::<i64>("SELECT payload::bigint FROM queue.jobs ORDER BY 1");
    assert_eq!(found, wanted.collect::<Vec<_>>());
    assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
    integrity::check(&mut server);
}

#[test]
fn a_call_that_keeps_failing_is_named_and_can_be_put_aside() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    server.run("SELECT queue.create_topic('t'); SELECT queue_bridge.allow('shop', 't')");
    server.run("ALTER DATABASE shop SET pg_queue.patience = '1s'");
    assert_eq!(pair.contact(), None);
    let publish = "CREATE OR REPLACE FUNCTION queue_bridge.publish(topic text, ids bigint[], made_at timestamptz,
        body jsonb, options jsonb) RETURNS void";
    server.run(&format!("{publish} LANGUAGE plpgsql AS $$BEGIN RAISE 'no power' USING ERRCODE = '58030'; END$$"));
    let event: i64 = app.value("SELECT queue.publish('t')");
    app.enqueue("q");
    assert_eq!(pair.wait_failing(), format!("{event} 58030"));
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE queue_name = 'q'"), 0, "it is behind the event");
    let hint = format!("SELECT queue_bridge.refuse('shop', {event}) puts it aside");
    wait::until("the log names it", || pair.server.log().contains(&hint).then_some(()));
    let mut other = pair.server();
    wait::until("the patience is over", || {
        assert_eq!(pair.contact(), None);
        let doctor = "SELECT detail FROM queue.doctor() WHERE name = 'bridge'";
        let said = other.value::<String>(doctor);
        (said.contains(&format!("call {event} fails since")) && said.contains("no power (58030)")).then_some(())
    });
    server.refused("SELECT queue_bridge.refuse('none', 1)", "42704");
    server.run(&format!("SELECT queue_bridge.refuse('shop', {event})"));
    pair.wait_arrived();
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE queue_name = 'q'"), 1);
    assert_eq!(server.column::<i64>("SELECT id FROM queue_bridge.refused WHERE code = '57014'"), [event]);
    assert_eq!(server.count("SELECT FROM queue_bridge.source WHERE refusing <> '{}'"), 0);
    // A repair copies the call once more and leaves it in the list.
    server.run("SELECT queue_bridge.repair('shop')");
    pair.wait_arrived();
    assert_eq!(server.column::<i64>("SELECT id FROM queue_bridge.refused"), [event]);
    // Once the cause is gone, the call is delivered.
    let own = "LANGUAGE c AS '$libdir/pg_queue', 'pg_queue_bridge_publish'";
    server.run(&format!("{publish} {own}"));
    assert_eq!(server.value::<i64>("SELECT queue_bridge.retry_refused('shop')"), 1);
    assert_eq!(server.count("SELECT FROM queue_bridge.passed"), 1);
}

#[test]
fn a_deadlock_holds_up_no_other_call() {
    let pair = Pair::new();
    let (mut app, mut session, mut server) = (pair.app(), pair.server(), pair.server());
    let keyed = |key| format!("SELECT queue.enqueue('q', unique_key => '{key}')");
    pair.server.append_conf("deadlock_timeout = 100ms");
    pair.server.reload();
    session.run("SET deadlock_timeout = '1h'; BEGIN");
    session.run(&keyed("b"));
    app.run(&format!("BEGIN; {}; {}; COMMIT", keyed("a"), keyed("b")));
    let waits = "SELECT FROM pg_stat_activity
        WHERE backend_type LIKE 'logical replication%' AND wait_event_type = 'Lock'";
    wait::until("the call waits for the session", || (server.count(waits) > 0).then_some(()));
    // The session waits an hour before it looks for deadlocks, so the call finds this deadlock or gives up.
    session.run(&keyed("a"));
    let waiting = "SELECT FROM queue_bridge.refused WHERE is_waiting AND code IN ('40P01', '55P03')";
    wait::until("the call is put aside", || (server.count(waiting) > 0).then_some(()));
    app.enqueue("q");
    pair.wait_arrived();
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE unique_key IS NULL"), 1);
    session.run("COMMIT");
    assert_eq!(pair.contact(), None);
    // The call made the job with key `a`, the session the job with key `b`.
    assert_eq!(server.column::<String>("SELECT unique_key FROM queue.jobs ORDER BY 1 NULLS LAST LIMIT 2"), ["a", "b"]);
    assert_eq!(server.count("SELECT FROM queue_bridge.passed"), 1);
    assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
    integrity::check(&mut server);
}

/// Limits the size of the files that running processes of this server can write. The server takes that for a full disk.
fn limit_files(cluster: &Cluster, bytes: &str) {
    let pid = cluster.postmaster_pid().to_string();
    let limit = format!("--fsize={bytes}:unlimited");
    // The server's own account may do this without further rights.
    let mut prlimit = cluster.command("/usr/bin/env");
    let status = prlimit.args(["prlimit", "--pid", &pid, &limit]).status().expect("prlimit, of util-linux");
    assert!(status.success());
}

#[test]
fn a_full_disk_passes_nothing_over() {
    let pair = Pair::new();
    let mut app = pair.app();
    // A WAL file has 16 MB.
    limit_files(&pair.server, "17000000");
    let mut server = pair.server();
    server.run("ALTER SUBSCRIPTION queue_bridge_shop DISABLE");
    let worker = "SELECT FROM pg_stat_activity WHERE backend_type LIKE 'logical replication worker'";
    wait::until("its process has ended", || (server.count(worker) == 0).then_some(()));
    server.run("ALTER SUBSCRIPTION queue_bridge_shop ENABLE");
    let noise = "(SELECT string_agg(md5(n::text || i), '') FROM generate_series(1, 500) AS i)";
    app.run(&format!(
        "SELECT queue.enqueue('q', to_jsonb(n), headers => jsonb_build_object('noise', {noise}))
         FROM generate_series(0, 2999) AS n"
    ));
    pair.wait_failing();
    assert_eq!(server.count("SELECT FROM queue.jobs"), 0);
    limit_files(&pair.server, "unlimited");
    check_payloads(&pair, 0..3000);
}

#[test]
fn a_restore_that_is_under_way_refuses_nothing() {
    let pair = Pair::new();
    let mut app = pair.app();
    let mut server = pair.server();
    app.run("SELECT queue.enqueue('q', '0')");
    pair.wait_arrived();
    // The first statement of pg_restore --single-transaction.
    let mut restore = pair.server();
    restore.run("BEGIN; INSERT INTO queue_internal.claim_0 SELECT * FROM queue_internal.claim_0 WHERE false");
    server.refused("SELECT queue.purge('none')", "55000");
    app.run("SELECT queue.enqueue('q', '1')");
    let tried = "PL/pgSQL function queue_bridge.arrive()";
    wait::until("the call is tried again", || (pair.server.log().matches(tried).count() > 1).then_some(()));
    assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
    restore.run("ROLLBACK");
    check_payloads(&pair, 0..2);
}

#[test]
fn a_restored_dump_of_the_queue_server_takes_over() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    pair.drop_known_queue();
    let refused = app.enqueue("other");
    let arrived = app.enqueue("q");
    pair.wait_arrived();
    let dump = pair.server.pg_dump(&["-d", DATABASE]);
    let later = app.enqueue("q");
    pair.wait_arrived();
    pair.server.connect().run("CREATE DATABASE copy");
    let printed = pair.server.psql_in("copy", &dump);
    assert!(!printed.contains("ERROR"), "{printed}");
    let mut copy = pair.server.connect_to("copy");
    copy.run("SELECT queue.adopt()");
    // A copy takes no jobs while its original is there.
    let contact = "SELECT queue_bridge.contact('shop')";
    let said: String = copy.value(contact);
    assert!(said.starts_with("another queue server takes its jobs: "), "{said}");
    assert_eq!(pair.contact(), None);
    // The original stops.
    server.run("ALTER SUBSCRIPTION queue_bridge_shop DISABLE");
    pair.primary_as("owner").run("UPDATE queue_bridge.bridge SET seen_at = seen_at - interval '2 minutes'");
    assert_eq!(copy.value::<String>(contact), "this server has gone back in time");
    wait::until("what has come since", || {
        (copy.count(&format!("SELECT FROM queue.jobs WHERE job_id = {later}")) > 0).then_some(())
    });
    assert_eq!(copy.state(arrived), "ready");
    copy.run("SELECT queue.create('other'); SELECT queue_bridge.allow('shop', 'other')");
    assert_eq!(copy.value::<i64>("SELECT queue_bridge.retry_refused('shop')"), 1);
    assert_eq!(copy.state(refused), "ready");
    integrity::check(&mut copy);
}

#[test]
fn both_sides_can_be_updated_while_producers_work() {
    let pair = Pair::new();
    let is_over = AtomicBool::new(false);
    let made = thread::scope(|scope| {
        let producers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut app, mut made) = (pair.app(), Vec::new());
                    while !is_over.load(Ordering::Relaxed) {
                        made.push(app.value::<i64>("SELECT queue.enqueue('q', priority => 1)"));
                        made.extend(app.column::<i64>("SELECT queue.enqueue_many('q', '{1,2}')"));
                    }
                    made
                })
            })
            .collect();
        for _ in 0..5 {
            pair.primary_as("owner").run(&primary_sql());
            // As ALTER EXTENSION … UPDATE, this recreates functions and locks the outbox.
            pair.server().run(
                "BEGIN; LOCK TABLE queue_bridge.outbox;
                 DO $$ DECLARE f record; BEGIN
                     FOR f IN SELECT pg_get_functiondef(p.oid) AS made FROM pg_proc AS p
                              WHERE p.pronamespace IN ('queue_bridge'::regnamespace, 'queue'::regnamespace) LOOP
                         EXECUTE f.made;
                     END LOOP;
                 END $$;
                 ALTER EXTENSION pg_queue UPDATE; ALTER EXTENSION pg_queue_bridge UPDATE; COMMIT",
            );
            assert_eq!(pair.contact(), None);
        }
        is_over.store(true, Ordering::Relaxed);
        let made = producers.into_iter().flat_map(|producer| producer.join().expect("no call fails"));
        made.collect::<std::collections::BTreeSet<i64>>()
    });
    pair.wait_arrived();
    let mut server = pair.server();
    let arrived = server.column::<i64>("SELECT job_id FROM queue.jobs ORDER BY 1");
    assert_eq!(arrived, made.into_iter().collect::<Vec<_>>());
    assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
}

#[test]
fn the_publication_may_belong_to_a_superuser_and_must_have_the_outbox() {
    let pair = Pair::new();
    let mut primary = pair.primary.connect_to(DATABASE);
    primary.run("ALTER PUBLICATION pg_queue OWNER TO postgres");
    pair.primary_as("owner").run(&primary_sql());
    pair.app().run("SELECT queue.enqueue('q', '0')");
    check_payloads(&pair, 0..1);
    primary.run("ALTER PUBLICATION pg_queue DROP TABLE queue_bridge.outbox");
    let failure = pair.primary_as("owner").failure(&primary_sql());
    assert_eq!((failure.code.as_str(), failure.message.contains("does not publish")), ("55000", true), "{failure:?}");
}

/// Returns the plain servers on this machine of this major version and later ones, except the one under test.
fn others(from: u32) -> Vec<&'static Installation> {
    let mut others = installation::others();
    others.retain(|other| other.major >= from);
    if others.is_empty() {
        println!(
            "skipped: this machine has no server of another major from {from} on; see pgrx-tests/scripts/build-postgres"
        );
    }
    others
}

#[test]
fn the_primary_may_be_of_another_major() {
    for other in others(15) {
        let pair = Pair::with_primary(Cluster::of(other), "");
        each_call_is_the_same(&pair);
        let (mut app, mut server) = (pair.app(), pair.server());
        let jobs = "SELECT job_id FROM queue.jobs ORDER BY 1";
        let before = server.column::<i64>(jobs);
        server.run("SELECT queue_bridge.repair('shop')");
        pair.wait_arrived();
        assert_eq!(server.column::<i64>(jobs), before);
        let job: i64 = app.value("SELECT queue.enqueue('q', stage => 'two')");
        pair.wait_arrived();
        let claim = format!("SELECT id FROM queue.claim('q', 100, stage => 'two') WHERE job_id = {job}");
        let id: i64 = server.value(&claim);
        app.run(&format!("BEGIN; SELECT queue.once({job}); SELECT queue.complete({id}); COMMIT"));
        pair.wait_arrived();
        assert_eq!(server.state(job), "completed", "{}", other.major);
        app.refused("SELECT * FROM queue.claim('q')", "0A000");
        assert_eq!(pair.contact(), None);
        server.run("SELECT queue_bridge.disconnect('shop')");
    }
}

#[test]
fn a_synchronised_slot_survives_a_failover() {
    // The primary needs major version 17 or later.
    let own = installation::installation();
    let majors = if own.major >= 17 { vec![own] } else { others(17) };
    for major in majors {
        let conf = "sync_replication_slots = on\nhot_standby_feedback = on";
        let mut pair = Pair::with_primary(Cluster::of(major), conf).connected();
        pair.primary.connect().run("SELECT pg_create_physical_replication_slot('s')");
        let standby = pair.primary.standby();
        let name = standby.dir().file_name().expect("a name").to_string_lossy().into_owned();
        let conninfo_of_primary = format!(
            "host={} port=5432 user=postgres dbname=postgres application_name={name}",
            pair.primary.dir().display()
        );
        let mut client = standby.connect();
        client.run(&format!("ALTER SYSTEM SET primary_conninfo = '{conninfo_of_primary}'"));
        client.run("ALTER SYSTEM SET primary_slot_name = 's'");
        standby.restart();
        let enqueue = |pair: &Pair, from: i64| {
            pair.app()
                .run(&format!("SELECT queue.enqueue('q', to_jsonb(n)) FROM generate_series({from}, {from} + 9) AS n"));
        };
        enqueue(&pair, 0);
        pair.wait_arrived();
        let synced = "SELECT FROM pg_replication_slots WHERE synced AND NOT temporary";
        wait::until("the slot is on the standby", || (standby.connect().count(synced) > 0).then_some(()));
        pair.server().run("ALTER SUBSCRIPTION queue_bridge_shop DISABLE");
        enqueue(&pair, 10);
        standby.wait_replayed(&pair.primary);
        pair.primary.kill_server();
        standby.promote();
        pair.primary = standby;
        // Only the address changes. Even the address could stay the same.
        pair.server().run(&format!(
            "ALTER SUBSCRIPTION queue_bridge_shop CONNECTION '{0}'; ALTER SUBSCRIPTION queue_bridge_shop ENABLE;
             UPDATE queue_bridge.source SET conninfo = '{0}'",
            conninfo(&pair.primary)
        ));
        enqueue(&pair, 20);
        check_payloads(&pair, 0..30);
        // The contact sees the failover, looks for lost calls and finds none.
        assert_eq!(pair.contact().as_deref(), Some("it has failed over"));
        pair.wait_arrived();
        enqueue(&pair, 30);
        check_payloads(&pair, 0..40);
        assert_eq!(pair.server().value::<i64>("SELECT phantoms FROM queue_bridge.sources"), 0);
        assert_eq!(pair.contact(), None);
    }
}
