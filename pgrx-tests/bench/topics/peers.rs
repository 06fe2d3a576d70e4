//! The ways in which one event gets to eight consumers: how it is sent, and how they all get and end it.

use crate::Result;
use crate::client::{Client, Statement};
use crate::server::Server;
use crate::topics::{KEY, QUEUES};

/// What is sent, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Publish,
    /// One call, with the same rows for one queue.
    Batch,
    /// A call for each queue, in one transaction.
    Loop,
    Pgmq,
    Pgq,
}

/// One of them, with a server of its own.
pub struct Peer {
    pub name: &'static str,
    pub server: Server,
    way: Way,
}

/// The headers that an event's jobs have.
const HEADERS: &str = r#"{"event": {"topic": "orders", "key": "order.placed", "id": 123456789012, "published_at": "2026-01-01T00:00:00.000000+00:00"}}"#;

/// All that are installed, `publish` first.
pub fn all() -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    for (name, way) in [
        ("publish", Way::Publish),
        ("enqueue_batch, the same rows", Way::Batch),
        ("a loop of enqueue", Way::Loop),
        ("pgmq, send_topic", Way::Pgmq),
        ("PgQ, insert_event", Way::Pgq),
    ] {
        let extension = match way {
            Way::Pgmq => Some("pgmq"),
            Way::Pgq => Some("pgq"),
            _ => None,
        };
        let server = if extension.is_some() { Server::plain() } else { Server::with_extension()? };
        if let Some(extension) = extension {
            let found = format!("SELECT FROM pg_available_extensions WHERE name = '{extension}'");
            if server.connect()?.query_opt(&found, &[])?.is_none() {
                println!("  {name} is left out: it is not installed");
                continue;
            }
        }
        let peer = Peer { name, server, way };
        peer.prepare()?;
        peers.push(peer);
    }
    Ok(peers)
}

/// A session that sends events.
pub struct Sender {
    pub pid: i32,
    client: Client,
    statement: Statement,
    payload: Box<dyn postgres::types::ToSql>,
}

impl Sender {
    pub fn send(&mut self) -> Result<()> {
        self.client.execute(&self.statement, &[&*self.payload])
    }
}

/// A session that is all consumers, one after the other.
pub struct Reader {
    client: Client,
    way: Way,
}

impl Peer {
    fn prepare(&self) -> Result<()> {
        let each = |sql: &str| -> Result<()> {
            (1..=QUEUES).try_for_each(|n| self.server.execute(&sql.replace("{}", &format!("q{n}"))))
        };
        match self.way {
            Way::Publish => {
                self.server.execute("SELECT queue.create_topic('orders')")?;
                each("SELECT queue.create('{}'), queue.bind('orders', '{}', 'order.*')")
            }
            Way::Batch | Way::Loop => each("SELECT queue.create('{}')"),
            Way::Pgmq => {
                self.server.execute("CREATE EXTENSION pgmq")?;
                each("SELECT pgmq.create('{}'); SELECT pgmq.bind_topic('order.*', '{}')")
            }
            Way::Pgq => {
                self.server.execute(
                    "CREATE EXTENSION pgq; SELECT pgq.create_queue('orders');
                     SELECT pgq.set_queue_config('orders', 'ticker_max_lag', '0'),
                            pgq.set_queue_config('orders', 'ticker_max_count', '1')",
                )?;
                each("SELECT pgq.register_consumer('orders', '{}')")
            }
        }
    }

    /// Whether it makes a job for each queue by itself.
    pub fn is_loop(&self) -> bool {
        self.way == Way::Loop
    }

    /// Takes away what other measurements have left.
    pub fn empty(&self) -> Result<()> {
        let purge = |call: &str| -> Result<()> {
            (1..=QUEUES).try_for_each(|n| self.server.execute(&format!("SELECT {call}('q{n}')")))
        };
        match self.way {
            Way::Pgmq => purge("pgmq.purge_queue"),
            Way::Pgq => self.reader()?.read_all().map(|_| ()),
            _ => purge("queue.purge"),
        }
    }

