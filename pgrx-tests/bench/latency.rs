//! Measures how soon a sleeping session gets what it sleeps for: from the moment another session sends a statement to
//! the moment the sleeper's statement returns. This includes the transaction, and both ways over the socket.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use postgres::types::ToSql;
use postgres::{Client, Statement};

use crate::bench::Bench;
use crate::charts;
use crate::contender::Payload;
use crate::error::Result;
use crate::queues::now;
use crate::server::Server;
use crate::statistics::{median, quantile, spread};
use crate::targets::{at_least, at_most};

/// A session that was woken needs this time to sleep again.
const PAUSE: Duration = Duration::from_millis(5);

/// Returns the microseconds of this many wake-ups. `wake` returns when it has sent, `sleep` when it was woken. If one
/// of them fails, the other one loses its channel, and the error is that of the first.
fn measure(
    times: usize,
    mut sleep: impl FnMut() -> Result<Instant> + Send,
    mut wake: impl FnMut(usize) -> Result<Instant>,
) -> Result<Vec<f64>> {
    let (woken, wakes) = mpsc::channel();
    thread::scope(|scope| {
        let sleeping = scope.spawn(move || -> Result<()> { (0..times).try_for_each(|_| Ok(woken.send(sleep()?)?)) });
        let mut waits = Vec::with_capacity(times);
        for n in 0..times {
            let sent = wake(n)?;
            let Ok(at) = wakes.recv() else { break };
            waits.push(at.saturating_duration_since(sent).as_secs_f64() * 1e6);
        }
        sleeping.join().map_err(|_| "the session that sleeps panicked")??;
        Ok(waits)
    })
}

/// A worker with the usual driver. It sleeps in the claim of a job and completes it. Returns the time at which it got
/// the job.
fn worker(mut client: Client, queue: &str) -> Result<impl FnMut() -> Result<Instant> + Send + use<>> {
    let claim = client.prepare(&format!("SELECT id FROM queue.claim('{queue}', wait => '10 s')"))?;
    let complete = client.prepare("SELECT queue.complete($1)")?;
    Ok(move || {
        let row = client.query_opt(&claim, &[])?.ok_or("a worker slept for ten seconds and got no job")?;
        let at = Instant::now();
        client.execute(&complete, &[&row.try_get::<_, i64>(0)?])?;
        Ok(at)
    })
}

/// Returns the time just before the statement is sent.
fn sent(client: &mut Client, statement: &Statement, value: &(dyn ToSql + Sync)) -> Result<Instant> {
    let sent = Instant::now();
    client.execute(statement, &[value])?;
    Ok(sent)
}

/// The cell `wake`.
pub fn wake(bench: &mut Bench) -> Result<()> {
    let server = Server::with_extension("")?;
    server.execute("SELECT queue.create('wake')")?;
    let mut producer = server.connect()?;
    let enqueue = producer.prepare("SELECT queue.enqueue('wake', $1)")?;
    let worker = worker(server.connect()?, "wake")?;
    let waits = measure(bench.options.scale(2_000, 300), worker, |_| {
        thread::sleep(PAUSE);
        sent(&mut producer, &enqueue, &Payload::new())
    })?;
    println!("  {}, {} jobs", spread(&waits, "us"), waits.len());
    bench.target("wake: p50 in ms", &[median(&waits) / 1e3], at_most(1.0));
    charts::of_wake(bench.options, &waits)
}

/// The cell `collect`: jobs come one by one, and workers claim them with `linger`. One load fills their batches, the
/// other one does not.
pub fn collect(bench: &mut Bench) -> Result<()> {
    const WORKERS: usize = 3;
    const BATCH: usize = 100;
    const LINGER_MS: f64 = 50.0;
    /// Jobs per second: two batches, or half a batch, in the time for which a call lingers.
    const LOADS: [u32; 2] = [4_000, 1_000];
    let seconds = bench.options.scale(20, 5);
    for load in LOADS {
        let server = Server::with_extension("")?;
        server.execute("SELECT queue.create('collect')")?;
        let claim = format!(
            "SELECT id, (payload ->> 'at')::bigint FROM queue.claim('collect', {BATCH}, wait => '1 s', \
                linger => '{LINGER_MS} ms')"
        );
        let is_over = &AtomicBool::new(false);
        let work = |mut client: Client| -> Result<Vec<(usize, f64)>> {
            let claim = client.prepare(&claim)?;
            let complete = client.prepare("SELECT count(*) FROM queue.complete_many($1)")?;
            let mut batches = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let rows = client.query(&claim, &[])?;
                let at = now();
                if let Some(first) = rows.iter().map(|row| row.get::<_, i64>(1)).min() {
                    batches.push((rows.len(), (at - first) as f64 / 1e3));
                    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
                    client.execute(&complete, &[&ids])?;
                }
            }
            Ok(batches)
        };
        let mut producer = server.connect()?;
        let enqueue = producer.prepare("SELECT queue.enqueue('collect', jsonb_build_object('at', $1::bigint))")?;
        let batches: Vec<(usize, f64)> = thread::scope(|scope| -> Result<_> {
            let clients = (0..WORKERS).map(|_| server.connect()).collect::<Result<Vec<_>>>()?;
            let workers: Vec<_> = clients.into_iter().map(|client| scope.spawn(|| work(client))).collect();
            let begun = Instant::now();
            for nth in 0..load * seconds {
                thread::sleep((Duration::from_secs(1) / load * nth).saturating_sub(begun.elapsed()));
                producer.execute(&enqueue, &[&now()])?;
            }
            is_over.store(true, Ordering::Relaxed);
            let ended = workers.into_iter().map(|worker| worker.join().map_err(|_| "a worker panicked")?);
            Ok(ended.collect::<Result<Vec<_>>>()?.concat())
        })?;
        let (sizes, waits): (Vec<f64>, Vec<f64>) = batches.iter().map(|&(size, wait)| (size as f64, wait)).unzip();
        let full = sizes.iter().filter(|&&size| size == BATCH as f64).count() as f64 / sizes.len() as f64;
        println!("  {load} jobs/s: {} batches of {}, {full:.3} of them full", sizes.len(), spread(&sizes, "jobs"));
        println!("  the first job of a batch had waited {}", spread(&waits, "ms"));
        if load == LOADS[0] {
            bench.target("collect: share of full batches under load", &[full], at_least(0.95));
        } else {
            bench.target("collect: p99 of a wait in ms", &[quantile(&waits, 0.99)], at_most(LINGER_MS + 5.0));
        }
    }
    Ok(())
}
