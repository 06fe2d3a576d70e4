//! Runs clients side by side for a while. Counts their jobs, and what these cost the servers, also afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::server::{Cost, Server};

/// One step of a client, which is repeated. Its argument is true when the time is over. It returns how many jobs it has
/// ended, or `None` when it stops.
pub type Task<'a> = Box<dyn FnMut(bool) -> Result<Option<u64>> + Send + 'a>;

/// A client that stops when the time is over.
pub fn steady<'a>(mut once: impl FnMut() -> Result<u64> + Send + 'a) -> Task<'a> {
    Box::new(move |is_over| if is_over { Ok(None) } else { once().map(Some) })
}

/// A client that stops when the time is over, but not before some repetitions: then its connection has filled its
/// caches, and plans have become generic.
pub fn warm<'a>(mut once: impl FnMut() -> Result<u64> + Send + 'a) -> Result<Task<'a>> {
    const WARM_UP: usize = 12;
    for _ in 0..WARM_UP {
        once()?;
    }
    Ok(steady(once))
}

/// The result of one turn.
#[derive(Clone, Copy)]
pub struct Sample {
    /// Jobs enqueued, claimed and completed.
    pub jobs: u64,
    pub seconds: f64,
    /// The cost of all servers.
    pub cost: Cost,
}

impl Sample {
    /// Jobs per second.
    pub fn rate(&self) -> f64 {
        self.jobs as f64 / self.seconds
    }

    /// Seconds of server CPU per 1,000 jobs.
    pub fn cpu(&self) -> f64 {
        self.cost.cpu_seconds * 1_000.0 / self.jobs as f64
    }

    /// Bytes of WAL per job.
    pub fn wal(&self) -> f64 {
        self.cost.wal_bytes as f64 / self.jobs as f64
    }
}

/// Measures all contenders in each round, so that a disturbance of the machine hits all of them. Returns the samples of
/// each.
pub fn in_turns<T, S>(
    what: &str,
    rounds: usize,
    all: &[T],
    mut measure: impl FnMut(&T) -> Result<S>,
) -> Result<Vec<Vec<S>>> {
    let mut samples: Vec<Vec<S>> = all.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        eprintln!("{what}, round {} of {rounds}", round + 1);
        // Each contender begins some of the rounds.
        for at in (0..all.len()).map(|n| (n + round) % all.len()) {
            samples[at].push(measure(&all[at])?);
        }
    }
    Ok(samples)
}

/// Runs the clients for this time.
pub fn drive(servers: &[&Server], clients: Vec<Task>, length: Duration) -> Result<Sample> {
    let before = Cost::of(servers)?;
    let start = Instant::now();
    let (jobs, ()) = side_by_side(clients, |all_run| {
        // Not a sleep: a client that failed ends the turn.
        while start.elapsed() < length && all_run() {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    servers.iter().for_each(|server| server.settle());
    Ok(Sample { jobs, seconds, cost: Cost::of(servers)?.since(before) })
}

/// Runs the clients until `watch` returns, which can ask whether all of them still run. Returns the number of jobs.
pub fn side_by_side<T>(clients: Vec<Task>, watch: impl FnOnce(&dyn Fn() -> bool) -> Result<T>) -> Result<(u64, T)> {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let run = |mut client: Task<'_>| -> Result<u64> {
            let mut jobs = 0;
            while let Some(more) = client(stop.load(Ordering::Relaxed))? {
                jobs += more;
            }
            Ok(jobs)
        };
        let running: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || run(client))).collect();
        let watched = watch(&|| !running.iter().any(ScopedJoinHandle::is_finished));
        stop.store(true, Ordering::Relaxed);
        let ended = running.into_iter().map(|one| one.join().map_err(|_| "a client panicked")?);
        // A client's error says more than the error of `watch`.
        Ok((ended.collect::<Result<Vec<_>>>()?.into_iter().sum(), watched?))
    })
}
