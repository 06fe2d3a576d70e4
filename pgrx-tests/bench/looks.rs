//! What it costs to look at jobs, and at one, when history is long: millions of ended jobs in a table for each of
//! ninety days, and a young segment full of others. Only when it is asked for by its name, as it fills the disk.

use std::time::Instant;

use postgres::Client;

use crate::options::Options;
use crate::server::Server;
use crate::{Result, statistics};

/// Its name in `--only`.
pub const NAME: &str = "looks";

/// Days on which something expires.
const DAYS: i64 = 90;
/// Jobs that are not in history yet, one in ten of them dead.
const YOUNG: i64 = 100_000;
/// Ids of the jobs in history begin here, in counts.
const FIRST: i64 = 1 << 40;

/// A look, and the milliseconds it took.
pub struct Look {
    /// What was looked at.
    pub what: String,
    /// Each time.
    pub milliseconds: Vec<f64>,
}

/// Fills history and looks.
pub fn measure(options: &Options) -> Result<Vec<Look>> {
    let jobs: i64 = if options.quick { 450_000 } else { 3_600_000 };
    eprintln!("looks, {jobs} jobs in history");
    let settings = "pg_queue.segment_age = 1\npg_queue.reclaim_delay = 0\npg_queue.worker = off";
    let server = Server::with_settings(settings)?;
    let mut client = server.connect()?;
    fill(&mut client, jobs)?;
    let mut looks = Vec::new();
    let mut look = |what: &str, times: usize, mut once: Box<dyn FnMut(usize) -> Result<f64> + '_>| -> Result<()> {
        let milliseconds = (0..times).map(&mut once).collect::<Result<Vec<_>>>()?;
        looks.push(Look { what: what.to_owned(), milliseconds });
        Ok(())
    };
    // Somewhere in history; each is another one.
    let job = |n: usize| ((FIRST + (n as i64 * 7_919_993) % jobs) << 4) | 15;
    let one = |client: &mut Client, n| time(client, &format!("SELECT * FROM queue.job({})", job(n)), 1);
    look("queue.job, first in a connection", 10, Box::new(|n| one(&mut server.connect()?, n)))?;
    look("queue.job, again", 500, Box::new(|n| one(&mut client, n)))?;
    let prepared = client.prepare("SELECT * FROM queue.job($1)")?;
    look(
        "queue.job, prepared",
        500,
        Box::new(|n| {
            let start = Instant::now();
            let rows = client.query(&prepared, &[&job(n)])?.len();
            if rows == 1 { Ok(start.elapsed().as_secs_f64() * 1e3) } else { Err("there is no such job".into()) }
        }),
    )?;
    for (what, sql) in [
        (
            "jobs: count of a queue's dead",
            "SELECT count(*) FROM queue.jobs WHERE queue_name = 'young' AND state = 'dead'",
        ),
        (
            "jobs: ten of a queue's dead",
            "SELECT * FROM queue.jobs WHERE queue_name = 'young' AND state = 'dead' LIMIT 10",
        ),
        ("jobs: all of a small queue", "SELECT * FROM queue.jobs WHERE queue_name = 'q1'"),
        ("errors", "SELECT * FROM queue.errors"),
        (
            "retry_many: one thousand dead",
            "SELECT * FROM queue.retry_many(ARRAY(
                 SELECT job_id FROM queue.search('young', states => '{dead}', max_jobs => 1000))) WHERE reason IS NULL",
        ),
    ] {
        look(what, 3, Box::new(|_| time(&mut client, sql, 0)))?;
    }
    Ok(looks)
}

/// One job takes the way through the segments for each day, so that each has its table; the rest is put beside it.
fn fill(client: &mut Client, jobs: i64) -> Result<()> {
    for sql in [
        "SELECT queue.create('q' || n, retention => make_interval(days => n))",
        "SELECT queue.enqueue('q' || n, '1')",
        "SELECT queue.complete(id)",
    ] {
        let claim = if sql.contains("complete") { ", queue.claim('q' || n)" } else { "" };
        client.execute(&format!("{sql} FROM generate_series(1::integer, {DAYS}) AS n{claim}"), &[])?;
    }
    let count = |client: &mut Client, sql: &str| -> Result<i64> { Ok(client.query_one(sql, &[])?.try_get(0)?) };
    while count(client, "SELECT count(*) FROM queue.attempt_0")? > 0 {
        client.execute("SELECT FROM queue.maintain()", &[])?;
    }
    let tables = client.query(
        "SELECT inhrelid::regclass::text, lane FROM pg_inherits JOIN queue.history AS h ON h.tableoid = inhrelid
         WHERE inhparent = 'queue.history'::regclass",
        &[],
    )?;
    for (n, row) in tables.iter().enumerate() {
        let (table, lane): (String, i32) = (row.try_get(0)?, row.try_get(1)?);
        let each = jobs / DAYS;
        let first = FIRST + n as i64 * each;
        client.batch_execute(&format!(
            "INSERT INTO {table} (id, job_id, generation, enqueued_at, claimed_at, ended_at, lane, priority, attempt, pid, outcome,
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
    // As psql sends it.
    let got = client.simple_query(sql)?;
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    let count = got.iter().filter(|message| matches!(message, postgres::SimpleQueryMessage::Row(_))).count();
    if count >= rows { Ok(milliseconds) } else { Err(format!("{count} rows of {sql}").into()) }
}

/// Prints what was measured.
pub fn print(looks: &[Look]) {
    println!("\nlooks: ms each");
    println!("{:38}{:>10}{:>10}{:>10}", "", "p50", "p95", "most");
    for Look { what, milliseconds } in looks {
        let at = |share| statistics::quantile(milliseconds, share);
        println!("  {what:36}{:>10.2}{:>10.2}{:>10.2}", at(0.5), at(0.95), at(1.0));
    }
}
