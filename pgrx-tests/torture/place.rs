//! Where the run takes place: the current primary and its standby. After a promotion the run continues on the former
//! standby. With a standby, commits are synchronous, so that a commit that was answered outlives a promotion.

use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use postgres::error::DbError;
use postgres::{Client, NoTls};
use queue_tests::{Cluster, wait};

pub const DATABASE: &str = "app";

/// The application name of clients.
pub const CLIENT: &str = "torture";

pub struct Place {
    primary: RwLock<Arc<Cluster>>,
    standby: Mutex<Option<Cluster>>,
    /// The logs of servers that are gone.
    logs: Mutex<Vec<String>>,
}

impl Place {
    pub fn new(cluster: Cluster) -> Self {
        Self { primary: RwLock::new(Arc::new(cluster)), standby: Mutex::new(None), logs: Mutex::default() }
    }

    pub fn primary(&self) -> Arc<Cluster> {
        Arc::clone(&self.primary.read().unwrap())
    }

    /// Returns a client's connection, if the server accepts one now.
    pub fn connect(&self, name: &str) -> Option<Client> {
        self.connect_and_hear(name, |_| {})
    }

    /// Does what `connect` does, with a handler for notices and warnings.
    pub fn connect_and_hear(&self, name: &str, hear: impl Fn(DbError) + Send + Sync + 'static) -> Option<Client> {
        let mut config = self.primary().config();
        config.dbname(DATABASE).application_name(name).connect_timeout(Duration::from_secs(5)).notice_callback(hear);
        config.connect(NoTls).ok()
    }

    /// Waits for a connection.
    pub fn connection(&self, name: &str) -> Client {
        wait::within("the server takes connections", Duration::from_secs(60), || self.connect(name))
    }

    /// Makes a standby, and makes commits synchronous.
    pub fn add_standby(&self) {
        let primary = self.primary();
        let standby = primary.standby();
        primary.append_conf("synchronous_standby_names = '*'");
        primary.reload();
        let mut client = primary.connect();
        wait::within("the standby is synchronous", Duration::from_secs(60), || {
            client.query_opt("SELECT FROM pg_stat_replication WHERE sync_state = 'sync'", &[]).expect("the standbys")
        });
        // Transactions that committed just before this did not wait for the standby.
        standby.wait_replayed(&primary);
        *self.standby.lock().unwrap() = Some(standby);
    }

    pub fn has_standby(&self) -> bool {
        self.standby.lock().unwrap().is_some()
    }

    /// Ends the primary with `end` and continues on the standby. Returns false if there is no standby.
    pub fn promote(&self, end: impl FnOnce(&Cluster)) -> bool {
        let Some(standby) = self.standby.lock().unwrap().take() else { return false };
        let old = self.primary();
        end(&old);
        standby.append_conf("synchronous_standby_names = ''");
        standby.reload();
        standby.promote();
        self.logs.lock().unwrap().push(old.log());
        *self.primary.write().unwrap() = Arc::new(standby);
        true
    }

    /// Returns the logs of all servers, each separately: former servers, the standby, the primary.
    pub fn logs(&self) -> Vec<String> {
        let mut logs = self.logs.lock().unwrap().clone();
        logs.extend(self.standby.lock().unwrap().as_ref().map(Cluster::log));
        logs.push(self.primary().log());
        logs
    }

    /// Keeps the servers' folders, and returns their paths.
    pub fn keep(self) -> Vec<String> {
        let mut kept = Vec::new();
        if let Ok(primary) = Arc::try_unwrap(self.primary.into_inner().unwrap()) {
            kept.push(primary.keep().display().to_string());
        }
        if let Some(standby) = self.standby.into_inner().unwrap() {
            kept.push(standby.keep().display().to_string());
        }
        kept
    }
}
