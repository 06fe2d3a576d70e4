//! Unique keys: what a call costs, and that a key which is used again and again beside an open snapshot does not
//! become slower with every job that has ended under it.

use std::time::Instant;

use postgres::Client;

use crate::options::Options;
use crate::server::Server;
use crate::{Result, statistics};

/// As it is called in `--only`.
pub const NAME: &str = "keys";

/// Calls of a kind, of which the first and the last tenth are compared.
const CALLS: usize = 50_000;
/// Keys of the large batch.
const BULK: usize = 100_000;

/// A kind of call.
pub struct Cost {
    pub what: &'static str,
    /// Microseconds, of the first and of the last tenth of the calls the one that nine in ten exceed.
    pub first: f64,
    pub last: f64,
}

fn run(client: &mut Client, what: &'static str, calls: usize, sql: &[&str]) -> Result<Cost> {
    let statements = sql.iter().map(|sql| client.prepare(sql)).collect::<std::result::Result<Vec<_>, _>>()?;
    let mut took = Vec::with_capacity(calls);
    for _ in 0..calls {
        let start = Instant::now();
        for statement in &statements {
            client.query(statement, &[])?;
        }
        took.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let tenth = calls / 10;
    // Of each the faster ones: what else the machine does is not to be measured.
    let fast = |took: &[f64]| statistics::quantile(took, 0.1);
    let (first, last) = (fast(&took[..tenth]), fast(&took[calls - tenth..]));
    Ok(Cost { what, first, last })
}

/// Measures on a server of its own, beside a snapshot that is held all the time.
pub fn measure(options: &Options) -> Result<Vec<Cost>> {
    let calls = if options.quick { CALLS / 10 } else { CALLS };
    let server = Server::with_extension()?;
    let mut client = server.connect()?;
    let queues =
        ["plain", "fresh", "life", "hot", "waiting", "running", "bulk"].map(|q| format!("SELECT queue.create('{q}')"));
    client.batch_execute(&queues.join(";"))?;
    client.batch_execute("CREATE SEQUENCE n")?;
    let mut reader = server.connect()?;
    reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")?;
    let mut costs = vec![
        run(&mut client, "enqueue without a key", calls, &["SELECT queue.enqueue('plain')"])?,
        run(
            &mut client,
            "enqueue, a new key",
            calls,
            &["SELECT queue.enqueue('fresh', unique_key => nextval('n')::text)"],
        )?,
    ];
    let plain_life = ["SELECT queue.enqueue('life')", "SELECT queue.complete(id) FROM queue.claim('life')"];
    costs.push(run(&mut client, "enqueue, claim, complete without a key", calls, &plain_life)?);
    let one_life =
        ["SELECT queue.enqueue('hot', unique_key => 'k')", "SELECT queue.complete(id) FROM queue.claim('hot')"];
    costs.push(run(&mut client, "enqueue, claim, complete, one hot key", calls, &one_life)?);
    client.batch_execute("SELECT queue.enqueue('hot', unique_key => 'k')")?;
    costs.push(run(&mut client, "skip, the job is there", calls, &["SELECT queue.enqueue('hot', unique_key => 'k')"])?);
    let replace = ["SELECT queue.enqueue('waiting', unique_key => 'k', on_duplicate => 'replace')"];
    costs.push(run(&mut client, "replace a waiting job, one hot key", calls, &replace)?);
    client.batch_execute("SELECT queue.enqueue('running', unique_key => 'k'); SELECT FROM queue.claim('running')")?;
    let rerun = ["SELECT queue.enqueue('running', unique_key => 'k', on_duplicate => 'rerun')"];
    costs.push(run(&mut client, "rerun of a running job, one hot key", calls, &rerun)?);
    let bulk = format!(
        "SELECT count(*) FROM queue.enqueue_batch('bulk', (SELECT jsonb_agg(jsonb_build_object('unique_key', n::text))
         FROM generate_series(1, {BULK}) AS n))"
    );
    for what in ["a batch of 100,000 new keys, per key", "the same again, per key"] {
        let start = Instant::now();
        client.batch_execute(&bulk)?;
        let each = start.elapsed().as_secs_f64() * 1e6 / BULK as f64;
        costs.push(Cost { what, first: each, last: each });
    }
    Ok(costs)
}

/// Prints what was measured.
pub fn print(costs: &[Cost]) {
    println!("\nkeys: us per call beside an open snapshot, one client");
    println!("{:44}{:>12}{:>12}{:>10}", "", "first tenth", "last tenth", "ratio");
    for Cost { what, first, last } in costs {
        println!("  {what:42}{first:>12.1}{last:>12.1}{:>10.2}", last / first);
    }
}
