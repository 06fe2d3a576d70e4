//! What takes part: a queue with its server, and the statements by which a client of it sends, claims and ends jobs.
//! The statements are data, so that the clients of all contenders do the same.

use std::error::Error;
use std::mem;
use std::time::{Duration, Instant};

use postgres::types::private::BytesMut;
use postgres::types::{IsNull, Kind, ToSql, Type, to_sql_checked};

use crate::client::{Client, Statement};
use crate::error::Result;
use crate::server::Server;

/// What a client does.
#[derive(Clone, Copy)]
pub struct Work {
    /// Jobs in one transaction.
    pub batch: usize,
    /// True if commits wait for the disk.
    pub is_durable: bool,
}

pub const SINGLE: Work = Work { batch: 1, is_durable: false };
pub const BATCH: Work = Work { batch: 100, is_durable: false };

/// How a client gets its jobs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Takes {
    /// It claims what it has sent: nothing decides which client gets which job.
    Sent,
    /// It claims, and ends the jobs by calls of their own.
    #[default]
    Alone,
    /// Its next claim completes the jobs before.
    Next,
    /// It gets a number of a batch, reads it, and ends all of it: PgQ.
    Batches,
}

/// The statements of a client. A statement uses as many of the values as it has parameters. The first column of what a
/// claim returns is the attempt.
#[derive(Clone, Default)]
pub struct Verbs {
    pub takes: Takes,
    pub queue: String,
    /// Settings of the session.
    pub settings: &'static str,
    /// `$1` payload or payloads, `$2` queue, `$3` priority, `$4` seconds of delay.
    pub send: String,
    /// `$1` how many, `$2` queue. With `Sent`: `$1` attempts. With `Batches`: `$1` queue.
    pub claim: String,
    /// With `Next`: the same, `$3` attempts that it completes. With `Batches`: what is in batch `$1`.
    pub next: String,
    /// `$1` attempt or attempts, `$2` queue. These may return how many of them could not be ended.
    pub complete: String,
    pub retry: String,
    pub kill: String,
}

/// A queue with its server.
pub struct Contender {
    pub server: Server,
    pub verbs: Box<dyn Fn(Work) -> Verbs>,
}

impl Contender {
    /// Connects a client.
    pub fn session(&self, work: Work) -> Result<Session> {
        Session::new(&self.server, (self.verbs)(work), work.is_durable)
    }

    /// Connects a client that leads jobs through their lives: enqueue, claim, complete, each in a transaction of its
    /// own.
    pub fn life(&self, work: Work) -> Result<impl FnMut() -> Result<u64> + Send + use<>> {
        let mut session = self.session(work)?;
        let payloads = vec![Payload::new(); work.batch];
        Ok(move || session.live(&payloads))
    }
}

/// Jobs that are always there are found at the first look. Everything may be locked just then; so many empty answers
/// mean that something is broken.
const MOST_LOOKS: usize = 10_000;

/// A client with its connection and its prepared statements.
pub struct Session {
    client: Client,
    takes: Takes,
    pub queue: String,
    send: Statement,
    claim: Statement,
    next: Statement,
    complete: Statement,
    retry: Statement,
    kill: Statement,
    /// The open batch of `Batches`.
    batch: Option<i64>,
    /// What the next claim will complete.
    done: Vec<i64>,
}

impl Session {
    pub fn new(server: &Server, verbs: Verbs, is_durable: bool) -> Result<Self> {
        let mut client = server.client(is_durable)?;
        client.batch_execute(verbs.settings)?;
        // A verb that the contender has not is an empty statement.
        let mut prepare = |sql: &str| client.prepare(sql);
        Ok(Self {
            takes: verbs.takes,
            queue: verbs.queue,
            send: prepare(&verbs.send)?,
            claim: prepare(&verbs.claim)?,
            next: prepare(&verbs.next)?,
            complete: prepare(&verbs.complete)?,
            retry: prepare(&verbs.retry)?,
            kill: prepare(&verbs.kill)?,
            batch: None,
            done: Vec::new(),
            client,
        })
    }

    /// The server's process.
    pub fn pid(&mut self) -> Result<i32> {
        let pid = self.client.prepare("SELECT pg_backend_pid()::bigint")?;
        Ok(self.client.ids(&pid, &[])?[0] as i32)
    }

    /// Sends a job.
    pub fn send(&mut self, payload: &dyn ToSql, priority: i32, delay: Option<f64>) -> Result<()> {
        self.client.execute(&self.send, &[payload, &self.queue, &priority, &delay])
    }

