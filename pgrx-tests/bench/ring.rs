//! What is felt of the turns of the segments' ring: minutes in which segments of the default size are filled, moved out
//! of and copied to history, alone, beside a reader and beside an open snapshot. The same without reclaiming stands
//! beside each.
//!
//! Invariant: cost includes all that the turns of a contender cost, as its server settles after each.

use std::time::Duration;

use crate::bench::{Bench, Rows, print, samples_of};
use crate::contender::{Contender, Payload, Work};
use crate::drive::{self, Sample, in_turns, steady};
use crate::error::Result;
use crate::statistics::ratios;
use crate::targets::at_least;

/// The work of a public comparison: batches of 32, payloads of 256 bytes.
const WORK: Work = Work { batch: 32, is_durable: false, length: 1 };

/// One who is beside the clients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nobody,
    /// It counts the rows of the open segment again and again.
    Reader,
    Snapshot,
}

/// The name in results, the contender, and who is beside the clients.
type Phase = (&'static str, &'static str, Beside);

const PHASES: [Phase; 5] = [
    ("still", "still", Beside::Nobody),
    ("turning", "ours", Beside::Nobody),
    ("still, reader", "still", Beside::Reader),
    ("turning, reader", "ours", Beside::Reader),
    ("turning, snapshot", "ours", Beside::Snapshot),
];

/// Measures with all processors busy, and with a client that leaves one to the background worker.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let length = Duration::from_secs(bench.options.scale(20, 5));
    let rounds = bench.options.scale(3, 1);
    for (_, contender, _) in PHASES {
        bench.contender(contender)?;
    }
    for clients in [4, 1] {
        let samples = in_turns("ring", rounds, &PHASES, |&(_, contender, beside)| {
            phase(&bench.contenders[contender], clients, beside, length)
        })?;
        let rows: Rows = PHASES.into_iter().map(|(name, ..)| name).zip(samples).collect();
        println!("  {WORK}, payloads of 256 bytes, {clients} clients, {rounds} times {} s", length.as_secs());
        print(&rows, "still");
        let mut target = |ours: &str, other: &str, bound| {
            let ratios = ratios(samples_of(&rows, ours), samples_of(&rows, other), Sample::rate);
            bench.target(format!("ring, {clients} clients: rate {ours} / {other}"), &ratios, at_least(bound).goal());
        };
        target("turning", "still", 0.97);
        target("turning, reader", "still", 0.6);
        target("turning, reader", "still, reader", 0.97);
    }
    Ok(())
}

fn phase(contender: &Contender, clients: usize, beside: Beside, length: Duration) -> Result<Sample> {
    let server = &contender.server;
    let _open = (beside == Beside::Snapshot).then(|| server.snapshot()).transpose()?;
    let payload = Payload::of(format!(r#"{{"to": 7, "text": "{}"}}"#, "x".repeat(219)));
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let (mut session, payloads) = (contender.session(WORK)?, vec![payload.clone(); WORK.batch]);
        tasks.push(drive::warm(move || session.live(&payloads))?);
    }
    if beside == Beside::Reader {
        let mut reader = server.connect()?;
        tasks.push(steady(move || {
            let open = "SELECT segment FROM queue_internal.segment_log WHERE state = 'o' AND segment < 8
                 ORDER BY entry DESC LIMIT 1";
            let segment: i32 = reader.query_one(open, &[])?.try_get(0)?;
            reader.query_one(&format!("SELECT count(*) FROM queue_internal.attempt_{segment}"), &[])?;
            Ok(0)
        }));
    }
    drive::drive(&[server], tasks, length)
}
