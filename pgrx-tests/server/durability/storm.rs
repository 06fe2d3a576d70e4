//! No job is lost or doubled under a storm of rollbacks, savepoints, ended connections and crashes.
//!
//! The count is independent of the queue: `ledger` is written in the transactions that enqueue, `claimed` in
//! those that claim, `done` in those that complete. None of them has a key, so that a double is counted and
//! not prevented.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, NoTls, Transaction};
use queue_tests::{Cluster, error, wait};

use crate::random::{self, Random};
use crate::shared::Sql;

/// More jobs than this do not wait at once.
const BACKLOG: i64 = 1500;

type Attempt = (i64, i64);
type Result<T> = std::result::Result<T, postgres::Error>;

struct Storm<'a> {
    cluster: &'a Cluster,
    /// Producers and chaos stop; workers go on until all is done.
    is_over: AtomicBool,
    is_drained: AtomicBool,
    /// About as many jobs wait: enqueued minus done, rollbacks not counted exactly.
    waiting: AtomicI64,
    failures: Mutex<Vec<String>>,
}

/// What may happen to a verb in a storm: the lease is lost, somebody else has the job, the connection or the
/// server has ended; to a manager, that the job has ended or runs. Anything else is a bug.
fn is_expected(what: &str, e: &postgres::Error) -> bool {
    let code = error::code(e);
    e.is_closed()
        || matches!(code, "QJ001" | "55006" | "57P01" | "57P02" | "57P03" | "")
        || (what == "manager" && code == "55000" && error::message(e).starts_with("job "))
}

