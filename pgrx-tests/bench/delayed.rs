//! Delayed jobs in great numbers. *due*: how late they start when very many fall due within a minute, and how fast
//! they are claimed when all fall due within a second, against the same claims of jobs without a delay. *idle*: what a
//! server costs that holds very many jobs due next year and does nothing, against one that holds none.
//!
//! How fast others are claimed beside jobs due next year is a cell of `plan`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::Result;
use crate::client::Client;
use crate::contender::{Contender, Ours};
use crate::options::Options;
use crate::server::Server;

/// The name of the first part in `--only`.
pub const DUE: &str = "delayed-due";
/// That of the second part.
pub const BURST: &str = "delayed-burst";
/// That of the third part.
pub const IDLE: &str = "delayed-idle";

/// Jobs that fall due next year.
pub const FAR: usize = 1_000_000;

/// A way to claim.
#[derive(Clone, Copy)]
pub struct Way {
    /// What it is called.
    pub name: &'static str,
    clients: usize,
    /// Jobs a claim.
    batch: i32,
    /// Jobs that fall due in a second: what its clients can do without haste.
    offered: usize,
}

const WAYS: [Way; 2] = [
    Way { name: "batch", clients: 2, batch: 100, offered: 1_000_000 / 60 },
    Way { name: "single", clients: 4, batch: 1, offered: 4_000 },
];

/// What became of jobs that fell due while workers keep up.
pub struct Spread {
    pub way: Way,
    pub jobs: usize,
    pub seconds: usize,
    /// From each job's time to its arrival at a worker, in milliseconds.
    pub lateness: Vec<f64>,
    /// CPU time of the server per 1,000 jobs, in seconds.
    pub cpu: f64,
}

/// What became of jobs that were all due at once, and of jobs without a delay, round by round.
pub struct Burst {
    pub way: Way,
    pub jobs: usize,
    pub delayed: Vec<Done>,
    pub undelayed: Vec<Done>,
}

/// What claiming and completing them all came to.
pub struct Done {
    /// Jobs a second.
    pub rate: f64,
    /// CPU time of the server per 1,000 jobs, in seconds; where they were delayed, that of starting them included.
    pub cpu: f64,
}

/// What an idle server costs, with many jobs due next year and with none.
pub struct Idle {
    pub seconds: f64,
    pub far: Cost,
    pub none: Cost,
}

/// What a server has used.
#[derive(Clone, Copy)]
pub struct Cost {
    pub cpu_seconds: f64,
    pub wal_bytes: i64,
    pub transaction_ids: i64,
}

/// What was measured of it all.
#[derive(Default)]
pub struct Delayed {
    pub spread: Vec<Spread>,
    pub burst: Vec<Burst>,
    pub idle: Option<Idle>,
}

/// Measures what is wanted.
pub fn measure(options: &Options) -> Result<Delayed> {
    let mut delayed = Delayed::default();
    for way in WAYS {
        if options.wants(&format!("{DUE}/{}", way.name)) {
            delayed.spread.push(spread(way, options)?);
        }
        if options.wants(&format!("{BURST}/{}", way.name)) {
            delayed.burst.push(burst(way, options)?);
        }
    }
    if options.wants(IDLE) {
        delayed.idle = Some(idle(options)?);
    }
    Ok(delayed)
}

/// Microseconds since 1970, as the server counts them.
fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

/// Has so many jobs enqueued that fall due at times spread evenly over so many microseconds from `from`, in an order that has
/// nothing to do with that of their ids.
fn enqueue(server: &Server, queue: &str, jobs: usize, from: i64, span: i64) -> Result<()> {
    const AT_ONCE: usize = 10_000;
    let mut client = server.connect()?;
    let sql = "SELECT count(*) FROM queue.enqueue_batch($1, (
                   SELECT jsonb_agg(jsonb_build_object('payload', jsonb_build_object('due', due), 'run_at', to_timestamp(due / 1e6)))
                   FROM (SELECT $3::bigint + floor(random() * $4::bigint)::bigint FROM generate_series(1, $2)) AS times (due)))";
    let enqueue = client.prepare(sql)?;
    for first in (0..jobs).step_by(AT_ONCE) {
        client.query(&enqueue, &[&queue, &((jobs - first).min(AT_ONCE) as i32), &from, &span])?;
    }
    Ok(())
}

/// Lets the way's clients claim and complete until that many jobs are done. Returns how late each job was, in
/// milliseconds, and how long it all took.
fn work(server: &Server, queue: &str, way: Way, jobs: usize) -> Result<(Vec<f64>, f64)> {
    let left = &AtomicUsize::new(jobs);
    let clients = (0..way.clients).map(|_| server.client(false)).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let late = thread::scope(|scope| -> Result<_> {
        let working = clients.into_iter().map(|client| scope.spawn(move || run(client, queue, way, left)));
        let mut late = Vec::with_capacity(jobs);
        for one in working.collect::<Vec<_>>() {
            late.extend(one.join().map_err(|_| "a client panicked")??);
        }
        Ok(late)
    })?;
    Ok((late, start.elapsed().as_secs_f64()))
}

