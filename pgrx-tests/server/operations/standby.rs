//! A standby gives the same answers as its primary for each job and for each function and view that an observer may
//! use.

use crate::operations::listing::{reclaim, varied};
use crate::shared::*;

/// Queries with the same answer on both servers, in a fixed order. Leases are left out, because only the primary's
/// memory knows their ends, and so are ages. Lists of jobs are read page by page, because each call has a time limit.
const SAME: [&str; 20] = [
    "SELECT to_jsonb(j) - 'lease_expires_at' FROM queue.jobs AS j ORDER BY job_id",
    "SELECT to_jsonb(k) - 'lease_expires_at' FROM queue.jobs AS j, LATERAL queue.job(j.job_id) AS k ORDER BY j.job_id",
    "SELECT to_jsonb(a) FROM queue.attempts AS a ORDER BY id",
    "SELECT to_jsonb(a) FROM queue.jobs AS j, LATERAL queue.job_attempts(j.job_id) AS a ORDER BY a.id",
    "SELECT jsonb_build_array(j.job_id, s) FROM queue.jobs AS j, LATERAL queue.job_steps(j.job_id) AS s \
        ORDER BY j.job_id, s.name",
    "SELECT jsonb_build_array(a.id, i) FROM queue_internal.live() AS a, LATERAL queue.inputs(a.id) AS i
        WHERE a.outcome IS NULL
     ORDER BY a.id, i.job_id",
    "SELECT jsonb_build_array(f.job_id, to_jsonb(m) - 'lease_expires_at') FROM queue.flows AS f,
        LATERAL queue.members(f.job_id) AS m
     ORDER BY f.job_id, m.job_id",
    "SELECT to_jsonb(f) FROM queue.flows AS f ORDER BY job_id",
    "SELECT jsonb_build_array(s, to_jsonb(l) - 'here' - 'rows_read' - 'lease_expires_at')
     FROM unnest(ARRAY['running', 'retrying', 'dead', 'held', 'scheduled', 'skipped', 'cancelled', 'ready',
     'completed']) AS s,
          LATERAL (WITH RECURSIVE page AS (
                   SELECT l.* FROM queue.search('q', states => ARRAY[s], max_jobs => 10000) AS l
                   UNION ALL
                   SELECT l.* FROM page, LATERAL queue.search('q', states => ARRAY[s],
                                                                beyond => page.here, max_jobs => 10000) AS l
                   WHERE page.here IS NOT NULL)
               SELECT * FROM page WHERE job_id IS NOT NULL) AS l
     ORDER BY s, l.job_id",
    "WITH RECURSIVE page AS (
        SELECT s.* FROM queue.search('q', '$.job_id', max_jobs => 10000) AS s
        UNION ALL
        SELECT s.* FROM page, LATERAL queue.search('q', '$.job_id', beyond => page.here, max_jobs => 10000) AS s
        WHERE page.here IS NOT NULL)
     SELECT to_jsonb(page) - 'here' - 'rows_read' - 'lease_expires_at' FROM page WHERE job_id IS NOT NULL
     ORDER BY job_id",
    "SELECT to_jsonb(e) FROM queue.error_groups() AS e ORDER BY queue_name, error",
    "SELECT to_jsonb(e) FROM queue.errors AS e ORDER BY queue_name, error",
    "SELECT to_jsonb(q) FROM queue.queues AS q ORDER BY queue_name",
    "SELECT to_jsonb(s) - 'oldest_ready_age' - '{enqueued,claimed,completed,failed,timed_out,died}'::text[]
        FROM queue.stats AS s
     ORDER BY queue_name, stage",
    "SELECT to_jsonb(t) FROM queue.topics AS t ORDER BY topic_name",
    "SELECT to_jsonb(b) FROM queue.bindings AS b ORDER BY binding_id",
    "SELECT to_jsonb(s) FROM queue.schedules AS s ORDER BY name",
    "SELECT to_jsonb(u) FROM queue.upcoming('s', 5) AS u ORDER BY 1",
    "SELECT to_jsonb(r) FROM queue.route('t', 'order.new') AS r ORDER BY 1",
    "SELECT jsonb_build_array(id, queue_internal.payload_of(id)) FROM queue.attempts ORDER BY id",
];