impl Storm<'_> {
    fn connect(&self) -> Option<Client> {
        wait::within("the server takes connections", Duration::from_secs(60), || {
            let mut config = self.cluster.config();
            match config.dbname("app").application_name("storm").connect(NoTls) {
                Ok(client) => Some(Some(client)),
                Err(_) if self.is_drained.load(Ordering::Relaxed) => Some(None),
                Err(_) => None,
            }
        })
    }

    fn failed(&self, what: &str, e: &postgres::Error) {
        self.failures.lock().unwrap().push(format!("{what}: {e:?}"));
    }

    /// Does `step` again and again, with a new connection whenever the old one has ended.
    fn session(
        &self,
        what: &str,
        mut random: Random,
        end: &AtomicBool,
        mut step: impl FnMut(&mut Client, &mut Random) -> Result<()>,
    ) {
        while !end.load(Ordering::Relaxed) {
            let Some(mut client) = self.connect() else { return };
            while !end.load(Ordering::Relaxed) && !random.percent(1) {
                if let Err(e) = step(&mut client, &mut random) {
                    if !is_expected(what, &e) {
                        self.failed(what, &e);
                    }
                    if client.is_closed() || error::code(&e).is_empty() {
                        break;
                    }
                }
            }
        }
    }

    fn producer(&self, random: Random) {
        self.session("producer", random, &self.is_over, |client, random| {
            if self.waiting.load(Ordering::Relaxed) > BACKLOG {
                thread::sleep(Duration::from_millis(5));
                return Ok(());
            }
            let mut tx = client.transaction()?;
            let mut made = self.enqueue(&mut tx, random)?;
            if random.percent(30) {
                let mut savepoint = tx.savepoint("a")?;
                let inner = self.enqueue(&mut savepoint, random)?;
                if random.percent(50) {
                    savepoint.commit()?;
                    made += inner;
                } else {
                    savepoint.rollback()?;
                }
                if random.percent(30) {
                    made += self.enqueue(&mut tx, random)?;
                }
            }
            if random.percent(20) {
                return tx.rollback();
            }
            tx.commit()?;
            self.waiting.fetch_add(made, Ordering::Relaxed);
            Ok(())
        });
    }

    /// Enqueues in one of the ways there are, and writes it down.
    fn enqueue(&self, tx: &mut Transaction<'_>, random: &mut Random) -> Result<i64> {
        let token = format!("{:016x}", random.next());
        let (priority, delay) = (random.between(-2, 2) as i32, random.one_of(&[None, None, None, Some(20), Some(150)]));
        let delay: Option<String> = delay.map(|ms| format!("{ms} ms"));
        match random.below(4) {
            0 | 1 => {
                let sql = "INSERT INTO ledger SELECT queue.enqueue('storm', jsonb_build_object('token', $1::text),
                           priority => $2, delay => $3::text::interval), $1";
                tx.execute(sql, &[&token, &priority, &delay])?;
                Ok(1)
            }
            2 => {
                let count = random.between(1, 120);
                let sql = "INSERT INTO ledger SELECT j, $1 || n
                           FROM queue.enqueue_many('storm', (SELECT array_agg(jsonb_build_object('token', $1 || n)
                           ORDER BY n)
                               FROM generate_series(1, $4::bigint) AS n), priority => $2, delay => $3::text::interval)
                               WITH ORDINALITY AS e(j, n)";
                tx.execute(sql, &[&token, &priority, &delay, &count])?;
                Ok(count)
            }
            _ => {
                let count = random.between(1, 20);
                let sql = "INSERT INTO ledger SELECT j, $1 || n
                           FROM queue.enqueue_batch('storm', (SELECT jsonb_agg(jsonb_build_object(
                               'payload', jsonb_build_object('token', $1 || n), 'priority', n % 5 - 2,
                               'delay', $2::text) ORDER BY n) FROM generate_series(1, $3::bigint) AS n))
                               WITH ORDINALITY AS e(j, n)";
                tx.execute(sql, &[&token, &delay, &count])?;
                Ok(count)
            }
        }
    }

    fn worker(&self, random: Random) {
        self.session("worker", random, &self.is_drained, |client, random| {
            let calm = self.is_over.load(Ordering::Relaxed);
            if calm || random.percent(50) {
                self.work_in_steps(client, random, calm)
            } else {
                self.work_in_one(client, random)
            }
        });
    }

    /// Claim, business and completion in one transaction, parts of it or all rolled back.
    fn work_in_one(&self, client: &mut Client, random: &mut Random) -> Result<()> {
        let mut tx = client.transaction()?;
        let mut count = 0;
        if random.percent(40) {
            let mut savepoint = tx.savepoint("a")?;
            let claimed = claim(&mut savepoint, random)?;
            if random.percent(50) {
                count += complete_some(&mut savepoint, random, &claimed)?;
            }
            if random.percent(50) {
                savepoint.rollback()?;
                count = 0;
            } else {
                savepoint.commit()?;
            }
        }
        let claimed = claim(&mut tx, random)?;
        let mut savepoint = tx.savepoint("b")?;
        let completed = complete_some(&mut savepoint, random, &claimed)?;
        if random.percent(20) {
            savepoint.rollback()?;
            count += complete_some(&mut tx, random, &claimed)?;
        } else {
            savepoint.commit()?;
            count += completed;
        }
        if random.percent(25) {
            return tx.rollback();
        }
        tx.commit()?;
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        Ok(())
    }

    /// Claims in one transaction and ends the jobs in others, not always well, not always at all.
    fn work_in_steps(&self, client: &mut Client, random: &mut Random, calm: bool) -> Result<()> {
        let mut tx = client.transaction()?;
        let mut claimed = claim(&mut tx, random)?;
        if !calm && random.percent(15) {
            return tx.rollback();
        }
        tx.commit()?;
        if calm && claimed.is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
        while !claimed.is_empty() {
            let some = claimed.split_off(claimed.len().saturating_sub(random.between(1, 10) as usize));
            let mut tx = client.transaction()?;
            let mut count = 0;
            match if calm { 99 } else { random.below(100) } {
                0..8 => {
                    let ids: Vec<i64> = some.iter().map(|a| a.0).collect();
                    tx.query("SELECT queue.fail_many($1, 'storm', retry_in => '10 ms')", &[&ids])?;
                }
                8..14 => {
                    tx.query("SELECT queue.fail($1, 'storm', retry_in => '0')", &[&some[0].0])?;
                }
                14..22 => {
                    let ids: Vec<i64> = some.iter().map(|a| a.0).collect();
                    let delay = random.one_of(&["0", "30 ms"]);
                    tx.query("SELECT queue.release_many($1, $2::text::interval)", &[&ids, &delay])?;
                }
                22..28 => {
                    tx.query("SELECT * FROM queue.extend($1)", &[&some[0].0])?;
                    tx.query("SELECT queue.progress($1, '{\"at\": 1}')", &[&some[0].0])?;
                    count += complete_some(&mut tx, random, &some)?;
                }
                // Left to the lease.
                28..34 => {}
                _ => count += complete_some(&mut tx, random, &some)?,
            }
            if !calm && random.percent(15) {
                tx.rollback()?;
            } else {
                tx.commit()?;
                self.waiting.fetch_sub(count, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Changes waiting and running jobs; where `purges`, takes everything away and gives it back, after which
    /// memory is read anew: that would hide what it has lost before.
    fn manager(&self, random: Random, purges: bool) {
        self.session("manager", random, &self.is_over, |client, random| {
            let job: Option<i64> =
                client.query_opt("SELECT job_id FROM ledger ORDER BY random() LIMIT 1", &[])?.map(|row| row.get(0));
            let Some(job) = job else { return Ok(()) };
            let mut tx = client.transaction()?;
            match random.below(10) {
                0..3 => {
                    tx.query("SELECT queue.reprioritize($1, $2)", &[&job, &(random.between(-2, 2) as i32)])?;
                }
                3..5 => {
                    let sql = "SELECT queue.reschedule($1, clock_timestamp() + $2::text::interval)";
                    tx.query(sql, &[&job, &random.one_of(&["0", "30 ms"])])?;
                }
                5..7 => {
                    tx.query("SELECT queue.cancel($1, 'storm', force => $2)", &[&job, &random.percent(50)])?;
                }
                7 => {
                    tx.query("SELECT queue.pause('storm')", &[])?;
                    tx.commit()?;
                    client.execute("SELECT queue.resume('storm')", &[])?;
                    return Ok(());
                }
                _ if purges => {
                    tx.query("SELECT queue.purge('storm')", &[])?;
                    return tx.rollback();
                }
                _ => {}
            }
            if random.percent(30) { tx.rollback() } else { tx.commit() }
        });
    }

    /// The background worker's work, also where there is none.
    fn maintainer(&self, random: Random) {
        self.session("maintainer", random, &self.is_drained, |client, _| {
            thread::sleep(Duration::from_millis(10));
            client.query("SELECT * FROM queue.maintain()", &[]).map(drop)
        });
    }

    /// Ends connections all the time, and the server now and then.
    fn chaos(&self, mut random: Random, length: Duration, crashes: bool) {
        let end = Instant::now() + length;
        let mut next_crash = Instant::now() + Duration::from_secs(1);
        let mut client = None;
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(random.below(60)));
            if crashes && Instant::now() > next_crash {
                client = None;
                self.crash(&mut random);
                next_crash = Instant::now() + Duration::from_millis(random.below(1500));
                continue;
            }
            let Some(open) = client.get_or_insert_with(|| self.cluster.connect_to("app")).into() else { continue };
            let open: &mut Client = open;
            let ended = open.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'storm'
                 ORDER BY random() LIMIT $1",
                &[&random.between(1, 2)],
            );
            if let Err(e) = ended {
                self.failed("chaos", &e);
                client = None;
            }
        }
    }

    fn crash(&self, random: &mut Random) {
        match random.below(3) {
            0 => {
                let mut client = self.cluster.connect_to("app");
                let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'storm' ORDER BY random() LIMIT 1";
                if let Some(row) = client.query_opt(sql, &[]).expect("the sessions") {
                    drop(client);
                    let pid: i32 = row.get(0);
                    // It may just have ended by itself, and its number be another's.
                    if self.cluster.processes().contains(&pid) {
                        self.cluster.crash_if_there(pid);
                    }
                }
            }
            1 => {
                self.cluster.stop_immediate();
                self.cluster.start_again();
            }
            _ => {
                self.cluster.kill_server();
                self.cluster.start_again();
            }
        }
        self.cluster.wait_ready();
    }
}

