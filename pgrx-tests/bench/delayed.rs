//! Delayed jobs in great numbers. *due*: how late they start when very many fall due within a minute. *burst*: how fast
//! they are claimed when all fall due within a second, against the same claims of jobs without a delay. *idle*: what a
//! server costs that holds very many jobs due next year and does nothing, against one that holds none.
//!
//! How fast others are claimed beside jobs due next year is a cell with turns.

use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::{Bench, print};
use crate::contender::{SINGLE, Session, Takes};
use crate::drive::{Sample, Task, in_turns, side_by_side, steady};
use crate::error::Result;
use crate::queues::{MANY, enqueue_due, now, with_far, worker};
use crate::server::{Cost, Server};
use crate::statistics::{quantile, ratios};
use crate::table::Table;
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
/// milliseconds, and the sample, with what the server has used since `before`.
fn work(server: &Server, queue: &str, way: Way, jobs: usize, before: Cost) -> Result<(Vec<f64>, Sample)> {
    let claimed = &AtomicUsize::new(0);
    let columns = "id, coalesce((payload ->> 'due')::bigint, 0)";
    let mut verbs = worker(queue, columns, "100 ms");
    verbs.takes = Takes::Alone;
    let mut late = vec![Vec::with_capacity(jobs); way.clients];
    let mut clients: Vec<Task> = Vec::new();
    for late in &mut late {
        clients.push(Session::new(server, &verbs, SINGLE)?.worker(way.batch, |rows: &[[i64; 2]]| {
            let at = now();
            late.extend(rows.iter().map(|[_, due]| (at - due) as f64 / 1e3));
            claimed.fetch_add(rows.len(), Ordering::Relaxed);
        }));
    }
    let start = Instant::now();
    let (_, seconds) = side_by_side(clients, |all_run| {
        while claimed.load(Ordering::Relaxed) < jobs && all_run() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(start.elapsed().as_secs_f64())
    })?;
    Ok((late.concat(), Sample { jobs: jobs as u64, seconds, cost: Cost::of(&[server])?.since(before) }))
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
    let (late, sample) = work(&server, "spread", way, jobs, Cost::of(&[&server])?)?;
    let [p50, p99, most] = [0.5, 0.99, 1.0].map(|share| quantile(&late, share));
    let (late, cpu) = (format!("p50 {p50:.1} ms, p99 {p99:.1} ms, at most {most:.1} ms"), sample.cpu());
    println!("  {jobs} jobs within {seconds} s: late by {late}; {cpu:.4} CPU s/1,000");
    bench.target(format!("delayed-due: {}, p99 in ms", way.name), &[p99], at_most(50.0));
    Ok(())
}

/// Measures how fast jobs are claimed that are all due at once.
pub fn burst(bench: &mut Bench, way: Way) -> Result<()> {
    /// All of them fall due within this time, microseconds.
    const SPAN: i64 = 1_000_000;
    let rounds = bench.options.scale(3, 2);
    let jobs = bench.options.scale(way.burst.0, way.burst.1);
    println!("  {jobs} jobs");
    let names = ["without a delay", "delayed"];
    // The CPU of delayed jobs includes that of starting them.
    let samples = in_turns(&format!("{jobs} jobs at once, {}", way.name), rounds, &names, |&name| {
        let server = Server::with_extension("")?;
        server.execute("SELECT queue.create('burst')")?;
        // Those without a delay have a time too, as the rows are to be alike, but it is past.
        let from = if name == "delayed" { by_then(jobs) } else { now() - SPAN };
        enqueue_due(&server, "burst", jobs, from, SPAN)?;
        let before = Cost::of(&[&server])?;
        if name == "delayed" {
            sleep_until(from + SPAN)?;
        }
        Ok(work(&server, "burst", way, jobs, before)?.1)
    })?;
    let ratios = ratios(&samples[1], &samples[0], Sample::rate);
    print(&names.into_iter().zip(samples).collect(), names[0]);
    bench.target(format!("delayed-burst: {}, rate delayed / undelayed", way.name), &ratios, at_least(0.9));
    Ok(())
}

