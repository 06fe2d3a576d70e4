//! Servers come and go under load: no key ever lives twice.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use queue_tests::random::Random;
use queue_tests::sql::Sql;
use queue_tests::{StopAtEnd, error, wait};

use crate::peers::Peers;

/// How many keys are in use at a time. They are others after each [`AGE`], so that each slot is free now and then: the slot of a
/// key that is never idle does not move.
const KEYS: u64 = 60;
/// These have a version with each call. It is remembered for an hour at least, so that their slots stay.
const VERSIONED: u64 = 10;
const AGE: Duration = Duration::from_millis(500);

/// Jobs of a key that live, or are remembered, on more than one server.
fn doubled(peers: &Peers, servers: usize) -> Vec<String> {
    let sql = "SELECT DISTINCT coalesce(group_key, unique_key) FROM queue_internal.live() WHERE outcome IS NULL AND coalesce(group_key, unique_key) IS NOT NULL
               UNION SELECT unique_key FROM queue.key_0 WHERE expires_at > now() UNION SELECT unique_key FROM queue.key_1 WHERE expires_at > now()";
    let mut all: Vec<String> = (0..servers).flat_map(|n| peers.connect(n).column::<String>(sql)).collect();
    all.sort_unstable();
    all.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone()).collect()
}

#[test]
fn from_three_servers_to_four_and_back_no_key_lives_twice() {
    let peers = Peers::apart(4);
    (0..3).for_each(|n| peers.join(n));
    peers.connect(0).run(
        "SELECT queue_cluster.rebalance(); SELECT queue_cluster.create('q', lease => '1 minute', backoff_base => '0')",
    );
    // Those that run now, wherever: a key is there once.
    let running: Mutex<BTreeSet<i64>> = Mutex::new(BTreeSet::new());
    let start = Instant::now();
    let (done, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    let seed = queue_tests::random::seed("from_three_servers_to_four");
    scope(|scope| {
        let _over = StopAtEnd(&is_over);
        for n in 0..6_u64 {
            let (peers, is_over, refused) = (&peers, &is_over, &refused);
            scope.spawn(move || {
                let mut chance = Random::new(seed + n);
                let mut client = peers.connect((n % 3) as usize);
                while !is_over.load(Ordering::Relaxed) {
                    let age = (start.elapsed().as_millis() / AGE.as_millis()) as u64;
                    let key = age * KEYS + chance.below(KEYS);
                    let sql = match chance.below(4) {
                        0 => format!("SELECT queue_cluster.enqueue('q', '{key}', unique_key => 'k{key}', unique_for => '300 ms')"),
                        1 => {
                            let key = chance.below(VERSIONED);
                            format!("SELECT queue_cluster.enqueue('q', '-{key}', unique_key => 'v{key}', version => clock_timestamp())")
                        }
                        2 => format!("SELECT queue_cluster.enqueue_batch('q', '[{{\"payload\": {key}, \"unique_key\": \"k{key}\"}}]')"),
                        _ => format!("SELECT queue_cluster.enqueue('q', '{key}', unique_key => 'k{key}', on_duplicate => 'replace')"),
                    };
                    match client.simple_query(&sql) {
                        Ok(_) => {}
                        // Its slot is being moved.
                        Err(e) if error::code(&e) == "55006" => _ = refused.fetch_add(1, Ordering::Relaxed),
                        Err(e) => panic!("{sql}: {}", error::describe(&e)),
                    }
                }
            });
        }
        for n in 0..4_usize {
            let (peers, is_over, running, done) = (&peers, &is_over, &running, &done);
            scope.spawn(move || {
                let mut client = peers.connect(n % 3);
                while !is_over.load(Ordering::Relaxed) {
                    for row in client
                        .query("SELECT id, payload::text FROM queue_cluster.claim('q', 3, wait => '100 ms')", &[])
                        .expect("a claim")
                    {
                        let (id, key): (i64, String) = (row.get(0), row.get(1));
                        let key: i64 = key.parse().expect("a key");
                        let is_alone = running.lock().expect("no worker panics here").insert(key);
                        assert!(is_alone, "k{key} runs twice at once");
                        running.lock().expect("no worker panics here").remove(&key);
                        client.run(&format!("SELECT queue_cluster.complete({id})"));
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut admin = peers.connect(0);
        let settle = |admin: &mut postgres::Client, what: &str, may_wait: i32| {
            wait::within(what, Duration::from_secs(90), || {
                let row =
                    admin.query_one("SELECT moved, waiting FROM queue_cluster.rebalance()", &[]).expect("a rebalance");
                let twice = doubled(&peers, 4);
                assert!(twice.is_empty(), "{twice:?}");
                (row.get::<_, i32>(1) <= may_wait).then_some(())
            });
        };
        let work = |least: u64| {
            let before = done.load(Ordering::Relaxed);
            wait::until("jobs are done", || (done.load(Ordering::Relaxed) >= before + least).then_some(()));
        };
        work(100);
        peers.join(3);
        admin.run("SELECT queue_cluster.create('q', lease => '1 minute', backoff_base => '0')");
        settle(&mut admin, "the fourth server has its slots", VERSIONED as i32);
        let got: i64 = admin.value("SELECT count(*) FROM queue_cluster.slot WHERE node_id = 4");
        assert!(got >= 256 - VERSIONED as i64, "{got}");
        work(100);
        admin.run("SELECT queue_cluster.drain('s4')");
        settle(&mut admin, "the fourth server has given its slots back", 0);
        assert_eq!(admin.value::<i64>("SELECT count(*) FROM queue_cluster.slot WHERE node_id = 4"), 0);
        work(100);
        wait::until("the fourth server is empty", || {
            admin.simple_query("SELECT queue_cluster.remove_server('s4')").ok()
        });
        work(100);
    });
    let mut c = peers.connect(0);
    wait::until("all is done", || {
        c.run("SELECT FROM queue_cluster.complete_many(ARRAY(SELECT id FROM queue_cluster.claim('q', 100)))");
        (c.count("SELECT FROM queue_internal.live() WHERE outcome IS NULL") == 0).then_some(())
    });
    let maps: BTreeSet<String> = (0..3)
        .map(|n| {
            peers.connect(n).value("SELECT md5(string_agg(s::text, ',' ORDER BY slot)) FROM queue_cluster.slot AS s")
        })
        .collect();
    assert_eq!(maps.len(), 1, "all have the same map");
    eprintln!("{} done, {} refused while slots moved", done.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
}

#[test]
fn two_servers_may_rebalance_at_once() {
    let peers = Peers::apart(4);
    (0..2).for_each(|n| peers.join(n));
    peers.connect(0).run("SELECT queue_cluster.rebalance()");
    for round in 0..6 {
        scope(|scope| {
            for n in 0..2 {
                let peers = &peers;
                scope.spawn(move || {
                    let mut client = peers.connect(n);
                    let (new, old) = (2 + n, if n == 0 { "s3" } else { "s4" });
                    if round == 0 {
                        let sql = format!(
                            "SELECT queue_cluster.add_server('{}', '{}')",
                            Peers::name(new),
                            peers.conninfo(new)
                        );
                        client.run(&sql);
                    } else {
                        client.run(&format!(
                            "SELECT queue_cluster.{}('{old}')",
                            if round % 2 == 1 { "drain" } else { "mark_up" }
                        ));
                    }
                    client.run("SELECT queue_cluster.rebalance()");
                });
            }
        });
        let mut c = peers.connect(0);
        wait::until("it is balanced", || {
            (c.value::<i32>("SELECT moved + waiting FROM queue_cluster.rebalance()") == 0).then_some(())
        });
        let owners: Vec<i64> = c.column("SELECT count(*) FROM queue_cluster.slot GROUP BY node_id");
        assert!(owners.iter().sum::<i64>() == 1024 && owners.len() == if round % 2 == 1 { 2 } else { 4 }, "{owners:?}");
        for n in 1..4 {
            let own = "SELECT md5(string_agg(s::text, ',' ORDER BY slot)) FROM queue_cluster.slot AS s";
            assert_eq!(peers.connect(n).value::<String>(own), c.value::<String>(own), "server {n}");
        }
    }
}

#[test]
fn a_slot_with_a_living_job_a_remembered_key_or_a_schedule_stays() {
    let peers = Peers::new(2);
    let c = &mut peers.connect(0);
    let keys: Vec<String> = c
        .column("SELECT 'x' || n FROM generate_series(1, 100) AS n WHERE queue_cluster.owner('x' || n) = 's2' LIMIT 4");
    c.run(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{}')", keys[0]));
    c.run(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{}', unique_for => '1 hour')", keys[1]));
    c.run(&format!("SELECT queue_cluster.schedule('{}', 'q', every => '1 day')", keys[2]));
    let mut open = peers.connect(0);
    // Another server's call is no part of this transaction, so it takes one at the owner itself.
    drop(open);
    open = peers.connect(1);
    open.run(&format!("BEGIN; SELECT queue_cluster.enqueue('q', unique_key => '{}')", keys[3]));
    c.run("SELECT queue_cluster.drain('s2')");
    assert_eq!(c.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()"), 4);
    open.run("ROLLBACK");
    assert_eq!(c.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()"), 3);
    c.run(&format!("SELECT queue_cluster.unschedule('{}')", keys[2]));
    assert_eq!(c.failure("SELECT queue_cluster.remove_server('s2')").code, "55000");
    assert_eq!(c.count("SELECT queue_cluster.complete_many(ARRAY(SELECT id FROM queue_cluster.claim('q', 5)))"), 2);
    assert_eq!(c.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()"), 1, "a key is remembered");
    // What has ended there takes its key no more: the key has another owner.
    let dead = format!("SELECT job_id FROM queue_cluster.jobs WHERE unique_key = '{}'", keys[0]);
    let job: i64 = c.value(&dead);
    assert_eq!(c.failure(&format!("SELECT queue_cluster.retry({job})")).code, "55006");
}
