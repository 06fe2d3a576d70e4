//! The table with a status column and SKIP LOCKED, as articles on "Postgres as a queue" recommend it.

use postgres::types::ToSql;

use crate::Result;
use crate::client::{Client, Statement};
use crate::contender::{Contender, Payload, Work, Worker};
use crate::server::Server;

/// The table.
pub const TABLE: &str = "
    CREATE TABLE jobs (
        id bigserial PRIMARY KEY,
        status text NOT NULL DEFAULT 'queued',
        priority integer NOT NULL DEFAULT 0,
        attempt integer NOT NULL DEFAULT 0,
        max_attempts integer NOT NULL DEFAULT 20,
        payload jsonb NOT NULL,
        run_at timestamptz NOT NULL DEFAULT now(),
        locked_at timestamptz,
        locked_by integer,
        created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(),
        error text
    );
    CREATE INDEX jobs_queued_idx ON jobs (priority, id) WHERE status = 'queued';";

/// The statement that claims jobs that meet the condition; `limit` is a parameter or a number.
pub fn claim(limit: &str, condition: &str, columns: &str) -> String {
    format!(
        "UPDATE jobs SET status = 'running', attempt = attempt + 1, locked_at = now(), locked_by = pg_backend_pid(),
                         updated_at = now()
         WHERE id IN (SELECT id FROM jobs WHERE status = 'queued' AND run_at <= now() AND {condition}
                      ORDER BY priority, id LIMIT {limit} FOR UPDATE SKIP LOCKED)
         RETURNING {columns}"
    )
}

/// All jobs are wanted.
const ANY: &str = "true";
/// What a worker needs.
const COLUMNS: &str = "id, payload";

/// A look that finds everything locked is repeated; so many mean that something is broken.
const MOST_LOOKS: usize = 10_000;

/// The table, with a backlog.
pub struct Articles {
    server: Server,
    is_tuned: bool,
}

impl Articles {
    /// Makes the table and fills it.
    ///
    /// Not tuned, the claim's limit is a parameter, as libraries send it, and the planner is free: for an unknown
    /// limit it would join with the whole table, so it makes a new plan for each claim. Tuned, the limit is a
    /// constant and other plans than by the index are forbidden, so that the plan is made once and is the best.
    pub fn new(server: Server, backlog: usize, is_tuned: bool) -> Result<Self> {
        server.execute(TABLE)?;
        server.connect()?.execute(
            "INSERT INTO jobs (payload) SELECT $1 FROM generate_series(1, $2)",
            &[&Payload::new(), &(backlog as i32)],
        )?;
        server.execute("VACUUM ANALYZE jobs")?;
        Ok(Self { server, is_tuned })
    }
}

impl Contender for Articles {
    fn server(&self) -> &Server {
        &self.server
    }

    fn worker(&self, work: Work) -> Result<Box<dyn Worker>> {
        let mut client = self.server.client(work.is_durable)?;
        let claim_sql = if self.is_tuned {
            client.batch_execute("SET enable_seqscan = off; SET enable_bitmapscan = off")?;
            claim(&work.batch.to_string(), ANY, COLUMNS)
        } else {
            claim("$1", ANY, COLUMNS)
        };
        let limit = if self.is_tuned { Vec::new() } else { vec![work.batch as i64] };
        let claim = client.prepare(&claim_sql)?;
        if work.batch == 1 {
            return Ok(Box::new(Single {
                payload: Payload::new(),
                limit,
                enqueue: client.prepare("INSERT INTO jobs (payload) VALUES ($1) RETURNING id")?,
                claim,
                complete: client.prepare(
                    "UPDATE jobs SET status = 'done', updated_at = now() WHERE id = $1 AND status = 'running'",
                )?,
                client,
            }));
        }
        Ok(Box::new(Batch {
            payloads: Payload::many(work.batch),
            limit,
            enqueue: client.prepare("INSERT INTO jobs (payload) SELECT unnest($1::jsonb[]) RETURNING id")?,
            claim,
            complete: client.prepare(
                "UPDATE jobs SET status = 'done', updated_at = now() WHERE id = ANY ($1) AND status = 'running'",
            )?,
            client,
        }))
    }
}

/// Claims until there is something: there is a backlog, but others may hold locks just now.
fn look(client: &mut Client, claim: &Statement, limit: &[i64]) -> Result<Vec<i64>> {
    let limit: Vec<&dyn ToSql> = limit.iter().map(|limit| limit as _).collect();
    for _ in 0..MOST_LOOKS {
        let ids = client.ids(claim, &limit)?;
        if !ids.is_empty() {
            return Ok(ids);
        }
    }
    Err("a table with jobs gives none".into())
}

struct Single {
    client: Client,
    payload: Payload,
    /// The claim's parameter, if it has one.
    limit: Vec<i64>,
    enqueue: Statement,
    claim: Statement,
    complete: Statement,
}

impl Worker for Single {
    fn live(&mut self) -> Result<u64> {
        self.client.execute(&self.enqueue, &[&self.payload])?;
        for id in look(&mut self.client, &self.claim, &self.limit)? {
            self.client.execute(&self.complete, &[&id])?;
        }
        Ok(1)
    }
}

struct Batch {
    client: Client,
    payloads: Vec<Payload>,
    /// See `Single`.
    limit: Vec<i64>,
    enqueue: Statement,
    claim: Statement,
    complete: Statement,
}

impl Worker for Batch {
    fn live(&mut self) -> Result<u64> {
        self.client.execute(&self.enqueue, &[&self.payloads])?;
        let ids = look(&mut self.client, &self.claim, &self.limit)?;
        self.client.execute(&self.complete, &[&ids])?;
        Ok(ids.len() as u64)
    }
}
