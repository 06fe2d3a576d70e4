//! Missed slots and the log of firings. The time is set as in `schedules`.

use crate::clock::schedules::{Stage, maintain, set_clock};
use crate::shared::*;

#[test]
fn missed_slots_run_as_the_schedule_says() {
    for (missed, expected) in [
        ("skip", &[][..]),
        ("once", &["2026-01-05T10:05:00Z"][..]),
        (
            "all",
            &[
                "2026-01-05T10:01:00Z",
                "2026-01-05T10:02:00Z",
                "2026-01-05T10:03:00Z",
                "2026-01-05T10:04:00Z",
                "2026-01-05T10:05:00Z",
            ][..],
        ),
    ] {
        let mut stage = Stage::at("2026-01-05 10:00:30Z");
        stage.schedule(&format!("'s', 'q', cron => '* * * * *', missed => '{missed}'"));
        stage.fire("2026-01-05 10:05:30Z");
        assert_eq!(stage.slots(), expected, "{missed}");
        assert_eq!(stage.shown("next_run_at").as_deref(), Some("2026-01-05 10:06:00+00"), "{missed}");
        // Skipped slots stay skipped in the next session too.
        let mut other = stage.database.connect();
        set_clock(&mut other, "2026-01-05 10:05:40Z");
        maintain(&mut other);
        assert_eq!(stage.slots(), expected, "{missed}");
        stage.fire("2026-01-05 10:06:02Z");
        assert_eq!(stage.slots().len(), expected.len() + 1, "{missed}");
    }
}

#[test]
fn a_thousand_missed_slots_run_and_the_others_are_skipped_with_a_warning() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    stage.schedule("'long', 'q', every => '10 s', missed => 'all', starts_at => '2026-01-05 10:01Z'");
    stage.fire("2026-01-06 10:01:07Z");
    let slots = stage.slots();
    assert_eq!(slots.len(), 1000);
    assert_eq!((slots[0].as_str(), slots[999].as_str()), ("2026-01-05T10:01:00Z", "2026-01-05T12:47:30Z"));
    assert_eq!(stage.shown("next_run_at").as_deref(), Some("2026-01-06 10:01:10+00"));
    let log = server().log();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("schedule \"long\" has missed more than")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    stage.fire("2026-01-06 10:01:10Z");
    assert_eq!(stage.slots().len(), 1001);
}

#[test]
fn the_log_of_firings_stays_small_while_a_session_holds_the_horizon() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.reclaim_delay = 0", "autovacuum = off"]).start_with_database("app");
    client.switch_worker_off();
    create(&mut client, "q", "");
    set_clock(&mut client, "2026-01-05 10:00Z");
    client.run(
        "SELECT queue.schedule('fast', 'q', every => '100 ms', missed => 'all', starts_at => '2026-01-05 10:00Z')",
    );
    client.run("SELECT queue.schedule('slow', 'q', cron => '30 9 * * *', missed => 'skip')");
    set_clock(&mut client, "2026-01-05 10:00:01Z");
    maintain(&mut client);
    let mut pinned = cluster.connect_to("app");
    pinned.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue.schedules");
    let slots: i64 = client.value("SELECT count(*) FROM queue.jobs");
    let mut turns = 0;
    let mut largest = 0;
    for second in 1..=400 {
        // Each step of 95 seconds has 950 slots. The limit for missed ones is a thousand.
        set_clock(&mut client, &format!("2026-01-05 {}", clock_time(second * 95)));
        for _ in 0..second % 3 {
            client.failure("SELECT 1 / (count(*) - count(*)) FROM queue.maintain()");
        }
        client.run("SELECT FROM queue.maintain()");
        let size: i64 = client.value(
            "SELECT sum(pg_total_relation_size(t))::bigint
             FROM unnest('{queue_internal.firing_0, queue_internal.firing_1}'::regclass[]) AS t",
        );
        largest = largest.max(size);
        turns = client.value(
            "SELECT greatest((SELECT max(turn) FROM queue_internal.firing_0), (SELECT max(turn)
                FROM queue_internal.firing_1))",
        );
        if turns > 6 {
            break;
        }
    }
    assert!(turns > 6, "{turns} turns");
    // Two halves of half a megabyte each, their keys, and the firings of one outage.
    assert!(largest < 4_000_000, "{largest} bytes");
    // The turns have neither lost nor doubled a slot of the outages.
    let (jobs, distinct, first, last): (i64, i64, String, String) = {
        let row = client
            .query_one(
                "SELECT count(*), count(DISTINCT headers->>'slot'), \
            min((headers->>'slot')::timestamptz)::text, max((headers->>'slot')::timestamptz)::text FROM queue.jobs \
            WHERE headers->>'schedule' = 'fast'",
                &[],
            )
            .unwrap();
        (row.get(0), row.get(1), row.get(2), row.get(3))
    };
    assert!(jobs > slots && jobs == distinct, "{jobs} jobs, {distinct} slots");
    let planned: i64 = client
        .value(&format!("SELECT (extract(epoch FROM timestamptz '{last}' - timestamptz '{first}') * 10)::bigint + 1"));
    assert_eq!(jobs, planned);
    assert_eq!(
        client.value::<i64>("SELECT count(*) FROM queue.schedules WHERE last_job_id IS NULL AND name = 'fast'"),
        0
    );
    pinned.run("COMMIT");
}

