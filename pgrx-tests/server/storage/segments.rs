//! The notes of an attempt do not pile up while the ring turns, and a small ring for other tests.

use crate::shared::*;

/// A server with small segments and a queue `q`.
pub fn cluster(lines: &[&str]) -> Cluster {
    let small = ["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0", "max_connections = 60"];
    let cluster = lines.iter().fold(Cluster::with(&small), |cluster, line| cluster.conf(line)).start();
    cluster.psql("CREATE EXTENSION pg_queue; SELECT queue.create('q', lease => '1 minute', backoff_base => '0')");
    cluster
}

/// Returns how often segments have been emptied, according to their generations.
pub fn fillings(client: &mut Client) -> i64 {
    client.value("SELECT max(generation) FROM queue_internal.segment_log")
}

/// True if a segment was opened since `fillings` returned `before`, and memory knows it. A session can read of a new
/// segment a moment before memory knows it. Until then jobs go into the previous segment. The step holds its lock for
/// that long.
pub fn has_turned(client: &mut Client, before: i64) -> bool {
    client.value(&format!(
        "SELECT max(generation) > {before} AND NOT EXISTS (SELECT FROM pg_locks WHERE relation =
             'queue_internal.segment_log'::regclass AND mode = 'ShareUpdateExclusiveLock')
             FROM queue_internal.segment_log"
    ))
}

#[test]
fn notes_of_one_attempt_do_not_pile_up() {
    let cluster = cluster(&["pg_queue.worker = off"]);
    let mut client = cluster.connect();
    client.run("SELECT queue.enqueue('q'); SELECT queue.alter('q', lease => '1 hour')");
    let id = client.value::<i64>("SELECT id FROM queue.claim('q')");
    let notes: String = (0..10).map(|n| format!("TABLE queue_internal.note_{n} UNION ALL ")).collect();
    let notes = format!("SELECT count(*) FROM ({notes} SELECT * FROM queue_internal.note_0 WHERE false) AS notes");
    let mut most = 0;
    for round in 1..=100 {
        // Each report is in its own transaction, as a worker sends it.
        let report = format!(
            "DO $$ BEGIN FOR n IN 1..200 LOOP
                 PERFORM queue.progress({id}, to_jsonb({round} * 1000 + n)); COMMIT; END LOOP; END $$"
        );
        client.run(&report);
        for _ in 0..8 {
            client.run("SELECT queue.maintain()");
        }
        most = most.max(client.value::<i64>(&notes));
    }
    assert!(most < 6_000, "{most} notes are kept of the 20000");
    let progress = "SELECT (progress #>> '{}')::bigint FROM queue.jobs";
    assert_eq!(client.value::<i64>(progress), 100_200);
    // The notes count after a restart.
    cluster.restart_killed();
    let mut client = cluster.connect();
    for _ in 0..40 {
        client.run("SELECT queue.maintain()");
    }
    assert!(client.value::<i64>(&notes) < 2_000);
    assert_eq!(client.value::<i64>(progress), 100_200);
    client.run(&format!("SELECT queue.complete({id})"));
}
