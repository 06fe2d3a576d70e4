//! A contender: a queue with its server, and the statements by which its clients send, claim and end jobs. The
//! statements are in SQL files, so that the clients of all contenders do the same.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::{self, Display, Formatter};
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
    /// How many times as long as usual each contender has its turn.
    pub length: u32,
}

impl Display for Work {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let jobs = if self.batch == 1 { "one job".to_owned() } else { format!("{} jobs", self.batch) };
        write!(f, "{jobs} per transaction{}", if self.is_durable { ", synchronous_commit = on" } else { "" })
    }
}

pub const SINGLE: Work = Work { batch: 1, is_durable: false, length: 1 };
pub const BATCH: Work = Work { batch: 100, is_durable: false, length: 1 };

/// How a client gets its jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// A client claims the jobs that it has sent. So no contender decides which client gets which job.
    Sent,
    /// A client claims, and ends the jobs by separate calls.
    Alone,
    /// A client's next claim completes the jobs of the last one.
    Next,
    /// A client gets the number of a batch, reads the batch, and ends it as a whole: PgQ.
    Batches,
}

/// The statements of a client, by name. A statement uses as many of the values as it has parameters. The first column
/// of what a claim returns is the attempt.
///
/// * `set-up` makes the queue, `settings` are the session's settings.
/// * `send`: `$1` payload or payloads, `$2` queue, `$3` priority, `$4` seconds of delay.
/// * `claim`: `$1` number of jobs, `$2` queue. With `Sent`: `$1` attempts. With `Batches`: `$1` queue.
/// * `next`: with `Next` as `claim`, and `$3` attempts that it completes; with `Batches` the contents of batch `$1`.
/// * `complete`, `retry`, `kill`: `$1` attempt or attempts, `$2` queue. They may return how many could not be ended.
///
/// A client with several jobs in a transaction uses `send-many` and so on, where they exist. `{batch}` is the number of
/// these jobs.
#[derive(Clone)]
pub struct Verbs {
    pub takes: Takes,
    pub queue: String,
    statements: HashMap<String, String>,
}

/// The statements of an SQL file. Each statement stands below a line `-- name: NAME`.
pub fn blocks(file: &str) -> impl Iterator<Item = (&str, &str)> {
    let blocks = file.split("-- name: ").skip(1).filter_map(|block| block.split_once('\n'));
    blocks.map(|(name, sql)| (name.trim(), sql.trim()))
}

impl Verbs {
    /// Reads such files. A statement of a later file replaces one of the same name.
    pub fn of(takes: Takes, queue: &str, files: &[&str]) -> Self {
        let statements = files.iter().flat_map(|file| blocks(file));
        let statements = statements.map(|(name, sql)| (name.to_owned(), sql.to_owned())).collect();
        Self { takes, queue: queue.into(), statements }
    }

    /// Replaces `{name}` by a value.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        let name = format!("{{{name}}}");
        self.statements.values_mut().for_each(|sql| *sql = sql.replace(&name, value));
        self
    }

    /// Returns a statement. Empty if the contender does not have it.
    pub fn sql(&self, name: &str) -> &str {
        self.statements.get(name).map_or("", String::as_str)
    }
}

/// A queue with its server.
pub struct Contender {
    pub server: Server,
    pub verbs: Verbs,
}

impl Contender {
    /// Makes the queue.
    pub fn new(server: Server, verbs: Verbs) -> Result<Self> {
        server.execute(verbs.sql("set-up"))?;
        Ok(Self { server, verbs })
    }

    /// Connects a client.
    pub fn session(&self, work: Work) -> Result<Session> {
        Session::new(&self.server, &self.verbs, work)
    }
}

/// A claim must find jobs that always wait. All of them may be locked at that moment, but this many empty answers mean
/// that something is broken.
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
    /// The claimed attempts that have not ended.
    in_hand: Vec<i64>,
}

