//! Cells in which one client runs statements one after the other, and each of them is timed: `keys`, `direct`, `looks`.
//! The statements are data, in SQL files.

use postgres::{Client, SimpleQueryMessage};

use crate::bench::Bench;
use crate::contender::{Payload, Takes, Verbs, blocks};
use crate::error::Result;
use crate::queues::FLOOR;
use crate::server::Server;
use crate::statistics::{median, quantile, us};
use crate::table::Table;

/// Unique keys: what a call costs, and that a key which is used again and again beside an open snapshot does not become
/// slower with every job that has ended under it. Prints microseconds a call.
pub fn keys(bench: &mut Bench) -> Result<()> {
    /// Keys of the large batch.
    const BULK: usize = 100_000;
    let calls = bench.options.scale(50_000, 5_000);
    let server = Server::with_extension("")?;
    let (mut client, _snapshot) = (server.connect()?, server.snapshot()?);
    let table = Table::begin(44, &[("first tenth", 12, 1), ("last tenth", 12, 1), ("ratio", 10, 2)]);
    for (what, sql) in blocks(include_str!("sql/keys.sql")) {
        if what == "set-up" {
            server.execute(sql)?;
            continue;
        }
        let statements =
            sql.split("\n\n").map(|sql| client.prepare(sql)).collect::<std::result::Result<Vec<_>, _>>()?;
        let mut call = |_| us(|| statements.iter().try_for_each(|statement| client.query(statement, &[]).map(drop)));
        let took = (0..calls).map(&mut call).collect::<std::result::Result<Vec<_>, _>>()?;
        // The one that nine in ten exceed: what else the machine does is not to be measured.
        let fast = |took: &[f64]| quantile(took, 0.1);
        let (first, last) = (fast(&took[..calls / 10]), fast(&took[calls - calls / 10..]));
        table.row(what, &[first, last, last / first]);
    }
    let bulk = include_str!("sql/keys-bulk.sql").replace("{keys}", &BULK.to_string());
    for what in ["a batch of 100,000 new keys, per key", "the same again, per key"] {
        let each = us(|| client.batch_execute(&bulk))? / BULK as f64;
        table.row(what, &[each, each, 1.0]);
    }
    Ok(())
}

/// The extension's inserts go straight to table and index. This measures what kept SPI plans, as PL/pgSQL makes them,
/// would cost in their place, into the same kind of table: many calls in one statement, so that the protocol and the
/// commit do not count.
pub fn direct(bench: &mut Bench) -> Result<()> {
    let calls = bench.options.scale(20_000, 5_000);
    let server = Server::with_extension("")?;
    server.execute("SELECT queue.create('direct')")?;
    server.execute(Verbs::of(Takes::Sent, "", &[FLOOR]).sql("set-up"))?;
    server.execute(include_str!("sql/direct-plans.sql"))?;
    let mut client = server.connect()?;
    client.batch_execute("CREATE TEMP TABLE given (id bigint)")?;
    let file = include_str!("sql/direct.sql").replace("{payload}", &Payload::new().sql());
    let file = file.replace("{calls}", &calls.to_string());
    let mut times: Vec<[Vec<f64>; 2]> = blocks(&file).map(|_| Default::default()).collect();
    for _ in 0..bench.options.rounds() {
        client.batch_execute("TRUNCATE given")?;
        for ((_, both), times) in blocks(&file).zip(&mut times) {
            for (sql, times) in both.split("\n\n").zip(times) {
                times.push(us(|| client.batch_execute(sql))? / f64::from(calls));
            }
        }
    }
    let table = Table::begin(44, &[("ours", 10, 2), ("kept plan", 12, 2), ("ratio", 10, 2)]);
    for ((what, _), [direct, plan]) in blocks(&file).zip(&times) {
        let (direct, plan) = (median(direct), median(plan));
        table.row(what, &[direct, plan, direct / plan]);
    }
    Ok(())
}

/// What it costs to look at jobs, and at one, when history is long: millions of ended jobs in a table for each of
/// ninety days, and a young segment full of others.
pub fn looks(bench: &mut Bench) -> Result<()> {
    /// Days on which something expires.
    const DAYS: i64 = 90;
    /// Ids of the jobs in history begin here, in counts.
    const FIRST: i64 = 1 << 40;
    let jobs: i64 = bench.options.scale(3_600_000, 450_000);
    let server = Server::with_extension("pg_queue.segment_age = 1\npg_queue.reclaim_delay = 0\npg_queue.worker = off")?;
    let mut client = server.connect()?;
    server.execute_with(include_str!("sql/looks.sql"), &[("first", &FIRST), ("each", &(jobs / DAYS))])?;
    let table = Table::begin(38, &[("p50", 10, 2), ("p95", 10, 2), ("most", 10, 2)]);
    let look = |what: &str, times: usize, once: &mut dyn FnMut(usize) -> Result<f64>| -> Result<()> {
        let us = (0..times).map(once).collect::<Result<Vec<_>>>()?;
        table.row(what, &[0.5, 0.95, 1.0].map(|share| quantile(&us, share) / 1e3));
        Ok(())
    };
    // Somewhere in history; each is another one.
    let job = |n: usize| ((FIRST + (n as i64 * 7_919_993) % jobs) << 4) | 15;
    let one = |client: &mut Client, n| time(client, &format!("SELECT * FROM queue.job({})", job(n)), 1);
    look("queue.job, first in a connection", 10, &mut |n| one(&mut server.connect()?, n))?;
    look("queue.job, again", 500, &mut |n| one(&mut client, n))?;
    let prepared = client.prepare("SELECT * FROM queue.job($1)")?;
    look("queue.job, prepared", 500, &mut |n| Ok(us(|| client.query_one(&prepared, &[&job(n)]))?))?;
    let mut sent = blocks(include_str!("sql/looks-sent.sql"));
    sent.try_for_each(|(what, sql)| look(what, 3, &mut |_| time(&mut client, sql, 0)))
}

/// Microseconds of a statement that returns at least so many rows.
fn time(client: &mut Client, sql: &str, rows: usize) -> Result<f64> {
    let mut got = Vec::new();
    let took = us(|| client.simple_query(sql).map(|messages| got = messages))?;
    let count = got.iter().filter(|message| matches!(message, SimpleQueryMessage::Row(_))).count();
    if count >= rows { Ok(took) } else { Err(format!("{count} rows of {sql}").into()) }
}