/// Claims some jobs in one of the ways there are, and writes them down.
fn claim(tx: &mut Transaction<'_>, random: &mut Random) -> Result<Vec<Attempt>> {
    let most = random.one_of(&[1, 1, 1, 5, 50]);
    let wait = random.one_of(&["0", "0", "20 ms"]);
    let lease = random.one_of(&[None, None, Some("150 ms"), Some("5 s")]);
    let bound = random.percent(15);
    let rows = tx.query(
        "WITH c AS MATERIALIZED (SELECT * FROM queue.claim('storm', max_jobs => $1, wait => $2::text::interval,
             lease => $3::text::interval, session_bound => $4)),
         w AS (INSERT INTO claimed SELECT id, job_id, payload ->> 'token' FROM c)
         SELECT id, job_id FROM c",
        &[&most, &wait, &lease, &bound],
    )?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Completes these, one by one or all at once, and writes down what counted. Returns how many.
fn complete_some(tx: &mut Transaction<'_>, random: &mut Random, claimed: &[Attempt]) -> Result<i64> {
    let mut count = 0;
    if random.percent(40) {
        for (id, job_id) in claimed {
            tx.execute("SELECT queue.complete($1, '{\"ok\": true}')", &[id])?;
            count += tx.execute("INSERT INTO done VALUES ($1, $2)", &[id, job_id])? as i64;
        }
    } else {
        let (ids, job_ids): (Vec<i64>, Vec<i64>) = claimed.iter().copied().unzip();
        let ended = if random.percent(50) {
            "queue.complete_many($1)"
        } else {
            "queue.end_batch((SELECT coalesce(json_agg(json_build_object('complete', json_build_object('id', id))), \
                '[]') FROM unnest($1::bigint[]) AS id))"
        };
        let sql = format!(
            "INSERT INTO done SELECT c.id, g.job_id FROM {ended} AS c
                JOIN unnest($1::bigint[], $2::bigint[]) AS g(id, job_id) USING (id)
             WHERE c.outcome = 'completed'"
        );
        count += tx.execute(&sql, &[&ids, &job_ids])? as i64;
    }
    Ok(count)
}

