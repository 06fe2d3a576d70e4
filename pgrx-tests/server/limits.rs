//! Memory so small that everything overflows: order and exactness stay, and what does not fit is said.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use postgres::Client;
use queue_tests::{Cluster, error, wait};

use crate::random::{self, Random};
use crate::shared::{Sql, create};

fn tiny() -> Cluster {
    Cluster::new()
        .conf("pg_queue.max_ready = 2")
        .conf("pg_queue.max_running = 3")
        .conf("pg_queue.max_lanes = 2")
        .start()
}

#[test]
fn the_order_is_exact_with_more_queues_than_lanes_and_more_jobs_than_memory() {
    let cluster = tiny();
    let seed = random::seed("limits");
    let mut random = Random::new(seed);
    let mut client = cluster.create_database("app");
    let queues = ["a", "b", "c", "d"];
    let mut waiting: BTreeMap<&str, BTreeSet<(i32, i64)>> = BTreeMap::new();
    for queue in queues {
        create(&mut client, queue, "");
        waiting.insert(queue, BTreeSet::new());
    }
    for step in 0..900 {
        let queue = random.one_of(&queues);
        let jobs = waiting.get_mut(queue).unwrap();
        match random.below(10) {
            0..4 => {
                let priority = random.between(-3, 3) as i32;
                let sql = format!("SELECT queue.enqueue('{queue}', priority => {priority})");
                jobs.insert((priority, client.value(&sql)));
            }
            4 => {
                let priority = random.between(-3, 3) as i32;
                let sql = format!(
                    "SELECT * FROM queue.enqueue_many('{queue}', array_fill(jsonb '1', ARRAY[7]), priority => {priority})"
                );
                jobs.extend(client.column::<i64>(&sql).into_iter().map(|id| (priority, id)));
            }
            what => {
                let count = random.between(1, 3) as usize;
                let expected: Vec<(i32, i64)> = jobs.iter().copied().take(count).collect();
                client.run("BEGIN");
                let sql = format!("SELECT priority, job_id, id FROM queue.claim('{queue}', {count})");
                let rows = client.query(&sql, &[]).unwrap_or_else(|e| panic!("seed {seed}, step {step}: {e:?}"));
                let claimed: Vec<(i32, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
                assert_eq!(claimed, expected, "seed {seed}, step {step}");
                let ids: Vec<i64> = rows.iter().map(|row| row.get(2)).collect();
                if what == 5 {
                    client.run("ROLLBACK");
                    continue;
                }
                client.run("COMMIT");
                if what == 6 {
                    // Back to their places.
                    client.query("SELECT queue.release_many($1)", &[&ids]).unwrap();
                } else {
                    client.query("SELECT queue.complete_many($1)", &[&ids]).unwrap();
                    expected.iter().for_each(|job| assert!(jobs.remove(job)));
                }
            }
        }
    }
}

#[test]
fn where_too_many_run_a_claim_gets_fewer_and_then_an_error_that_names_the_setting() {
    let cluster = tiny();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    for _ in 0..6 {
        client.enqueue("q");
    }
    let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 10)");
    assert_eq!(ids.len(), 3);
    let full = client.failure("SELECT FROM queue.claim('q')");
    assert_eq!(full.code, "53400", "{full:?}");
    assert!(full.hint.contains("pg_queue.max_running"), "{full:?}");
    client.run(&format!("SELECT queue.complete({})", ids[1]));
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 1);
    // In the transaction that ends one there is room for the next only when it has committed.
    client.run(&format!("SELECT queue.fail({}, 'no', retry_in => '0')", ids[0]));
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 1);
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'ready'"), 2);
}

#[test]
fn a_purge_needs_room_for_one_job_only() {
    let cluster = Cluster::new().conf("pg_queue.max_running = 3").start();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[42]))");
    let running: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 2)");
    client.run("BEGIN");
    assert_eq!(client.value::<i64>("SELECT queue.purge('q')"), 40);
    client.run("ROLLBACK");
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats"), 40);
    assert_eq!(client.value::<i64>("SELECT queue.purge('q')"), 40);
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'cancelled'"), 40);
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats"), 0);
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 0);
    client.run(&format!("SELECT count(*) FROM queue.complete_many(ARRAY{running:?})"));
    // With none at all it says so.
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[5]))");
    assert_eq!(client.count("SELECT FROM queue.claim('q', 3)"), 3);
    assert_eq!(client.failure("SELECT queue.purge('q')").code, "53400");
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats"), 2);
}

