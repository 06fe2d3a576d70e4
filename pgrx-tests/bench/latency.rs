//! How soon a session that sleeps has what it sleeps for: from the moment another session sends a statement to the
//! moment the sleeper's statement returns, so the transaction and both ways over the socket are in it.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use postgres::types::ToSql;
use postgres::{Client, Statement};

use crate::bench::Bench;
use crate::charts;
use crate::contender::Payload;
use crate::error::Result;
use crate::server::Server;
use crate::statistics::{median, spread};
use crate::targets::at_most;

/// A session that was woken needs this long to be asleep again.
pub const PAUSE: Duration = Duration::from_millis(5);

/// Microseconds of each of so many times. `wake` returns when it has sent, `sleep` when it was woken; the other end is
/// gone when one of them has failed, which says why.
pub fn measure(
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

/// A worker with the usual driver that sleeps in the claim of a job, and completes it. Returns when it had the job.
pub fn worker(mut client: Client, schema: &str, queue: &str) -> Result<impl FnMut() -> Result<Instant> + Send + use<>> {
    let claim = client.prepare(&format!("SELECT id FROM {schema}.claim('{queue}', wait => '10 s')"))?;
    let complete = client.prepare(&format!("SELECT {schema}.complete($1)"))?;
    Ok(move || {
        let row = client.query_opt(&claim, &[])?.ok_or("a worker slept for ten seconds and got no job")?;
        let at = Instant::now();
        client.execute(&complete, &[&row.try_get::<_, i64>(0)?])?;
        Ok(at)
    })
}

/// The moment before a statement is sent.
pub fn sent(client: &mut Client, statement: &Statement, value: &(dyn ToSql + Sync)) -> Result<Instant> {
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
    let worker = worker(server.connect()?, "queue", "wake")?;
    let waits = measure(bench.options.scale(2_000, 300), worker, |_| {
        thread::sleep(PAUSE);
        sent(&mut producer, &enqueue, &Payload::new())
    })?;
    println!("  {}, {} jobs", spread(&waits, "us"), waits.len());
    bench.target("wake: p50 in ms", &[median(&waits) / 1e3], at_most(1.0));
    charts::of_wake(bench.options, &waits)
}
