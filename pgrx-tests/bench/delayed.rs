//! Delayed jobs in great numbers. *due*: how late they start when very many fall due within a minute. *burst*: how fast
//! they are claimed when all fall due within a second, against the same claims of jobs without a delay. *idle*: what a
//! server costs that holds very many jobs due next year and does nothing, against one that holds none.
//!
//! How fast others are claimed beside jobs due next year is a cell with turns.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::contender::{Session, Takes, Verbs};
use crate::drive::{Task, side_by_side};
use crate::error::Result;
use crate::queues::{MANY, enqueue_due, now, with_far, worker};
use crate::server::Server;
use crate::statistics::{median_of, quantile};
use crate::targets::{at_least, at_most};

/// A way to claim.
#[derive(Clone, Copy)]
pub struct Way {
    name: &'static str,
    clients: usize,
    /// Jobs a claim.
    batch: i32,
    /// Jobs that fall due in a second: what its clients can do without haste.
    offered: usize,
    /// Jobs that fall due at once, and with `--quick`.
    burst: (usize, usize),
}

pub const IN_BATCHES: Way =
    Way { name: "batch", clients: 2, batch: 100, offered: 1_000_000 / 60, burst: (1_000_000, 200_000) };
pub const SINGLY: Way = Way { name: "single", clients: 4, batch: 1, offered: 4_000, burst: (200_000, 40_000) };

/// Claims and completes, by the clients of the way, until so many jobs are done. Returns how late each job was, in
/// milliseconds, how many jobs were done a second, and CPU seconds of the server per 1,000 jobs since it had used
/// `cpu`.
fn work(server: &Server, queue: &str, way: Way, jobs: usize, cpu: f64) -> Result<(Vec<f64>, f64, f64)> {
    let (left, late) = (&AtomicUsize::new(jobs), &Mutex::new(Vec::with_capacity(jobs)));
    let mut clients: Vec<Task> = Vec::new();
    for _ in 0..way.clients {
        let columns = "id, coalesce((payload ->> 'due')::bigint, 0)";
        let verbs = Verbs { takes: Takes::Alone, ..worker(queue, columns, "100 ms") };
        let mut session = Session::new(server, verbs, false)?;
        let mut own = Vec::new();
        clients.push(Box::new(move |_| {
            if left.load(Ordering::Relaxed) == 0 {
                late.lock().unwrap_or_else(PoisonError::into_inner).append(&mut own);
                return Ok(None);
            }
            let claimed: Vec<[i64; 2]> = session.claim(way.batch, &[])?.0;
            let at = now();
            own.extend(claimed.iter().map(|[_, due]| (at - due) as f64 / 1e3));
            if !claimed.is_empty() {
                let ids: Vec<i64> = claimed.iter().map(|[id, _]| *id).collect();
                session.complete(&ids)?;
                left.fetch_sub(ids.len(), Ordering::Relaxed);
            }
            Ok(Some(claimed.len() as u64))
        }));
    }
    let start = Instant::now();
    side_by_side(clients, |_| Ok(()))?;
    let rate = jobs as f64 / start.elapsed().as_secs_f64();
    let cpu = (server.cpu_seconds() - cpu) * 1_000.0 / jobs as f64;
    Ok((std::mem::take(&mut late.lock().unwrap_or_else(PoisonError::into_inner)), rate, cpu))
}

/// A time by which so many jobs are enqueued.
fn by_then(jobs: usize) -> i64 {
    /// Jobs a second that even a busy machine enqueues.
    const PACE: i64 = 20_000;
    now() + jobs as i64 * 1_000_000 / PACE + 2_000_000
}

fn sleep_until(at: i64) -> Result<()> {
    let left = u64::try_from(at - now()).map_err(|_| "the jobs were not enqueued in time: a slow machine")?;
    thread::sleep(Duration::from_micros(left));
    Ok(())
}

