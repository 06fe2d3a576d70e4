//! Jobs that are enqueued one by one, and a worker that claims ahead and gathers what it has completed, against the three
//! round trips of `single`. A job is durable, ordered and fenced as there; what it costs is hardly more than its enqueue.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::contender::{Ours, Payload, QUEUE, Work};
use crate::drive::{self, Sample};
use crate::options::Options;
use crate::server::Server;
use crate::{Result, statistics};

/// Its name in `--only`.
pub const NAME: &str = "ahead";

/// Clients of `single`, and producers here.
const CLIENTS: usize = 4;

/// So many jobs the worker claims at once.
const CLAIMED: i32 = 100;

/// Producers wait when so many jobs are there: else they would take all of the processor.
const MOST_WAITING: u64 = 2_000;

/// After the worker has finished a job it needs this long to be asleep again.
const PAUSE: Duration = Duration::from_millis(5);

/// Compares, and prints.
pub fn measure(options: &Options) -> Result<()> {
    eprintln!("single jobs and a worker that claims ahead, {} rounds", options.rounds);
    let single = Ours::new(Server::with_extension()?, "retention => '1 day'")?;
    let ahead = Server::with_extension()?;
    ahead.execute(&format!("SELECT queue.create('{QUEUE}', retention => '1 day')"))?;
    let (mut singles, mut aheads): (Vec<Sample>, Vec<Sample>) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        singles.push(drive::drive(&single, Work { batch: 1, is_durable: false }, CLIENTS, options.turn)?);
        aheads.push(turn(&ahead, options.turn)?);
    }
    println!("\n{NAME}: {CLIENTS} producers of single jobs, and a worker that claims {CLAIMED} at once");
    println!("{:10}{:>12}{:>24}", "", "jobs/s", "CPU s per 1,000 jobs");
    let line = |name: &str, samples: &[Sample]| {
        let median = |of: fn(&Sample) -> f64| statistics::median(&samples.iter().map(of).collect::<Vec<_>>());
        println!("  {name:8}{:>12.0}{:>24.4}", median(Sample::rate), median(Sample::cpu));
    };
    line("single", &singles);
    line(NAME, &aheads);
    let ratio = |of: fn(&Sample) -> f64| {
        let ratios: Vec<f64> = aheads.iter().zip(&singles).map(|(ahead, single)| of(ahead) / of(single)).collect();
        statistics::median(&ratios)
    };
    println!("  ratio   {:>12.2}{:>24.2}", ratio(Sample::rate), ratio(Sample::cpu));
    let waits = wake(&ahead, if options.quick { 300 } else { 2_000 })?;
    let at = |share| statistics::quantile(&waits, share);
    println!("  such a worker has a job p50 {:.0} us, p95 {:.0} us after it was sent", at(0.5), at(0.95));
    Ok(())
}

/// A turn of producers and the worker; the jobs are those that were completed, and the time ends with the last of them.
fn turn(server: &Server, length: Duration) -> Result<Sample> {
    let (stop, enqueued, completed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let producers: Vec<Client> = (0..CLIENTS).map(|_| server.client(false)).collect::<Result<_>>()?;
    let worker = server.client(false)?;
    let (cpu, wal) = (server.cpu_seconds(), server.wal_bytes()?);
    let start = Instant::now();
    let produce = |mut client: Client| -> Result<()> {
        let enqueue = client.prepare("SELECT queue.enqueue($1, $2)")?;
        let payload = Payload::new();
        while !stop.load(Ordering::Relaxed) {
            if enqueued.load(Ordering::Relaxed) > completed.load(Ordering::Relaxed) + MOST_WAITING {
                thread::sleep(Duration::from_micros(500));
                continue;
            }
            client.execute(&enqueue, &[&QUEUE, &payload])?;
            enqueued.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let work = |mut client: Client| -> Result<()> {
        // As long as jobs come the wait is no more than a moment.
        let claim = client.prepare("SELECT id FROM queue.claim($1, $2, wait => '20 ms', completed => $3)")?;
        let mut ids: Vec<i64> = Vec::new();
        loop {
            let is_over = stop.load(Ordering::Relaxed);
            let next = client.ids(&claim, &[&QUEUE, &CLAIMED, &ids])?;
            completed.fetch_add(ids.len() as u64, Ordering::Relaxed);
            if is_over && ids.is_empty() && next.is_empty() {
                return Ok(());
            }
            ids = next;
        }
    };
    thread::scope(|scope| -> Result<()> {
        let (produce, work) = (&produce, &work);
        let mut running: Vec<_> = producers.into_iter().map(|client| scope.spawn(move || produce(client))).collect();
        running.push(scope.spawn(move || work(worker)));
        // Not a sleep: a client that failed ends the turn.
        while start.elapsed() < length && !running.iter().any(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        running.into_iter().try_for_each(|one| one.join().map_err(|_| "a client panicked")?)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    server.settle();
    let jobs = completed.into_inner();
    Ok(Sample { jobs, seconds, cpu_seconds: server.cpu_seconds() - cpu, wal_bytes: server.wal_bytes()? - wal })
}

/// Microseconds from sending a job to the return of the claim that brings it, when the worker sleeps.
fn wake(server: &Server, jobs: usize) -> Result<Vec<f64>> {
    let (mut producer, mut client) = (server.client(false)?, server.client(false)?);
    let (arrived, arrivals) = mpsc::channel();
    thread::scope(|scope| {
        let working = scope.spawn(move || -> Result<()> {
            let claim = client.prepare("SELECT id FROM queue.claim($1, $2, wait => '10 s', completed => $3)")?;
            let (mut ids, mut left) = (Vec::<i64>::new(), jobs);
            while left > 0 {
                let next = client.ids(&claim, &[&QUEUE, &CLAIMED, &ids])?;
                if !next.is_empty() {
                    arrived.send(Instant::now())?;
                }
                left -= next.len();
                ids = next;
            }
            client.ids(&claim, &[&QUEUE, &CLAIMED, &ids])?;
            Ok(())
        });
        let enqueue = producer.prepare("SELECT queue.enqueue($1, $2)")?;
        let mut waits = Vec::with_capacity(jobs);
        for _ in 0..jobs {
            thread::sleep(PAUSE);
            let sent = Instant::now();
            producer.execute(&enqueue, &[&QUEUE, &Payload::new()])?;
            // The other end is gone when the worker has failed; it says why.
            let Ok(at) = arrivals.recv() else { break };
            waits.push((at - sent).as_secs_f64() * 1e6);
        }
        working.join().map_err(|_| "the worker panicked")??;
        Ok(waits)
    })
}