/// Returns the time of day this number of seconds after ten o'clock.
fn clock_time(seconds: i32) -> String {
    format!("{}:{:02}:{:02}Z", 10 + seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[test]
fn a_log_of_firings_whose_schedules_are_gone_is_emptied_and_left_alone() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.reclaim_delay = 0", "pg_queue.reclaim = off"]).start_with_database("app");
    client.switch_worker_off();
    create(&mut client, "q", "");
    set_clock(&mut client, "2026-01-05 10:00Z");
    client.run("SELECT queue.schedule('s', 'q', every => '100 ms', missed => 'all')");
    let blocks =
        "SELECT (pg_relation_size('queue_internal.firing_0') + pg_relation_size('queue_internal.firing_1')) / 8192";
    let mut second = 0;
    while client.value::<i64>(blocks) < 64 {
        second += 90;
        set_clock(&mut client, &format!("2026-01-05 {}", clock_time(second)));
        client.run("SELECT FROM queue.maintain()");
    }
    client.run("SELECT queue.unschedule('s')");
    client.run("ALTER SYSTEM SET pg_queue.reclaim = on");
    client.run("SELECT pg_reload_conf()");
    // A new session has not looked at the log's size.
    let mut client = wait::until("new sessions may turn it", || {
        let mut client = cluster.connect_to("app");
        client.value::<bool>("SELECT current_setting('pg_queue.reclaim')::boolean").then_some(client)
    });
    client.run("SET statement_timeout = '20 s'");
    client.run("SELECT FROM queue.maintain()");
    assert_eq!(client.value::<i64>(blocks), 0);
    assert_eq!(client.count("SELECT FROM queue.maintain() WHERE duty = 'rotate_firings' AND did > 0"), 0);
    // A crash while the halves are emptied can leave their indexes without a first page.
    let files: Vec<String> = [0, 1]
        .map(|half| client.value(&format!("SELECT pg_relation_filepath('queue_internal.firing_{half}_pkey')")))
        .into();
    drop(client);
    cluster.stop_fast();
    for file in files {
        std::fs::File::options().write(true).open(cluster.data().join(file)).unwrap().set_len(0).unwrap();
    }
    cluster.start_again();
    let mut client = cluster.connect_to("app");
    set_clock(&mut client, "2026-01-07 10:00Z");
    client.run("SELECT queue.schedule('s', 'q', every => '1 minute', missed => 'all')");
    set_clock(&mut client, "2026-01-07 10:05Z");
    client.run("SELECT FROM queue.maintain()");
    assert!(client.value::<i64>("SELECT count(*) FROM queue_internal.firing_0") > 0);
}

#[test]
fn the_log_of_firings_turns_though_every_session_is_short() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.reclaim_delay = '10 ms'", "pg_queue.worker = off"]).start_with_database("app");
    create(&mut client, "q", "");
    set_clock(&mut client, "2026-01-05 10:00Z");
    client.run(
        "SELECT queue.schedule('fast', 'q', every => '100 ms', missed => 'all', starts_at => '2026-01-05 10:00Z')",
    );
    let mut largest: i64 = 0;
    let mut turns = 0;
    for second in 1..=200 {
        let mut short = cluster.connect_to("app");
        set_clock(&mut short, &format!("2026-01-05 {}", clock_time(second * 95)));
        short.run("SELECT FROM queue.maintain()");
        drop(short);
        largest = largest.max(client.value(
            "SELECT greatest((SELECT count(*) FROM queue_internal.firing_0), (SELECT count(*)
                 FROM queue_internal.firing_1))",
        ));
        turns = client.value(
            "SELECT greatest(max(turn), 0) FROM (TABLE queue_internal.firing_0
                UNION ALL TABLE queue_internal.firing_1) AS f",
        );
        if turns > 4 {
            break;
        }
    }
    assert!(turns > 4, "{turns} turns");
    assert!(largest < 15_000, "{largest} rows");
}

