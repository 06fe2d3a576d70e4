//! Jobs that are enqueued one by one, and a worker that claims ahead and gathers what it has completed, against the
//! three round trips of `single`. A job is durable, ordered and fenced as there; what it costs is hardly more than its
//! enqueue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::{Bench, print, turn};
use crate::contender::{Payload, SINGLE, Session};
use crate::drive::{Sample, Task, drive, in_turns, steady};
use crate::error::Result;
use crate::latency;
use crate::queues::{self, QUEUE};
use crate::server::Server;
use crate::statistics::spread;

/// Clients of `single`, and producers here.
const CLIENTS: usize = 4;
/// So many jobs the worker claims at once.
const CLAIMED: i32 = 100;
/// Producers wait when so many jobs are there: else they would take all of the processor.
const MOST_WAITING: u64 = 2_000;

/// Compares, and prints.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let options = bench.options;
    let single = queues::ours("", "retention => '1 day'")?;
    let ahead = queues::ours("", "retention => '1 day'")?.server;
    let names = ["single", "ahead"];
    let samples = in_turns("ahead", options.rounds(), &names, |&name| match name {
        "single" => turn(&single, SINGLE, CLIENTS, options),
        _ => turn_ahead(&ahead, options.turn()),
    })?;
    print(&names.into_iter().zip(samples).collect(), "single");
    let waits = wake(&ahead, options.scale(2_000, 300))?;
    println!("  such a worker has a job after it was sent: {}", spread(&waits, "us"));
    Ok(())
}

/// A client whose claims wait so long.
fn session(server: &Server, wait: &str) -> Result<Session> {
    Session::new(server, &queues::worker(QUEUE, "id", wait), SINGLE)
}

/// A turn of producers and the worker; the jobs are those that were completed, and the time ends with the last of them.
fn turn_ahead(server: &Server, length: Duration) -> Result<Sample> {
    let (enqueued, claimed) = (&AtomicU64::new(0), &AtomicU64::new(0));
    let mut clients: Vec<Task> = Vec::new();
    for _ in 0..CLIENTS {
        let (mut producer, payload) = (session(server, "0")?, Payload::new());
        clients.push(steady(move || {
            if enqueued.load(Ordering::Relaxed) > claimed.load(Ordering::Relaxed) + MOST_WAITING {
                thread::sleep(Duration::from_micros(500));
            } else {
                producer.send(&payload, 0, None)?;
                enqueued.fetch_add(1, Ordering::Relaxed);
            }
            Ok(0)
        }));
    }
    // As long as jobs come the wait is no more than a moment.
    clients.push(session(server, "20 ms")?.worker(CLAIMED, |rows: &[[i64; 1]]| {
        claimed.fetch_add(rows.len() as u64, Ordering::Relaxed);
    }));
    drive(&[server], clients, length)
}

/// Microseconds from sending a job to the return of the claim that brings it, when the worker sleeps.
fn wake(server: &Server, jobs: usize) -> Result<Vec<f64>> {
    let (mut producer, mut worker) = (session(server, "0")?, session(server, "10 s")?);
    let sleep = || loop {
        if !worker.claim::<1>(CLAIMED)?.0.is_empty() {
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
