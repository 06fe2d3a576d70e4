//! Topics: what one event for eight queues costs, beside a batch of the same rows, a loop of enqueues, pgmq's topics
//! and PgQ's consumers; what matching costs among 20,000 bindings; and that a paused subscriber costs the others
//! nothing. Only when it is asked for by its name.

pub mod matching;
pub mod paused;
pub mod peers;

use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::cpu;
use crate::drive::in_turns;
use crate::error::Result;
use crate::server::Cost;
use crate::statistics::{median, median_of, ratios};
use crate::table::Table;

use peers::{LOOP, Peer, QUEUES};

/// Width of the column of names.
const NAMES: usize = 36;

/// All ways that are installed, for all cells.
fn peers<'a>(bench: &'a mut Bench) -> Result<&'a [Peer]> {
    if bench.peers.is_empty() {
        bench.peers = peers::all()?;
    }
    Ok(&bench.peers)
}

/// A document with this many bytes of text that pglz cannot compress. The stored document is a little larger.
fn document(bytes: usize) -> String {
    let mut random = queue_tests::random::Random::new(17);
    let text: String = (0..bytes).map(|_| char::from(b'0' + random.below(75) as u8)).collect();
    serde_json::json!({ "text": text.replace(['\\', '"'], "~") }).to_string()
}

/// Events a second of one client, and CPU of the server's for each, in turns.
pub fn rates(bench: &mut Bench) -> Result<()> {
    let (options, document) = (bench.options, document(80));
    let peers = peers(bench)?;
    let found = in_turns("topics-rates", options.rounds(), peers, |peer| turn(peer, &document, options.turn()))?;
    println!("{:NAMES$}{:>26}{:>24}", "", "", "publish over it");
    let table = Table::begin(NAMES, &[("events/s", 12, 0), ("CPU us each", 14, 1), ("rate", 16, 2), ("CPU", 8, 2)]);
    for (peer, turns) in peers.iter().zip(&found) {
        let medians = [0, 1].map(|n| median_of(turns, |turn| turn[n]));
        let over = [0, 1].map(|n| median(&ratios(&found[0], turns, |turn| turn[n])));
        table.row(peer.name, &[medians, over].concat());
    }
    Ok(())
}

/// A turn: events a second, and microseconds of CPU that the session used for each.
fn turn(peer: &Peer, document: &str, length: Duration) -> Result<[f64; 2]> {
    let (mut sender, payload) = (peer.session()?, peer.payload(document));
    let pid = sender.pid()?;
    let mut send = || sender.send(&payload, 0, None);
    (0..20).try_for_each(|_| send())?;
    let before = cpu::process_seconds(pid);
    let (begun, mut events) = (Instant::now(), 0.0);
    while begun.elapsed() < length {
        send()?;
        events += 1.0;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let used = cpu::process_seconds(pid) - before;
    peer.server().settle();
    Ok([events / seconds, used * 1e6 / events])
}

/// WAL of an event with a large payload, over the payload as it is stored.
pub fn bodies(bench: &mut Bench) -> Result<()> {
    let events = bench.options.scale(2_000, 200);
    let document = document(8_000);
    let mut found = Vec::new();
    for peer in peers(bench)? {
        let (mut sender, payload) = (peer.session()?, peer.payload(&document));
        sender.send(&payload, 0, None)?;
        peer.server().settle();
        let before = Cost::of(&[peer.server()])?;
        (0..events).try_for_each(|_| sender.send(&payload, 0, None))?;
        let cost = Cost::of(&[peer.server()])?.since(before);
        found.push((peer.name, cost.wal_bytes as f64 / f64::from(events)));
    }
    // What one job with such a payload takes: the loop makes as many as there are queues.
    let job = found.iter().find(|(name, _)| *name == LOOP).map_or(f64::NAN, |(_, bytes)| bytes / QUEUES as f64);
    let table = Table::begin(NAMES, &[("in payloads", 12, 2), ("in single jobs", 16, 2)]);
    for (name, bytes) in found {
        table.row(name, &[bytes / document.len() as f64, bytes / job]);
    }
    Ok(())
}

/// What the whole life of events costs: sent one by one, read by all consumers in batches of 100 and ended.
pub fn lives(bench: &mut Bench) -> Result<()> {
    let (events, rounds) = bench.options.scale((5_000, 5), (500, 1));
    let document = document(80);
    let peers = peers(bench)?;
    let costs = in_turns("topics-lives", rounds, peers, |peer| {
        peer.empty()?;
        let (mut sender, mut reader, payload) = (peer.session()?, peer.session()?, peer.payload(&document));
        peer.server().settle();
        let before = Cost::of(&[peer.server()])?;
        (0..events).try_for_each(|_| sender.send(&payload, 0, None))?;
        let read = peer.read_all(&mut reader)?;
        if read != events * QUEUES {
            return Err(format!("{}: {read} were read of {} copies", peer.name, events * QUEUES).into());
        }
        peer.server().settle();
        Ok(Cost::of(&[peer.server()])?.since(before))
    })?;
    let table = Table::begin(NAMES, &[("CPU us", 12, 1), ("WAL bytes", 14, 0)]);
    for (peer, costs) in peers.iter().zip(&costs) {
        let figures = [|cost: &Cost| cost.cpu_seconds * 1e6, |cost: &Cost| cost.wal_bytes as f64];
        table.row(peer.name, &figures.map(|figure| median_of(costs, figure) / events as f64));
    }
    Ok(())
}