    /// A session that sends events with this payload.
    pub fn sender(&self, payload: &str) -> Result<Sender> {
        let mut client = self.server.client(false)?;
        let calls: Vec<String> =
            (1..=QUEUES).map(|n| format!("queue.enqueue('q{n}', $1, headers => '{HEADERS}')")).collect();
        let sql = match self.way {
            Way::Publish => format!("SELECT job_id FROM queue.publish('orders', $1, '{KEY}')"),
            Way::Batch => "SELECT queue.enqueue_batch('q1', $1)".to_owned(),
            Way::Loop => format!("SELECT {}", calls.join(", ")),
            Way::Pgmq => format!("SELECT pgmq.send_topic('{KEY}', $1)"),
            Way::Pgq => "SELECT pgq.insert_event('orders', 'order.placed', $1)".to_owned(),
        };
        let json: serde_json::Value = serde_json::from_str(payload)?;
        let payload: Box<dyn postgres::types::ToSql> = match self.way {
            Way::Batch => {
                let headers: serde_json::Value = serde_json::from_str(HEADERS)?;
                let job = serde_json::json!({ "payload": json, "headers": headers });
                Box::new(postgres::types::Json(serde_json::Value::Array(vec![job; QUEUES])))
            }
            Way::Pgq => Box::new(payload.to_owned()),
            _ => Box::new(postgres::types::Json(json)),
        };
        let pid = client.prepare("SELECT pg_backend_pid()::bigint")?;
        let pid = client.ids(&pid, &[])?.first().copied().unwrap_or_default() as i32;
        Ok(Sender { pid, statement: client.prepare(&sql)?, client, payload })
    }

    /// A session that reads.
    pub fn reader(&self) -> Result<Reader> {
        Ok(Reader { client: self.server.client(false)?, way: self.way })
    }
}

impl Reader {
    /// Gets and ends what there is for each consumer, 100 at a time where it is asked for a number. Returns how many there were.
    pub fn read_all(&mut self) -> Result<usize> {
        (1..=QUEUES).try_fold(0, |sum, n| Ok(sum + self.read(&format!("q{n}"))?))
    }

    fn read(&mut self, consumer: &str) -> Result<usize> {
        let client = &mut self.client;
        let mut read = 0;
        match self.way {
            Way::Pgq => {
                let (tick, next) = (
                    client.prepare("SELECT pgq.ticker('orders')")?,
                    client.prepare(&format!("SELECT coalesce(pgq.next_batch('orders', '{consumer}'), 0)"))?,
                );
                let events = client.prepare("SELECT ev_id, ev_data FROM pgq.get_batch_events($1)")?;
                let finish = client.prepare("SELECT pgq.finish_batch($1)")?;
                client.execute(&tick, &[])?;
                while let Some(batch) = client.ids(&next, &[])?.first().copied().filter(|&batch| batch != 0) {
                    read += client.ids(&events, &[&batch])?.len();
                    client.execute(&finish, &[&batch])?;
                }
            }
            Way::Pgmq => {
                let claim = client.prepare(&format!("SELECT msg_id, message FROM pgmq.read('{consumer}', 60, 100)"))?;
                let delete = client.prepare(&format!("SELECT pgmq.delete('{consumer}', $1::bigint[])"))?;
                loop {
                    let ids = client.ids(&claim, &[])?;
                    if ids.is_empty() {
                        break;
                    }
                    client.execute(&delete, &[&ids])?;
                    read += ids.len();
                }
            }
            Way::Publish | Way::Batch | Way::Loop => {
                let sql = format!("SELECT id, payload FROM queue.claim('{consumer}', 100, completed => $1)");
                let claim = client.prepare(&sql)?;
                let mut ids: Vec<i64> = Vec::new();
                loop {
                    ids = client.ids(&claim, &[&ids])?;
                    if ids.is_empty() {
                        break;
                    }
                    read += ids.len();
                }
            }
        }
        Ok(read)
    }
}
