//! One throw-away server for a file of tests. Each test has a database of its own. Tests wait for facts with a deadline
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
    SELECT queue.create('a', backoff_base => '100 ms', lease => '30 seconds');
    SELECT queue.create('b', backoff_base => '100 ms', lease => '1 second');";

/// A database. Its server ends after the last running test.
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

    pub async fn one<T: FromSqlOwned>(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> T {
        self.client.query_one(sql, parameters).await.unwrap().get(0)
    }

    pub async fn state(&self, job: i64) -> String {
        self.one("SELECT state FROM queue.job($1)", &[&job]).await
    }

    pub async fn wait_state(&self, job: i64, wanted: &str) {
        until(&format!("job {job} is {wanted}"), async || (self.state(job).await == wanted).then_some(())).await;
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

/// Runs the worker until the work is done.
pub async fn running<T>(worker: Worker, work: impl Future<Output = T>) -> T {
    let stopper: Stopper = worker.stopper();
    let served = tokio::spawn(worker.serve());
    let found = work.await;
    stopper.stop();
    tokio::time::timeout(Duration::from_secs(40), served).await.expect("it ends").unwrap().unwrap();
    found
}
