//! PgQ under the soak: the same number of events, in batches to one consumer. It knows no priorities, delays or
//! outcomes, so what can be compared is what an event costs the server.

use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, Statement};

use crate::server::Server;
use crate::soak::contender::{Claimed, Contender, Producer, Run, Ticker, Worker};
use crate::soak::load::{Job, Lot};
use crate::soak::storage::Tables;
use crate::{Result, soak};

/// How long a consumer without a batch sleeps before it looks again.
const POLL: Duration = Duration::from_millis(10);

/// How often the maintenance is asked for, as its daemon would.
const MAINTENANCE: Duration = Duration::from_secs(10);

/// A server with a queue and a consumer.
pub struct Pgq(Server);

impl Pgq {
    /// Makes the queue; `None` where PgQ is not installed.
    pub fn new(length: Duration) -> Result<Option<Self>> {
        let server = Server::plain();
        let found =
            soak::connect(&server)?.query_opt("SELECT FROM pg_available_extensions WHERE name = 'pgq'", &[])?.is_some();
        if !found {
            return Ok(None);
        }
        // A tick for every call of the ticker, and tables that rotate as often as the segments' ring comes round.
        let rotation = (length / 4).as_secs().max(1);
        server.execute(&format!(
            "CREATE EXTENSION pgq;
             SELECT pgq.create_queue('soak'), pgq.register_consumer('soak', 'worker');
             SELECT pgq.set_queue_config('soak', 'ticker_max_lag', '0'),
                    pgq.set_queue_config('soak', 'ticker_max_count', '1'),
                    pgq.set_queue_config('soak', 'rotation_period', '{rotation} s')"
        ))?;
        Ok(Some(Self(server)))
    }
}

impl Contender for Pgq {
    fn server(&self) -> &Server {
        &self.0
    }

    fn tables(&self) -> Tables {
        Tables { schema: "pgq", logs: "true" }
    }

    fn workers(&self) -> usize {
        1
    }

    fn is_plain(&self) -> bool {
        true
    }

    fn producer(&self) -> Result<Box<dyn Producer>> {
        let mut client = soak::connect(&self.0)?;
        Ok(Box::new(Sender { insert: client.prepare("SELECT pgq.insert_event('soak', 'job', $1)")?, client }))
    }

    fn worker(&self, _: Lot) -> Result<Box<dyn Worker>> {
        let mut client = soak::connect(&self.0)?;
        Ok(Box::new(Consumer {
            next: client.prepare("SELECT pgq.next_batch('soak', 'worker')")?,
            events: client.prepare("SELECT ev_data FROM pgq.get_batch_events($1)")?,
            finish: client.prepare("SELECT pgq.finish_batch($1)")?,
            batch: None,
            client,
        }))
    }

    fn ticker(&self) -> Result<Option<Ticker>> {
        let mut client = soak::connect(&self.0)?;
        let tick = client.prepare("SELECT pgq.ticker()")?;
        let mut maintained = Instant::now();
        Ok(Some(Box::new(move || {
            client.query(&tick, &[])?;
            if maintained.elapsed() >= MAINTENANCE {
                maintained = Instant::now();
                maintain(&mut client)?;
            }
            Ok(())
        })))
    }
}

/// Does what PgQ says has to be done: functions, each in a transaction of its own, and the word "vacuum".
fn maintain(client: &mut Client) -> Result<()> {
    for row in client.query("SELECT func_name, func_arg FROM pgq.maint_operations()", &[])? {
        let (function, argument): (String, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
        match argument {
            Some(table) if function == "vacuum" => client.batch_execute(&format!("VACUUM {table}"))?,
            Some(argument) => client.batch_execute(&format!("SELECT {function}('{argument}')"))?,
            None => client.batch_execute(&format!("SELECT {function}()"))?,
        }
    }
    Ok(())
}

struct Sender {
    client: Client,
    insert: Statement,
}

impl Producer for Sender {
    fn send(&mut self, job: &Job) -> Result<()> {
        self.client.query_one(&self.insert, &[&job.text()])?;
        Ok(())
    }
}

struct Consumer {
    client: Client,
    next: Statement,
    events: Statement,
    finish: Statement,
    /// The batch in hand.
    batch: Option<i64>,
}

impl Worker for Consumer {
    fn claim(&mut self, done: &[i64]) -> Result<Claimed> {
        self.complete(done)?;
        let start = Instant::now();
        self.batch = self.client.query_one(&self.next, &[])?.try_get(0)?;
        let Some(batch) = self.batch else {
            thread::sleep(POLL);
            return Ok(Claimed { runs: Vec::new(), took: None });
        };
        let rows = self.client.query(&self.events, &[&batch])?;
        let took = Some(start.elapsed());
        let run = |row: &postgres::Row| Run::new(batch, 1, &serde_json::from_str(row.try_get(0)?)?);
        Ok(Claimed { runs: rows.iter().map(run).collect::<Result<_>>()?, took })
    }

    /// All of the batch ends at once, also when it had no event.
    fn complete(&mut self, _: &[i64]) -> Result<()> {
        if let Some(batch) = self.batch.take() {
            self.client.query_one(&self.finish, &[&batch])?;
        }
        Ok(())
    }

    fn fail(&mut self, _: &[i64], _: bool) -> Result<()> {
        Err("an event does not fail".into())
    }
}