fn run(name: &str, cluster: &Cluster, seconds: u64, crashes: bool) {
    let seed = random::seed(name);
    let mut setup = cluster.create_database("app");
    setup.run("CREATE TABLE ledger (job_id bigint, token text)");
    setup.run("CREATE TABLE claimed (id bigint, job_id bigint, token text)");
    setup.run("CREATE TABLE done (id bigint, job_id bigint)");
    setup.run("SELECT queue.create('storm', max_attempts => 1000000, lease => '1 s')");
    drop(setup);

    let storm = Storm {
        cluster,
        is_over: AtomicBool::new(false),
        is_drained: AtomicBool::new(false),
        waiting: AtomicI64::new(0),
        failures: Mutex::new(Vec::new()),
    };
    let random = |n: u64| Random::new(seed.wrapping_mul(1000).wrapping_add(n));
    thread::scope(|scope| {
        let storm = &storm;
        for n in 0..4 {
            scope.spawn(move || storm.producer(random(n)));
        }
        for n in 4..11 {
            scope.spawn(move || storm.worker(random(n)));
        }
        let manager = scope.spawn(move || storm.manager(random(11), crashes));
        scope.spawn(move || storm.maintainer(random(12)));
        let drained = std::panic::catch_unwind(AssertUnwindSafe(|| {
            // Whatever ends it, the others are not left waiting for the end.
            let chaos = std::panic::catch_unwind(|| storm.chaos(random(13), random::length(seconds), crashes));
            storm.is_over.store(true, Ordering::Relaxed);
            chaos.unwrap_or_else(|panic| std::panic::resume_unwind(panic));

            let mut client = cluster.connect_to("app");
            // The manager's last connection may have ended between its pause and its resume.
            manager.join().expect("the manager");
            client.run("SELECT queue.resume('storm')");
            let sql = "SELECT count(*) FROM queue.jobs WHERE state IN ('ready', 'scheduled', 'retrying', 'running')";
            wait::until_none_left("every job has ended", || client.value(sql));
        }));
        storm.is_drained.store(true, Ordering::Relaxed);
        if let Err(panic) = drained {
            let left = cluster.psql_in(
                "app",
                "SELECT job_id, state, attempt, run_at, clock_timestamp(),
                    (SELECT array_agg((a.id, a.state)) FROM queue.attempts AS a WHERE a.job_id = j.job_id)
                 FROM queue.jobs AS j WHERE state IN ('ready', 'scheduled', 'retrying', 'running') LIMIT 20;
                 SELECT * FROM queue_internal.running_now() LIMIT 20;
                 SELECT queue_name, is_paused FROM queue.queues;",
            );
            eprintln!("seed {seed}, left behind:\n{left}");
            std::panic::resume_unwind(panic);
        }
    });
    let failures = storm.failures.into_inner().unwrap();
    assert!(failures.is_empty(), "seed {seed}: {failures:#?}");
    check(&mut cluster.connect_to("app"), seed);
}

