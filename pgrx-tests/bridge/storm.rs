//! Crashes of both servers and failovers of the primary under load. Each committed job arrives once and has its effect
//! once.
//!
//! `QUEUE_SOAK=3600` runs for that many seconds, `QUEUE_FAILOVERS=50` makes that many failovers. Each run has another
//! seed.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, Config, NoTls};
use queue_tests::random::{self, Random};
use queue_tests::sql::Sql;
use queue_tests::{Cluster, integrity, wait};

use crate::outages::cut_off;
use crate::pair::{DATABASE, Pair, conninfo};

/// How to connect to a server. It changes when the server fails over.
type Place = Mutex<Config>;

fn connect(place: &Place) -> Result<Client, postgres::Error> {
    let config = place.lock().expect("nobody panicked").clone();
    config.connect(NoTls)
}

/// Enqueues jobs in transactions with savepoints. Some transactions and savepoints roll back. Committed jobs are in
/// `made`.
fn produce(primary: &Place, seed: u64, pause: Duration, is_over: &AtomicBool) {
    let mut random = Random::new(seed);
    while !is_over.load(Ordering::Relaxed) {
        let Ok(mut client) = connect(primary) else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        while !is_over.load(Ordering::Relaxed) && transaction(&mut client, &mut random).is_ok() {
            thread::sleep(pause);
        }
    }
}

fn transaction(client: &mut Client, random: &mut Random) -> Result<(), postgres::Error> {
    const MAKE: &str = "INSERT INTO made SELECT queue.enqueue('q')";
    let mut all = client.transaction()?;
    for _ in 0..1 + random.below(3) {
        let mut inner = all.savepoint("s")?;
        match random.below(4) {
            0 => inner.batch_execute("INSERT INTO made SELECT queue.enqueue_many('q', '{1,2,3,4,5}')")?,
            1 => inner.batch_execute("INSERT INTO made SELECT queue.enqueue_batch('q', '[{\"priority\": 1}, {}]')")?,
            _ => inner.batch_execute(MAKE)?,
        }
        if random.percent(25) { inner.rollback()? } else { inner.commit()? }
    }
    if random.percent(20) { all.rollback() } else { all.commit() }
}

/// Claims on the queue server and works on the primary. Each effect is a row in `done`.
fn work(server: &Place, primary: &Place, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let (Ok(mut server), Ok(mut primary)) = (connect(server), connect(primary)) else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        while !is_over.load(Ordering::Relaxed) && attempts(&mut server, &mut primary).is_ok() {}
    }
}

fn attempts(server: &mut Client, primary: &mut Client) -> Result<(), postgres::Error> {
    for row in server.query("SELECT id, job_id FROM queue.claim('q', 5, wait => '200 ms')", &[])? {
        let (id, job_id): (i64, i64) = (row.get(0), row.get(1));
        let mut effects = primary.transaction()?;
        if effects.query_one("SELECT queue.once($1)", &[&job_id])?.get(0) {
            effects.execute("INSERT INTO done VALUES ($1)", &[&job_id])?;
            effects.execute("SELECT queue.complete($1)", &[&id])?;
            effects.commit()?;
        } else {
            effects.rollback()?;
            server.query("SELECT queue.complete_many(ARRAY[$1::bigint])", &[&id])?;
        }
    }
    Ok(())
}

/// Kills or restarts something on one of the servers and waits until both answer.
fn strike(pair: &Pair, random: &mut Random) -> String {
    let (name, cluster): (&str, &Cluster) =
        if random.percent(50) { ("primary", &pair.primary) } else { ("queue server", &pair.server) };
    let what = random.below(6);
    match what {
        0 => {
            cluster.restart_killed();
        }
        1 => {
            cluster.restart_immediate();
        }
        2 if name == "queue server" => cluster.restart(),
        2 | 3 => crash(cluster, "checkpointer"),
        4 => crash(&pair.server, "logical replication%"),
        _ => crash(&pair.primary, "walsender"),
    }
    format!("{what} on the {name}")
}

fn crash(cluster: &Cluster, process: &str) {
    let pids = cluster.connect().column::<i32>(&format!(
        "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE '{process}' AND pid IS NOT NULL"
    ));
    if let Some(&pid) = pids.last() {
        cluster.crash_if_there(pid);
    }
}

/// Makes the tables of producers and workers. Returns how they connect to the primary and to the queue server.
fn prepare(pair: &Pair) -> [Place; 2] {
    pair.server().run("SELECT queue.alter('q', lease => '2 seconds', max_attempts => 1000000)");
    pair.primary_as("owner").run(
        "CREATE TABLE made (job_id bigint PRIMARY KEY); CREATE TABLE done (job_id bigint);
        GRANT ALL ON made, done TO app",
    );
    let mut worker = pair.server.config();
    worker.dbname(DATABASE);
    [Mutex::new(app(&pair.primary)), Mutex::new(worker)]
}

fn app(primary: &Cluster) -> Config {
    let mut app = primary.config();
    app.dbname(DATABASE).user("app");
    app
}

/// Ends a part of the load when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs two producers, which rest for `pause` after each transaction, until `strike` returns. Runs two workers until
/// `is_done` returns.
fn under_load(
    places: &[Place; 2],
    random: &mut Random,
    pause: Duration,
    strike: impl FnOnce(&mut Random),
    is_done: impl FnOnce(),
) {
    let [primary, server] = places;
    let (is_made, is_over) = (&AtomicBool::new(false), &AtomicBool::new(false));
    thread::scope(|scope| {
        // The flags end the threads even if this thread panics. The scope waits for the threads.
        let _end = [End(is_made), End(is_over)];
        for _ in 0..2 {
            let seed = random.next();
            scope.spawn(move || produce(primary, seed, pause, is_made));
            scope.spawn(|| work(server, primary, is_over));
        }
        strike(random);
        is_made.store(true, Ordering::Relaxed);
        is_done();
    });
}

