//! Observes what lies on disk, and how much of it is dead. Its session's CPU time does not count for the contender.

use postgres::Client;
use queue_tests::sql::Sql;

use crate::contender::Contender;
use crate::cpu;
use crate::error::Result;

/// Sizes in megabytes, indexes and TOAST included.
pub struct Sizes {
    /// The logs.
    pub logs: f64,
    /// The history of ended jobs.
    pub history: f64,
    /// All tables of the schema.
    pub all: f64,
    /// Dead rows in the logs, as the statistics estimate them.
    pub dead: f64,
    /// Dead rows in the logs; NaN if they were not counted.
    pub counted: f64,
}

/// The observing session.
pub struct Observer {
    client: Client,
    pid: i32,
    tables: String,
    has_exact: bool,
}

impl Observer {
    /// Connects; installs `pgstattuple` if the server has it.
    pub fn new(Contender { server, verbs }: &Contender) -> Result<Self> {
        let mut client = server.connect()?;
        let has_exact = server.has("pgstattuple")?;
        if has_exact {
            client.batch_execute("CREATE EXTENSION IF NOT EXISTS pgstattuple")?;
        }
        let tables = include_str!("../sql/soak/sizes.sql").replace("{schema}", verbs.sql("schema"));
        Ok(Self { pid: client.pid(), client, tables: tables.replace("{logs}", verbs.sql("logs")), has_exact })
    }

    /// Returns the CPU time that the observation has cost, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        cpu::process_seconds(self.pid)
    }

    /// Observes. Counting dead rows reads all logs, the rest is cheap.
    pub fn sizes(&mut self, counts_dead: bool) -> Result<Sizes> {
        let counted = "(SELECT coalesce(sum(dead_tuple_count), 0)::float8 FROM tables, pgstattuple(oid) WHERE is_log)";
        let dead = if counts_dead && self.has_exact { counted } else { "'NaN'::float8" };
        let row = self.client.query_one(&self.tables.replace("{dead}", dead), &[])?;
        let [logs, history, all] = [0, 1, 2].map(|n| row.get::<_, f64>(n) / 1e6);
        Ok(Sizes { logs, history, all, dead: row.try_get(3)?, counted: row.try_get(4)? })
    }
}