/// Measures how late jobs are while workers keep up.
pub fn spread(bench: &mut Bench, way: Way) -> Result<()> {
    let seconds = bench.options.scale(60, 6);
    let jobs = way.offered * seconds;
    let server = Server::with_extension("")?;
    server.execute("SELECT queue.create('spread')")?;
    let from = by_then(jobs);
    enqueue_due(&server, "spread", jobs, from, seconds as i64 * 1_000_000)?;
    sleep_until(from - 500_000)?;
    let (late, _, cpu) = work(&server, "spread", way, jobs, server.cpu_seconds())?;
    let at = |share| quantile(&late, share);
    println!(
        "  {jobs} jobs within {seconds} s: late by p50 {:.1} ms, p99 {:.1} ms, at most {:.1} ms; {cpu:.4} CPU s/1,000",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    bench.target(format!("delayed-due: {}, p99 in ms", way.name), &[at(0.99)], at_most(50.0));
    Ok(())
}

/// Measures how fast jobs are claimed that are all due at once.
pub fn burst(bench: &mut Bench, way: Way) -> Result<()> {
    /// All of them fall due within this time, microseconds.
    const SPAN: i64 = 1_000_000;
    let rounds = bench.options.scale(3, 2);
    let jobs = bench.options.scale(way.burst.0, way.burst.1);
    // Rate and CPU of each round, without a delay and with one. The CPU of delayed jobs includes that of starting them.
    let mut done: [Vec<(f64, f64)>; 2] = Default::default();
    for round in 0..rounds {
        eprintln!("{jobs} jobs at once, {}, round {} of {rounds}", way.name, round + 1);
        for is_delayed in [round % 2 == 0, round % 2 != 0] {
            let server = Server::with_extension("")?;
            server.execute("SELECT queue.create('burst')")?;
            // Those without a delay have a time too, as the rows are to be alike, but it is past.
            let from = if is_delayed { by_then(jobs) } else { now() - SPAN };
            enqueue_due(&server, "burst", jobs, from, SPAN)?;
            let cpu = server.cpu_seconds();
            if is_delayed {
                sleep_until(from + SPAN)?;
            }
            let (_, rate, cpu) = work(&server, "burst", way, jobs, cpu)?;
            done[usize::from(is_delayed)].push((rate, cpu));
        }
    }
    let [undelayed, delayed] = done;
    for (name, done) in [("delayed", &delayed), ("without a delay", &undelayed)] {
        let (rate, cpu) = (median_of(done, |done| done.0), median_of(done, |done| done.1));
        println!("  {name:18}{rate:>10.0} jobs/s{cpu:>10.4} CPU s/1,000, {jobs} jobs");
    }
    let ratios = crate::statistics::ratios(&delayed, &undelayed, |done| done.0);
    bench.target(format!("delayed-burst: {}, rate delayed / undelayed", way.name), &ratios, at_least(0.9));
    Ok(())
}

/// Measures what idling costs.
pub fn idle(bench: &mut Bench) -> Result<()> {
    // Autovacuum would read the catalogs every minute and write there, and read once what was filled in.
    const QUIET: &str = "autovacuum = off";
    let (jobs, seconds) = bench.options.scale((MANY, 130), (MANY / 5, 10));
    let (far, none) = (with_far(jobs, QUIET)?, with_far(0, QUIET)?);
    let servers = [&far.server, &none.server];
    // What filling has left to be done is done, and what is in memory is on disk.
    for server in servers {
        server.execute("CHECKPOINT")?;
        server.settle();
    }
    let look = || servers.iter().map(|server| server.cost()).collect::<Result<Vec<_>>>();
    let (start, before) = (Instant::now(), look()?);
    thread::sleep(Duration::from_secs(seconds));
    let (seconds, after) = (start.elapsed().as_secs_f64(), look()?);
    let [far, none] = [0, 1].map(|n| after[n].since(before[n]));
    println!("  for {seconds:.0} s, {jobs} jobs");
    for (name, cost) in [("with jobs due next year", far), ("with none", none)] {
        let (cpu, wal, ids) = (cost.cpu_seconds * 1e3, cost.wal_bytes, cost.transaction_ids);
        println!("  {name:24}{cpu:>8.1} ms of CPU, {wal} bytes of WAL, {ids} transaction ids");
    }
    // What a woken worker costs is a tenth of a millisecond; /proc counts finer than that.
    let more = (far.cpu_seconds - none.cpu_seconds) * 1e3 / seconds;
    bench.target("delayed-idle: more CPU, ms in a second", &[more], at_most(0.1));
    bench.target("delayed-idle: transaction ids", &[far.transaction_ids as f64], at_most(0.0));
    Ok(())
}
