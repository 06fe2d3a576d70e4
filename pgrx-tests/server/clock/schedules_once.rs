//! Schedules that the worker fires by the real clock: each slot once, at the clock that is set, over a promotion and a
//! dump. Not responsible for crashes, kills and concurrent calls (`storm`).

use crate::clock::schedules::{maintain, set_clock};
use crate::shared::*;

/// Makes two schedules of ten slots a second, each with its own queue, and one schedule of a slot a second.
fn schedule(client: &mut Client) {
    for name in ["fast", "fast_too", "cron"] {
        create(client, name, "");
    }
    client.run(
        "SELECT queue.schedule('fast', 'fast', every => '100 ms', missed => 'all');
         SELECT queue.schedule('fast_too', 'fast_too', every => '100 ms', missed => 'all');
         SELECT queue.schedule('cron', 'cron', cron => '* * * * * *', missed => 'all')",
    );
}

fn jobs(client: &mut Client) -> i64 {
    client.value("SELECT count(*) FROM queue.jobs")
}

/// Waits until this many more jobs exist.
fn wait_for_more(client: &mut Client, count: i64) {
    let before = jobs(client);
    wait::until_true("slots are fired", || jobs(client) >= before + count);
}

/// Asserts that every slot from the first to the last has one job, and that the log of firings agrees.
fn assert_each_slot_once(cluster: &Cluster, client: &mut Client) {
    client.run("SELECT queue.pause_schedule(name) FROM queue.schedules");
    let sql = "SELECT headers->>'schedule', count(*), count(DISTINCT headers->>'slot'),
                      round(extract(epoch FROM max((headers->>'slot')::timestamptz) -
                      min((headers->>'slot')::timestamptz))
                            / CASE WHEN queue_name = 'cron' THEN 1 ELSE 0.1 END)::bigint + 1
               FROM queue.jobs GROUP BY 1, queue_name ORDER BY 1";
    let rows = client.query(sql, &[]).unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let (name, jobs, slots, planned): (String, i64, i64, i64) = (row.get(0), row.get(1), row.get(2), row.get(3));
        assert_eq!((jobs, slots), (planned, planned), "{name}: jobs and slots, of those planned");
    }
    let differences = "SELECT job_id FROM queue.jobs
                       EXCEPT SELECT job_id FROM (SELECT * FROM queue_internal.firing_0 UNION ALL SELECT *
                       FROM queue_internal.firing_1) AS f";
    assert_eq!(client.count(differences), 0);
    let log = cluster.log();
    assert!(!log.contains("schedule \"fast") && !log.contains("schedule \"cron"), "{log}");
}

#[test]
fn each_slot_is_fired_once_over_the_promotion_of_a_standby() {
    let (primary, mut client) = Cluster::new().start_with_database("app");
    schedule(&mut client);
    let standby = primary.standby();
    wait_for_more(&mut client, 20);
    let mut reader = standby.connect_to("app");
    reader.refused("SELECT queue.schedule('s', 'fast', every => '1 s')", "25006");
    assert_eq!(reader.count("SELECT FROM queue.schedules, queue.upcoming(name, 1)"), 3);
    primary.stop_immediate();
    standby.promote();
    let mut client = standby.connect_to("app");
    wait_for_more(&mut client, 30);
    assert_each_slot_once(&standby, &mut client);
}

#[test]
fn an_open_transaction_that_fires_a_schedule_blocks_no_other_session() {
    let (database, mut client) = Database::new().with_queue("q", "");
    // A session holds the token for long. Its statement fires and then waits for a lock.
    let mut gate = database.connect();
    gate.run("SELECT pg_advisory_lock(1)");
    let mut holder = database.connect();
    let pid = holder.pid();
    set_clock(&mut holder, "2100-01-01 00:00Z");
    holder.run("SELECT queue.schedule('far', 'q', cron => '0 0 1 1 *', starts_at => '2100-06-01 00:00Z')");
    set_clock(&mut holder, "2101-01-01 00:00Z");
    let holding = thread::spawn(move || {
        // The worker may hold the token at this moment, to read the new schedule.
        let sql = "SELECT did, CASE WHEN did > 0 THEN pg_advisory_lock(1)::text END FROM queue.maintain()
                   WHERE duty = 'fire_schedules'";
        while holder.value::<i64>(sql) == 0 {}
    });
    let holds =
        format!("SELECT FROM pg_locks WHERE pid = {pid} AND locktype = 'object' AND classid = 'pg_class'::regclass");
    // The session has fired, and its transaction stays open.
    let waits = format!("SELECT FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'advisory'");
    wait::until_true("the holder waits at the gate", || client.count(&waits) == 1);
    assert_eq!(client.count(&holds), 1, "the token is held");
    // Schedules and jobs work meanwhile, and the worker comes back later.
    client.run("SET lock_timeout = '20 s'");
    client.run("SELECT queue.schedule('s', 'q', every => '100 ms', missed => 'all')");
    client.run("SELECT queue.enqueue('q'), queue.run_schedule('s'), queue.pause_schedule('far')");
    client.run("SELECT FROM queue.schedules, queue.maintain()");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE headers ? 'slot'"), 0);
    drop(gate);
    holding.join().unwrap();
    wait::until_true("the worker has fired", || {
        client.count("SELECT FROM queue.jobs WHERE headers->>'schedule' = 's' AND headers ? 'slot'") > 3
    });
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE headers->>'schedule' = 'far'"), 1);
}

