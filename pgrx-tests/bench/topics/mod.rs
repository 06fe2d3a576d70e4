//! Topics: what one event for eight queues costs, beside a batch of the same rows, a loop of enqueues, pgmq's topics
//! and PgQ's consumers; what matching costs among 20,000 bindings; and that a paused subscriber costs the others
//! nothing. Only when it is asked for by its name.

pub mod matching;
pub mod paused;
pub mod peers;

use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::cpu;
use crate::error::Result;
use crate::server::Cost;
use crate::statistics::{median, median_of, ratios};

use peers::{Peer, QUEUES};

/// All ways that are installed, for all cells.
fn peers<'a>(bench: &'a mut Bench) -> Result<&'a [Peer]> {
    if bench.peers.is_empty() {
        bench.peers = peers::all()?;
    }
    Ok(&bench.peers)
}

/// A payload of so many bytes of text that pglz finds nothing in, as stored a little more.
fn payload(bytes: usize) -> String {
    let mut random = queue_tests::random::Random::new(17);
    let text: String = (0..bytes).map(|_| char::from(b'0' + random.below(75) as u8)).collect();
    serde_json::json!({ "text": text.replace(['\\', '"'], "~") }).to_string()
}

/// Events a second of one client, and CPU of the server's for each, in turns.
pub fn rates(bench: &mut Bench) -> Result<()> {
    let options = bench.options;
    let peers = peers(bench)?;
    let payload = payload(80);
    let mut found: Vec<Vec<(f64, f64)>> = vec![Vec::new(); peers.len()];
    for round in 0..options.rounds() {
        for n in 0..peers.len() {
            let at = (n + round) % peers.len();
            found[at].push(turn(&peers[at], &payload, options.turn())?);
        }
    }
    println!("    {:32}{:>12}{:>14}", "", "events/s", "CPU us each");
    for (peer, turns) in peers.iter().zip(&found) {
        println!(
            "    {:32}{:>12.0}{:>14.1}   rate of publish over it {:.2}, CPU {:.2}",
            peer.name,
            median_of(turns, |turn| turn.0),
            median_of(turns, |turn| turn.1),
            median(&ratios(&found[0], turns, |turn| turn.0)),
            median(&ratios(&found[0], turns, |turn| turn.1))
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
pub fn bodies(bench: &mut Bench) -> Result<()> {
    let events = bench.options.scale(2_000, 200);
    let payload = payload(8_000);
    println!("    {:32}{:>12}{:>14}", "", "in payloads", "in single jobs");
    let mut found = Vec::new();
    for peer in peers(bench)? {
        let mut sender = peer.sender(&payload)?;
        sender.send()?;
        peer.server.settle();
        let before = peer.server.cost()?;
        for _ in 0..events {
            sender.send()?;
        }
        let cost = peer.server.cost()?.since(before);
        found.push((peer, cost.wal_bytes as f64 / f64::from(events)));
    }
    // What one job with such a payload takes: the loop makes as many as there are queues.
    let job = found.iter().find(|(peer, _)| peer.is_loop()).map_or(f64::NAN, |(_, bytes)| bytes / QUEUES as f64);
    for (peer, bytes) in found {
        println!("    {:32}{:>12.2}{:>14.2}", peer.name, bytes / payload.len() as f64, bytes / job);
    }
    Ok(())
}

/// What the whole life of events costs: sent one by one, read by all consumers in batches of 100 and ended.
pub fn lives(bench: &mut Bench) -> Result<()> {
    let (events, rounds) = bench.options.scale((5_000, 5), (500, 1));
    let payload = payload(80);
    println!("    {:32}{:>12}{:>14}", "", "CPU us", "WAL bytes");
    for peer in peers(bench)? {
        let mut costs: Vec<Cost> = Vec::new();
        for _ in 0..rounds {
            peer.empty()?;
            let (mut sender, mut reader) = (peer.sender(&payload)?, peer.reader()?);
            peer.server.settle();
            let before = peer.server.cost()?;
            for _ in 0..events {
                sender.send()?;
            }
            let read = peer.read_all(&mut reader)?;
            if read != events * QUEUES {
                return Err(format!("{}: {read} were read of {} copies", peer.name, events * QUEUES).into());
            }
            peer.server.settle();
            costs.push(peer.server.cost()?.since(before));
        }
        let of = |figure: fn(&Cost) -> f64| median_of(&costs, figure) / events as f64;
        println!(
            "    {:32}{:>12.1}{:>14.0}",
            peer.name,
            of(|cost| cost.cpu_seconds * 1e6),
            of(|cost| cost.wal_bytes as f64)
        );
    }
    Ok(())
}