/// Measures claims beside very many jobs that all expire within a second and rank before those that are claimed.
pub fn expire(bench: &mut Bench) -> Result<()> {
    /// All of them expire within this time, in microseconds.
    const SPAN: i64 = 1_000_000;
    const CLIENTS: usize = 4;
    const LIVING: usize = 100_000;
    let (rounds, jobs) = (bench.options.scale(3, 2), bench.options.scale(1_000_000, 200_000));
    let living = bench.options.scale(LIVING, LIVING / 5);
    println!("  {jobs} jobs expire, {living} are claimed one by one by {CLIENTS} clients");
    let names = ["none expires", "beside", "alone"];
    let (mut slowest, mut ended) = (Vec::new(), Vec::new());
    let samples = in_turns(&format!("{jobs} jobs expire"), rounds, &names, |&name| {
        let server = Server::with_extension("")?;
        server.execute("SELECT queue.create('burst')")?;
        let from = by_then(jobs + living);
        if name != "none expires" {
            let values: [(&str, &dyn Display); 4] =
                [("queue", &"burst"), ("jobs", &jobs), ("from", &from), ("span", &SPAN)];
            server.execute_with(include_str!("sql/expiring.sql"), &values)?;
        }
        if name == "alone" {
            let before = Cost::of(&[&server])?;
            sleep_until(from + SPAN)?;
            let (mut client, start) = (server.connect()?, Instant::now());
            while client.query_one("SELECT expired FROM queue.stats", &[])?.try_get::<_, i64>(0)? < jobs as i64 {
                thread::sleep(Duration::from_millis(5));
            }
            ended.push((now() - from - SPAN) as f64 / 1e6);
            let (seconds, cost) = (start.elapsed().as_secs_f64(), Cost::of(&[&server])?.since(before));
            return Ok(Sample { jobs: jobs as u64, seconds, cost });
        }
        enqueue_due(&server, "burst", living, now() - SPAN, 1)?;
        let before = Cost::of(&[&server])?;
        if name == "beside" {
            sleep_until(from + SPAN)?;
        }
        let mut verbs = worker("burst", "id", "0");
        verbs.takes = Takes::Alone;
        let claimed = &AtomicUsize::new(0);
        let mut times = vec![Vec::new(); CLIENTS];
        let mut clients: Vec<Task> = Vec::new();
        for times in &mut times {
            let mut session = Session::new(&server, &verbs, SINGLE)?;
            clients.push(steady(move || {
                let (rows, time) = session.claim::<1>(1)?;
                session.complete()?;
                times.extend(time.filter(|_| !rows.is_empty()).map(|time| time.as_secs_f64() * 1e3));
                claimed.fetch_add(rows.len(), Ordering::Relaxed);
                Ok(rows.len() as u64)
            }));
        }
        let start = Instant::now();
        let (_, seconds) = side_by_side(clients, |all_run| {
            while claimed.load(Ordering::Relaxed) < living && all_run() {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(start.elapsed().as_secs_f64())
        })?;
        let cost = Cost::of(&[&server])?.since(before);
        if name == "beside" {
            slowest.push(quantile(&times.concat(), 0.99));
        }
        Ok(Sample { jobs: living as u64, seconds, cost })
    })?;
    let ratios = ratios(&samples[1], &samples[0], Sample::rate);
    print(&names.into_iter().zip(samples).collect(), names[0]);
    bench.target("expire-burst: rate beside / without", &ratios, at_least(0.8));
    bench.target("expire-burst: p99 of a claim in ms", &slowest, at_most(20.0));
    bench.target("expire-burst: seconds until all have ended, alone", &ended, at_most(5.0));
    Ok(())
}

/// Measures what idling costs.
pub fn idle(bench: &mut Bench) -> Result<()> {
    // Autovacuum would read the catalogs every minute and write there, and read once what was filled in.
    const QUIET: &str = "autovacuum = off";
    let (jobs, seconds) = bench.options.scale((MANY, 130), (MANY / 5, 10));
    let servers = [with_far(jobs, QUIET)?.server, with_far(0, QUIET)?.server];
    // What filling has left to be done is done, and what is in memory is on disk.
    for server in &servers {
        server.execute("CHECKPOINT")?;
        server.settle();
    }
    let look = || -> Result<[Cost; 2]> { Ok([Cost::of(&[&servers[0]])?, Cost::of(&[&servers[1]])?]) };
    let (start, before) = (Instant::now(), look()?);
    thread::sleep(Duration::from_secs(seconds));
    let (seconds, after) = (start.elapsed().as_secs_f64(), look()?);
    let [far, none] = [0, 1].map(|n| after[n].since(before[n]));
    println!("  for {seconds:.0} s, {jobs} jobs");
    let table = Table::begin(26, &[("ms of CPU", 12, 1), ("bytes of WAL", 14, 0), ("transaction ids", 17, 0)]);
    for (name, cost) in [("with jobs due next year", far), ("with none", none)] {
        table.row(name, &[cost.cpu_seconds * 1e3, cost.wal_bytes as f64, cost.transaction_ids as f64]);
    }
    // What a woken worker costs is a tenth of a millisecond; /proc counts finer than that.
    let more = (far.cpu_seconds - none.cpu_seconds) * 1e3 / seconds;
    bench.target("delayed-idle: more CPU, ms in a second", &[more], at_most(0.1));
    bench.target("delayed-idle: transaction ids", &[far.transaction_ids as f64], at_most(0.0));
    Ok(())
}
