//! What lies on the disk, and how much of it is dead: looked at by a session of its own, whose CPU time is not the
//! contender's.

use postgres::Client;

use crate::cpu;
use crate::error::Result;
use crate::server::Server;

/// Where a contender's jobs are.
#[derive(Clone, Copy)]
pub struct Tables {
    /// The schema.
    pub schema: &'static str,
    /// Which of its tables must not have dead rows and must not grow: SQL about `c`, a row of `pg_class`.
    pub logs: &'static str,
}

/// Sizes in bytes, indexes and TOAST included.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// The logs.
    pub logs: i64,
    /// What is kept of ended jobs.
    pub history: i64,
    /// All tables of the schema.
    pub all: i64,
    /// Dead rows in the logs, as the statistics estimate them.
    pub dead: i64,
}

/// The looking session.
pub struct Observer {
    client: Client,
    pid: i32,
    tables: String,
    has_exact: bool,
}

impl Observer {
    /// Connects; installs `pgstattuple` if the server has it.
    pub fn new(server: &Server, tables: Tables) -> Result<Self> {
        let mut client = server.connect()?;
        let has_exact = server.has("pgstattuple")?;
        if has_exact {
            client.batch_execute("CREATE EXTENSION IF NOT EXISTS pgstattuple")?;
        }
        let pid = client.query_one("SELECT pg_backend_pid()", &[])?.try_get(0)?;
        let logs = tables.logs;
        let tables = include_str!("../sql/storage.sql").replace("{schema}", tables.schema);
        let tables = tables.replace("{logs}", logs);
        Ok(Self { client, pid, tables, has_exact })
    }

    /// CPU time that the looking has cost, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        cpu::process_seconds(self.pid)
    }

    /// Sizes, and the dead rows that the server believes in. Cheap.
    pub fn sizes(&mut self) -> Result<Sizes> {
        let sql = format!("{} {}", self.tables, include_str!("../sql/storage-sizes.sql"));
        let row = self.client.query_one(&sql, &[])?;
        Ok(Sizes { logs: row.try_get(0)?, history: row.try_get(1)?, all: row.try_get(2)?, dead: row.try_get(3)? })
    }

    /// Dead rows in the logs, counted: reads all of them. `None` where `pgstattuple` is not there.
    pub fn dead_rows(&mut self) -> Result<Option<i64>> {
        if !self.has_exact {
            return Ok(None);
        }
        let sql = format!(
            "{} SELECT coalesce(sum(dead_tuple_count), 0)::bigint FROM tables, pgstattuple(oid) WHERE is_log",
            self.tables
        );
        Ok(Some(self.client.query_one(&sql, &[])?.try_get(0)?))
    }
}