/// Waits until this many more jobs exist.
fn wait_made(pair: &Pair, jobs: usize) {
    let mut primary = pair.primary.connect_to(DATABASE);
    let enough = primary.count("SELECT FROM made") + jobs;
    wait::until("jobs are made", || (primary.count("SELECT FROM made") >= enough).then_some(()));
}

#[test]
fn every_job_arrives_once_and_has_its_effect_once_whatever_ends() {
    let pair = Pair::new();
    let mut random = Random::new(random::seed("bridge_storm"));
    let places = prepare(&pair);
    let end = Instant::now() + random::length(12);
    let storm = |random: &mut Random| {
        let mut strikes = 0;
        while Instant::now() < end {
            let what = strike(&pair, random);
            strikes += 1;
            if random.percent(10) {
                // Between two contacts both servers may have ended.
                pair.contact();
            }
            thread::sleep(Duration::from_millis(random.below(300)));
            if strikes % 100 == 0 {
                println!("{strikes} strikes, last {what}");
            }
        }
        println!("{strikes} strikes");
        wait_made(&pair, 100);
    };
    // The pause lets workers keep up even in a run of an hour.
    under_load(&places, &mut random, Duration::from_millis(10), storm, || {
        let mut primary = pair.primary.connect_to(DATABASE);
        wait::until_none_left("all jobs have had their effects", || {
            primary.count("SELECT FROM made LEFT JOIN done USING (job_id) WHERE done.job_id IS NULL") as i64
        });
    });
    pair.wait_arrived();
    let (mut primary, mut server) = (pair.primary.connect_to(DATABASE), pair.server());
    let made: BTreeSet<i64> = primary.column("SELECT job_id FROM made").into_iter().collect();
    let there: Vec<i64> = server.column("SELECT job_id FROM queue.jobs WHERE queue_name = 'q'");
    println!("{} jobs", made.len());
    assert_eq!(there.len(), made.len(), "lost or doubled");
    assert_eq!(there.into_iter().collect::<BTreeSet<_>>(), made);
    let effects: Vec<i64> = primary.column("SELECT job_id FROM done ORDER BY job_id");
    assert_eq!(effects, made.into_iter().collect::<Vec<_>>(), "effects missing or twice");
    assert_eq!(server.count("SELECT FROM queue_bridge.refused WHERE code <> 'QJ001'"), 0);
    integrity::check(&mut server);
}

#[test]
fn repeated_failovers_lose_and_double_no_job_that_the_primary_still_has() {
    let mut pair = Pair::new();
    let mut random = Random::new(random::seed("bridge_failovers"));
    let places = prepare(&pair);
    let failovers = random::number("QUEUE_FAILOVERS").unwrap_or(2);
    let mut server = pair.server();
    let strike = |random: &mut Random| {
        for n in 1..=failovers {
            let standby = pair.primary.standby();
            wait_made(&pair, 50);
            standby.wait_replayed(&pair.primary);
            if n % 2 == 0 {
                // Later commits are lost, and some of their jobs have arrived.
                cut_off(&standby);
            }
            thread::sleep(Duration::from_millis(random.below(500)));
            pair.primary.kill_server();
            standby.promote();
            *places[0].lock().expect("nobody panicked") = app(&standby);
            thread::sleep(Duration::from_millis(random.below(200)));
            pair.primary = standby;
            let repair = format!("SELECT queue_bridge.repair('shop', '{}')::text", conninfo(&pair.primary));
            println!("failover {n}: {}", pair.server().value::<String>(&repair));
            pair.wait_streaming();
        }
    };
    // The longer pause keeps the outbox small, because each repair looks at all earlier calls.
    under_load(&places, &mut random, Duration::from_millis(150), strike, || {
        wait::until_none_left("no job is left", || {
            server.count("SELECT FROM queue.jobs WHERE queue_name = 'q' AND state <> 'completed'") as i64
        });
    });
    pair.wait_arrived();
    let mut primary = pair.primary.connect_to(DATABASE);
    let made: BTreeSet<i64> = primary.column("SELECT job_id FROM made").into_iter().collect();
    let there: Vec<i64> = server.column("SELECT job_id FROM queue.jobs WHERE queue_name = 'q'");
    let jobs: BTreeSet<i64> = there.iter().copied().collect();
    assert_eq!(jobs.len(), there.len(), "doubled");
    assert_eq!(made.difference(&jobs).count(), 0, "lost");
    // The list has exactly the jobs of transactions that a failover has lost.
    let listed: BTreeSet<i64> = server.column("SELECT job_id FROM queue_bridge.phantom").into_iter().collect();
    let phantoms: BTreeSet<i64> = jobs.difference(&made).copied().collect();
    assert_eq!(phantoms, listed);
    let effects: Vec<i64> = primary.column("SELECT job_id FROM done ORDER BY job_id");
    // A completion may arrive although its transaction is lost with its effects. Such a job has no effect.
    let without = made.iter().filter(|job| effects.binary_search(job).is_err()).count();
    println!("{failovers} failovers, {} jobs, {} phantoms, effects lost of {without}", made.len(), phantoms.len());
    assert!(effects.is_sorted_by(|one, next| one < next), "effects twice");
    assert_eq!(server.value::<i64>("SELECT renumbered FROM queue_bridge.source"), 0, "ids given out twice");
    integrity::check(&mut server);
}
