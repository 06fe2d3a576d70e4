//! Copies of events: each queue decides about its own copy, a paused or full queue blocks no other, and each copy keeps
//! its payload.

use queue_tests::installation::output;

use crate::shared::*;
use crate::storage::segments::{cluster, fillings};

/// A payload of 10 kB.
const LARGE: &str =
    "(SELECT jsonb_build_object('text', string_agg(md5(n::text), '')) FROM generate_series(1, 320) AS n)";

/// Returns the state, payload, key and attempt of a queue's jobs.
fn jobs(client: &mut Client, queue: &str) -> Vec<String> {
    client.column(&format!(
        "SELECT concat_ws(' ', state, payload, unique_key, attempt) FROM queue.jobs
         WHERE queue_name = '{queue}' ORDER BY job_id"
    ))
}

/// In each queue a publish does the same as an enqueue with the same options. The calls for many do so too.
#[test]
fn each_queue_decides_about_a_key_by_itself() {
    const STATES: [&str; 6] = ["new", "waiting", "delayed", "running", "completed", "dead"];
    const VERBS: [(&str, &str, &str, i64); 2] = [
        ("publish", "enqueue", "'{\"new\": true}'", 1),
        ("publish_many", "enqueue_many", "ARRAY['{\"new\": 1}', '{\"new\": 2}']::jsonb[]", 2),
    ];
    let database = Database::new();
    let mut client = database.connect();
    let mut round = 0;
    for on_duplicate in ["skip", "replace", "rerun", "error"] {
        let rests = ["", ", version => '2020-01-01'", ", version => '2030-01-01'", ", unique_for => '1 hour'"];
        for (rest, (publish, enqueue, payload, many)) in rests.iter().flat_map(|rest| VERBS.map(|verbs| (rest, verbs)))
        {
            if on_duplicate == "error" && !rest.is_empty() {
                continue;
            }
            round += 1;
            let topic = format!("t{round}");
            client.run(&format!("SELECT queue.create_topic('{topic}')"));
            let mut twins = Vec::new();
            for state in STATES {
                let names = ["bound", "twin"].map(|what| format!("{what}.{state}.{round}"));
                for queue in &names {
                    create(&mut client, queue, "max_attempts => 1");
                    let delay = if state == "delayed" { ", delay => '1 day'" } else { "" };
                    if state != "new" {
                        client.run(&format!(
                            "SELECT queue.enqueue('{queue}', '{{\"old\": true}}', unique_key => 'k', \
                                version => '2025-01-01'{delay})"
                        ));
                    }
                    match state {
                        "running" => client.run(&format!("SELECT FROM queue.claim('{queue}')")),
                        "completed" => client.run(&format!("SELECT queue.complete(id) FROM queue.claim('{queue}')")),
                        "dead" => client.run(&format!("SELECT queue.fail(id, 'no') FROM queue.claim('{queue}')")),
                        _ => {}
                    }
                }
                let [bound, twin] = names;
                client.run(&format!("SELECT queue.bind('{topic}', '{bound}')"));
                twins.push((bound, twin));
            }
            let options = format!("{payload}, unique_key => 'k', on_duplicate => '{on_duplicate}'{rest}");
            if on_duplicate == "error" {
                // If one queue refuses, no queue gets a job.
                let before: Vec<_> = twins.iter().map(|(bound, _)| jobs(&mut client, bound)).collect();
                client.refused(&format!("SELECT queue.{publish}('{topic}', {options})"), "23505");
                let after: Vec<_> = twins.iter().map(|(bound, _)| jobs(&mut client, bound)).collect();
                assert_eq!(before, after);
                continue;
            }
            let made: i64 = client.value(&format!("SELECT count(job_id) FROM queue.{publish}('{topic}', {options})"));
            assert_eq!(made, many * STATES.len() as i64, "{options}");
            for (bound, twin) in &twins {
                client.run(&format!("SELECT queue.{enqueue}('{twin}', {options})"));
                assert_eq!(jobs(&mut client, bound), jobs(&mut client, twin), "{bound}: {options}");
            }
            // The requested run happens in both queues.
            for (bound, twin) in twins.iter().filter(|(bound, _)| bound.contains("running")) {
                for queue in [bound, twin] {
                    let id = "SELECT queue.complete(id) FROM queue.attempts WHERE state = 'running' AND queue_name";
                    client.run(&format!("{id} = '{queue}'"));
                }
                assert_eq!(jobs(&mut client, bound), jobs(&mut client, twin), "{bound}: {options}");
            }
        }
    }
    client.check();
}

/// Copies of a paused queue wait. Publishers, other queues and the storage duty go on.
#[test]
fn a_paused_subscriber_blocks_no_other_session() {
    const ROUND: i64 = 500;
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    client.run("SELECT queue.create_topic('t')");
    for queue in ["one", "two", "paused"] {
        create(&mut client, queue, "retention => '0'");
        client.run(&format!("SELECT queue.bind('t', '{queue}')"));
    }
    client.run("SELECT queue.pause('paused')");
    let turned = fillings(&mut client) + 16;
    let mut other = cluster.connect();
    let mut events = 0;
    wait::until_true("the ring has turned twice", || {
        // If a statement waited for the backlog, it would reach this limit.
        client.run("SET statement_timeout = '30s'");
        client.run(&format!(
            "SELECT queue.publish('t', jsonb_build_object('n', n)) FROM generate_series(1, {ROUND}) AS n"
        ));
        events += ROUND;
        for queue in ["one", "two"] {
            assert_eq!(other.work_off(queue, ROUND), ROUND, "{queue} after {events} events");
        }
        fillings(&mut client) >= turned
    });
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats WHERE queue_name = 'paused'"), events);
    client.run("SELECT queue.resume('paused')");
    let mut left = events;
    while left > 0 {
        let done = client.work_off("paused", 1_000);
        assert!(done > 0, "{left} copies are lost");
        left -= done;
    }
    client.check();
}

