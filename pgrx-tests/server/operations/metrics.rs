//! `queue.metrics()` agrees with the views and has the format of Prometheus. Its counters never decrease.

use crate::shared::*;

/// Returns the metrics of one queue of this kind, with their other labels.
fn of_queue(client: &mut Client, queue: &str, kind: &str) -> BTreeMap<String, f64> {
    let sql =
        "SELECT name || (labels - 'queue'), value FROM queue.metrics() WHERE labels ->> 'queue' = $1 AND type = $2";
    client.query(sql, &[&queue, &kind]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Makes jobs in all states, and something for every counter.
fn busy(client: &mut Client) {
    create(client, "q", "max_attempts => 2, backoff_base => '1 hour', retention => '0'");
    for sql in [
        "SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{30}'))",
        "SELECT queue.enqueue('q', delay => '1 hour')",
        "SELECT queue.complete(id) FROM queue.claim('q', 9)",
        "SELECT queue.fail(id, 'no') FROM queue.claim('q', 4)",
        "SELECT queue.fail(id, 'no', fatal => true) FROM queue.claim('q', 3)",
        "SELECT FROM queue.claim('q', 2, lease => '1 ms')",
        "SELECT FROM queue.claim('q', 5, lease => '1 hour')",
    ] {
        client.run(sql);
    }
    client.maintain_until("timed_out = 2 FROM queue.stats WHERE queue_name = 'q'");
}

#[test]
fn names_labels_and_types_are_as_prometheus_wants_them() {
    let database = Database::new();
    let mut client = database.connect();
    busy(&mut client);
    create(&mut client, "staged", "stages => '{first}'");
    client.run("SELECT queue.schedule('nightly', 'q', every => '1 day')");
    let wrong: Vec<String> = client.column(
        "SELECT m::text FROM queue.metrics() AS m
         WHERE name !~ '^pg_queue_[a-z_]+$' OR type NOT IN ('gauge', 'counter')
         OR (type = 'counter') <> (name ~ '_total$')
            OR value IS NULL OR value < 0 OR help !~ '\\.$' OR jsonb_typeof(labels) <> 'object'
            OR EXISTS (SELECT FROM jsonb_each(labels) AS l WHERE l.key !~ '^[a-z_]+$'
            OR jsonb_typeof(l.value) <> 'string')",
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    let twice = "SELECT name FROM queue.metrics() GROUP BY name, labels HAVING count(*) > 1
                 UNION ALL SELECT name FROM queue.metrics() GROUP BY name HAVING count(DISTINCT (type, help)) > 1";
    assert_eq!(client.column::<String>(twice), [""; 0]);
    // A metric that is read alone has the same values as in the whole.
    let parts = "SELECT DISTINCT name FROM queue.metrics()";
    for name in client.column::<String>(parts).iter().filter(|name| !name.ends_with("_seconds")) {
        let alone: String = client.value(&format!(
            "SELECT string_agg(labels::text, ' ' ORDER BY labels) FROM queue.metrics() WHERE name = '{name}'"
        ));
        let whole: String = client.value(&format!(
            "WITH all_of_it AS MATERIALIZED (SELECT * FROM queue.metrics())
             SELECT string_agg(labels::text, ' ' ORDER BY labels) FROM all_of_it WHERE name = '{name}'"
        ));
        assert_eq!(alone, whole, "{name}");
    }
}

#[test]
fn metrics_that_are_not_requested_are_not_computed() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    let plan: Vec<String> = client.column(
        "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF)
         SELECT * FROM queue.metrics() WHERE name = 'pg_queue_storage_bytes'",
    );
    let looked: Vec<&String> =
        plan.iter().filter(|line| line.contains("Function Scan") && !line.contains("never executed")).collect();
    assert!(looked.is_empty(), "{looked:#?}");
}

#[test]
fn counters_survive_a_restart_and_a_crash() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0"]).start_with_database("app");
    busy(&mut client);
    let counted = of_queue(&mut client, "q", "counter");
    let wanted = [
        ("claimed", 23.0),
        ("completed", 9.0),
        ("died", 3.0),
        ("enqueued", 31.0),
        ("expired", 0.0),
        ("failed", 7.0),
        ("timed_out", 2.0),
    ];
    let wanted: BTreeMap<String, f64> = wanted.map(|(word, n)| (format!("pg_queue_{word}_total{{}}"), n)).into();
    assert_eq!(counted, wanted);
    let gauges = of_queue(&mut client, "q", "gauge");
    let jobs = |state: &str| gauges[&format!("pg_queue_jobs{{\"state\": \"{state}\"}}")];
    assert_eq!(["ready", "scheduled", "retrying", "running", "dead"].map(jobs), [9.0, 1.0, 4.0, 5.0, 3.0]);
    assert_eq!((gauges["pg_queue_workers_busy{}"], gauges["pg_queue_is_paused{}"]), (1.0, 0.0));
    for quantile in ["0.5", "0.95", "0.99"] {
        for (name, most) in [("wait", 60.0), ("run", 60.0)] {
            let seconds = gauges[&format!("pg_queue_{name}_seconds{{\"quantile\": \"{quantile}\"}}")];
            assert!(seconds > 0.0 && seconds < most, "{name} {quantile}: {seconds}");
        }
    }
    drop(client);

    cluster.restart();
    let mut client = cluster.connect_to("app");
    assert_eq!(of_queue(&mut client, "q", "counter"), counted);
    cluster.crash(client.pid());
    let mut client = cluster.connect_to("app");
    assert_eq!(of_queue(&mut client, "q", "counter"), counted);
    // Counters keep the events of reclaimed segments.
    create(&mut client, "filler", "retention => '0'");
    client.pass_through("filler", 2000);
    wait::until_true("its segment is gone", || {
        client.value::<bool>("SELECT EXISTS (SELECT FROM queue_internal.total)")
    });
    assert_eq!(of_queue(&mut client, "q", "counter"), counted);
}

#[test]
fn metrics_show_a_late_schedule_and_a_paused_queue() {
    let (_database, mut client) = Database::without_worker().with_queue("q", "");
    client.run("SELECT queue.schedule('quick', 'q', every => '100 ms')");
    client.run("SELECT queue.pause('q')");
    wait::until_true("it is late", || {
        let late: f64 = client.value("SELECT value FROM queue.metrics() WHERE name = 'pg_queue_schedule_late_seconds'");
        late > 0.2
    });
    let paused = "SELECT labels ->> 'queue' FROM queue.metrics() WHERE name = 'pg_queue_is_paused' AND value = 1";
    assert_eq!(client.column::<String>(paused), ["q"]);
}
