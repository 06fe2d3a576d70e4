//! The extension's inserts go straight to table and index. This measures what kept SPI plans, as PL/pgSQL makes
//! them, would cost in their place: many calls in one statement, so that the protocol and the commit do not count.

use std::time::Instant;

use crate::bench::Bench;
use crate::contender::Payload;
use crate::error::Result;
use crate::queues::FLOOR;
use crate::server::Server;
use crate::statistics::median;

/// The same inserts into the same kind of table.
const FUNCTIONS: &str = include_str!("sql/direct-plans.sql");

/// Compares the three verbs.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let calls = bench.options.scale(20_000, 5_000);
    let server = Server::with_extension("")?;
    server.execute("SELECT queue.create('direct')")?;
    server.execute(FLOOR)?;
    server.execute(FUNCTIONS)?;
    let mut client = server.connect()?;
    client.batch_execute("CREATE TEMP TABLE given (id bigint)")?;
    let (payload, series) = (Payload::new().sql(), format!("FROM generate_series(1, {calls})"));
    // What is done, the extension's way and the plan's.
    let pairs = [
        (
            "enqueue",
            format!("SELECT count(queue.enqueue('direct', {payload})) {series}"),
            format!("SELECT count(plan_enqueue(1, {payload})) {series}"),
        ),
        (
            "claim (the whole of it against its insert)",
            format!("INSERT INTO given SELECT (queue.claim('direct')).id {series}"),
            "SELECT count(*) FROM (SELECT plan_claim(id) FROM given OFFSET 0) AS done".into(),
        ),
        (
            "complete",
            "SELECT count(*) FROM (SELECT queue.complete(id) FROM given OFFSET 0) AS done".into(),
            "SELECT count(*) FROM (SELECT plan_complete(id) FROM given OFFSET 0) AS done".into(),
        ),
    ];
    let mut times: [[Vec<f64>; 2]; 3] = Default::default();
    for _ in 0..bench.options.rounds() {
        client.batch_execute("TRUNCATE given")?;
        for ((_, direct, plan), times) in pairs.iter().zip(&mut times) {
            for (sql, times) in [direct, plan].into_iter().zip(times) {
                let start = Instant::now();
                client.batch_execute(sql)?;
                times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
            }
        }
    }
    println!("{:44}{:>10}{:>12}{:>10}", "", "ours", "kept plan", "ratio");
    for ((what, ..), [direct, plan]) in pairs.iter().zip(&times) {
        let (direct, plan) = (median(direct), median(plan));
        println!("  {what:42}{direct:>10.2}{plan:>12.2}{:>10.2}", direct / plan);
    }
    Ok(())
}