#[test]
fn the_same_thousand_missed_slots_run_whenever_they_fit() {
    let mut stage = Stage::at("2026-01-01 00:00:00+00");
    stage.client.run("SELECT queue.alter('q', max_waiting => 300)");
    stage.schedule("'s', 'q', every => '1 minute', missed => 'all', starts_at => '2026-01-01 00:00:00+00'");
    // 1440 slots: the first thousand will run.
    stage.fire("2026-01-02 00:00:30+00");
    assert_eq!(stage.slots().len(), 300, "as many as fit");
    let mut hours = 0;
    while stage.slots().len() < 1000 {
        hours += 1;
        assert!(hours < 10, "{} slots", stage.slots().len());
        stage.client.run("SELECT queue.complete(id) FROM queue.claim('q', 1000)");
        // A new process reads the log, and more slots are missed meanwhile.
        let mut other = stage.database.connect();
        set_clock(&mut other, &format!("2026-01-02 0{hours}:00:30+00"));
        maintain(&mut other);
    }
    let slots = stage.slots();
    assert_eq!((slots[0].as_str(), slots[999].as_str()), ("2026-01-01T00:01:00Z", "2026-01-01T16:40:00Z"));
    // Later slots of the first outage were skipped. Slots missed since then come next.
    stage.client.run("SELECT queue.alter('q', reset => '{max_waiting}')");
    stage.fire(&format!("2026-01-02 0{hours}:00:40+00"));
    let slots = stage.slots();
    assert_eq!(slots.len() as i64, 1000 + hours * 60);
    assert_eq!(slots[1000], "2026-01-02T00:01:00Z");
    let found = stage.client.value::<i64>("SELECT count(DISTINCT headers->>'slot') FROM queue.jobs");
    assert_eq!(found, slots.len() as i64);
}

#[test]
fn no_missed_slot_runs_after_a_pause_or_a_change_of_missed() {
    for change in [
        "queue.pause_schedule('s'); SELECT queue.resume_schedule('s')",
        "queue.schedule('s', 'q', every => '1 minute', missed => 'skip', starts_at => '2026-01-01 00:00:00+00')",
    ] {
        let mut stage = Stage::at("2026-01-01 00:00:00+00");
        stage.client.run("SELECT queue.alter('q', max_waiting => 300)");
        stage.schedule("'s', 'q', every => '1 minute', missed => 'all', starts_at => '2026-01-01 00:00:00+00'");
        stage.fire("2026-01-02 00:00:30+00");
        assert_eq!(stage.slots().len(), 300, "as many as fit");
        stage.client.run(&format!("SELECT queue.alter('q', reset => '{{max_waiting}}'); SELECT {change}"));
        assert_eq!(stage.shown("next_run_at").as_deref(), Some("2026-01-02 00:01:00+00"), "{change}");
        stage.fire("2026-01-02 00:00:40+00");
        assert_eq!(stage.slots().len(), 300, "{change}");
        stage.fire("2026-01-02 00:01:01+00");
        assert_eq!(stage.slots().len(), 301, "{change}");
    }
}
