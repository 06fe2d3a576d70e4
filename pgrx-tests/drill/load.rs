//! The clients: producers, and workers whose completing transaction has an effect. They connect to the server that
//! takes writes, and do what applications are advised to do: they repeat calls with a key, and never blindly repeat
//! calls without one.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use postgres::config::{Config, TargetSessionAttrs};
use postgres::{Client, NoTls};
use queue_tests::{error, wait};

use crate::ledger::{Fact, Ledger};
use crate::log::now_ms;
use crate::node::PASSWORD;
use crate::place::{NODES, Place};

/// The objects at the beginning. Nothing hides work that is done twice: no key of `effect` is unique. Each slot of the
/// schedule runs, however late.
pub const SETUP: &str = "
CREATE EXTENSION pg_queue;
SELECT queue.create('drill', lease => '5 seconds', backoff => 'constant', backoff_base => '1 second');
CREATE TABLE effect (token bigint, slot timestamptz, job_id bigint, attempt_id bigint);
SELECT queue.schedule('tick', 'drill', every => '500 ms', missed => 'all');";

/// The pause of a client that cannot continue, before it tries again.
const PAUSE: Duration = Duration::from_millis(20);

/// What all clients share.
pub struct Load<'a> {
    pub place: &'a Place,
    pub ledger: &'a Ledger,
    /// No more jobs are enqueued; workers go on.
    pub is_drained: AtomicBool,
    /// All clients end.
    pub is_over: AtomicBool,
    next_token: AtomicI64,
}

/// Connects to the server that takes writes, if there is one. Each client asks the nodes in another order.
pub fn connect(place: &Place, first: usize) -> Option<(Client, usize)> {
    let mut config = Config::new();
    for n in 0..NODES {
        config.host(&place.address((first + n) % NODES));
    }
    config.port(5432).user("postgres").password(PASSWORD).dbname("postgres");
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    // A node that is cut off answers nothing, also not in the middle of a call.
    config.connect_timeout(Duration::from_millis(300)).tcp_user_timeout(Duration::from_secs(3));
    config.keepalives_idle(Duration::from_secs(2)).keepalives_interval(Duration::from_secs(1)).keepalives_retries(2);
    let mut client = config.connect(NoTls).ok()?;
    let address: String = client.query_one("SELECT host(inet_server_addr())", &[]).ok()?.get(0);
    let node = (0..NODES).find(|&node| place.address(node) == address).expect("one of the nodes");
    Some((client, node))
}

impl<'a> Load<'a> {
    pub fn new(place: &'a Place, ledger: &'a Ledger) -> Self {
        let (is_drained, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { place, ledger, is_drained, is_over, next_token: AtomicI64::new(1) }
    }

    /// Enqueues one job after the other, as long as fewer than some hundred wait. Every second job has a key, and its
    /// enqueue is repeated until it is acknowledged.
    pub fn produce(&self, number: usize) {
        let mut connection = None;
        // The token that was sent and not acknowledged, if its enqueue may be repeated.
        let mut open: Option<i64> = None;
        while !self.is_drained.load(Ordering::Relaxed) || open.is_some() {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let Some((client, node)) = connection.as_mut() else {
                connection = connect(self.place, number);
                sleep(PAUSE);
                continue;
            };
            let token = open.unwrap_or_else(|| self.next_token.fetch_add(1, Ordering::Relaxed));
            let key = if token % 2 == 0 {
                format!("unique_key => 'token {token}', unique_for => '1 hour'")
            } else {
                "unique_key => NULL".into()
            };
            let sql = format!("SELECT queue.enqueue('drill', '{{\"token\": {token}}}', {key})");
            if open.is_none() {
                self.ledger.note(Fact::Asked { token });
            }
            match client.simple_query(&sql) {
                Ok(_) => {
                    self.ledger.note(Fact::Enqueued { token, at_ms: now_ms(), node: *node });
                    open = None;
                    // Enough jobs to keep the workers busy, and not more than they can do.
                    sleep(Duration::from_millis(4));
                }
                Err(_) => {
                    open = Some(token).filter(|token| token % 2 == 0);
                    connection = None;
                }
            }
        }
    }

    /// Claims one job after the other, writes its effect and completes it in one transaction. If the connection is
    /// lost, it tries to complete the claimed job over another connection.
    pub fn work(&self, number: usize) {
        let mut connection: Option<(Client, usize)> = None;
        let mut claimed: Option<(i64, i64, String)> = None;
        while !self.is_over.load(Ordering::Relaxed) {
            let Some((client, node)) = connection.as_mut() else {
                connection = connect(self.place, number);
                if connection.is_none() {
                    sleep(PAUSE);
                }
                continue;
            };
            let done = match claimed.clone() {
                None => self.claim(client, *node).map(|found| claimed = found),
                Some((id, job_id, effect)) => {
                    self.complete(client, *node, (id, job_id, &effect)).map(|()| claimed = None)
                }
            };
            if done.is_err() {
                connection = None;
            }
        }
    }

    /// An attempt, its job, and the values of its effect.
    fn claim(&self, client: &mut Client, node: usize) -> Result<Option<(i64, i64, String)>, postgres::Error> {
        let sql = "SELECT id, job_id, payload->>'token', headers->>'slot' FROM queue.claim('drill', wait => '200 ms')";
        let Some(row) = client.query_opt(sql, &[])? else { return Ok(None) };
        self.ledger.note(Fact::Claimed { at_ms: now_ms(), node });
        let (id, job_id): (i64, i64) = (row.get(0), row.get(1));
        let (token, slot): (Option<String>, Option<String>) = (row.get(2), row.get(3));
        let slot = slot.map_or("NULL".to_owned(), |slot| format!("'{slot}'"));
        Ok(Some((id, job_id, format!("{}, {slot}, {job_id}, {id}", token.as_deref().unwrap_or("NULL")))))
    }

    fn complete(
        &self,
        client: &mut Client,
        node: usize,
        (id, job_id, effect): (i64, i64, &str),
    ) -> Result<(), postgres::Error> {
        let sql = format!("INSERT INTO effect VALUES ({effect}); SELECT queue.complete({id})");
        match client.batch_execute(&sql) {
            Ok(()) => self.ledger.note(Fact::Completed { job_id, at_ms: now_ms(), node }),
            // The lease is lost, or an earlier try has counted. Both writes are undone.
            Err(e) if error::code(&e) == "QJ001" => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Waits until the queue is empty.
    pub fn drain(&self) {
        self.is_drained.store(true, Ordering::Relaxed);
        let start = Instant::now();
        wait::within("all jobs have ended", Duration::from_secs(60), || {
            let (mut client, _) = connect(self.place, 0)?;
            client.batch_execute("SELECT queue.pause_schedule('tick')").ok()?;
            let sql =
                "SELECT FROM queue.stats WHERE queue_name = 'drill' AND ready + scheduled + retrying + running > 0";
            // Slots that were about to fire when the schedule was paused.
            (start.elapsed() > Duration::from_secs(2) && client.query(sql, &[]).ok()?.is_empty()).then_some(())
        });
    }
}
