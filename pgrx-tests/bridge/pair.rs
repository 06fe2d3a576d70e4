//! For the tests: a primary without pg_queue, and a queue server that takes its jobs.

use std::time::Duration;

use postgres::Client;
use queue_tests::sql::Sql;
use queue_tests::{Cluster, wait};

/// The database of both servers.
pub const DATABASE: &str = "shop";

/// Returns the text of bridge/primary.sql.
pub fn primary_sql() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../bridge/primary.sql");
    std::fs::read_to_string(path).expect("bridge/primary.sql")
}

/// Returns the text of bridge/primary.sql in each release.
pub fn released_primary_sqls() -> Vec<String> {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../bridge")).expect("the folder bridge");
    let paths = files.map(|file| file.expect("a file").path());
    let released = paths.filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("primary--")));
    released.map(|path| std::fs::read_to_string(path).expect("a released script")).collect()
}

/// A primary and its queue server, connected. The source is `shop` and may use queue `q`.
pub struct Pair {
    pub primary: Cluster,
    pub server: Cluster,
}

impl Pair {
    /// Returns a connected pair.
    pub fn new() -> Self {
        Self::apart("").connected()
    }

    /// Connects a pair, with queue `q`.
    pub fn connected(self) -> Self {
        let pair = self;
        let mut server = pair.server();
        server.run("SELECT queue.create('q', backoff => 'constant', backoff_base => '0')");
        pair.connect();
        server.run("SELECT queue_bridge.allow('shop', 'q', '{produce,consume,manage}')");
        pair.contact();
        pair
    }

    /// Returns a pair that is not connected, with more settings for the primary. The primary's owner is no superuser,
    /// and the queue server's role may only replicate.
    pub fn apart(conf: &str) -> Self {
        Self::with_primary(Cluster::new(), conf)
    }

    /// Does what `apart` does, with a primary that has not been started.
    pub fn with_primary(primary: Cluster, conf: &str) -> Self {
        Self::of(prepared(primary, conf))
    }

    /// Does what `apart` does, with a primary from `prepared`.
    pub fn of(primary: Cluster) -> Self {
        let server = Cluster::new().conf("wal_retrieve_retry_interval = '100ms'").conf("max_connections = 40").start();
        server.create_database(DATABASE).run("CREATE EXTENSION pg_queue_bridge CASCADE");
        Self { primary, server }.with_script()
    }

    /// Runs the script on the primary and grants the roles what they need.
    pub fn with_script(self) -> Self {
        let mut owner = self.primary_as("owner");
        owner.run(&primary_sql());
        owner.run("SELECT queue_bridge.admit('taker'), queue_bridge.grant('app', '{produce,consume,manage}')");
        self
    }

    /// Connects the source. Only the test makes contacts.
    pub fn connect(&self) {
        self.server().run(&format!(
            "SELECT queue_bridge.connect('shop', '{}'), queue.pause_schedule('queue_bridge_shop')",
            self.conninfo()
        ));
    }

    /// Returns the connection string with which the queue server connects to the primary.
    pub fn conninfo(&self) -> String {
        conninfo(&self.primary)
    }

    /// Opens a session of a producer.
    pub fn app(&self) -> Client {
        self.primary_as("app")
    }

    /// Opens a session on the primary as this role.
    pub fn primary_as(&self, role: &str) -> Client {
        self.primary.connect_as(DATABASE, role)
    }

    /// Opens a session of a superuser on the queue server.
    pub fn server(&self) -> Client {
        self.server.connect_to(DATABASE)
    }

    /// Makes a contact: the queue server speaks with the primary. Returns the problem that it found.
    pub fn contact(&self) -> Option<String> {
        self.server().value("SELECT queue_bridge.contact('shop')")
    }

    /// Makes a queue `other` that the source may use, and drops it. The primary still knows the queue.
    pub fn drop_known_queue(&self) {
        let mut server = self.server();
        server.run("SELECT queue.create('other'); SELECT queue_bridge.allow('shop', 'other')");
        assert_eq!(self.contact(), None);
        server.run("SELECT queue.drop('other')");
    }

    /// Waits until all calls committed on the primary have arrived.
    pub fn wait_arrived(&self) {
        self.wait_streaming();
        let mut primary = self.primary.connect_to(DATABASE);
        // This mark is sent after all earlier transactions. A restored dump sends earlier marks once more.
        let mark: String = primary.value(
            "INSERT INTO queue_bridge.outbox (id, made_at, ring, verb, target)
             VALUES (0, now(), queue_bridge.ring_at(now()), '?', gen_random_uuid()) RETURNING target",
        );
        let mut server = self.server();
        let mark = format!(
            "DELETE FROM queue_bridge.refused WHERE verb = '?'
             AND EXISTS (SELECT FROM queue_bridge.refused WHERE target = '{mark}') RETURNING 1"
        );
        wait::until("all that was called has arrived", || (server.count(&mark) > 0).then_some(()));
    }

    /// Waits until a call fails on the queue server. Returns its id and SQLSTATE.
    pub fn wait_failing(&self) -> String {
        let mut primary = self.primary.connect_to(DATABASE);
        let sql = "SELECT format('%s %s', failing ->> 'id', failing ->> 'code') FROM queue_bridge.bridge
                   WHERE failing IS NOT NULL";
        wait::until("a call fails", || primary.column::<String>(sql).pop())
    }

    /// Waits until nothing is being copied.
    pub fn wait_streaming(&self) {
        let mut server = self.server();
        let sql = "SELECT state FROM queue_bridge.sources";
        // A repair looks up each row of the outbox, which takes time.
        let limit = Duration::from_secs(600);
        wait::within("the source streams", limit, || (server.value::<String>(sql) == "streaming").then_some(()));
    }
}

/// Starts a server that can be a primary, with the roles and an empty database.
pub fn prepared(primary: Cluster, conf: &str) -> Cluster {
    prepared_by(primary.conf(conf), Cluster::start_again)
}

/// Does what `prepared` does, but `start` starts the server.
pub fn prepared_by(primary: Cluster, start: impl FnOnce(&Cluster)) -> Cluster {
    let conf = ["shared_preload_libraries = ''", "wal_level = logical", "max_connections = 40"];
    let primary = conf.into_iter().fold(primary, |primary, line| primary.conf(line));
    start(&primary);
    let mut client = primary.connect();
    client.run("CREATE ROLE owner LOGIN");
    client.run("CREATE ROLE taker LOGIN REPLICATION");
    client.run("CREATE ROLE app LOGIN");
    client.run(&format!("CREATE DATABASE {DATABASE} OWNER owner TEMPLATE template0"));
    primary
}

/// Returns the connection string for a primary.
pub fn conninfo(primary: &Cluster) -> String {
    format!("host={} port=5432 user=taker dbname={DATABASE}", primary.dir().display())
}
