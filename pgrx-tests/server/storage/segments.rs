//! The ring turns while jobs are enqueued, claimed, ended, cancelled and moved. No job is lost or runs twice, no dead
//! row is left, and ended jobs are in history.

use crate::shared::*;

/// A server with small segments and a queue `q`.
pub fn cluster(lines: &[&str]) -> Cluster {
    let small = ["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0", "max_connections = 60"];
    let cluster = small.iter().chain(lines).fold(Cluster::new(), |cluster, line| cluster.conf(line)).start();
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

/// Works as a worker does, in short and longer transactions, with notes, failures and releases.
pub fn work(cluster: &Cluster, seed: u64, stop: &AtomicBool) {
    let mut random = Random::new(seed);
    let mut client = cluster.connect();
    loop {
        let many = if random.percent(50) { 1 } else { random.between(2, 40) as i32 };
        let mut transaction = client.transaction().unwrap();
        let claimed =
            transaction.query("SELECT id, (payload->>'n')::bigint FROM queue.claim('q', $1)", &[&many]).unwrap();
        if claimed.is_empty() {
            transaction.commit().unwrap();
            if stop.load(Ordering::Relaxed) {
                return;
            }
            thread::yield_now();
            continue;
        }
        let apart = random.percent(50);
        if apart {
            transaction.commit().unwrap();
            transaction = client.transaction().unwrap();
        }
        for row in &claimed {
            let (id, n): (i64, i64) = (row.get(0), row.get(1));
            if random.percent(5) {
                transaction.query("SELECT queue.progress($1, '1')", &[&id]).unwrap();
            }
            if random.percent(3) {
                transaction.query("SELECT queue.extend($1, '2 minutes')", &[&id]).unwrap();
            }
            let end = match random.between(0, 100) {
                0..=4 => "SELECT queue.fail($1, 'no')::text",
                5..=7 => "SELECT queue.release($1)::text",
                _ => {
                    transaction.execute("INSERT INTO done VALUES ($1)", &[&n]).unwrap();
                    "SELECT queue.complete($1)::text"
                }
            };
            transaction.query(end, &[&id]).unwrap_or_else(|e| panic!("{end} of {id}: {e:?}"));
        }
        if random.percent(3) {
            transaction.rollback().unwrap();
            // Jobs that were claimed separately are still claimed after the rollback.
            if apart {
                for row in &claimed {
                    client.query("SELECT queue.release($1)", &[&row.get::<_, i64>(0)]).unwrap();
                }
            }
        } else {
            transaction.commit().unwrap();
        }
    }
}

#[test]
fn the_ring_turns_under_load_and_no_job_is_lost_or_done_twice() {
    let cluster = cluster(&["autovacuum_naptime = '1d'"]);
    let mut client = cluster.connect();
    client.run("CREATE TABLE done (n bigint)");
    // A session holds a snapshot during the whole test.
    let mut holder = cluster.connect();
    holder.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1");
    let (producers_left, stop) = (std::sync::atomic::AtomicUsize::new(2), AtomicBool::new(false));
    const JOBS: i64 = 10_000;
    thread::scope(|scope| {
        for seed in 0..2 {
            let (cluster, left, stop) = (&cluster, &producers_left, &stop);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let mut client = cluster.connect();
                let mut n = seed as i64 * JOBS;
                let end = n + JOBS;
                while n < end {
                    let count = random.between(1, 200).min(end - n);
                    let priority = if random.percent(10) { 5 } else { 0 };
                    let delay = if random.percent(5) { "100 ms" } else { "0" };
                    let sql = "SELECT count(*) FROM queue.enqueue_many('q', ARRAY(SELECT jsonb_build_object('n', n)
                               FROM generate_series($1::bigint, $2::bigint) AS n), priority => $3,
                               delay => $4::text::interval)";
                    client.query(sql, &[&n, &(n + count - 1), &priority, &delay]).unwrap();
                    n += count;
                }
                if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    let _stop = StopAtEnd(stop);
                    let sql = "SELECT count(*) FROM queue.jobs WHERE state NOT IN ('completed', 'dead')";
                    wait::until_none_left("all jobs have ended", || client.value(sql));
                }
            });
        }
        for seed in 10..13 {
            let (cluster, stop) = (&cluster, &stop);
            scope.spawn(move || work(cluster, seed, stop));
        }
        let (cluster, stop) = (&cluster, &stop);
        scope.spawn(move || {
            // Dashboards read and keep their transactions open for a while.
            let mut client = cluster.connect();
            while !stop.load(Ordering::Relaxed) {
                let row = client.query_one("SELECT count(*), count(DISTINCT job_id) FROM queue.jobs", &[]).unwrap();
                assert_eq!(row.get::<_, i64>(0), row.get::<_, i64>(1), "a job was seen twice");
            }
        });
    });
    assert_eq!(client.value::<i64>("SELECT count(*) FROM done"), 2 * JOBS);
    assert_eq!(client.value::<i64>("SELECT count(DISTINCT n) FROM done"), 2 * JOBS);
    assert!(fillings(&mut client) >= 3, "the ring has hardly turned: {}", fillings(&mut client));
    let sql = "SELECT count(*) FROM queue.jobs WHERE state = 'completed'";
    // A query that takes longer than reclaim_delay, which is 0 here, may miss jobs that move meanwhile.
    wait::until_true("all are seen", || client.value::<i64>(sql) == 2 * JOBS);
    let sql = "SELECT count(*) FROM queue_internal.history WHERE outcome = 'c'";
    assert!(client.value::<i64>(sql) > JOBS, "{} in history", client.value::<i64>(sql));
    assert_eq!(
        client.value::<i64>(
            "SELECT count(*) FROM (SELECT id FROM queue_internal.history GROUP BY id HAVING count(*) > 1) AS x"
        ),
        0
    );
    holder.run("COMMIT");
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
