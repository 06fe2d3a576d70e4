//! Jobs that are enqueued one by one, and a worker that claims ahead and gathers what it has completed, against the
//! three round trips of `single`. A job is durable, ordered and fenced as there; what it costs is hardly more than its
//! enqueue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::{Bench, turn};
use crate::contender::{Payload, SINGLE, Session};
use crate::drive::{Sample, Task, drive, steady};
use crate::error::Result;
use crate::latency;
use crate::queues::{self, QUEUE};
use crate::server::Server;
use crate::statistics::{median, median_of, ratios, spread};

/// Clients of `single`, and producers here.
const CLIENTS: usize = 4;
/// So many jobs the worker claims at once.
const CLAIMED: i32 = 100;
/// Producers wait when so many jobs are there: else they would take all of the processor.
const MOST_WAITING: u64 = 2_000;

/// Compares, and prints.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let single = queues::ours("", "retention => '1 day'")?;
    let ahead = queues::ours("", "retention => '1 day'")?.server;
    let (mut singles, mut aheads): (Vec<Sample>, Vec<Sample>) = (Vec::new(), Vec::new());
    for _ in 0..bench.options.rounds() {
        singles.push(turn(&single, SINGLE, CLIENTS, bench.options)?);
        aheads.push(turn_ahead(&ahead, bench.options.turn())?);
    }
    println!("{:10}{:>12}{:>24}", "", "jobs/s", "CPU s per 1,000 jobs");
    for (name, samples) in [("single", &singles), ("ahead", &aheads)] {
        println!("  {name:8}{:>12.0}{:>24.4}", median_of(samples, Sample::rate), median_of(samples, Sample::cpu));
    }
    let ratio = |of: fn(&Sample) -> f64| median(&ratios(&aheads, &singles, of));
    println!("  ratio   {:>12.2}{:>24.2}", ratio(Sample::rate), ratio(Sample::cpu));
    let waits = wake(&ahead, bench.options.scale(2_000, 300))?;
    println!("  such a worker has a job after it was sent: {}", spread(&waits, "us"));
    Ok(())
}

/// A client whose claims wait so long.
fn session(server: &Server, wait: &str) -> Result<Session> {
    Session::new(server, queues::worker(QUEUE, "id", wait), false)
}

/// Completes these jobs and claims the next.
fn claim(worker: &mut Session, ids: &[i64]) -> Result<Vec<i64>> {
    Ok(worker.claim(CLAIMED, ids)?.0.into_iter().map(|[id]| id).collect())
}

/// A turn of producers and the worker; the jobs are those that were completed, and the time ends with the last of them.
fn turn_ahead(server: &Server, length: Duration) -> Result<Sample> {
    let (enqueued, completed) = (&AtomicU64::new(0), &AtomicU64::new(0));
    let mut clients: Vec<Task> = Vec::new();
    for _ in 0..CLIENTS {
        let (mut producer, payload) = (session(server, "0")?, Payload::new());
        clients.push(steady(move || {
            if enqueued.load(Ordering::Relaxed) > completed.load(Ordering::Relaxed) + MOST_WAITING {
                thread::sleep(Duration::from_micros(500));
            } else {
                producer.send(&payload, 0, None)?;
                enqueued.fetch_add(1, Ordering::Relaxed);
            }
            Ok(0)
        }));
    }
    // As long as jobs come the wait is no more than a moment.
    let mut worker = session(server, "20 ms")?;
    let mut ids: Vec<i64> = Vec::new();
    clients.push(Box::new(move |is_over| {
        let next = claim(&mut worker, &ids)?;
        let done = ids.len() as u64;
        completed.fetch_add(done, Ordering::Relaxed);
        let is_last = is_over && ids.is_empty() && next.is_empty();
        ids = next;
        Ok((!is_last).then_some(done))
    }));
    drive(&[server], clients, length)
}

/// Microseconds from sending a job to the return of the claim that brings it, when the worker sleeps.
fn wake(server: &Server, jobs: usize) -> Result<Vec<f64>> {
    let (mut producer, mut worker) = (session(server, "0")?, session(server, "10 s")?);
    let mut ids: Vec<i64> = Vec::new();
    let sleep = || loop {
        ids = claim(&mut worker, &ids)?;
        if !ids.is_empty() {
            return Ok(Instant::now());
        }
    };
    latency::measure(jobs, sleep, |_| {
        thread::sleep(latency::PAUSE);
        let sent = Instant::now();
        producer.send(&Payload::new(), 0, None)?;
        Ok(sent)
    })
}