impl Session {
    pub fn new(server: &Server, verbs: &Verbs, work: Work) -> Result<Self> {
        let mut client = server.client(work.is_durable)?;
        client.batch_execute(verbs.sql("settings"))?;
        let mut prepare = |verb: &str| {
            let many = if work.batch > 1 { verbs.sql(&format!("{verb}-many")) } else { "" };
            let sql = if many.is_empty() { verbs.sql(verb) } else { many };
            client.prepare(&sql.replace("{batch}", &work.batch.to_string()))
        };
        Ok(Self {
            takes: verbs.takes,
            queue: verbs.queue.clone(),
            send: prepare("send")?,
            claim: prepare("claim")?,
            next: prepare("next")?,
            complete: prepare("complete")?,
            retry: prepare("retry")?,
            kill: prepare("kill")?,
            batch: None,
            in_hand: Vec::new(),
            client,
        })
    }

    /// Sends a job.
    pub fn send(&mut self, payload: &dyn ToSql, priority: i32, delay: Option<f64>) -> Result<()> {
        self.client.execute(&self.send, &[payload, &self.queue, &priority, &delay])
    }

    /// Completes the jobs in hand and claims the next ones, in as few calls as the contender needs. Returns the first
    /// columns, and the duration of the claim if it cannot have slept.
    pub fn claim<const N: usize>(&mut self, limit: i32) -> Result<(Vec<[i64; N]>, Option<Duration>)> {
        let is_next = self.takes == Takes::Next && !self.in_hand.is_empty();
        if !is_next {
            self.complete()?;
        }
        let start = Instant::now();
        let rows = match self.takes {
            Takes::Batches => {
                // No batch has the number 0.
                self.batch = self.client.ids(&self.claim, &[&self.queue])?.pop().filter(|&batch| batch != 0);
                let Some(batch) = self.batch else { return Ok((Vec::new(), None)) };
                self.client.bigints(&self.next, &[&batch])?
            }
            _ if is_next => self.client.bigints(&self.next, &[&limit, &self.queue, &self.in_hand])?,
            _ => self.client.bigints(&self.claim, &[&limit, &self.queue])?,
        };
        self.in_hand = rows.iter().map(|row| row[0]).collect();
        Ok((rows, (is_next || self.takes != Takes::Next).then(|| start.elapsed())))
    }

    /// True if a claim that finds nothing returns immediately.
    pub fn polls(&self) -> bool {
        self.takes != Takes::Next
    }

    /// Completes the jobs in hand. Fails if an attempt could not be ended.
    pub fn complete(&mut self) -> Result<()> {
        let ids = mem::take(&mut self.in_hand);
        ended(&match self.batch.take() {
            Some(batch) => self.client.ids(&self.complete, &[&batch])?,
            None if ids.is_empty() => return Ok(()),
            None => self.client.ids(&self.complete, &[&Values(&ids), &self.queue])?,
        })
    }

    /// Fails these jobs in hand. They are tried again, or never if `is_fatal`.
    pub fn fail(&mut self, ids: &[i64], is_fatal: bool) -> Result<()> {
        self.in_hand.retain(|id| !ids.contains(id));
        let statement = if is_fatal { &self.kill } else { &self.retry };
        ended(&self.client.ids(statement, &[&Values(ids)])?)
    }

    /// Enqueues, claims and completes jobs, each step in a transaction of its own. Returns the number of jobs.
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

    /// Claims this many jobs and ends them. Returns their number.
    pub fn take(&mut self, count: usize) -> Result<u64> {
        let mut left = count;
        for _ in 0..MOST_LOOKS {
            left = left.saturating_sub(self.claim::<1>(left as i32)?.0.len());
            if self.takes != Takes::Next && !self.in_hand.is_empty() {
                self.client.execute(&self.complete, &[&Values(&mem::take(&mut self.in_hand))])?;
            }
            if left == 0 {
                return Ok(count as u64);
            }
        }
        Err("a queue with jobs gives none".into())
    }
}

impl Drop for Session {
    /// No attempt stays running.
    fn drop(&mut self) {
        let _ = self.complete();
    }
}

fn ended(refused: &[i64]) -> Result<()> {
    let refused: i64 = refused.iter().sum();
    if refused == 0 { Ok(()) } else { Err(format!("{refused} attempts could not be ended").into()) }
}

/// A value or an array of values, as the parameter requires.
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
