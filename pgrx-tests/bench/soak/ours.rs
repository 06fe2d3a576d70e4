//! pg_queue under the soak: a queue for all, and one whose jobs nobody wants for minutes.

use std::time::{Duration, Instant};

use postgres::{Client, Statement};

use crate::server::Server;
use crate::soak::contender::{BATCH, Claimed, Contender, Producer, Run, Worker};
use crate::soak::load::{Job, Load, Lot, RETRY};
use crate::soak::storage::Tables;
use crate::{Result, soak};

/// How long after a segment's jobs have moved it may be emptied: a setting that not every version has.
const RECLAIM_DELAY: (&str, &str) = ("pg_queue.reclaim_delay", "1000");

/// Turns of the ring of segments in a run.
const TURNS: u32 = 4;
/// Segments in the ring.
const RING: u32 = 8;
/// The smallest that `pg_queue.segment_rows` may be.
const LEAST_ROWS: usize = 1_000;

/// A server with two queues.
pub struct Ours(Server);

impl Ours {
    /// Makes the queues, in segments so small that the ring comes round several times.
    pub fn new(load: Load, length: Duration) -> Result<Self> {
        let rows = (load.jobs(length / (TURNS * RING))).max(LEAST_ROWS);
        let server = Server::with_settings(&format!("pg_queue.segment_rows = {rows}"))?;
        let (name, value) = RECLAIM_DELAY;
        let known = soak::connect(&server)?.query_opt("SELECT FROM pg_settings WHERE name = $1", &[&name])?;
        if known.is_some() {
            server.execute(&format!("ALTER SYSTEM SET {name} = {value}"))?;
            server.execute("SELECT pg_reload_conf()")?;
        }
        println!(
            "  segments of {rows} rows; this version {}",
            if known.is_some() { "reclaims them" } else { "does not reclaim them: its logs can only grow" }
        );
        server.execute(&format!(
            "SELECT queue.create('{}'), queue.create('{}')",
            queue(Lot::Usual),
            queue(Lot::Held)
        ))?;
        Ok(Self(server))
    }
}

fn queue(lot: Lot) -> &'static str {
    match lot {
        Lot::Usual => "soak",
        Lot::Held => "soak-held",
    }
}

impl Contender for Ours {
    fn server(&self) -> &Server {
        &self.0
    }

    fn tables(&self) -> Tables {
        Tables { schema: "queue", logs: "c.relname ~ '^(attempt|claim|outcome|note)_[0-9]+$'" }
    }

    fn producer(&self) -> Result<Box<dyn Producer>> {
        let mut client = soak::connect(&self.0)?;
        let sql = "SELECT queue.enqueue($1, $2, priority => $3, delay => $4::float8 * interval '1 second')";
        Ok(Box::new(Sender { enqueue: client.prepare(sql)?, client }))
    }

    fn worker(&self, lot: Lot) -> Result<Box<dyn Worker>> {
        let mut client = soak::connect(&self.0)?;
        let claim = |options| format!("SELECT id, attempt, payload FROM queue.claim($1, {BATCH}, {options})");
        let retry = format!("retry_in => '{} ms'", RETRY.as_millis());
        let wait = if lot == Lot::Usual { "wait => '1 s'" } else { "wait => '0'" };
        Ok(Box::new(Taker {
            queue: queue(lot),
            claim: client.prepare(&claim(wait))?,
            finish_and_claim: client.prepare(&claim("completed => $2"))?,
            complete: client.prepare(&refused("complete_many($1)"))?,
            retry: client.prepare(&refused(&format!("fail_many($1, 'not yet', {retry})")))?,
            kill: client.prepare(&refused("fail_many($1, 'never', fatal => true)"))?,
            client,
        }))
    }
}

/// A call of a verb for many that returns the reasons why attempts have not ended.
fn refused(call: &str) -> String {
    format!("SELECT reason FROM queue.{call} WHERE reason IS NOT NULL")
}

/// An error if an attempt has not ended: what it did counts for nothing.
fn ended(reasons: &[postgres::Row]) -> Result<()> {
    match reasons.first() {
        Some(row) => Err(row.try_get::<_, String>(0)?.into()),
        None => Ok(()),
    }
}

struct Sender {
    client: Client,
    enqueue: Statement,
}

impl Producer for Sender {
    fn send(&mut self, job: &Job) -> Result<()> {
        let delay = job.delay.map(|delay| delay.as_secs_f64());
        self.client.execute(&self.enqueue, &[&queue(job.lot), &job.payload(), &job.priority, &delay])?;
        Ok(())
    }
}

struct Taker {
    client: Client,
    queue: &'static str,
    claim: Statement,
    finish_and_claim: Statement,
    complete: Statement,
    retry: Statement,
    kill: Statement,
}

impl Worker for Taker {
    /// With something to finish the call never sleeps; without, it may.
    fn claim(&mut self, done: &[i64]) -> Result<Claimed> {
        let start = Instant::now();
        let (rows, took) = if done.is_empty() {
            (self.client.query(&self.claim, &[&self.queue])?, None)
        } else {
            let rows = self.client.query(&self.finish_and_claim, &[&self.queue, &done])?;
            (rows, Some(start.elapsed()))
        };
        let run = |row: &postgres::Row| {
            let (id, attempt): (i64, Option<i32>) = (row.try_get(0)?, row.try_get(1)?);
            // A row without a job.
            let attempt = attempt.ok_or_else(|| format!("attempt {id} could not be completed"))?;
            Run::new(id, attempt, &row.try_get(2)?)
        };
        Ok(Claimed { runs: rows.iter().map(run).collect::<Result<_>>()?, took })
    }

    fn complete(&mut self, done: &[i64]) -> Result<()> {
        ended(&self.client.query(&self.complete, &[&done])?)
    }

    fn fail(&mut self, failed: &[i64], is_fatal: bool) -> Result<()> {
        ended(&self.client.query(if is_fatal { &self.kill } else { &self.retry }, &[&failed])?)
    }
}