    /// Ends these and claims the next jobs, in as few calls as the contender needs. Returns the first columns, and how
    /// long the claim took if it cannot have slept.
    pub fn claim<const N: usize>(&mut self, limit: i32, done: &[i64]) -> Result<(Vec<[i64; N]>, Option<Duration>)> {
        let is_next = self.takes == Takes::Next && !done.is_empty();
        if !is_next && (!done.is_empty() || self.batch.is_some()) {
            self.complete(done)?;
        }
        let start = Instant::now();
        let rows = match self.takes {
            Takes::Batches => {
                // No batch is a 0.
                self.batch = self.client.ids(&self.claim, &[&self.queue])?.pop().filter(|&batch| batch != 0);
                let Some(batch) = self.batch else { return Ok((Vec::new(), None)) };
                self.client.bigints(&self.next, &[&batch])?
            }
            _ if is_next => self.client.bigints(&self.next, &[&limit, &self.queue, &done])?,
            _ => self.client.bigints(&self.claim, &[&limit, &self.queue])?,
        };
        Ok((rows, (is_next || self.takes != Takes::Next).then(|| start.elapsed())))
    }

    /// True if a claim that finds nothing returns immediately.
    pub fn polls(&self) -> bool {
        self.takes != Takes::Next
    }

    /// Ends these: what an attempt did that could not be ended counts for nothing.
    pub fn complete(&mut self, ids: &[i64]) -> Result<()> {
        let refused = match self.batch.take() {
            Some(batch) => self.client.ids(&self.complete, &[&batch])?,
            None if self.takes == Takes::Batches => return Ok(()),
            None => self.client.ids(&self.complete, &[&Values(ids), &self.queue])?,
        };
        ended(&refused)
    }

    /// These have failed: they are tried again, or never.
    pub fn fail(&mut self, ids: &[i64], is_fatal: bool) -> Result<()> {
        let statement = if is_fatal { &self.kill } else { &self.retry };
        ended(&self.client.ids(statement, &[&Values(ids)])?)
    }

    /// Leads jobs through their lives. Returns how many.
    pub fn live(&mut self, payloads: &[Payload]) -> Result<u64> {
        let count = payloads.len();
        if self.takes == Takes::Sent {
            let ids = self.client.ids(&self.send, &[&Values(payloads)])?;
            self.client.execute(&self.claim, &[&Values(&ids)])?;
            self.client.execute(&self.complete, &[&Values(&ids)])?;
            return Ok(count as u64);
        }
        self.client.execute(&self.send, &[&Values(payloads), &self.queue])?;
        self.take(count)
    }

    /// Claims so many jobs, and ends them. Returns how many.
    pub fn take(&mut self, count: usize) -> Result<u64> {
        let mut left = count;
        for _ in 0..MOST_LOOKS {
            let done = mem::take(&mut self.done);
            let ids: Vec<i64> = self.claim(left as i32, &done)?.0.into_iter().map(|[id]| id).collect();
            left = left.saturating_sub(ids.len());
            if self.takes == Takes::Next {
                self.done = ids;
            } else if !ids.is_empty() {
                self.client.execute(&self.complete, &[&Values(&ids)])?;
            }
            if left == 0 {
                return Ok(count as u64);
            }
        }
        Err("a queue with jobs gives none".into())
    }

    /// Claims and ends all that there is, 100 at a time where it is asked for a number. Returns how many there were.
    pub fn read_all(&mut self) -> Result<usize> {
        let (mut read, mut ids) = (0, Vec::new());
        loop {
            ids = self.claim(100, &ids)?.0.into_iter().map(|[id]| id).collect();
            if ids.is_empty() && self.batch.is_none() {
                return Ok(read);
            }
            read += ids.len();
        }
    }
}

impl Drop for Session {
    /// Nothing is left running.
    fn drop(&mut self) {
        if !self.done.is_empty() {
            let _ = self.client.execute(&self.complete, &[&Values(&self.done)]);
        }
    }
}

fn ended(refused: &[i64]) -> Result<()> {
    let refused: i64 = refused.iter().sum();
    if refused == 0 { Ok(()) } else { Err(format!("{refused} attempts could not be ended").into()) }
}

/// Values: one or an array of them, as the parameter wants.
#[derive(Debug)]
pub struct Values<'a, T>(pub &'a [T]);

impl<T: ToSql> ToSql for Values<'_, T> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Box<dyn Error + Sync + Send>> {
        match (self.0, kind.kind()) {
            (values, Kind::Array(_)) => values.to_sql(kind, out),
            ([value], _) => value.to_sql(kind, out),
            _ => Err("the statement wants one value".into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A document of 100 bytes, as the server stores it.
#[derive(Clone, Debug)]
pub struct Payload(String);

impl Payload {
    /// The payload of every job.
    pub fn new() -> Self {
        Self(format!(r#"{{"to": 7, "text": "{}"}}"#, "x".repeat(63)))
    }

    /// Another document.
    pub fn of(document: String) -> Self {
        Self(document)
    }

    /// As SQL.
    pub fn sql(&self) -> String {
        format!("'{}'::jsonb", self.0)
    }
}

impl ToSql for Payload {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Box<dyn Error + Sync + Send>> {
        /// The version of jsonb's binary format.
        const VERSION: u8 = 1;
        if *kind == Type::JSONB {
            out.extend_from_slice(&[VERSION]);
        }
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        [Type::JSONB, Type::TEXT].contains(kind)
    }

    to_sql_checked!();
}
