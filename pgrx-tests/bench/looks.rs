//! What it costs to look at jobs, and at one, when history is long: millions of ended jobs in a table for each of
//! ninety days, and a young segment full of others. Only when it is asked for by its name, as it fills the disk.

use std::time::Instant;

use postgres::Client;

use crate::bench::Bench;
use crate::error::Result;
use crate::server::Server;
use crate::statistics::quantile;

/// Days on which something expires.
const DAYS: i64 = 90;
/// Jobs that are not in history yet, one in ten of them dead.
const YOUNG: i64 = 100_000;
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

/// Fills history and looks.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let jobs: i64 = bench.options.scale(3_600_000, 450_000);
    let server = Server::with_extension("pg_queue.segment_age = 1\npg_queue.reclaim_delay = 0\npg_queue.worker = off")?;
    let mut client = server.connect()?;
    fill(&mut client, jobs)?;
    println!("{:38}{:>10}{:>10}{:>10}", "", "p50", "p95", "most");
    let look = |what: &str, times: usize, once: &mut dyn FnMut(usize) -> Result<f64>| -> Result<()> {
        let milliseconds = (0..times).map(once).collect::<Result<Vec<_>>>()?;
        let at = |share| quantile(&milliseconds, share);
        println!("  {what:36}{:>10.2}{:>10.2}{:>10.2}", at(0.5), at(0.95), at(1.0));
        Ok(())
    };
    // Somewhere in history; each is another one.
    let job = |n: usize| ((FIRST + (n as i64 * 7_919_993) % jobs) << 4) | 15;
    let one = |client: &mut Client, n| time(client, &format!("SELECT * FROM queue.job({})", job(n)), 1);
    look("queue.job, first in a connection", 10, &mut |n| one(&mut server.connect()?, n))?;
    look("queue.job, again", 500, &mut |n| one(&mut client, n))?;
    let prepared = client.prepare("SELECT * FROM queue.job($1)")?;
    look("queue.job, prepared", 500, &mut |n| {
        let start = Instant::now();
        let rows = client.query(&prepared, &[&job(n)])?.len();
        if rows == 1 { Ok(start.elapsed().as_secs_f64() * 1e3) } else { Err("there is no such job".into()) }
    })?;
    LOOKS.into_iter().try_for_each(|(what, sql)| look(what, 3, &mut |_| time(&mut client, sql, 0)))
}

/// One job takes the way through the segments for each day, so that each has its table; the rest is put beside it.
fn fill(client: &mut Client, jobs: i64) -> Result<()> {
    let days = format!("generate_series(1::integer, {DAYS}) AS n");
    client
        .batch_execute(&format!("SELECT queue.create('q' || n, retention => make_interval(days => n)) FROM {days}"))?;
    client.batch_execute(&format!("SELECT queue.enqueue('q' || n, '1') FROM {days}"))?;
    client.batch_execute(&format!("SELECT queue.complete(id) FROM {days}, queue.claim('q' || n)"))?;
    while client.query_one("SELECT count(*) FROM queue.attempt_0", &[])?.try_get::<_, i64>(0)? > 0 {
        client.batch_execute("SELECT FROM queue.maintain()")?;
    }
    let tables = client.query(
        "SELECT inhrelid::regclass::text, lane FROM pg_inherits JOIN queue.history AS h ON h.tableoid = inhrelid
         WHERE inhparent = 'queue.history'::regclass",
        &[],
    )?;
    let each = jobs / DAYS;
    for (n, row) in tables.iter().enumerate() {
        let (table, lane): (String, i32) = (row.try_get(0)?, row.try_get(1)?);
        let first = FIRST + n as i64 * each;
        client.batch_execute(&format!(
            "INSERT INTO {table} (id, job_id, generation, enqueued_at, claimed_at, ended_at, lane, priority, attempt,
                pid, outcome,
                                  claim_kind, payload)
             SELECT n << 4, n << 4 | 15, 1, now(), now(), now(), {lane}, 0, 1, 1, 'c', 'w', '{{\"to\": 7}}'
             FROM generate_series({first}, {}) AS n",
            first + each - 1
        ))?;
    }
    client.batch_execute("VACUUM")?;
    client.batch_execute("SELECT queue.create('young', max_attempts => 1)")?;
    client.batch_execute(&format!(
        "SELECT count(*) FROM queue.enqueue_many('young', array_fill('{{\"to\": 7}}'::jsonb, '{{{YOUNG}}}'))"
    ))?;
    client.batch_execute(&format!(
        "SELECT count(*) FROM queue.fail_many(ARRAY(SELECT id FROM queue.claim('young', {})), 'it failed')",
        YOUNG / 10
    ))?;
    Ok(())
}

/// Milliseconds of a statement that returns at least so many rows.
fn time(client: &mut Client, sql: &str, rows: usize) -> Result<f64> {
    let start = Instant::now();
    let got = client.simple_query(sql)?;
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    let count = got.iter().filter(|message| matches!(message, postgres::SimpleQueryMessage::Row(_))).count();
    if count >= rows { Ok(milliseconds) } else { Err(format!("{count} rows of {sql}").into()) }
}