#[test]
fn many_claimers_with_tiny_memory_get_every_job_once() {
    let cluster = Cluster::new()
        .conf("pg_queue.max_ready = 4")
        .conf("pg_queue.max_running = 12")
        .conf("pg_queue.max_lanes = 2")
        .start();
    let mut client = cluster.create_database("app");
    let queues = ["a", "b", "c"];
    for queue in queues {
        create(&mut client, queue, "");
        client.run(&format!("SELECT count(*) FROM queue.enqueue_many('{queue}', array_fill(jsonb '1', ARRAY[300]))"));
    }
    let done = Mutex::new(Vec::new());
    let seed = random::seed("many claimers");
    thread::scope(|scope| {
        for n in 0..6 {
            let (cluster, done) = (&cluster, &done);
            scope.spawn(move || {
                let mut random = Random::new(seed + n);
                let mut client = cluster.connect_to("app");
                let mut empty = 0;
                while empty < 20 {
                    let queue = random.one_of(&queues);
                    let most = random.between(1, 5);
                    let sql = format!("SELECT job_id, queue.complete(id) FROM queue.claim('{queue}', {most})");
                    match client.query(&sql, &[]) {
                        Ok(rows) if rows.is_empty() => empty += 1,
                        Ok(rows) => {
                            empty = 0;
                            done.lock().unwrap().extend(rows.iter().map(|row| row.get::<_, i64>(0)));
                        }
                        // All lanes or all of `running` are in use this moment.
                        Err(e) => assert_eq!(error::code(&e), "53400", "seed {seed}: {e:?}"),
                    }
                }
            });
        }
    });
    let done = done.into_inner().unwrap();
    let once: BTreeSet<i64> = done.iter().copied().collect();
    assert_eq!(once.len(), done.len(), "seed {seed}: a job was done twice");
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state <> 'completed'"), 0, "seed {seed}");
    assert_eq!(done.len(), 900, "seed {seed}");
}

#[test]
fn jobs_that_run_beyond_memory_after_a_restart_with_smaller_limits_are_not_forgotten() {
    let cluster = Cluster::new().start();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "lease => '1 s'");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[9]))");
    let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 9)");
    cluster.stop_immediate();
    cluster.append_conf("pg_queue.max_running = 3\npg_queue.max_ready = 2\npg_queue.max_lanes = 1");
    cluster.start_again();

    let mut client = cluster.connect_to("app");
    client.run("SELECT FROM queue.maintain()");
    // One of each: in memory and beyond it.
    client.run(&format!("SELECT queue.complete({})", ids[8]));
    client.run(&format!("SELECT queue.complete({})", ids[0]));
    for id in [ids[8], ids[0]] {
        assert_eq!(client.failure(&format!("SELECT queue.complete({id})")).code, "QJ001");
    }
    wait::within("all leases have ended", Duration::from_secs(25), || {
        // A new session: who found memory full tries again only after a while.
        cluster.connect_to("app").run("SELECT FROM queue.maintain()");
        (client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'ready' AND attempt = 2") == 7)
            .then_some(())
    });
    let mut done = 0;
    while done < 7 {
        let count = client.count("SELECT queue.complete(id) FROM queue.claim('q', 10)");
        assert!(count > 0, "only {done} of 7 could be claimed");
        done += count;
    }
}

fn refused(client: &mut Client) {
    let full = client.failure("SELECT queue.create('q')");
    assert_eq!(full.code, "53400", "{full:?}");
    assert!(full.hint.contains("pg_queue.max_databases"), "{full:?}");
}

#[test]
fn one_database_too_many_is_told_so_and_takes_the_place_of_one_that_goes() {
    let cluster = Cluster::new().conf("pg_queue.max_databases = 2").start();
    let mut one = cluster.create_database("one");
    create(&mut one, "q", "");
    let mut two = cluster.create_database("two");
    create(&mut two, "q", "");
    let mut three = cluster.create_database("three");
    refused(&mut three);
    one.enqueue("q");
    one.claim("q");

    two.run("DROP EXTENSION pg_queue");
    wait::until("the place of the dropped extension is free", || three.batch_execute("SELECT queue.create('q')").ok());
    three.enqueue("q");
    three.claim("q");

    two.run("CREATE EXTENSION pg_queue");
    refused(&mut two);
    drop(three);
    cluster.connect().run("DROP DATABASE three WITH (FORCE)");
    wait::until("the place of the dropped database is free", || two.batch_execute("SELECT queue.create('q')").ok());
    two.enqueue("q");
    two.claim("q");
}

#[test]
fn a_heartbeat_of_what_memory_has_no_room_for_tells_the_lease_and_that_it_is_cancelled() {
    let cluster = Cluster::new().start();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[9]))");
    let running: Vec<(i64, i64)> = client
        .query("SELECT id, job_id FROM queue.claim('q', 9, lease => '10 min')", &[])
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    cluster.append_conf("pg_queue.max_running = 3");
    cluster.restart();
    let mut client = cluster.connect_to("app");
    client.run("SELECT FROM queue.maintain()");
    for (id, job) in running {
        client.run(&format!("SELECT queue.cancel({job})"));
        let beat =
            format!("SELECT lease_expires_at > now() + interval '9 min' AND is_cancelled FROM queue.extend({id})");
        assert!(client.value::<bool>(&beat), "{id}");
    }
}
