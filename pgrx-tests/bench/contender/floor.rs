//! The floor: the three inserts that pg_queue makes for a job, as prepared statements on plain tables of the same
//! shape, without the extension. Nothing decides here which client gets which job: a client claims what it has enqueued.

use crate::Result;
use crate::client::{Client, Statement};
use crate::contender::{Contender, Payload, Work, Worker};
use crate::server::Server;

/// Columns, keys and storage options as those of the extension; a sequence that costs next to nothing.
pub const TABLES: &str = "
    CREATE SEQUENCE attempt_id CACHE 100;
    CREATE TABLE attempt (
        id bigint PRIMARY KEY,
        job_id bigint NOT NULL,
        enqueued_at timestamptz NOT NULL,
        lane integer NOT NULL,
        priority integer NOT NULL,
        attempt integer NOT NULL,
        max_attempts integer,
        run_at timestamptz,
        payload jsonb
    ) WITH (autovacuum_enabled = off);
    CREATE INDEX ON attempt (lane, priority, id);
    CREATE TABLE claim (
        id bigint PRIMARY KEY,
        claimed_at timestamptz NOT NULL,
        lease_us bigint NOT NULL,
        pid integer NOT NULL,
        kind \"char\" NOT NULL
    ) WITH (autovacuum_enabled = off);
    CREATE TABLE outcome (
        id bigint PRIMARY KEY,
        ended_at timestamptz NOT NULL,
        outcome \"char\" NOT NULL
    ) WITH (autovacuum_enabled = off);";

/// The plain tables.
pub struct Floor(Server);

impl Floor {
    /// Makes the tables.
    pub fn new(server: Server) -> Result<Self> {
        server.execute(TABLES)?;
        Ok(Self(server))
    }
}

impl Contender for Floor {
    fn server(&self) -> &Server {
        &self.0
    }

    fn worker(&self, work: Work) -> Result<Box<dyn Worker>> {
        let mut client = self.0.client(work.is_durable)?;
        if work.batch == 1 {
            return Ok(Box::new(Single {
                payload: Payload::new(),
                enqueue: client.prepare(
                    "INSERT INTO attempt (id, job_id, enqueued_at, lane, priority, attempt, payload)
                     VALUES (nextval('attempt_id'), currval('attempt_id'), now(), 1, 0, 1, $1) RETURNING id",
                )?,
                claim: client.prepare("INSERT INTO claim VALUES ($1, now(), 300000000, pg_backend_pid(), 'w')")?,
                complete: client.prepare("INSERT INTO outcome VALUES ($1, now(), 'c')")?,
                client,
            }));
        }
        Ok(Box::new(Batch {
            payloads: Payload::many(work.batch),
            enqueue: client.prepare(
                "INSERT INTO attempt (id, job_id, enqueued_at, lane, priority, attempt, payload)
                 SELECT id, id, now(), 1, 0, 1, payload
                 FROM (SELECT nextval('attempt_id') AS id, payload FROM unnest($1::jsonb[]) payload) j RETURNING id",
            )?,
            claim: client.prepare(
                "INSERT INTO claim SELECT id, now(), 300000000, pg_backend_pid(), 'w' FROM unnest($1::bigint[]) id",
            )?,
            complete: client.prepare("INSERT INTO outcome SELECT id, now(), 'c' FROM unnest($1::bigint[]) id")?,
            client,
        }))
    }
}

struct Single {
    client: Client,
    payload: Payload,
    enqueue: Statement,
    claim: Statement,
    complete: Statement,
}

impl Worker for Single {
    fn live(&mut self) -> Result<u64> {
        for id in self.client.ids(&self.enqueue, &[&self.payload])? {
            self.client.execute(&self.claim, &[&id])?;
            self.client.execute(&self.complete, &[&id])?;
        }
        Ok(1)
    }
}

struct Batch {
    client: Client,
    payloads: Vec<Payload>,
    enqueue: Statement,
    claim: Statement,
    complete: Statement,
}

impl Worker for Batch {
    fn live(&mut self) -> Result<u64> {
        let ids = self.client.ids(&self.enqueue, &[&self.payloads])?;
        self.client.execute(&self.claim, &[&ids])?;
        self.client.execute(&self.complete, &[&ids])?;
        Ok(ids.len() as u64)
    }
}