/// Queries about the server itself or its memory. They must answer.
const ANSWERS: [&str; 36] = [
    "queue.text_length('1')",
    "queue_internal.bytes_of('queue_internal.queue')",
    "queue_internal.lanes_now()",
    "queue_internal.schedules_now()",
    "queue_internal.segments_now()",
    "queue_internal.topics_now()",
    "queue.load()",
    "queue.groups('q')",
    "queue.activity()",
    "queue.activity('q', '-infinity', '1 day')",
    "queue_internal.activity_part",
    "queue.throughput",
    "queue_internal.throughput_part",
    "queue.throughput_by()",
    "queue_internal.throughput_live()",
    "queue_internal.minutes_now()",
    "queue_internal.recent_times()",
    "queue_internal.times(ARRAY[]::bytea[])",
    "queue.metrics()",
    "queue_internal.metric",
    "queue.doctor()",
    "queue.executors",
    "queue.storage",
    "queue.workers",
    "queue_internal.executors_now()",
    "queue_internal.executor_counts()",
    "queue_internal.claims_now()",
    "queue_internal.sleepers_now()",
    "queue_internal.running_now()",
    "queue_internal.tallies()",
    "queue_internal.topic_counts()",
    "queue_internal.held_by_dead()",
    "queue_internal.bridge_sources('pg_queue_bridge_connected')",
    "queue.current_job()",
    "queue_internal.attempt_state('c', true, false, now(), false)",
    "queue_internal.job_state('c', true, false, now(), false)",
];

/// Functions behind the views, and functions that wait, which a standby refuses.
const OTHERS: [&str; 6] = ["await", "firings", "lease_expires_at", "live", "may_observe", "memory_use"];

/// Makes a thousand jobs in the logs, on the move and in history, with steps, members and everything else.
fn many(client: &mut Client) {
    varied(client);
    create(client, "bulk", "max_attempts => 3");
    create(client, "staged", "stages => '{a,b}'");
    client.run(
        "SELECT queue.schedule('s', 'q', every => '1 day'); SELECT queue.create_topic('t'); \
        SELECT queue.bind('t', 'q', 'order.*')",
    );
    // Each round makes one job of each kind. Segments turn between the rounds.
    for round in 0..6 {
        client.run("SELECT count(*) FROM queue.enqueue_many('bulk', array_fill('{\"n\": 1}'::jsonb, ARRAY[120]))");
        client.run(
            "SELECT count(queue.step_done(id, 'first', to_jsonb(id))) FROM queue.claim('bulk', 90, worker => 'w')",
        );
        let some = |n: i32| {
            format!(
                "(SELECT id FROM queue.attempts WHERE state = 'running' AND queue_name = 'bulk' \
                    AND id / 16 % 5 = {n}) AS c"
            )
        };
        client.run(&format!("SELECT count(queue.complete(id, to_jsonb(id))) FROM {}", some(0)));
        client.run("SELECT count(queue.enqueue('staged')) FROM generate_series(1, 10)");
        client.run("SELECT count(queue.advance(id)) FROM queue.claim('staged', 6, stage => 'a')");
        client.run(&format!(
            "SELECT count(queue.fail(id, 'no ' || id % 3, fatal => id % 2 = 0, retry_in => '1 hour')) FROM {}",
            some(2)
        ));
        client.run(&format!("SELECT count(queue.release(id)) FROM {}", some(3)));
        client.run(
            "SELECT queue.enqueue_flow('other', '[{\"task\": \"a\"}, {\"task\": \"b\", \"after\": [\"a\"]}]',
            runs => true)
                    FROM generate_series(1, 4)",
        );
        client.run("SELECT count(queue.complete(id, '7')) FROM queue.claim('other', 6)");
        match round {
            0 => reclaim(client),
            _ => reclaim_more(client),
        }
    }
    client.run("SELECT FROM queue.maintain()");
}

fn rows(client: &mut Client, sql: &str) -> Vec<String> {
    client.column(&format!("SELECT r::text FROM ({sql}) AS x (r)"))
}

