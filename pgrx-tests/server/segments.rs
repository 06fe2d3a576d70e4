//! The ring of segments turns while jobs are enqueued, claimed, ended, cancelled and moved: none is lost or done
//! twice, nothing dead is left, and what has ended is found in history.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::Client;
use queue_tests::{Cluster, wait};

use crate::random::Random;

/// A server whose segments are small, with a queue `q`.
pub fn cluster(lines: &[&str]) -> Cluster {
    let small = ["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0", "max_connections = 60"];
    let cluster = small.iter().chain(lines).fold(Cluster::new(), |cluster, line| cluster.conf(line)).start();
    cluster.psql("CREATE EXTENSION pg_queue; SELECT queue.create('q', lease => '1 minute', backoff_base => '0')");
    cluster
}

/// How often segments have been emptied, as far as generations tell.
pub fn fillings(client: &mut Client) -> i64 {
    client.query_one("SELECT max(generation) FROM queue.segment_log", &[]).unwrap().get(0)
}

pub fn int(client: &mut Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e}")).get(0)
}

/// Lets the others end, also when this one panics.
pub struct StopAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a worker does with jobs, in short and in longer transactions, with notes, failures, releases.
fn work(cluster: &Cluster, seed: u64, stop: &AtomicBool) {
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
            // Those that were claimed apart are still ours.
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
    client.batch_execute("CREATE TABLE done (n bigint)").unwrap();
    // Somebody holds a snapshot all the time.
    let mut holder = cluster.connect();
    holder.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").unwrap();
    let (producers_left, stop) = (std::sync::atomic::AtomicUsize::new(2), AtomicBool::new(false));
    const JOBS: i64 = 20_000;
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
                               FROM generate_series($1::bigint, $2::bigint) AS n), priority => $3, delay => $4::text::interval)";
                    client.query(sql, &[&n, &(n + count - 1), &priority, &delay]).unwrap();
                    n += count;
                }
                if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    let _stop = StopAtEnd(stop);
                    wait::within("all jobs have ended", Duration::from_secs(120), || {
                        let sql = "SELECT count(*) FROM queue.jobs WHERE state NOT IN ('completed', 'dead')";
                        (client.query_one(sql, &[]).unwrap().get::<_, i64>(0) == 0).then_some(())
                    });
                }
            });
        }
        for seed in 10..13 {
            let (cluster, stop) = (&cluster, &stop);
            scope.spawn(move || work(cluster, seed, stop));
        }
        let (cluster, stop) = (&cluster, &stop);
        scope.spawn(move || {
            // Dashboards, each of which keeps its transaction open for a while.
            let mut client = cluster.connect();
            while !stop.load(Ordering::Relaxed) {
                let sql = "SELECT count(*), count(DISTINCT job_id) FROM queue.jobs";
                let row = client.query_one(sql, &[]).unwrap();
                assert_eq!(row.get::<_, i64>(0), row.get::<_, i64>(1), "a job was seen twice");
            }
        });
    });
    assert_eq!(int(&mut client, "SELECT count(*) FROM done"), 2 * JOBS);
    assert_eq!(int(&mut client, "SELECT count(DISTINCT n) FROM done"), 2 * JOBS);
    assert!(fillings(&mut client) >= 10, "the ring has hardly turned: {}", fillings(&mut client));
    let sql = "SELECT count(*) FROM queue.jobs WHERE state = 'completed'";
    // A look that takes longer than reclaim_delay, which is nothing here, may miss what moves meanwhile.
    wait::until("all are seen", || (int(&mut client, sql) == 2 * JOBS).then_some(()));
    let sql = "SELECT count(*) FROM queue.history WHERE outcome = 'c'";
    assert!(int(&mut client, sql) > JOBS, "{} in history", int(&mut client, sql));
    assert_eq!(
        int(&mut client, "SELECT count(*) FROM (SELECT id FROM queue.history GROUP BY id HAVING count(*) > 1) AS x"),
        0
    );
    holder.batch_execute("COMMIT").unwrap();
}
