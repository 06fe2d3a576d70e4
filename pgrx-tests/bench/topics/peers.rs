//! The ways in which one event gets to eight consumers: how it is sent, and how they all get and end it.

use postgres::types::{Json, ToSql};

use crate::contender::{Session, Takes, Verbs};
use crate::error::Result;
use crate::queues::worker;
use crate::server::Server;

/// Queues that an event goes to.
pub const QUEUES: usize = 8;

/// The key of all events that are timed.
pub const KEY: &str = "order.placed";

/// A way, with a server of its own.
pub struct Peer {
    pub name: &'static str,
    pub server: Server,
    way: Way,
}

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

/// The headers that an event's jobs have.
const HEADERS: &str = r#"{"event": {"topic": "orders", "key": "order.placed", "id": 123456789012,
    "published_at": "2026-01-01T00:00:00.000000+00:00"}}"#;

/// Name, way, extension, what is done once and what for each queue `{}`.
const WAYS: [(&str, Way, &str, &str, &str); 5] = [
    (
        "publish",
        Way::Publish,
        "pg_queue",
        "SELECT queue.create_topic('orders')",
        "SELECT queue.create('{}'), queue.bind('orders', '{}', 'order.*')",
    ),
    ("enqueue_batch, the same rows", Way::Batch, "pg_queue", "SELECT", "SELECT queue.create('{}')"),
    ("a loop of enqueue", Way::Loop, "pg_queue", "SELECT", "SELECT queue.create('{}')"),
    (
        "pgmq, send_topic",
        Way::Pgmq,
        "pgmq",
        "SELECT",
        "SELECT pgmq.create('{}'); SELECT pgmq.bind_topic('order.*', '{}')",
    ),
    (
        "PgQ, insert_event",
        Way::Pgq,
        "pgq",
        "SELECT pgq.create_queue('orders');
         SELECT pgq.set_queue_config('orders', 'ticker_max_lag', '0'),
                pgq.set_queue_config('orders', 'ticker_max_count', '1')",
        "SELECT pgq.register_consumer('orders', '{}')",
    ),
];

/// All that are installed, `publish` first.
pub fn all() -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    for (name, way, extension, once, each) in WAYS {
        let server =
            if extension == "pg_queue" { Some(Server::with_extension("")?) } else { Server::with_peer(extension)? };
        let Some(server) = server else {
            println!("  {name} is left out: it is not installed");
            continue;
        };
        let peer = Peer { name, server, way };
        peer.server.execute(once)?;
        peer.for_each_queue(each)?;
        peers.push(peer);
    }
    Ok(peers)
}

/// A session that sends events with a payload.
pub struct Sender {
    pub pid: i32,
    session: Session,
    payload: Box<dyn ToSql>,
}

impl Sender {
    pub fn send(&mut self) -> Result<()> {
        self.session.send(&*self.payload, 0, None)
    }
}

impl Peer {
    fn for_each_queue(&self, sql: &str) -> Result<()> {
        (1..=QUEUES).try_for_each(|n| self.server.execute(&sql.replace("{}", &format!("q{n}"))))
    }

    /// True if it makes a job for each queue by itself.
    pub fn is_loop(&self) -> bool {
        self.way == Way::Loop
    }

    /// Takes away what other measurements have left.
    pub fn empty(&self) -> Result<()> {
        match self.way {
            Way::Pgmq => self.for_each_queue("SELECT pgmq.purge_queue('{}')"),
            Way::Pgq => self.read_all(&mut self.reader()?).map(|_| ()),
            _ => self.for_each_queue("SELECT queue.purge('{}')"),
        }
    }

    /// A session that sends events with this payload.
    pub fn sender(&self, payload: &str) -> Result<Sender> {
        let calls: Vec<String> =
            (1..=QUEUES).map(|n| format!("queue.enqueue('q{n}', $1, headers => '{HEADERS}')")).collect();
        let send = match self.way {
            Way::Publish => format!("SELECT job_id FROM queue.publish('orders', $1, '{KEY}')"),
            Way::Batch => "SELECT queue.enqueue_batch('q1', $1)".to_owned(),
            Way::Loop => format!("SELECT {}", calls.join(", ")),
            Way::Pgmq => format!("SELECT pgmq.send_topic('{KEY}', $1)"),
            Way::Pgq => "SELECT pgq.insert_event('orders', 'order.placed', $1)".to_owned(),
        };
        let json: serde_json::Value = serde_json::from_str(payload)?;
        let payload: Box<dyn ToSql> = match self.way {
            Way::Batch => {
                let headers: serde_json::Value = serde_json::from_str(HEADERS)?;
                let job = serde_json::json!({ "payload": json, "headers": headers });
                Box::new(Json(serde_json::Value::Array(vec![job; QUEUES])))
            }
            Way::Pgq => Box::new(payload.to_owned()),
            _ => Box::new(Json(json)),
        };
        let mut session = Session::new(&self.server, Verbs { send, ..Verbs::default() }, false)?;
        Ok(Sender { pid: session.pid()?, session, payload })
    }

    /// A session that is all consumers, one after the other.
    pub fn reader(&self) -> Result<Session> {
        let (takes, claim, next, complete) = match self.way {
            Way::Pgq => (
                Takes::Batches,
                "SELECT coalesce(pgq.next_batch('orders', $1), 0)",
                "SELECT ev_id, ev_data FROM pgq.get_batch_events($1)",
                "SELECT 1 - pgq.finish_batch($1)::bigint",
            ),
            Way::Pgmq => (
                Takes::Alone,
                "SELECT msg_id, message FROM pgmq.read($2, 60, $1)",
                "",
                "SELECT cardinality($1::bigint[]) - count(*) FROM pgmq.delete($2, $1::bigint[])",
            ),
            _ => return Session::new(&self.server, worker("", "id, payload", "0"), false),
        };
        let [claim, next, complete] = [claim, next, complete].map(str::to_owned);
        Session::new(&self.server, Verbs { takes, claim, next, complete, ..Verbs::default() }, false)
    }

    /// Gets and ends what there is for each consumer. Returns how many events there were.
    pub fn read_all(&self, reader: &mut Session) -> Result<usize> {
        (1..=QUEUES).try_fold(0, |sum, n| {
            if self.way == Way::Pgq {
                self.server.execute("SELECT pgq.ticker('orders')")?;
            }
            reader.queue = format!("q{n}");
            Ok(sum + reader.read_all()?)
        })
    }
}