#[test]
fn a_standby_shows_each_job_as_its_primary_does() {
    let cluster = Cluster::with(&["pg_queue.segment_age = 1", "pg_queue.reclaim_delay = 0"]).start();
    let mut client = cluster.create_database_with("app", "ALTER DATABASE $ SET pg_queue.worker = off");
    many(&mut client);
    let standby = cluster.standby();
    standby.wait_replayed(&cluster);
    let mut there = standby.connect_to("app");
    for state in ["held", "scheduled", "retrying", "ready", "running", "completed", "dead", "cancelled"] {
        assert!(client.count(&format!("SELECT FROM queue.jobs WHERE state = '{state}'")) > 0, "{state}");
    }
    for (place, least) in [("queue_internal.history", 40), ("queue_internal.live()", 300)] {
        let there_are = client.count(&format!("SELECT FROM {place}"));
        assert!(there_are > least, "{there_are} in {place}");
    }
    for sql in SAME {
        let told = rows(&mut client, sql);
        assert!(!told.is_empty(), "{sql}");
        let told_there = rows(&mut there, sql);
        let first = told.iter().zip(&told_there).find(|(here, there)| here != there);
        assert!(told == told_there, "{} and {} rows: {first:?}: {sql}", told.len(), told_there.len());
    }
    for from in ANSWERS {
        there.run(&format!("SELECT * FROM {from}"));
    }
    // Metrics leave out what the standby would have to count. Those of the executors belong to the server, and events
    // are counted in memory.
    let names: Vec<String> = there.column("SELECT DISTINCT name FROM queue.metrics()");
    let is_counted = |name: &&String| {
        let is_apart = ["executor", "published"].iter().any(|word| name.starts_with(&format!("pg_queue_{word}_")));
        *name == "pg_queue_jobs" || name.ends_with("_total") && !is_apart
    };
    assert!(names.iter().any(|name| name == "pg_queue_check_ok"), "{names:?}");
    assert_eq!(names.iter().find(is_counted), None);
    // An unknown job is unknown there, too.
    for sql in ["SELECT * FROM queue.job_steps(999999999983)", "SELECT * FROM queue.inputs(999999999984)"] {
        assert_eq!(there.failure(sql).code, client.failure(sql).code);
    }
    // Queries do not fail while the standby replays.
    let jobs: Vec<i64> =
        client.column("SELECT job_id FROM queue.jobs WHERE queue_name = 'bulk' ORDER BY job_id LIMIT 200");
    for _ in 0..3 {
        reclaim_more(&mut client);
        for job in &jobs {
            there.run(&format!(
                "SELECT * FROM queue.job_steps({job}); SELECT * FROM queue.job({job}); SELECT * \
                FROM queue.job_attempts({job})"
            ));
        }
    }

    // An observer may use no other function or view.
    client.run("CREATE ROLE looker; SELECT queue.grant('*', 'looker', 'observe')");
    let observers: Vec<String> = client.column(
        "SELECT proname::text FROM pg_proc WHERE pronamespace IN ('queue'::regnamespace,
            'queue_internal'::regnamespace) AND has_function_privilege('looker', oid, 'EXECUTE')
         UNION ALL
         SELECT relname::text FROM pg_class WHERE relnamespace = 'queue'::regnamespace AND relkind = 'v'
         AND has_table_privilege('looker', oid, 'SELECT')",
    );
    let named = |text: &str| -> BTreeSet<String> {
        let text = text.replace("queue_internal.", "queue.");
        let words = text.split("queue.").skip(1);
        words.map(|word| word.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
    };
    let mut tried: BTreeSet<String> = SAME.iter().chain(&ANSWERS).flat_map(|sql| named(sql)).collect();
    tried.extend(OTHERS.map(str::to_owned));
    assert_eq!(observers.iter().filter(|name| !tried.contains(*name)).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Turns segments once more while a standby reads.
fn reclaim_more(client: &mut Client) {
    client.pass_through("filler", 3000);
    let newest = "SELECT max(entry) FROM queue_internal.segment_log";
    let before: i64 = client.value(newest);
    wait::until_true("a segment has turned", || {
        client.run("SELECT FROM queue.maintain()");
        client.value::<i64>(newest) > before
    });
}
