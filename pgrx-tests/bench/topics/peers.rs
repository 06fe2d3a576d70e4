//! The ways in which one event gets to eight consumers: how it is sent, and how they all get and end it.

use crate::contender::{Contender, Payload, SINGLE, Session, Takes, Verbs};
use crate::error::Result;
use crate::queues::WORKER;
use crate::server::Server;

/// Queues that an event goes to.
pub const QUEUES: usize = 8;

/// The headers that an event's jobs have.
const HEADERS: &str = r#"{"event": {"topic": "orders", "key": "order.placed", "id": 123456789012,
    "published_at": "2026-01-01T00:00:00.000000+00:00"}}"#;

const BATCH: &str = "enqueue_batch, the same rows";
pub const LOOP: &str = "a loop of enqueue";

/// Name, extension, how consumers take events, statements. Of these `queue` prepares and `empty` empties a queue, and
/// `tick` lets consumers see what was sent.
const WAYS: [(&str, &str, Takes, &str); 5] = [
    ("publish", "pg_queue", Takes::Next, include_str!("../sql/topics/publish.sql")),
    (BATCH, "pg_queue", Takes::Next, include_str!("../sql/topics/batch.sql")),
    (LOOP, "pg_queue", Takes::Next, include_str!("../sql/topics/loop.sql")),
    ("pgmq, send_topic", "pgmq", Takes::Alone, include_str!("../sql/topics/pgmq.sql")),
    ("PgQ, insert_event", "pgq", Takes::Batches, include_str!("../sql/topics/pgq.sql")),
];

/// A way, with a server of its own.
pub struct Peer {
    pub name: &'static str,
    contender: Contender,
}

/// All that are installed, `publish` first.
pub fn all() -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    for (name, extension, takes, statements) in WAYS {
        let Some(server) = Server::with_peer(extension)? else {
            println!("  {name} is left out: it is not installed");
            continue;
        };
        let verbs = Verbs::of(takes, "", &[if takes == Takes::Next { WORKER } else { "" }, statements]);
        let verbs = verbs.with("columns", "id, payload").with("wait", "0").with("headers", HEADERS);
        let peer = Peer { name, contender: Contender::new(server, verbs)? };
        peer.for_each_queue("queue")?;
        peers.push(peer);
    }
    Ok(peers)
}

impl Peer {
    pub fn server(&self) -> &Server {
        &self.contender.server
    }

    fn for_each_queue(&self, name: &str) -> Result<()> {
        let sql = self.contender.verbs.sql(name);
        (1..=QUEUES).try_for_each(|n| self.server().execute(&sql.replace("{queue}", &format!("q{n}"))))
    }

    /// A session that sends events or is all consumers, one after the other.
    pub fn session(&self) -> Result<Session> {
        self.contender.session(SINGLE)
    }

    /// What is sent for an event with this document.
    pub fn payload(&self, document: &str) -> Payload {
        let job = format!(r#"{{"payload": {document}, "headers": {HEADERS}}}"#);
        Payload::of(if self.name == BATCH {
            format!("[{}]", [job.as_str(); QUEUES].join(","))
        } else {
            document.into()
        })
    }

    /// Takes away what other measurements have left.
    pub fn empty(&self) -> Result<()> {
        self.for_each_queue("empty")?;
        self.read_all(&mut self.session()?).map(drop)
    }

    /// Gets and ends what there is for each consumer. Returns how many events there were.
    pub fn read_all(&self, reader: &mut Session) -> Result<usize> {
        (1..=QUEUES).try_fold(0, |sum, n| {
            self.server().execute(self.contender.verbs.sql("tick"))?;
            reader.queue = format!("q{n}");
            Ok(sum + reader.read_all()?)
        })
    }
}
