//! A subscriber that is paused: what its copies, which pile up, cost the publisher and the other subscribers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::client::Client;
use crate::options::Options;
use crate::server::Server;
use crate::statistics::quantile;

/// Events a second that are offered.
const RATE: u32 = 1_000;

/// Phases without and with a paused subscriber, in turns.
const PHASES: usize = 6;

/// Measures, and prints each figure when it is there.
pub fn measure(options: &Options) -> Result<()> {
    let length = Duration::from_secs(if options.quick { 2 } else { 20 });
    // So small that the ring turns in each phase.
    let server = Server::with_settings("pg_queue.segment_rows = 4096\npg_queue.reclaim_delay = 0")?;
    server.execute(
        "SELECT queue.create_topic('orders');
         SELECT queue.create('q' || n, retention => '0') FROM generate_series(1, 3) AS n;
         SELECT queue.bind('orders', 'q' || n) FROM generate_series(1, 3) AS n",
    )?;
    let (mut publishes, mut waits): ([Vec<f64>; 2], [Vec<f64>; 2]) = Default::default();
    for phase in 0..PHASES {
        let is_paused = phase % 2;
        server.execute(if is_paused == 1 { "SELECT queue.pause('q3')" } else { "SELECT queue.resume('q3')" })?;
        let (took, waited) = turn(&server, length)?;
        publishes[is_paused].extend(took);
        waits[is_paused].extend(waited);
        // What was paused is not to be worked off in the next phase.
        server.execute("SELECT queue.purge('q3')")?;
        server.settle();
    }
    let filled: i64 = server.connect()?.query_one("SELECT max(generation) FROM queue.segment_log", &[])?.try_get(0)?;
    println!(
        "  {RATE} events/s to 3 queues, {PHASES} phases of {} s; the ring of eight segments has turned {} times",
        length.as_secs(),
        filled / 8
    );
    for (what, n) in [("all are read", 0), ("one is paused", 1)] {
        let at = |values: &[f64], share| quantile(values, share);
        println!(
            "    {what:14} publish p50 {:.0} us, p99 {:.0} us; another queue has its job after p50 {:.0} us, p99 {:.0} us",
            at(&publishes[n], 0.5),
            at(&publishes[n], 0.99),
            at(&waits[n], 0.5),
            at(&waits[n], 0.99)
        );
    }
    Ok(())
}

/// Microseconds of each publish, and from a publish to the claim in a queue that is read.
fn turn(server: &Server, length: Duration) -> Result<(Vec<f64>, Vec<f64>)> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let read = |queue: &'static str, mut client: Client| {
            let stop = &stop;
            move || -> Result<Vec<f64>> {
                let claim = client.prepare(&format!(
                    "SELECT id, (extract(epoch FROM clock_timestamp() - enqueued_at) * 1e6)::bigint
                     FROM queue.claim('{queue}', 100, wait => '100 ms', completed => $1)"
                ))?;
                let (mut ids, mut waits) = (Vec::<i64>::new(), Vec::new());
                while !stop.load(Ordering::Relaxed) || !ids.is_empty() {
                    let rows = client.bigints::<2>(&claim, &[&ids])?;
                    waits.extend(rows.iter().map(|row| row[1] as f64));
                    ids = rows.iter().map(|row| row[0]).collect();
                }
                Ok(waits)
            }
        };
        let mut readers = Vec::new();
        for queue in ["q1", "q2", "q3"] {
            readers.push(scope.spawn(read(queue, server.client(false)?)));
        }
        let mut client = server.client(false)?;
        let publish = client.prepare("SELECT count(*) FROM queue.publish('orders', '{\"n\": 1}', 'a.b')")?;
        let (begun, mut took) = (Instant::now(), Vec::new());
        while begun.elapsed() < length {
            let due = Duration::from_secs_f64(took.len() as f64 / f64::from(RATE));
            thread::sleep(due.saturating_sub(begun.elapsed()));
            let sent = Instant::now();
            client.execute(&publish, &[])?;
            took.push(sent.elapsed().as_secs_f64() * 1e6);
        }
        stop.store(true, Ordering::Relaxed);
        let mut waits = Vec::new();
        for (n, reader) in readers.into_iter().enumerate() {
            let waited = reader.join().map_err(|_| "a reader panicked")??;
            if n == 0 {
                waits = waited;
            }
        }
        Ok((took, waits))
    })
}
