//! Servers join and leave under load. No key ever has two living jobs.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use queue_tests::random::Random;
use queue_tests::sql::Sql;
use queue_tests::{StopAtEnd, error, wait};

use crate::peers::Peers;

/// How many keys are in use at a time. After each [`AGE`] other keys are used, so that each slot is free now and then.
const KEYS: u64 = 60;
/// The first keys stay the same and are hardly ever idle. Each of their calls has a version, which is remembered for at
/// least an hour.
const VERSIONED: u64 = 10;
const AGE: Duration = Duration::from_millis(500);

/// Returns keys that have living jobs on more than one server.
fn doubled(peers: &Peers, servers: usize) -> Vec<String> {
    let sql = "SELECT DISTINCT coalesce(group_key, unique_key) FROM queue_internal.live() WHERE outcome IS NULL \
        AND coalesce(group_key, unique_key) IS NOT NULL";
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
    // The jobs that now run, on any server. No key may have two of them.
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
                        0 => format!(
                            "SELECT queue_cluster.enqueue('q', '{key}', unique_key => 'k{key}', unique_for => '300 ms')"
                        ),
                        1 => {
                            let key = chance.below(VERSIONED);
                            format!(
                                "SELECT queue_cluster.enqueue('q', '-{key}', unique_key => 'v{key}', \
                                version => clock_timestamp())"
                            )
                        }
                        2 => format!(
                            "SELECT queue_cluster.enqueue_batch('q', \
                            '[{{\"payload\": {key}, \"unique_key\": \"k{key}\"}}]')"
                        ),
                        _ => format!(
                            "SELECT queue_cluster.enqueue('q', '{key}', unique_key => 'k{key}', \
                            on_duplicate => 'replace')"
                        ),
                    };
                    match client.simple_query(&sql) {
                        Ok(_) => {}
                        // The slot of the key is being moved.
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
        let settle = |admin: &mut postgres::Client, what: &str| {
            wait::within(what, Duration::from_secs(90), || {
                let row = admin
                    .query_one("SELECT moved, waiting FROM queue_cluster.rebalance('300 ms')", &[])
                    .expect("a rebalance");
                let twice = doubled(&peers, 4);
                assert!(twice.is_empty(), "{twice:?}");
                (row.get::<_, i32>(1) == 0).then_some(())
            });
        };
        let work = |least: u64| {
            let before = done.load(Ordering::Relaxed);
            wait::until("jobs are done", || (done.load(Ordering::Relaxed) >= before + least).then_some(()));
        };
        work(100);
        peers.join(3);
        admin.run("SELECT queue_cluster.create('q', lease => '1 minute', backoff_base => '0')");
        settle(&mut admin, "the fourth server has its slots");
        assert_eq!(admin.value::<i64>("SELECT count(*) FROM queue_cluster.slot WHERE node_id = 4"), 256);
        work(100);
        admin.run("SELECT queue_cluster.drain('s4')");
        settle(&mut admin, "the fourth server has given its slots back");
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
fn two_servers_may_rebalance_at_the_same_time() {
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
fn a_slot_with_a_living_job_or_a_schedule_stays() {
    let peers = Peers::new(2);
    let c = &mut peers.connect(0);
    let keys: Vec<String> = c
        .column("SELECT 'x' || n FROM generate_series(1, 100) AS n WHERE queue_cluster.owner('x' || n) = 's2' LIMIT 4");
    c.run(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{}')", keys[0]));
    let remembered = format!("SELECT queue_cluster.enqueue('q', unique_key => '{}', unique_for => '1 hour')", keys[1]);
    let first: i64 = c.value(&remembered);
    c.run(&format!("SELECT queue_cluster.schedule('{}', 'q', every => '1 day')", keys[2]));
    // Another server's call opens a transaction of its own, so this one opens its transaction on the owner itself.
    let mut open = peers.connect(1);
    open.run(&format!("BEGIN; SELECT queue_cluster.enqueue('q', unique_key => '{}')", keys[3]));
    c.run("SELECT queue_cluster.drain('s2')");
    assert_eq!(c.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()"), 4);
    open.run("ROLLBACK");
    assert_eq!(c.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()"), 3);
    c.run(&format!("SELECT queue_cluster.unschedule('{}')", keys[2]));
    c.refused("SELECT queue_cluster.remove_server('s2')", "55000");
    assert_eq!(
        c.count(
            "SELECT FROM queue_cluster.complete_many(ARRAY(SELECT id FROM queue_cluster.claim('q', 5))) \
        WHERE outcome = 'completed'"
        ),
        2
    );
    assert_eq!(c.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()"), 0, "what is remembered moves");
    assert_eq!(c.value::<i64>(&remembered), first, "the key is taken for an hour, now here");
    // A job that ended there cannot take its key again, because the key has another owner.
    let dead = format!("SELECT job_id FROM queue_cluster.jobs WHERE unique_key = '{}'", keys[0]);
    let job: i64 = c.value(&dead);
    c.refused(&format!("SELECT queue_cluster.retry({job})"), "55006");
}

/// Each new owner knows the versions of keys and the keys that are taken for a while, there and back. If it has two
/// rows for a key, the larger values count.
#[test]
fn versions_and_taken_keys_move_with_their_slot() {
    let peers = Peers::new(2);
    let c = &mut peers.connect(0);
    let key = peers.key_of(1);
    let owner = |c: &mut postgres::Client| c.value::<String>(&format!("SELECT queue_cluster.owner('{key}')"));
    let enqueue = |c: &mut postgres::Client, version: u32| -> i64 {
        c.value(&format!(
            "SELECT queue_cluster.enqueue('q', '{version}', unique_key => '{key}', version => '2026-01-{version:02}', \
                unique_for => '1 second')"
        ))
    };
    let finish = |c: &mut postgres::Client| {
        c.run("SELECT queue_cluster.complete(id) FROM queue_cluster.claim('q')");
    };
    let mut newest = enqueue(c, 10);
    finish(c);
    for (round, (verb, name)) in [("drain", "s1"), ("mark_up", "s2"), ("drain", "s1")].into_iter().enumerate() {
        c.run(&format!("SELECT queue_cluster.{verb}('s2')"));
        assert_eq!(c.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()"), 0);
        assert_eq!(owner(c), name, "round {round}");
        assert_eq!(enqueue(c, 9), newest, "an older version is known everywhere");
        // Once the key is free, a newer version makes a new job.
        newest = wait::until("a newer version is accepted", || {
            Some(enqueue(c, 11 + round as u32)).filter(|id| *id != newest)
        });
        finish(c);
    }
    // If the new owner cannot take over the versions, the slot stays with its owner.
    peers.connect(1).run("SELECT queue.drop('q')");
    c.run("SELECT queue_cluster.mark_up('s2')");
    assert!(c.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()") > 0);
    assert_eq!((owner(c).as_str(), enqueue(c, 9)), ("s1", newest));
}

/// A slot whose keys are never idle is closed while the caller waits for it. If the wait ends without result, the slot
/// is open again.
#[test]
fn a_key_that_is_never_idle_moves_when_it_is_waited_for() {
    let peers = Peers::new(2);
    let key = peers.key_of(1);
    let admin = &mut peers.connect(0);
    let (is_over, made, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    scope(|scope| {
        let _over = StopAtEnd(&is_over);
        for n in 0..2 {
            let (peers, is_over, made, refused, key) = (&peers, &is_over, &made, &refused, &key);
            scope.spawn(move || {
                let mut client = peers.connect(n);
                while !is_over.load(Ordering::Relaxed) {
                    let sql = format!("SELECT queue_cluster.enqueue('q', group_key => '{key}')");
                    match client.simple_query(&sql) {
                        Ok(_) => made.fetch_add(1, Ordering::Relaxed),
                        Err(e) if error::code(&e) == "55006" => refused.fetch_add(1, Ordering::Relaxed),
                        Err(e) => panic!("{}", error::describe(&e)),
                    };
                }
            });
        }
        wait::until("the group has jobs", || (made.load(Ordering::Relaxed) > 20).then_some(()));
        admin.run("SELECT queue_cluster.drain('s2')");
        assert_eq!(admin.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()"), 1);
        assert_eq!(admin.value::<i32>("SELECT waiting FROM queue_cluster.rebalance('50 ms')"), 1, "nobody works");
        let before = made.load(Ordering::Relaxed);
        wait::until("it is open again", || (made.load(Ordering::Relaxed) > before + 5).then_some(()));
        scope.spawn(|| {
            let mut worker = peers.connect(1);
            while !is_over.load(Ordering::Relaxed) {
                worker.run(
                    "SELECT FROM queue_cluster.complete_many(ARRAY(SELECT id \
                    FROM queue_cluster.claim('q', 100, '10 ms')))",
                );
            }
        });
        assert_eq!(admin.value::<i32>("SELECT waiting FROM queue_cluster.rebalance('20 s')"), 0);
        assert_eq!(admin.value::<String>(&format!("SELECT queue_cluster.owner('{key}')")), "s1");
        assert!(refused.load(Ordering::Relaxed) > 0);
        let before = made.load(Ordering::Relaxed);
        wait::until("it goes on at the new owner", || (made.load(Ordering::Relaxed) > before + 20).then_some(()));
        assert_eq!(admin.value::<i64>("SELECT count(*) FROM queue_cluster.slot WHERE closed_until IS NOT NULL"), 0);
    });
}

/// If another run of a job was requested while the job ended, the background worker has yet to make it. Until then the
/// slot stays.
#[test]
fn a_job_with_another_run_to_come_keeps_its_slot() {
    let peers = Peers::new(2);
    let key = peers.key_of(1);
    let set_worker = |value: &str| {
        let mut admin = peers.connect(1);
        admin.run(&format!("ALTER DATABASE app SET pg_queue.worker = {value}"));
        admin.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'pg_queue worker%'");
    };
    let (c, producer, worker) = (&mut peers.connect(0), &mut peers.connect(1), &mut peers.connect(1));
    let rerun = format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}', on_duplicate => 'rerun')");
    let job: i64 = producer.value(&rerun);
    let id: i64 = worker.value("SELECT id FROM queue_cluster.claim('q')");
    set_worker("off");
    producer.run(&format!("BEGIN; {rerun}"));
    worker.run(&format!("BEGIN; SELECT queue_cluster.complete({id})"));
    producer.run("COMMIT");
    worker.run("COMMIT");
    assert_eq!(producer.count("SELECT FROM queue_internal.live() WHERE outcome IS NULL"), 0, "the run is not made yet");
    c.run("SELECT queue_cluster.drain('s2')");
    assert_eq!(c.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()"), 1);
    set_worker("on");
    let again = wait::until("the run is made", || {
        let row = worker.query_opt("SELECT id, job_id FROM queue_cluster.claim('q')", &[]).expect("a claim")?;
        assert_eq!(row.get::<_, i64>(1), job);
        Some(row.get::<_, i64>(0))
    });
    assert_eq!(c.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()"), 1);
    worker.run(&format!("SELECT queue_cluster.complete({again})"));
    assert_eq!(c.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()"), 0);
}
