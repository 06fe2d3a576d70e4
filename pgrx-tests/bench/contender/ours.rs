//! pg_queue, as a program uses it.

use crate::Result;
use crate::client::{Client, Statement};
use crate::contender::{Contender, Payload, Work, Worker};
use crate::server::Server;

/// Jobs that are always there are found at the first look; so many empty answers mean that something is broken.
const MOST_LOOKS: usize = 10_000;

/// The queue.
pub const QUEUE: &str = "bench";

/// A server with a queue.
pub struct Ours {
    server: Server,
    enqueue: String,
    enqueue_many: String,
}

impl Ours {
    /// Makes the queue; `options` is SQL, such as `retention => '0'`.
    pub fn new(server: Server, options: &str) -> Result<Self> {
        server.execute(&format!("SELECT queue.create('{QUEUE}', {options})"))?;
        // The floor tells how many, not which; so does this.
        let enqueue_many = "SELECT count(*) FROM queue.enqueue_many($1, $2)".into();
        Ok(Self { server, enqueue: "SELECT queue.enqueue($1, $2)".into(), enqueue_many })
    }

    /// Each job carries a text in this option of `queue.enqueue`: its group, its key. It is the job's own, or one of `texts`
    /// in turn.
    pub fn marking(self, option: &str, texts: Option<u32>) -> Result<Self> {
        /// Sessions take so many numbers at once, so that they are not in each other's way.
        const NUMBERS: &str = "CREATE SEQUENCE IF NOT EXISTS numbers CACHE 1000";
        self.server.execute(NUMBERS)?;
        let number = texts.map_or("nextval('numbers')".to_owned(), |texts| format!("nextval('numbers') % {texts}"));
        let mark = format!("('n' || {number})");
        let value = if option == "headers" { format!("to_jsonb({mark})") } else { mark.clone() };
        Ok(Self {
            enqueue: format!("SELECT queue.enqueue($1, $2, {option} => {value})"),
            enqueue_many: format!(
                "SELECT count(*) FROM queue.enqueue_batch($1, (
                     SELECT jsonb_agg(jsonb_build_object('payload', p, '{option}', {mark})) FROM unnest($2::jsonb[]) AS p))"
            ),
            ..self
        })
    }

    /// Puts so many jobs into the queue.
    pub fn fill(self, jobs: usize) -> Result<Self> {
        /// Jobs in one transaction.
        const AT_ONCE: usize = 10_000;
        let mut client = self.server.connect()?;
        let sql = "SELECT count(*) FROM queue.enqueue_many($1, array_fill($2::jsonb, ARRAY[$3::int]))";
        let fill = client.prepare(sql)?;
        for first in (0..jobs).step_by(AT_ONCE) {
            let count = (jobs - first).min(AT_ONCE) as i32;
            client.query(&fill, &[&QUEUE, &Payload::new(), &count])?;
        }
        Ok(self)
    }
}

impl Contender for Ours {
    fn server(&self) -> &Server {
        &self.server
    }

    fn worker(&self, work: Work) -> Result<Box<dyn Worker>> {
        let mut client = self.server.client(work.is_durable)?;
        let claim = client.prepare("SELECT id, payload FROM queue.claim($1, $2)")?;
        if work.batch == 1 {
            return Ok(Box::new(Single {
                payload: Payload::new(),
                enqueue: client.prepare(&self.enqueue)?,
                claim,
                complete: client.prepare("SELECT queue.complete($1)")?,
                client,
            }));
        }
        Ok(Box::new(Batch {
            payloads: Payload::many(work.batch),
            enqueue: client.prepare(&self.enqueue_many)?,
            claim,
            complete: client.prepare("SELECT count(*) FROM queue.complete_many($1)")?,
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
        self.client.execute(&self.enqueue, &[&QUEUE, &self.payload])?;
        for _ in 0..MOST_LOOKS {
            if let Some(id) = self.client.ids(&self.claim, &[&QUEUE, &1])?.pop() {
                self.client.execute(&self.complete, &[&id])?;
                return Ok(1);
            }
        }
        Err("a queue with jobs gives none".into())
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
        self.client.execute(&self.enqueue, &[&QUEUE, &self.payloads])?;
        let mut left = self.payloads.len();
        for _ in 0..MOST_LOOKS {
            let ids = self.client.ids(&self.claim, &[&QUEUE, &(left as i32)])?;
            if !ids.is_empty() {
                self.client.execute(&self.complete, &[&ids])?;
                left -= ids.len();
            }
            if left == 0 {
                return Ok(self.payloads.len() as u64);
            }
        }
        Err("a queue with jobs gives none".into())
    }
}

/// pg_queue in a worker's loop: the call that claims the next job completes the one before.
pub struct Loop(pub Ours);

impl Contender for Loop {
    fn server(&self) -> &Server {
        self.0.server()
    }

    fn worker(&self, work: Work) -> Result<Box<dyn Worker>> {
        let mut client = self.0.server.client(work.is_durable)?;
        Ok(Box::new(LoopWorker {
            payload: Payload::new(),
            enqueue: client.prepare("SELECT queue.enqueue($1, $2)")?,
            claim: client.prepare("SELECT id, payload FROM queue.claim($1, completed => $2)")?,
            complete: client.prepare("SELECT queue.complete_many($1)")?,
            done: Vec::new(),
            client,
        }))
    }
}

struct LoopWorker {
    client: Client,
    payload: Payload,
    enqueue: Statement,
    claim: Statement,
    complete: Statement,
    done: Vec<i64>,
}

impl Worker for LoopWorker {
    fn live(&mut self) -> Result<u64> {
        self.client.execute(&self.enqueue, &[&QUEUE, &self.payload])?;
        for _ in 0..MOST_LOOKS {
            self.done = self.client.ids(&self.claim, &[&QUEUE, &self.done])?;
            if !self.done.is_empty() {
                return Ok(1);
            }
        }
        Err("a queue with jobs gives none".into())
    }
}

impl Drop for LoopWorker {
    /// The last job, so that nothing is left running.
    fn drop(&mut self) {
        let _ = self.client.execute(&self.complete, &[&self.done]);
    }
}
