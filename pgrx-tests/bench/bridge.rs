//! What the bridge costs and how soon it brings jobs: a primary without pg_queue and a queue server, both in one run on
//! this machine. `make bench-bridge`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;

use crate::bench::Bench;
use crate::contender::Payload;
use crate::drive::{drive, in_turns, warm};
use crate::error::Result;
use crate::server::Server;
use crate::statistics::{median, median_of, quantile, ratios};
use crate::table::Table;
use crate::targets::{at_least, at_most};
use crate::{cpu, latency};

/// Enqueues a second beside which the time of a job is measured.
const LOAD: u32 = 1_000;

/// What a session of the primary repeats.
const CALLS: [(&str, &str); 4] = [
    ("plain insert, key", "INSERT INTO plain (payload) VALUES ($1) RETURNING id"),
    ("enqueue", "SELECT queue.enqueue('q', $1)"),
    ("enqueue, a priority", "SELECT queue.enqueue('q', $1, priority => 5)"),
    ("enqueue, a group and a delay", "SELECT queue.enqueue('q', $1, group_key => 'g', delay => '1 hour')"),
];

/// A primary and its queue server.
struct Pair {
    primary: Server,
    server: Server,
}

impl Pair {
    fn start() -> Result<Self> {
        let primary = Server::plain("wal_level = logical\nsynchronous_commit = on");
        let server = Server::with_extension("wal_retrieve_retry_interval = '500ms'")?;
        primary.execute(&std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../bridge/primary.sql"))?)?;
        primary.execute(
            "CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb NOT NULL)
                WITH (autovacuum_enabled = off)",
        )?;
        let home = primary.cluster.dir().display();
        server.execute_with(include_str!("sql/bridge-set-up.sql"), &[("primary", &home)])?;
        let pair = Self { primary, server };
        wait(&mut pair.server.connect()?, "SELECT count(*) = 1 FROM queue_bridge.sources WHERE state = 'streaming'")?;
        Ok(pair)
    }

    /// A session of the primary whose commits are flushed, or not.
    fn producer(&self, is_durable: bool) -> Result<Client> {
        let mut client = self.primary.connect()?;
        client.batch_execute(&format!("SET synchronous_commit = {}", if is_durable { "on" } else { "off" }))?;
        Ok(client)
    }

    /// Milliseconds from the return of a commit on the primary to the return of the claim that brought its job.
    /// `load`: enqueues a second into another queue meanwhile.
    fn latency(&self, load: u32, is_durable: bool, times: usize) -> Result<Vec<f64>> {
        let is_over = &AtomicBool::new(false);
        let mut other = self.producer(is_durable)?;
        let mut producer = self.producer(is_durable)?;
        let enqueue = producer.prepare("SELECT queue.enqueue('wake')")?;
        let worker = latency::worker(self.server.connect()?, "queue", "wake")?;
        let waits = thread::scope(|scope| -> Result<_> {
            let loading = scope.spawn(move || -> Result<()> {
                let begun = Instant::now();
                for nth in 0.. {
                    if load == 0 || is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::sleep((Duration::from_secs(1) / load * nth).saturating_sub(begun.elapsed()));
                    other.batch_execute("SELECT queue.enqueue('q')")?;
                }
                Ok(())
            });
            let waits = latency::measure(times, worker, |n| {
                // Not in step with the load.
                thread::sleep(Duration::from_millis(5) + Duration::from_micros(n as u64 * 373 % 1_000));
                producer.execute(&enqueue, &[])?;
                Ok(Instant::now())
            });
            is_over.store(true, Ordering::Relaxed);
            loading.join().map_err(|_| "the load panicked")??;
            waits
        })?;
        Ok(waits.into_iter().map(|us| us / 1e3).collect())
    }

    /// One session of the primary repeats a call for so long, each in a transaction of its own. Returns the CPU of the
    /// session and of the whole primary with its walsender, in microseconds a call, and bytes of WAL.
    fn turn(&self, call: &str, length: Duration) -> Result<[f64; 3]> {
        let mut client = self.primary.client(false)?;
        let pid = client.prepare("SELECT pg_backend_pid()::bigint")?;
        let pid = client.ids(&pid, &[])?.into_iter().next().ok_or("a session without a pid")? as i32;
        let statement = client.prepare(call)?;
        let payload = Payload::new();
        let task = warm(|| client.execute(&statement, &[&payload]).map(|()| 1))?;
        let before = cpu::process_seconds(pid);
        let sample = drive(&[&self.primary], vec![task], length)?;
        let own = (cpu::process_seconds(pid) - before) * 1e6 / sample.jobs as f64;
        Ok([own, sample.cpu() * 1e3, sample.wal()])
    }

    /// Calls a second that the apply worker takes, of those that `make` has committed while it was away: from the claim
    /// of a job before them to that of a job behind them.
    fn taken(&self, make: impl FnOnce(&mut Client) -> Result<u32>) -> Result<f64> {
        let mut server = self.server.connect()?;
        server.batch_execute("ALTER SUBSCRIPTION queue_bridge_shop DISABLE")?;
        let mut primary = self.primary.connect()?;
        wait(&mut primary, "SELECT count(*) = 1 FROM pg_replication_slots WHERE NOT active")?;
        let mut producer = self.producer(false)?;
        producer.batch_execute("SELECT queue.enqueue('mark')")?;
        let calls = make(&mut producer)?;
        producer.batch_execute("SET synchronous_commit = on; SELECT queue.enqueue('mark')")?;
        let mut mark = latency::worker(self.server.connect()?, "queue", "mark")?;
        server.batch_execute("ALTER SUBSCRIPTION queue_bridge_shop ENABLE")?;
        let first = mark()?;
        // The worker waits for ten seconds at most.
        let last = (0..30).find_map(|_| mark().ok()).ok_or("the last call did not arrive within five minutes")?;
        Ok(f64::from(calls) / (last - first).as_secs_f64())
    }

    /// Completions a second that come after the lease, of jobs that wait for their next attempt.
    fn late(&self, jobs: u32) -> Result<f64> {
        let mut server = self.server.connect()?;
        server.execute(
            "SELECT count(*) FROM queue.enqueue_many('late', array_fill('1'::jsonb, ARRAY[$1::int]))",
            &[&(jobs as i32)],
        )?;
        let claim = "SELECT id FROM queue.claim('late', $1, lease => '1 s')";
        let attempts: Vec<i64> = server.query(claim, &[&(jobs as i32)])?.iter().map(|row| row.get(0)).collect();
        let lost = "SELECT count(*) = 0 FROM queue.jobs WHERE queue_name = 'late' AND state = 'running'";
        wait(&mut server, lost)?;
        let rate = self.taken(|producer| {
            let complete = producer.prepare("SELECT queue.complete($1)")?;
            attempts.iter().try_for_each(|id| producer.execute(&complete, &[id]).map(drop))?;
            Ok(attempts.len() as u32)
        })?;
        wait(&mut server, "SELECT count(*) = 0 FROM queue.jobs WHERE queue_name = 'late' AND state <> 'completed'")?;
        Ok(rate)
    }
}

/// Waits until this query says so.
fn wait(client: &mut Client, sql: &str) -> Result<()> {
    let start = Instant::now();
    while !client.query_one(sql, &[])?.try_get::<_, bool>(0)? {
        if start.elapsed() > Duration::from_secs(120) {
            return Err(format!("not so within two minutes: {sql}").into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Repeats a statement.
fn repeat(client: &mut Client, times: u32, sql: &str) -> Result<()> {
    let statement = client.prepare(sql)?;
    (0..times).try_for_each(|_| Ok(client.execute(&statement, &[]).map(drop)?))
}

/// Measures and prints.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let options = bench.options;
    let pair = Pair::start()?;
    println!("  From the return of a commit on the primary to the return of the claim, ms");
    let table = Table::begin(44, &[("p50", 9, 2), ("p99", 9, 2)]);
    for (name, load, is_durable, times) in [
        ("idle", 0, true, options.scale(2_000, 300)),
        ("beside 1,000 enqueues/s", LOAD, true, options.scale(2_000, 300)),
        ("idle, synchronous_commit = off", 0, false, options.scale(100, 20)),
    ] {
        let waits = pair.latency(load, is_durable, times)?;
        let [p50, p99] = [0.5, 0.99].map(|share| quantile(&waits, share));
        table.row(name, &[p50, p99]);
        if is_durable {
            bench.target(format!("bridge: p50 in ms, {name}"), &[p50], at_most(5.0));
            bench.target(format!("bridge: p99 in ms, {name}"), &[p99], at_most(50.0));
        }
    }

    println!("  Taken by the apply worker, calls/s and jobs/s");
    let table = Table::begin(44, &[("calls/s", 10, 0), ("jobs/s", 10, 0)]);
    let calls = options.scale(50_000, 5_000);
    let singly = || pair.taken(|producer| repeat(producer, calls, "SELECT queue.enqueue('q')").map(|()| calls));
    let singly = [singly()?, singly()?, singly()?];
    table.row("single transactions", &[median(&singly); 2]);
    bench.target("bridge: jobs/s of one apply worker", &singly, at_least(10_000.0));
    let calls = options.scale(2_000, 200);
    let many = "SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{100}'))";
    let many = pair.taken(|producer| repeat(producer, calls, many).map(|()| calls))?;
    table.row("enqueue_many of 100", &[many, many * 100.0]);
    let late = pair.late(options.scale(2_000, 200))?;
    table.row("completions after the lease was lost", &[late]);

    println!("  What a call costs the primary: medians of {} rounds", options.rounds());
    let columns = [("session us", 13, 1), ("with walsender", 17, 1), ("WAL B", 9, 0)];
    let table = Table::begin(36, &columns.map(|column| [column, ("ratio", 8, 2)]).concat());
    let samples = in_turns("bridge", options.rounds(), &CALLS, |(_, call)| pair.turn(call, options.turn()))?;
    for ((name, _), own) in CALLS.iter().zip(&samples) {
        let both = |n: usize| {
            [median_of(own, |sample| sample[n]), median(&ratios(own, &samples[0], |sample: &[f64; 3]| sample[n]))]
        };
        table.row(name, &[0, 1, 2].map(both).concat());
        if *name == "enqueue" {
            for (n, what, limit) in [(0, "CPU of the session", 1.2), (2, "WAL", 1.0)] {
                let ratios = ratios(own, &samples[0], |sample| sample[n]);
                bench.target(format!("bridge: {what}, enqueue / plain insert"), &ratios, at_most(limit));
            }
        }
    }
    let dead = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'outbox%'";
    bench.target("bridge: dead rows in the outbox", &[pair.primary.number(dead)? as f64], at_most(0.0));
    Ok(())
}
