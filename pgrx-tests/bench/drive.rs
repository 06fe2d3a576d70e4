//! One turn of one contender: its clients run side by side for a while; what they did is counted, and what it
//! cost the server, including what the server does afterwards for the sake of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::contender::{Contender, Work, Worker};

/// Lives before the measuring begins: connections fill their caches, plans become generic.
const WARM_UP: usize = 12;

/// What one turn brought.
#[derive(Clone, Copy)]
pub struct Sample {
    /// Jobs enqueued, claimed and completed.
    pub jobs: u64,
    /// How long it took.
    pub seconds: f64,
    /// CPU time of the server.
    pub cpu_seconds: f64,
    /// WAL written by the server.
    pub wal_bytes: i64,
}

impl Sample {
    /// Jobs per second.
    pub fn rate(&self) -> f64 {
        self.jobs as f64 / self.seconds
    }

    /// Seconds of server CPU per 1,000 jobs.
    pub fn cpu(&self) -> f64 {
        self.cpu_seconds * 1_000.0 / self.jobs as f64
    }

    /// Bytes of WAL per job.
    pub fn wal(&self) -> f64 {
        self.wal_bytes as f64 / self.jobs as f64
    }
}

/// Runs as many clients for as long as asked.
pub fn drive(contender: &dyn Contender, work: Work, clients: usize, turn: Duration) -> Result<Sample> {
    let mut workers = Vec::new();
    for _ in 0..clients {
        let mut worker = contender.worker(work)?;
        for _ in 0..WARM_UP {
            worker.live()?;
        }
        workers.push(worker);
    }
    let server = contender.server();
    let (cpu, wal) = (server.cpu_seconds(), server.wal_bytes()?);
    let start = Instant::now();
    let stop = AtomicBool::new(false);
    let jobs = thread::scope(|scope| {
        let running: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(|| run(worker.as_mut(), &stop))).collect();
        // Not a sleep: a client that failed ends the turn.
        while start.elapsed() < turn && !running.iter().any(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        running.into_iter().map(|one| one.join().map_err(|_| "a client panicked")?).sum::<Result<u64>>()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    server.settle();
    Ok(Sample { jobs, seconds, cpu_seconds: server.cpu_seconds() - cpu, wal_bytes: server.wal_bytes()? - wal })
}

fn run(worker: &mut dyn Worker, stop: &AtomicBool) -> Result<u64> {
    let mut jobs = 0;
    while !stop.load(Ordering::Relaxed) {
        jobs += worker.live()?;
    }
    Ok(jobs)
}