/// The books and the queue must agree.
fn check(client: &mut Client, seed: u64) {
    let ledger: BTreeSet<i64> = client.column("SELECT job_id FROM ledger").into_iter().collect();
    assert_eq!(ledger.len(), client.count("SELECT FROM ledger"), "seed {seed}: a job's id was given out twice");
    let state: BTreeMap<i64, String> = client
        .query("SELECT job_id, state FROM queue.jobs", &[])
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let known: BTreeSet<i64> = state.keys().copied().collect();
    assert_eq!(ledger, known, "seed {seed}: the jobs are those whose enqueue was committed");

    let mut done: BTreeMap<i64, i64> = BTreeMap::new();
    for job_id in client.column::<i64>("SELECT job_id FROM done") {
        *done.entry(job_id).or_default() += 1;
    }
    for (job_id, state) in &state {
        let expected = match state.as_str() {
            "completed" => 1,
            "cancelled" => 0,
            other => panic!("seed {seed}: job {job_id} is {other}"),
        };
        assert_eq!(done.get(job_id).copied().unwrap_or(0), expected, "seed {seed}: job {job_id} is {state}");
    }
    assert!(done.keys().all(|job_id| ledger.contains(job_id)), "seed {seed}: a rolled back job was done");

    let twice: Vec<i64> = client.column("SELECT id FROM claimed GROUP BY id HAVING count(*) > 1");
    assert!(twice.is_empty(), "seed {seed}: claimed twice: {twice:?}");
    let wrong = client
        .count("SELECT FROM claimed AS c LEFT JOIN ledger AS l USING (job_id) WHERE c.token IS DISTINCT FROM l.token");
    assert_eq!(wrong, 0, "seed {seed}: claims with another job's payload");

    let stats = client
        .query_one(
            "SELECT enqueued, claimed, completed, ready + scheduled + retrying + running + dead FROM queue.stats",
            &[],
        )
        .unwrap();
    let count = |client: &mut Client, table: &str| client.count(&format!("SELECT FROM {table}")) as i64;
    assert_eq!(stats.get::<_, i64>(0), ledger.len() as i64, "seed {seed}: stats.enqueued");
    assert_eq!(stats.get::<_, i64>(1), count(client, "claimed"), "seed {seed}: stats.claimed");
    assert_eq!(stats.get::<_, i64>(2), count(client, "done"), "seed {seed}: stats.completed");
    assert_eq!(stats.get::<_, i64>(3), 0, "seed {seed}: jobs that have not ended");
    assert_eq!(
        client.count("SELECT FROM queue_internal.running_now()"),
        0,
        "seed {seed}: memory thinks something runs"
    );
    eprintln!("seed {seed}: {} jobs, {} claims, {} done", ledger.len(), stats.get::<_, i64>(1), stats.get::<_, i64>(2));
}

#[test]
fn no_job_is_lost_or_doubled_when_transactions_roll_back_and_connections_end() {
    let cluster = Cluster::new().conf("max_connections = 60").conf("pg_queue.max_ready = 16").start();
    run("sessions", &cluster, 5, false);
}

#[test]
fn no_job_is_lost_or_doubled_when_the_server_crashes_again_and_again() {
    let cluster = Cluster::new().conf("max_connections = 60").start();
    run("crashes", &cluster, 8, true);
}
