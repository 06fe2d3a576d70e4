//! An administrator rewrites the log tables while jobs run, in every way that the server offers.

use crate::shared::*;
use crate::storage::segments::{cluster, fillings};

/// The first `server_version_num` with REPACK.
const REPACK_SINCE: i32 = 190_000;

/// Returns the log tables whose names match a regular expression, with their schemas.
fn tables(client: &mut Client, names: &str) -> Vec<String> {
    client.column(&format!("SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relname ~ '^{names}$'"))
}

/// Works like a worker, in short and in longer transactions, with notes, failures and releases.
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
            // Jobs of separate claims are still ours.
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
fn tables_are_rewritten_under_load_and_no_job_is_lost_or_done_twice() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    client.run("CREATE TABLE done (n bigint)");
    let mut ways = vec!["VACUUM FULL"];
    if client.value::<i32>("SELECT current_setting('server_version_num')::integer") >= REPACK_SINCE {
        ways.extend(["REPACK", "REPACK (CONCURRENTLY)"]);
    }
    let (rewritten, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let enqueued = thread::scope(|scope| {
        let (cluster, rewritten, stop) = (&cluster, &rewritten, &stop);
        let producer = scope.spawn(move || {
            let _stop = StopAtEnd(stop);
            let mut random = Random::new(1);
            let mut client = cluster.connect();
            let mut n = 0;
            let limit = Instant::now() + Duration::from_secs(300);
            while !rewritten.load(Ordering::Relaxed) || fillings(&mut client) < 3 {
                assert!(Instant::now() < limit, "the ring has hardly turned");
                let count = random.between(1, 100);
                let sql = "SELECT count(*) FROM queue.enqueue_many('q', ARRAY(SELECT jsonb_build_object('n', n)
                           FROM generate_series($1::bigint, $2::bigint) AS n))";
                client.query(sql, &[&n, &(n + count - 1)]).unwrap();
                n += count;
                // The producers wait for the workers, so that the tables have jobs of all ages.
                let backlog = "SELECT sum(ready)::bigint FROM queue.stats";
                wait::until_true("workers keep up", || client.value::<Option<i64>>(backlog).unwrap_or(0) < 2_000);
            }
            let left = "SELECT count(*) FROM queue.jobs WHERE state NOT IN ('completed', 'dead')";
            wait::until_none_left("all jobs have ended", || client.value(left));
            n
        });
        for seed in 10..12 {
            scope.spawn(move || work(cluster, seed, stop));
        }
        let end = StopAtEnd(rewritten);
        let tables = tables(&mut client, "(attempt|claim|outcome)_[0-9]");
        assert_eq!(tables.len(), 30, "{tables:?}");
        for way in &ways {
            for table in &tables {
                client.run(&format!("{way} {table}"));
            }
        }
        drop(end);
        producer.join().unwrap()
    });
    assert_eq!(client.value::<i64>("SELECT count(*) FROM done"), enqueued);
    assert_eq!(client.value::<i64>("SELECT count(DISTINCT n) FROM done"), enqueued);
    client.check();
    integrity::check(&mut client);
    assert!(!cluster.log().contains("ERROR"), "{}", cluster.log());
}

/// Tests what the documentation says about tables without a primary key.
#[test]
fn a_table_without_a_key_is_repacked_with_its_lock() {
    let cluster = cluster(&["pg_queue.worker = off"]);
    let mut client = cluster.connect();
    if client.value::<i32>("SELECT current_setting('server_version_num')::integer") < REPACK_SINCE {
        client.refused("REPACK pg_class", "42601");
        return;
    }
    for table in tables(&mut client, "(note|parked)_0") {
        client.refused(&format!("REPACK (CONCURRENTLY) {table}"), "55000");
        client.run(&format!("REPACK {table}"));
    }
}
