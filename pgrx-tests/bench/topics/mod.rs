//! Topics: what one event for eight queues costs, beside a batch of the same rows, a loop of enqueues, pgmq's topics and PgQ's
//! consumers; what matching costs among 20,000 bindings; and that a paused subscriber costs the others nothing. Only when it is
//! asked for by its name.

mod matching;
mod paused;
mod peers;

use std::time::{Duration, Instant};

use crate::options::Options;
use crate::statistics::median;
use crate::{Result, cpu};

use peers::Peer;

/// The names of its parts in `--only`, where `topics` is all of them.
const RATES: &str = "topics-rates";
const BODIES: &str = "topics-bodies";
const LIVES: &str = "topics-lives";
const MATCHING: &str = "topics-matching";
const PAUSED: &str = "topics-paused";

/// Queues that an event goes to.
pub const QUEUES: usize = 8;

/// The key of all events that are timed.
pub const KEY: &str = "order.placed";

/// Measures what is asked for, and prints each figure when it is there.
pub fn measure(options: &Options) -> Result<()> {
    type Part = fn(&Options, &[Peer]) -> Result<()>;
    let parts: [(&str, Part); 3] = [(RATES, rates), (BODIES, bodies), (LIVES, lives)];
    let asked: Vec<Part> = parts.iter().filter(|(name, _)| options.asks_for(name)).map(|(_, part)| *part).collect();
    if !asked.is_empty() {
        println!("\ntopics: one event, {QUEUES} queues");
        let peers = peers::all()?;
        asked.iter().try_for_each(|part| part(options, &peers))?;
    }
    if options.asks_for(MATCHING) {
        matching::measure(options)?;
    }
    if options.asks_for(PAUSED) {
        paused::measure(options)?;
    }
    Ok(())
}

/// A payload of so many bytes of text that pglz finds nothing in, as stored a little more.
fn payload(bytes: usize) -> String {
    let mut random = queue_tests::random::Random::new(17);
    let text: String = (0..bytes).map(|_| char::from(b'0' + random.below(75) as u8)).collect();
    serde_json::json!({ "text": text.replace(['\\', '"'], "~") }).to_string()
}

/// Events a second of one client, and CPU of the server's for each, in turns.
fn rates(options: &Options, peers: &[Peer]) -> Result<()> {
    let payload = payload(80);
    let mut found: Vec<(Vec<f64>, Vec<f64>)> = peers.iter().map(|_| Default::default()).collect();
    for round in 0..options.rounds {
        for n in 0..peers.len() {
            let at = (n + round) % peers.len();
            let (rate, us) = turn(&peers[at], &payload, options.turn)?;
            found[at].0.push(rate);
            found[at].1.push(us);
        }
    }
    println!("  payloads of 100 bytes, one client   {:>12}{:>14}", "events/s", "CPU us each");
    for (peer, (rates, us)) in peers.iter().zip(&found) {
        let by = |mine: &[f64], other: &[f64]| median(&mine.iter().zip(other).map(|(a, b)| a / b).collect::<Vec<_>>());
        println!(
            "    {:32}{:>12.0}{:>14.1}   rate of publish over it {:.2}, CPU {:.2}",
            peer.name,
            median(rates),
            median(us),
            by(&found[0].0, rates),
            by(&found[0].1, us)
        );
    }
    Ok(())
}

/// A turn: events a second, and microseconds of CPU that the session used for each.
fn turn(peer: &Peer, payload: &str, length: Duration) -> Result<(f64, f64)> {
    let mut sender = peer.sender(payload)?;
    for _ in 0..20 {
        sender.send()?;
    }
    let before = cpu::process_seconds(sender.pid);
    let (begun, mut events) = (Instant::now(), 0_u32);
    while begun.elapsed() < length {
        sender.send()?;
        events += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let used = cpu::process_seconds(sender.pid) - before;
    peer.server.settle();
    Ok((f64::from(events) / seconds, used * 1e6 / f64::from(events)))
}

/// WAL of an event with a large payload, over the payload as it is stored.
fn bodies(options: &Options, peers: &[Peer]) -> Result<()> {
    let events = if options.quick { 200 } else { 2_000 };
    let payload = payload(8_000);
    println!("  payloads of 8 kB, WAL of an event   {:>12}{:>14}", "in payloads", "in single jobs");
    // What one job with such a payload takes: the loop makes as many as there are queues.
    let mut found = Vec::new();
    for peer in peers {
        let mut sender = peer.sender(&payload)?;
        sender.send()?;
        peer.server.settle();
        let before = peer.server.wal_bytes()?;
        for _ in 0..events {
            sender.send()?;
        }
        let bytes = (peer.server.wal_bytes()? - before) as f64 / events as f64;
        found.push((peer, bytes));
    }
    let job = found.iter().find(|(peer, _)| peer.is_loop()).map_or(f64::NAN, |(_, bytes)| bytes / QUEUES as f64);
    for (peer, bytes) in found {
        println!("    {:32}{:>12.2}{:>14.2}", peer.name, bytes / payload.len() as f64, bytes / job);
    }
    Ok(())
}

/// What the whole life of events costs: sent one by one, read by all consumers in batches of 100 and ended.
fn lives(options: &Options, peers: &[Peer]) -> Result<()> {
    let events = if options.quick { 500 } else { 5_000 };
    let payload = payload(80);
    println!("  an event's whole life, sent alone, read by {QUEUES} consumers 100 at a time");
    println!("    {:32}{:>12}{:>14}", "", "CPU us", "WAL bytes");
    for peer in peers {
        let mut figures: (Vec<f64>, Vec<f64>) = Default::default();
        for _ in 0..if options.quick { 1 } else { 5 } {
            peer.empty()?;
            let mut sender = peer.sender(&payload)?;
            let mut reader = peer.reader()?;
            peer.server.settle();
            let (seconds, wal) = (peer.server.cpu_seconds(), peer.server.wal_bytes()?);
            for _ in 0..events {
                sender.send()?;
            }
            let read = reader.read_all()?;
            if read != events * QUEUES {
                return Err(format!("{}: {read} were read of {} copies", peer.name, events * QUEUES).into());
            }
            peer.server.settle();
            figures.0.push((peer.server.cpu_seconds() - seconds) * 1e6 / events as f64);
            figures.1.push((peer.server.wal_bytes()? - wal) as f64 / events as f64);
        }
        println!("    {:32}{:>12.1}{:>14.0}", peer.name, median(&figures.0), median(&figures.1));
    }
    Ok(())
}
