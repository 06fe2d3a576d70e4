//! Cells in which one client runs statements one after the other, and each of them is timed: `keys`, `direct`, `looks`.
//! The statements are data.

use postgres::Client;

use crate::bench::Bench;
use crate::contender::{Payload, Takes, Verbs};
use crate::error::Result;
use crate::queues::FLOOR;
use crate::server::Server;
use crate::statistics::{median, quantile, us};
use crate::table::Table;

/// Keys of the large batch.
const BULK: usize = 100_000;
const HOT: &str = "SELECT queue.enqueue('hot', unique_key => 'k')";
const END_HOT: &str = "SELECT queue.complete(id) FROM queue.claim('hot')";
const LIFE: [&str; 2] = ["SELECT queue.enqueue('life')", "SELECT queue.complete(id) FROM queue.claim('life')"];
const REPLACE: &str = "SELECT queue.enqueue('waiting', unique_key => 'k', on_duplicate => 'replace')";
const RUN: &str = "SELECT queue.enqueue('running', unique_key => 'k'); SELECT FROM queue.claim('running')";
const RERUN: &str = "SELECT queue.enqueue('running', unique_key => 'k', on_duplicate => 'rerun')";

/// Kinds of calls with unique keys: what it is, what prepares it, its statements.
const KINDS: [(&str, &str, &[&str]); 7] = [
    ("enqueue without a key", "", &["SELECT queue.enqueue('plain')"]),
    ("enqueue, a new key", "", &["SELECT queue.enqueue('fresh', unique_key => nextval('n')::text)"]),
    ("enqueue, claim, complete without a key", "", &LIFE),
    ("enqueue, claim, complete, one hot key", "", &[HOT, END_HOT]),
    ("skip, the job is there", HOT, &[HOT]),
    ("replace a waiting job, one hot key", "", &[REPLACE]),
    ("rerun of a running job, one hot key", RUN, &[RERUN]),
];

/// Unique keys: what a call costs, and that a key which is used again and again beside an open snapshot does not become
/// slower with every job that has ended under it. Prints microseconds a call.
pub fn keys(bench: &mut Bench) -> Result<()> {
    let calls = bench.options.scale(50_000, 5_000);
    let server = Server::with_extension("")?;
    let (mut client, mut reader) = (server.connect()?, server.connect()?);
    let queues = "'{plain, fresh, life, hot, waiting, running, bulk}'::text[]";
    client.batch_execute(&format!("SELECT queue.create(q) FROM unnest({queues}) AS q; CREATE SEQUENCE n"))?;
    reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")?;
    let table = Table::begin(44, &[("first tenth", 12, 1), ("last tenth", 12, 1), ("ratio", 10, 2)]);
    for (what, prepare, sql) in KINDS {
        client.batch_execute(prepare)?;
        let statements = sql.iter().map(|sql| client.prepare(sql)).collect::<std::result::Result<Vec<_>, _>>()?;
        let mut call = |_| us(|| statements.iter().try_for_each(|statement| client.query(statement, &[]).map(drop)));
        let took = (0..calls).map(&mut call).collect::<std::result::Result<Vec<_>, _>>()?;
        // The one that nine in ten exceed: what else the machine does is not to be measured.
        let fast = |took: &[f64]| quantile(took, 0.1);
        let (first, last) = (fast(&took[..calls / 10]), fast(&took[calls - calls / 10..]));
        table.row(what, &[first, last, last / first]);
    }
    let bulk = format!(
        "SELECT count(*) FROM queue.enqueue_batch('bulk', (SELECT jsonb_agg(jsonb_build_object('unique_key', n::text))
         FROM generate_series(1, {BULK}) AS n))"
    );
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
    let (payload, series) = (Payload::new().sql(), format!("FROM generate_series(1, {calls})"));
    let counted = |call: &str| format!("SELECT count(*) FROM (SELECT {call}(id) FROM given OFFSET 0) AS done");
    let enqueued = |call: &str| format!("SELECT count({call}, {payload})) {series}");
    // What is done, the extension's way and the plan's.
    let claim = format!("INSERT INTO given SELECT (queue.claim('direct')).id {series}");
    let pairs = [
        ("enqueue", [enqueued("queue.enqueue('direct'"), enqueued("plan_enqueue(1")]),
        ("claim (the whole of it against its insert)", [claim, counted("plan_claim")]),
        ("complete", [counted("queue.complete"), counted("plan_complete")]),
    ];
    let mut times: [[Vec<f64>; 2]; 3] = Default::default();
    for _ in 0..bench.options.rounds() {
        client.batch_execute("TRUNCATE given")?;
        for (sql, times) in pairs.iter().flat_map(|(_, both)| both).zip(times.as_flattened_mut()) {
            times.push(us(|| client.batch_execute(sql))? / f64::from(calls));
        }
    }
    let table = Table::begin(44, &[("ours", 10, 2), ("kept plan", 12, 2), ("ratio", 10, 2)]);
    for ((what, _), [direct, plan]) in pairs.iter().zip(&times) {
        let (direct, plan) = (median(direct), median(plan));
        table.row(what, &[direct, plan, direct / plan]);
    }
    Ok(())
}

/// Ids of the jobs in history begin here, in counts.
const FIRST: i64 = 1 << 40;

/// Statements that are sent as psql sends them, three times each.
const LOOKS: [(&str, &str); 5] = [
    ("jobs: count of a queue's dead", "SELECT count(*) FROM queue.jobs WHERE queue_name = 'young' AND state = 'dead'"),
    ("jobs: ten of a queue's dead", "SELECT * FROM queue.jobs WHERE queue_name = 'young' AND state = 'dead' LIMIT 10"),
    ("jobs: all of a small queue", "SELECT * FROM queue.jobs WHERE queue_name = 'q1'"),
    ("errors", "SELECT * FROM queue.errors"),
    (
        "retry_many: one thousand dead",
        "SELECT * FROM queue.retry_many(ARRAY(
             SELECT job_id FROM queue.search('young', states => '{dead}', max_jobs => 1000))) WHERE reason IS NULL",
    ),
];

/// What it costs to look at jobs, and at one, when history is long: millions of ended jobs in a table for each of
/// ninety days, and a young segment full of others.
pub fn looks(bench: &mut Bench) -> Result<()> {
    /// Days on which something expires.
    const DAYS: i64 = 90;
    let jobs: i64 = bench.options.scale(3_600_000, 450_000);
    let server = Server::with_extension("pg_queue.segment_age = 1\npg_queue.reclaim_delay = 0\npg_queue.worker = off")?;
    let mut client = server.connect()?;
    let fill = include_str!("sql/looks.sql").replace("{first}", &FIRST.to_string());
    server.execute(&fill.replace("{each}", &(jobs / DAYS).to_string()))?;
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
    LOOKS.into_iter().try_for_each(|(what, sql)| look(what, 3, &mut |_| time(&mut client, sql, 0)))
}

/// Microseconds of a statement that returns at least so many rows.
fn time(client: &mut Client, sql: &str, rows: usize) -> Result<f64> {
    let mut got = Vec::new();
    let took = us(|| client.simple_query(sql).map(|messages| got = messages))?;
    let count = got.iter().filter(|message| matches!(message, postgres::SimpleQueryMessage::Row(_))).count();
    if count >= rows { Ok(took) } else { Err(format!("{count} rows of {sql}").into()) }
}
