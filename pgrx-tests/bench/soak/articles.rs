//! The articles' table under the soak, with its best plan: the index scan, made once.

use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, Statement};

use crate::contender::{ARTICLES_TABLE, articles_claim};
use crate::server::Server;
use crate::soak::contender::{BATCH, Claimed, Contender, Producer, Run, Worker};
use crate::soak::load::{Job, Lot, RETRY};
use crate::soak::storage::Tables;
use crate::{Result, soak};

/// How long a worker that found nothing sleeps before it looks again.
const POLL: Duration = Duration::from_millis(10);

/// Other plans look good to a planner that has seen the table while it was small.
const BEST_PLAN: &str =
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";

/// A server with the table.
pub struct Articles(Server);

impl Articles {
    /// Makes the table.
    pub fn new() -> Result<Self> {
        let server = Server::plain();
        server.execute(ARTICLES_TABLE)?;
        Ok(Self(server))
    }
}

impl Contender for Articles {
    fn server(&self) -> &Server {
        &self.0
    }

    fn tables(&self) -> Tables {
        Tables { schema: "public", logs: "c.relname = 'jobs'" }
    }

    fn producer(&self) -> Result<Box<dyn Producer>> {
        let mut client = soak::connect(&self.0)?;
        let sql = "INSERT INTO jobs (payload, priority, run_at)
                   VALUES ($1, $2, now() + coalesce($3::float8, 0) * interval '1 second') RETURNING id";
        Ok(Box::new(Sender { enqueue: client.prepare(sql)?, client }))
    }

    fn worker(&self, lot: Lot) -> Result<Box<dyn Worker>> {
        let mut client = soak::connect(&self.0)?;
        client.batch_execute(BEST_PLAN)?;
        // Nobody's but the held jobs have such a priority.
        let condition = if lot == Lot::Usual { "priority < 1000" } else { "priority = 1000" };
        let end = |values: &str| {
            format!("UPDATE jobs SET {values}, updated_at = now() WHERE id = ANY ($1) AND status = 'running'")
        };
        let again = format!("run_at = now() + interval '{} ms'", RETRY.as_millis());
        Ok(Box::new(Taker {
            lot,
            claim: client.prepare(&articles_claim(&BATCH.to_string(), condition, "id, attempt, payload"))?,
            complete: client.prepare(&end("status = 'done'"))?,
            retry: client.prepare(&end(&format!("status = 'queued', error = 'not yet', {again}")))?,
            kill: client.prepare(&end("status = 'dead', error = 'never'"))?,
            client,
        }))
    }
}

struct Sender {
    client: Client,
    enqueue: Statement,
}

impl Producer for Sender {
    fn send(&mut self, job: &Job) -> Result<()> {
        let delay = job.delay.map(|delay| delay.as_secs_f64());
        self.client.query_one(&self.enqueue, &[&job.payload(), &job.priority, &delay])?;
        Ok(())
    }
}

struct Taker {
    client: Client,
    lot: Lot,
    claim: Statement,
    complete: Statement,
    retry: Statement,
    kill: Statement,
}

impl Worker for Taker {
    /// The time is that of the claim alone.
    fn claim(&mut self, done: &[i64]) -> Result<Claimed> {
        if !done.is_empty() {
            self.complete(done)?;
        }
        let start = Instant::now();
        let rows = self.client.query(&self.claim, &[])?;
        let took = Some(start.elapsed());
        if rows.is_empty() && self.lot == Lot::Usual {
            thread::sleep(POLL);
        }
        let run = |row: &postgres::Row| Run::new(row.try_get(0)?, row.try_get(1)?, &row.try_get(2)?);
        Ok(Claimed { runs: rows.iter().map(run).collect::<Result<_>>()?, took })
    }

    fn complete(&mut self, done: &[i64]) -> Result<()> {
        self.client.execute(&self.complete, &[&done])?;
        Ok(())
    }

    fn fail(&mut self, failed: &[i64], is_fatal: bool) -> Result<()> {
        self.client.execute(if is_fatal { &self.kill } else { &self.retry }, &[&failed])?;
        Ok(())
    }
}
