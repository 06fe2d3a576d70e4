//! One throw-away server for a file of tests, and a database of its own for each. Tests wait for facts with a deadline
//! (`until`), never for time to pass.

#![allow(dead_code)] // Not every file of tests needs all of it.

use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use pg_queue_client::testing::Server;
use pg_queue_client::{Stopper, Worker};
use tokio_postgres::Client;
use tokio_postgres::types::{FromSqlOwned, ToSql};

pub const SCHEMA: &str = "
    CREATE TABLE effect (job_id bigint NOT NULL, attempt int NOT NULL);
    SELECT queue.create('a', backoff_base => '100 ms', lease => '30 seconds');
    SELECT queue.create('b', backoff_base => '100 ms', lease => '1 second');";

/// A database of a server that ends with the last test that runs.
pub struct Database {
    pub server: Arc<Server>,
    pub name: String,
    pub client: Client,
}

impl Database {
    pub async fn new() -> Self {
        static SERVER: OnceLock<Mutex<Weak<Server>>> = OnceLock::new();
        let server = {
            let mut known = SERVER.get_or_init(Mutex::default).lock().unwrap();
            known.upgrade().unwrap_or_else(|| {
                let server = Arc::new(Server::with_settings(&[("pg_queue.max_databases", "32")]));
                *known = Arc::downgrade(&server);
                server
            })
        };
        Self::on(server).await
    }

    /// On a server of its own, which may be ended.
    pub async fn alone() -> Self {
        Self::on(Arc::new(Server::start())).await
    }

    async fn on(server: Arc<Server>) -> Self {
        let name = server.create_database().await.unwrap();
        let client = server.connect(&name).await.unwrap();
        client.batch_execute(SCHEMA).await.unwrap();
        Self { server, name, client }
    }

    pub fn config(&self) -> String {
        self.server.config(&self.name)
    }

    pub fn worker(&self) -> Worker {
        Worker::new(&self.config()).unwrap()
    }

    /// Connects once the server takes connections.
    pub async fn again(&mut self) {
        let (server, name) = (&self.server, &self.name);
        self.client = until("the server takes connections", async || server.connect(name).await.ok()).await;
    }

    pub async fn one<T: FromSqlOwned>(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> T {
        self.client.query_one(sql, parameters).await.unwrap().get(0)
    }

    pub async fn state(&self, job: i64) -> String {
        self.one("SELECT state FROM queue.job($1)", &[&job]).await
    }

    pub async fn wait_state(&self, job: i64, wanted: &str) {
        until(&format!("job {job} is {wanted}"), async || (self.state(job).await == wanted).then_some(())).await;
    }

    pub async fn wait_true(&self, what: &str, sql: &str) {
        until(what, async || self.one::<Option<bool>>(sql, &[]).await.unwrap_or(false).then_some(())).await;
    }

    pub async fn effects(&self) -> Vec<i64> {
        self.client
            .query("SELECT job_id FROM effect ORDER BY 1", &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect()
    }
}

pub async fn until<T>(what: &str, condition: impl AsyncFn() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(Instant::now() < end, "not within 30 seconds: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs the worker beside the work, and stops it then.
pub async fn running<T>(worker: Worker, work: impl Future<Output = T>) -> T {
    let stopper: Stopper = worker.stopper();
    let served = tokio::spawn(worker.serve());
    let found = work.await;
    stopper.stop();
    tokio::time::timeout(Duration::from_secs(40), served).await.expect("it ends").unwrap().unwrap();
    found
}

pub const EFFECT: &str = "INSERT INTO effect VALUES ($1, $2)";
