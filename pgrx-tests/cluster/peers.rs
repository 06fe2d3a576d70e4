//! Servers that are peers, for the tests.

use postgres::Client;
use queue_tests::Cluster;
use queue_tests::sql::Sql;

const CONF: &str = "
shared_buffers = '8MB'
max_connections = 60
statement_timeout = '60s'
pg_queue.superuser_jobs = on
";

/// A cluster of servers. The first has node number 1 and name `s1`.
pub struct Peers {
    pub servers: Vec<Cluster>,
}

impl Peers {
    /// Starts this many servers as one cluster, with a queue `q` on each. Each owns a part of the keys.
    pub fn new(servers: usize) -> Self {
        let peers = Self::apart(servers);
        for n in 0..servers {
            peers.join(n);
        }
        let mut client = peers.connect(0);
        assert_eq!(client.value::<i32>("SELECT waiting FROM queue_cluster.rebalance()"), 0);
        client.run("SELECT queue_cluster.create('q', backoff => 'constant', backoff_base => '0')");
        peers
    }

    /// Starts this many servers with the extension. They do not know each other.
    pub fn apart(servers: usize) -> Self {
        let servers = (1..=servers).map(|n| {
            let server = Cluster::new().conf(CONF).conf(&format!("pg_queue.node_id = {n}")).start();
            server.create_database("app").run("CREATE EXTENSION pg_queue_cluster CASCADE");
            server
        });
        Self { servers: servers.collect() }
    }

    /// Adds a server to the cluster of the first one.
    pub fn join(&self, n: usize) {
        let sql = format!("SELECT queue_cluster.add_server('{}', '{}')", Self::name(n), self.conninfo(n));
        assert_eq!(self.connect(0).value::<i32>(&sql), n as i32 + 1);
    }

    pub fn name(n: usize) -> String {
        format!("s{}", n + 1)
    }

    pub fn conninfo(&self, n: usize) -> String {
        format!("host={} dbname=app", self.servers[n].dir().display())
    }

    pub fn connect(&self, n: usize) -> Client {
        self.servers[n].connect_to("app")
    }

    /// Opens a connection as this role. Makes the role on all servers if it does not exist.
    pub fn connect_as(&self, n: usize, role: &str) -> Client {
        for server in &self.servers {
            let mut client = server.connect();
            if client.count(&format!("SELECT FROM pg_roles WHERE rolname = '{role}'")) == 0 {
                client.run(&format!("CREATE ROLE {role} LOGIN"));
            }
        }
        self.servers[n].connect_as("app", role)
    }

    /// Returns a key that this server owns.
    pub fn key_of(&self, n: usize) -> String {
        let name = Self::name(n);
        let sql = format!(
            "SELECT 'k' || n FROM generate_series(1, 1000) AS n WHERE queue_cluster.owner('k' || n) = '{name}' LIMIT 1"
        );
        self.connect(n).value(&sql)
    }
}

/// Returns the index of the server that made the id: 0 for the first.
pub fn node(id: i64) -> usize {
    ((id >> 46) & 127) as usize - 1
}
