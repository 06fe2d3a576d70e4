//! Unique keys: what a call costs, and that a key which is used again and again beside an open snapshot does not
//! become slower with every job that has ended under it.

use std::time::Instant;

use crate::bench::Bench;
use crate::error::Result;
use crate::server::Server;
use crate::statistics::quantile;

/// Keys of the large batch.
const BULK: usize = 100_000;

/// A kind of call: what it is, what prepares it, its statements.
type Kind = (&'static str, &'static str, &'static [&'static str]);

const KINDS: [Kind; 7] = [
    ("enqueue without a key", "SELECT", &["SELECT queue.enqueue('plain')"]),
    ("enqueue, a new key", "SELECT", &["SELECT queue.enqueue('fresh', unique_key => nextval('n')::text)"]),
    (
        "enqueue, claim, complete without a key",
        "SELECT",
        &["SELECT queue.enqueue('life')", "SELECT queue.complete(id) FROM queue.claim('life')"],
    ),
    (
        "enqueue, claim, complete, one hot key",
        "SELECT",
        &["SELECT queue.enqueue('hot', unique_key => 'k')", "SELECT queue.complete(id) FROM queue.claim('hot')"],
    ),
    (
        "skip, the job is there",
        "SELECT queue.enqueue('hot', unique_key => 'k')",
        &["SELECT queue.enqueue('hot', unique_key => 'k')"],
    ),
    (
        "replace a waiting job, one hot key",
        "SELECT",
        &["SELECT queue.enqueue('waiting', unique_key => 'k', on_duplicate => 'replace')"],
    ),
    (
        "rerun of a running job, one hot key",
        "SELECT queue.enqueue('running', unique_key => 'k'); SELECT FROM queue.claim('running')",
        &["SELECT queue.enqueue('running', unique_key => 'k', on_duplicate => 'rerun')"],
    ),
];

/// Measures on a server of its own, beside a snapshot that is held all the time. Prints microseconds a call.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let calls = bench.options.scale(50_000, 5_000);
    let server = Server::with_extension("")?;
    let mut client = server.connect()?;
    let queues = "'{plain, fresh, life, hot, waiting, running, bulk}'::text[]";
    client.batch_execute(&format!("SELECT queue.create(q) FROM unnest({queues}) AS q; CREATE SEQUENCE n"))?;
    let mut reader = server.connect()?;
    reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")?;
    println!("{:44}{:>12}{:>12}{:>10}", "", "first tenth", "last tenth", "ratio");
    let print = |what, first, last| println!("  {what:42}{first:>12.1}{last:>12.1}{:>10.2}", last / first);
    for (what, prepare, sql) in KINDS {
        client.batch_execute(prepare)?;
        let statements = sql.iter().map(|sql| client.prepare(sql)).collect::<std::result::Result<Vec<_>, _>>()?;
        let mut took = Vec::with_capacity(calls);
        for _ in 0..calls {
            let start = Instant::now();
            for statement in &statements {
                client.query(statement, &[])?;
            }
            took.push(start.elapsed().as_secs_f64() * 1e6);
        }
        // The one that nine in ten exceed: what else the machine does is not to be measured.
        let fast = |took: &[f64]| quantile(took, 0.1);
        print(what, fast(&took[..calls / 10]), fast(&took[calls - calls / 10..]));
    }
    let bulk = format!(
        "SELECT count(*) FROM queue.enqueue_batch('bulk', (SELECT jsonb_agg(jsonb_build_object('unique_key', n::text))
         FROM generate_series(1, {BULK}) AS n))"
    );
    for what in ["a batch of 100,000 new keys, per key", "the same again, per key"] {
        let start = Instant::now();
        client.batch_execute(&bulk)?;
        let each = start.elapsed().as_secs_f64() * 1e6 / BULK as f64;
        print(what, each, each);
    }
    Ok(())
}