/// Memory holds only a few of the copies, and an old snapshot pins the segments. Each copy reaches its worker once, in
/// order.
#[test]
fn copies_beyond_memory_reach_their_worker_while_a_snapshot_is_open() {
    const EVENTS: i64 = 5_000;
    let cluster = cluster(&["pg_queue.max_ready = 16"]);
    let mut client = cluster.connect();
    client.run("SELECT queue.create_topic('t')");
    let mut old = cluster.connect();
    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue.stats");
    for queue in ["a", "b", "c"] {
        create(&mut client, queue, "");
        client.run(&format!("SELECT queue.bind('t', '{queue}')"));
    }
    let large = "x".repeat(1_500);
    for part in 0..10 {
        client.run(&format!(
            "SELECT queue.publish_many('t', array_agg(jsonb_build_object('n', n, 'large', '{large}')))
             FROM generate_series({part} * {EVENTS} / 10 + 1, ({part} + 1) * {EVENTS} / 10) AS n"
        ));
    }
    thread::scope(|scope| {
        for queue in ["a", "b", "c"] {
            let mut worker = cluster.connect();
            scope.spawn(move || {
                let claim = format!(
                    "SELECT (payload->>'n')::bigint, id FROM queue.claim('{queue}', 97) \
                        WHERE length(payload->>'large') = 1500"
                );
                let (mut last, mut count) = (0, 0);
                loop {
                    let rows = worker.query(&claim, &[]).unwrap();
                    for row in &rows {
                        assert_eq!(row.get::<_, i64>(0), last + 1, "{queue}");
                        last += 1;
                        count += 1;
                    }
                    if rows.is_empty() {
                        break;
                    }
                    let ids: Vec<i64> = rows.iter().map(|row| row.get(1)).collect();
                    worker.execute("SELECT count(*) FROM queue.complete_many($1)", &[&ids]).unwrap();
                }
                assert_eq!(count, EVENTS, "{queue}");
            });
        }
    });
    old.run("COMMIT");
    client.check();
}

/// Returns the jobs whose payload exists and is right.
fn whole(client: &mut Client, jobs: &[i64]) -> BTreeSet<i64> {
    let list = jobs.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    let sql = format!(
        "SELECT n FROM unnest(ARRAY[{list}]::bigint[]) AS n, LATERAL queue.job(n) AS j WHERE j.payload = {LARGE}"
    );
    client.column(&sql).into_iter().collect()
}

#[test]
fn each_copy_keeps_its_payload_for_its_own_life() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    client.run("SELECT queue.create_topic('t'), queue.create('filler', retention => '0')");
    for (queue, options) in
        [("ends", "retention => '0'"), ("kept", ""), ("dies", "max_attempts => 1"), ("late", ""), ("waits", "")]
    {
        create(&mut client, queue, options);
        let delay = if queue == "late" { ", delay => '1 day'" } else { "" };
        client.run(&format!("SELECT queue.bind('t', '{queue}'{delay})"));
    }
    let jobs: Vec<i64> = client.column(&format!("SELECT job_id FROM queue.publish('t', {LARGE}) ORDER BY queue_name"));
    let &[dies, ends, kept, late, waits] = &jobs[..] else { panic!("five jobs") };
    client.run(
        "SELECT queue.complete(id) FROM queue.claim('ends'); SELECT queue.complete(id) FROM queue.claim('kept');
         SELECT queue.fail(id, 'no') FROM queue.claim('dies')",
    );
    let turned = fillings(&mut client) + 80;
    wait::until_true("the ring has turned ten times", || {
        client.run("SELECT count(*) FROM queue.enqueue_many('filler', array_fill('1'::jsonb, '{1000}'))");
        assert_eq!(client.work_off("filler", 1_000), 1_000);
        fillings(&mut client) >= turned
    });
    assert_eq!(client.count(&format!("SELECT FROM queue.job({ends})")), 0, "retention is over");
    let all = BTreeSet::from([dies, kept, late, waits]);
    assert_eq!(whole(&mut client, &jobs), all);
    // The restored server has the payloads too.
    let file = cluster.dir().join("all.dump").display().to_string();
    output(cluster.command("pg_dump").args(["-Fc", "-f", &file, "postgres"]));
    client.run(&format!("SELECT queue.forget({kept})"));
    assert_eq!(whole(&mut client, &jobs), BTreeSet::from([dies, late, waits]));
    let target = Cluster::new().conf("pg_queue.restore_quiet = '1s'").start();
    target.connect().run("CREATE DATABASE app");
    output(target.command("pg_restore").args(["-d", "app", &file]));
    let mut restored = target.connect_to("app");
    restored.run("SELECT queue.adopt()");
    assert_eq!(whole(&mut restored, &jobs), all);
    for client in [&mut client, &mut restored] {
        // Jobs that go on have their payload.
        client.run(&format!("SELECT queue.retry({dies}), queue.reschedule({late}, now())"));
        let claimed: BTreeSet<i64> = ["dies", "late", "waits"]
            .iter()
            .flat_map(|queue| {
                wait::until("the copy can be claimed", || {
                    let sql = format!("SELECT job_id FROM queue.claim('{queue}') WHERE payload = {LARGE}");
                    let found = client.column::<i64>(&sql);
                    (!found.is_empty()).then_some(found)
                })
            })
            .collect();
        assert_eq!(claimed, BTreeSet::from([dies, late, waits]));
        client.check();
    }
}
