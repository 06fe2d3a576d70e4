//! Both servers end in the middle, again and again, under load: each job that was committed arrives once, and has its
//! effect once.
//!
//! `QUEUE_SOAK=3600` goes on for that many seconds, with another seed in each run.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, Config, NoTls};
use queue_tests::random::{self, Random};
use queue_tests::sql::Sql;
use queue_tests::{Cluster, integrity, wait};

use crate::pair::{DATABASE, Pair};

/// Jobs of open transactions are rolled back, as a whole and to savepoints. What is committed is in `made`.
fn produce(config: &Config, seed: u64, is_over: &AtomicBool) {
    let mut random = Random::new(seed);
    while !is_over.load(Ordering::Relaxed) {
        let Ok(mut client) = config.connect(NoTls) else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        while !is_over.load(Ordering::Relaxed) && transaction(&mut client, &mut random).is_ok() {}
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

/// Claims on the queue server, and works on the primary. Each effect is a row in `done`.
fn work(server: &Config, primary: &Config, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let (Ok(mut server), Ok(mut primary)) = (server.connect(NoTls), primary.connect(NoTls)) else {
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

/// Ends something on one of the servers, and waits until both answer.
fn strike(pair: &Pair, random: &mut Random) -> String {
    let (name, cluster): (&str, &Cluster) =
        if random.percent(50) { ("primary", &pair.primary) } else { ("queue server", &pair.server) };
    let what = random.below(6);
    match what {
        0 => {
            cluster.kill_server();
            cluster.start_again();
        }
        1 => {
            cluster.stop_immediate();
            cluster.start_again();
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

#[test]
fn every_job_arrives_once_and_has_its_effect_once_whatever_ends() {
    let pair = Pair::new();
    let mut random = Random::new(random::seed("bridge_storm"));
    pair.server().run("SELECT queue.alter('q', lease => '2 seconds', max_attempts => 1000000)");
    pair.primary_as("owner").run(
        "CREATE TABLE made (job_id bigint PRIMARY KEY); CREATE TABLE done (job_id bigint);
        GRANT ALL ON made, done TO app",
    );
    let mut app = pair.primary.config();
    app.dbname(DATABASE).user("app");
    let mut worker = pair.server.config();
    worker.dbname(DATABASE);
    let (is_made, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let end = Instant::now() + random::length(12);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (app, is_made, seed) = (&app, &is_made, random.next() ^ seed);
            scope.spawn(move || produce(app, seed, is_made));
        }
        for _ in 0..2 {
            scope.spawn(|| work(&worker, &app, &is_over));
        }
        let mut strikes = 0;
        while Instant::now() < end {
            let what = strike(&pair, &mut random);
            strikes += 1;
            if random.percent(10) {
                // Between two contacts both may have ended.
                pair.contact();
            }
            thread::sleep(Duration::from_millis(random.below(300)));
            if strikes % 100 == 0 {
                println!("{strikes} strikes, last {what}");
            }
        }
        is_made.store(true, Ordering::Relaxed);
        let mut primary = pair.primary.connect_to(DATABASE);
        wait::within("all jobs have had their effects", Duration::from_secs(300), || {
            let left = "SELECT FROM made LEFT JOIN done USING (job_id) WHERE done.job_id IS NULL LIMIT 1";
            (primary.count(left) == 0).then_some(())
        });
        is_over.store(true, Ordering::Relaxed);
        println!("{strikes} strikes");
    });
    pair.wait_arrived();
    let (mut primary, mut server) = (pair.primary.connect_to(DATABASE), pair.server());
    let made: BTreeSet<i64> = primary.column("SELECT job_id FROM made").into_iter().collect();
    let there: Vec<i64> = server.column("SELECT job_id FROM queue.jobs WHERE queue_name = 'q'");
    println!("{} jobs", made.len());
    assert!(made.len() > 100);
    assert_eq!(there.len(), made.len(), "lost or doubled");
    assert_eq!(there.into_iter().collect::<BTreeSet<_>>(), made);
    let effects: Vec<i64> = primary.column("SELECT job_id FROM done ORDER BY job_id");
    assert_eq!(effects, made.into_iter().collect::<Vec<_>>(), "effects missing or twice");
    assert_eq!(server.count("SELECT FROM queue_bridge.refused WHERE code <> 'QJ001'"), 0);
    integrity::check(&mut server);
}