/// One client's share of it.
fn run(mut client: Client, queue: &str, way: Way, left: &AtomicUsize) -> Result<Vec<f64>> {
    let claim = client
        .prepare("SELECT id, coalesce((payload ->> 'due')::bigint, 0) FROM queue.claim($1, $2, wait => '100 ms')")?;
    let complete = client.prepare("SELECT count(*) FROM queue.complete_many($1)")?;
    let mut late = Vec::new();
    while left.load(Ordering::Relaxed) > 0 {
        let claimed: Vec<[i64; 2]> = client.bigints(&claim, &[&queue, &way.batch])?;
        let at = now();
        late.extend(claimed.iter().map(|[_, due]| (at - due) as f64 / 1e3));
        if !claimed.is_empty() {
            let ids: Vec<i64> = claimed.iter().map(|[id, _]| *id).collect();
            client.execute(&complete, &[&ids])?;
            left.fetch_sub(ids.len(), Ordering::Relaxed);
        }
    }
    Ok(late)
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
fn spread(way: Way, options: &Options) -> Result<Spread> {
    let seconds = if options.quick { 6 } else { 60 };
    let jobs = way.offered * seconds;
    eprintln!("{DUE}: {jobs} jobs over {seconds} s, {}", way.name);
    let server = Server::with_extension()?;
    server.execute("SELECT queue.create('spread')")?;
    let from = by_then(jobs);
    enqueue(&server, "spread", jobs, from, seconds as i64 * 1_000_000)?;
    sleep_until(from - 500_000)?;
    let cpu = server.cpu_seconds();
    let (lateness, _) = work(&server, "spread", way, jobs)?;
    let cpu = (server.cpu_seconds() - cpu) * 1_000.0 / jobs as f64;
    Ok(Spread { way, jobs, seconds, lateness, cpu })
}

/// Measures how fast jobs are claimed that are all due at once.
fn burst(way: Way, options: &Options) -> Result<Burst> {
    /// All of them fall due within this time, microseconds.
    const SPAN: i64 = 1_000_000;
    let rounds = if options.quick { 2 } else { 3 };
    let jobs = match (way.batch, options.quick) {
        (1, false) => 200_000,
        (1, true) => 40_000,
        (_, false) => 1_000_000,
        (_, true) => 200_000,
    };
    let mut burst = Burst { way, jobs, delayed: Vec::new(), undelayed: Vec::new() };
    for round in 0..rounds {
        eprintln!("{BURST}: {jobs} jobs at once, {}, round {} of {rounds}", way.name, round + 1);
        for is_delayed in [round % 2 == 0, round % 2 != 0] {
            let server = Server::with_extension()?;
            server.execute("SELECT queue.create('burst')")?;
            // Those without a delay have a time too, as the rows are to be alike, but it is past.
            let from = if is_delayed { by_then(jobs) } else { now() - SPAN };
            enqueue(&server, "burst", jobs, from, SPAN)?;
            let cpu = server.cpu_seconds();
            if is_delayed {
                sleep_until(from + SPAN)?;
            }
            let (_, seconds) = work(&server, "burst", way, jobs)?;
            let cpu = (server.cpu_seconds() - cpu) * 1_000.0 / jobs as f64;
            let done = if is_delayed { &mut burst.delayed } else { &mut burst.undelayed };
            done.push(Done { rate: jobs as f64 / seconds, cpu });
        }
    }
    Ok(burst)
}

/// A server with a queue in which so many jobs wait for next year.
pub fn with_far(jobs: usize, settings: &str) -> Result<Ours> {
    const YEAR: i64 = 365 * 86_400 * 1_000_000;
    let ours = Ours::new(Server::with_settings(settings)?, "if_not_exists => false")?;
    enqueue(ours.server(), crate::contender::QUEUE, jobs, now() + YEAR, YEAR)?;
    Ok(ours)
}

/// Measures what idling costs.
fn idle(options: &Options) -> Result<Idle> {
    let (jobs, seconds) = if options.quick { (FAR / 5, 10) } else { (FAR, 130) };
    eprintln!("{IDLE}: {jobs} jobs due next year, {seconds} s");
    // It would read the catalogs every minute and write there, and read once what was filled in.
    const QUIET: &str = "autovacuum = off";
    let (far, none) = (with_far(jobs, QUIET)?, with_far(0, QUIET)?);
    let servers = [far.server(), none.server()];
    // What filling has left to be done is done, and what is in memory is on disk.
    for server in servers {
        server.execute("CHECKPOINT")?;
        server.settle();
    }
    let look = || -> Result<Vec<Cost>> { servers.iter().map(|server| server.cost()).collect() };
    let (start, before) = (Instant::now(), look()?);
    thread::sleep(Duration::from_secs(seconds));
    let (seconds, after) = (start.elapsed().as_secs_f64(), look()?);
    Ok(Idle { seconds, far: after[0].since(before[0]), none: after[1].since(before[1]) })
}

impl Cost {
    fn since(self, before: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            wal_bytes: self.wal_bytes - before.wal_bytes,
            transaction_ids: self.transaction_ids - before.transaction_ids,
        }
    }
}
