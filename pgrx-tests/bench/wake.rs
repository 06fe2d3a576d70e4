//! How soon a sleeping worker has a job: from the moment the producer sends it to the moment the worker's `claim`
//! returns with it, so the producer's transaction and both ways over the socket are in it.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::contender::Payload;
use crate::options::Options;
use crate::server::Server;

/// Its name in `--only`.
pub const NAME: &str = "wake";

/// After the worker has finished a job it needs this long to be asleep again.
const PAUSE: Duration = Duration::from_millis(5);

/// Measures; microseconds, one figure per job.
pub fn measure(options: &Options) -> Result<Vec<f64>> {
    let jobs = if options.quick { 300 } else { 2_000 };
    eprintln!("wake latency, {jobs} times");
    let server = Server::with_extension()?;
    server.execute("SELECT queue.create('wake')")?;
    let mut producer = server.connect()?;
    let mut worker = server.connect()?;
    let (arrived, arrivals) = mpsc::channel();
    thread::scope(|scope| {
        let working = scope.spawn(move || -> Result<()> {
            let claim = worker.prepare("SELECT id FROM queue.claim('wake', wait => '10 s')")?;
            let complete = worker.prepare("SELECT queue.complete($1)")?;
            for _ in 0..jobs {
                let row = worker.query_opt(&claim, &[])?.ok_or("a worker slept for ten seconds and got no job")?;
                let at = Instant::now();
                worker.execute(&complete, &[&row.try_get::<_, i64>(0)?])?;
                arrived.send(at)?;
            }
            Ok(())
        });
        let enqueue = producer.prepare("SELECT queue.enqueue('wake', $1)")?;
        let mut waits = Vec::with_capacity(jobs);
        for _ in 0..jobs {
            thread::sleep(PAUSE);
            let sent = Instant::now();
            producer.execute(&enqueue, &[&Payload::new()])?;
            // The other end is gone when the worker has failed; it says why.
            let Ok(at) = arrivals.recv() else { break };
            waits.push((at - sent).as_secs_f64() * 1e6);
        }
        working.join().map_err(|_| "the worker panicked")??;
        Ok(waits)
    })
}
