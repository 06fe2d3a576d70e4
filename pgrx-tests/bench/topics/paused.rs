//! A subscriber that is paused: what its copies, which pile up, cost the publisher and the other subscribers.

use std::thread;
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::contender::{SINGLE, Session};
use crate::drive::{Task, in_turns, side_by_side};
use crate::error::Result;
use crate::queues::worker;
use crate::server::Server;
use crate::statistics::spread;

/// Events a second that are offered.
const RATE: u32 = 1_000;

/// Phases without and with a paused subscriber, in turns.
const PHASES: usize = 6;

/// Measures, and prints each figure when it is there.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let length = Duration::from_secs(bench.options.scale(20, 2));
    // So small that the ring turns in each phase.
    let server = Server::with_extension("pg_queue.segment_rows = 4096\npg_queue.reclaim_delay = 0")?;
    server.execute(include_str!("../sql/topics/paused.sql"))?;
    let found = in_turns("topics-paused", PHASES / 2, &["resume", "pause"], |call| {
        server.execute(&format!("SELECT queue.{call}('q3')"))?;
        let found = turn(&server, length)?;
        // What was paused is not to be worked off in the next phase.
        server.execute("SELECT queue.purge('q3')")?;
        server.settle();
        Ok(found)
    })?;
    let filled = server.number("SELECT max(generation) FROM queue_internal.segment_log")?;
    println!(
        "  {RATE} events/s to 3 queues, {PHASES} phases of {} s; the ring of eight segments has turned {} times",
        length.as_secs(),
        filled / 8
    );
    for (what, phases) in ["all are read", "one is paused"].into_iter().zip(found) {
        let (publishes, waits): (Vec<_>, Vec<_>) = phases.into_iter().unzip();
        let (publish, wait) = (spread(&publishes.concat(), "us"), spread(&waits.concat(), "us"));
        println!("    {what:14} publish {publish}; another queue has its job after {wait}");
    }
    Ok(())
}

/// Microseconds of each publish, and from a publish to the claim in a queue that is read.
fn turn(server: &Server, length: Duration) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut waits = [Vec::new(), Vec::new(), Vec::new()];
    let mut readers: Vec<Task> = Vec::new();
    for (queue, waits) in ["q1", "q2", "q3"].into_iter().zip(&mut waits) {
        let columns = "id, (extract(epoch FROM clock_timestamp() - enqueued_at) * 1e6)::bigint";
        let reader = Session::new(server, &worker(queue, columns, "100 ms"), SINGLE)?;
        let note = |rows: &[[i64; 2]]| waits.extend(rows.iter().map(|row| row[1] as f64));
        readers.push(reader.worker(100, note));
    }
    let mut client = server.client(false)?;
    let publish = client.prepare("SELECT count(*) FROM queue.publish('orders', '{\"n\": 1}', 'a.b')")?;
    let (_, took) = side_by_side(readers, |_| {
        let (begun, mut took) = (Instant::now(), Vec::new());
        while begun.elapsed() < length {
            let due = Duration::from_secs_f64(took.len() as f64 / f64::from(RATE));
            thread::sleep(due.saturating_sub(begun.elapsed()));
            let sent = Instant::now();
            client.execute(&publish, &[])?;
            took.push(sent.elapsed().as_secs_f64() * 1e6);
        }
        Ok(took)
    })?;
    let [waits, ..] = waits;
    Ok((took, waits))
}