#[test]
fn a_thousand_schedules_that_are_due_together_fire() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    for n in 0..5 {
        create(&mut client, &format!("q{n}"), "");
    }
    client.run(
        "SELECT queue.schedule('s' || n, 'q' || n % 5, every => '1 day', starts_at => now() + interval '1 hour')
         FROM generate_series(1, 1000) AS n",
    );
    // A process that Postgres has just forked may miss a reload of the settings. So the test first waits until the
    // worker runs.
    wait::until_true("the worker runs", || cluster.log().contains("worker of database \"app\" has started"));
    // The new offset makes the schedules due. So none is late, however long it took to make them.
    cluster.append_conf("pg_queue.clock_offset = 3601");
    cluster.reload();
    wait::until_true("all have fired", || jobs(&mut client) == 1000);
    assert_eq!(client.value::<i64>("SELECT count(DISTINCT headers->>'schedule') FROM queue.jobs"), 1000);
    // One transaction fires all schedules, and enqueues the jobs of a queue together.
    assert_eq!(client.value::<i64>("SELECT count(DISTINCT last_run_at) FROM queue.schedules"), 1);
    assert_eq!(client.value::<i64>("SELECT count(DISTINCT enqueued_at) FROM queue.jobs"), 1);
}

#[test]
fn a_dump_remembers_the_fired_slots() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    client.switch_worker_off();
    create(&mut client, "q", "");
    set_clock(&mut client, "2026-01-05 10:00:30Z");
    client.run("SELECT queue.schedule('gone', 'q', cron => '* * * * *'); SELECT queue.unschedule('gone')");
    client.run("SELECT queue.schedule('s', 'q', cron => '* * * * *', missed => 'all')");
    client.run("SELECT queue.schedule('p', 'q', every => '1 month', timezone => 'Europe/Berlin', overlap => false)");
    client.run("SELECT queue.pause_schedule('p')");
    set_clock(&mut client, "2026-01-05 10:02:00Z");
    maintain(&mut client);
    let shown = "SELECT concat_ws(' ', name, queue_name, cron, every, timezone, next_run_at, last_run_at, \
        last_job_id, is_paused, missed, overlap, created_at) FROM queue.schedules ORDER BY name";
    let before: Vec<String> = client.column(shown);
    let dump = cluster.pg_dump(&["app"]);

    cluster.psql("CREATE DATABASE copy; ALTER DATABASE copy SET pg_queue.worker = off");
    let printed = cluster.psql_in("copy", &dump);
    assert!(!printed.contains("ERROR"), "{printed}");
    let mut copy = cluster.connect_to("copy");
    set_clock(&mut copy, "2026-01-05 10:03:00Z");
    // The database is dormant. Nothing is planned and nothing fires.
    copy.refused("SELECT queue.schedule('t', 'q', every => '1 s')", "55000");
    maintain(&mut copy);
    assert_eq!(jobs(&mut copy), 2);
    copy.run("SELECT queue.adopt()");
    assert_eq!(copy.column::<String>(shown), before);
    // New ids come after the used ids.
    copy.run("SELECT queue.schedule('new', 'q', cron => '* * * * *')");
    assert!(copy.value::<bool>("SELECT max(schedule_id) > 3 FROM queue_internal.schedule"));
    maintain(&mut copy);
    let found = copy.column::<String>("SELECT headers->>'slot' FROM queue.jobs ORDER BY job_id");
    assert_eq!(found, ["2026-01-05T10:01:00Z", "2026-01-05T10:02:00Z", "2026-01-05T10:03:00Z"]);
    // Rows written by SQL make the database dormant, including rows of firings.
    copy.run("DELETE FROM queue_internal.firing_0");
    set_clock(&mut copy, "2026-01-05 10:04:00Z");
    maintain(&mut copy);
    assert_eq!(jobs(&mut copy), 3);
}

#[test]
fn a_worker_follows_a_clock_that_is_set() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    client.run(
        "SELECT queue.schedule('s', 'q', every => '1 hour', missed => 'all', starts_at => now() + interval '1 hour')",
    );
    // A process that Postgres has just forked may miss a reload of the settings. So the test first waits until the
    // worker runs.
    wait::until_true("the worker runs", || cluster.log().contains("worker of database \"app\" has started"));
    // The worker sleeps until the slot, but it checks the clock once a minute and when its settings change.
    cluster.append_conf("pg_queue.clock_offset = 10800.5");
    cluster.reload();
    wait::until_true("three slots are made up for", || jobs(&mut client) == 3);
    let next: String =
        client.value("SELECT round(extract(epoch FROM next_run_at - starts_at))::text FROM queue.schedules");
    assert_eq!(next, "10800");
    assert_eq!(client.count("SELECT FROM pg_settings WHERE name = 'pg_queue.clock_offset'"), 0);
}
