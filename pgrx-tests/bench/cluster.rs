//! What `pg_queue_cluster` costs: CPU of all servers per job, beside plain `queue.*` on one of them, in one run and in turns. The
//! rate of so many servers follows from it; it cannot be measured where they all share two cores. `make bench-cluster`.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Client, Statement};
use crate::contender::Payload;
use crate::options::Options;
use crate::server::Server;
use crate::simulation::{self, Costs};
use crate::{Result, statistics};

/// Its name in `--only`.
pub const NAME: &str = "cluster";

/// What is at most aimed at: the CPU of the cluster's way, of the plain one's.
const AT_HOME: f64 = 1.10;
const FOREIGN: f64 = 2.5;
/// How much longer than its nap a thief may take.
const THEFT_MS: f64 = 5.0;
/// What four servers do at least, of one.
const OF_FOUR: f64 = 3.6;

/// How long a thief sleeps at home.
const NAP_MS: f64 = 500.0;

const BATCH: usize = 100;

/// What a run on two virtual cores has measured: for the chart of `docs/cluster.md`.
pub const MEASURED: Costs = Costs { job_ms: 0.113, foreign_ms: 0.13, nap_ms: NAP_MS };

/// A way through a job's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Single,
    Batch,
    /// The jobs have keys of this server.
    OwnKeys,
    /// The jobs have keys of the other server, where they are worked on.
    ForeignKeys,
}

impl Way {
    const ALL: [Self; 4] = [Self::Single, Self::Batch, Self::OwnKeys, Self::ForeignKeys];

    fn name(self) -> &'static str {
        match self {
            Self::Single => "at home, single",
            Self::Batch => "at home, batches of 100",
            Self::OwnKeys => "keys of this server",
            Self::ForeignKeys => "keys of another server",
        }
    }

    fn limit(self) -> Option<f64> {
        match self {
            Self::Single | Self::Batch => Some(AT_HOME),
            Self::OwnKeys => None,
            Self::ForeignKeys => Some(FOREIGN),
        }
    }
}

/// Two servers; the first is home.
struct Pair {
    servers: [Server; 2],
    /// A key that each owns.
    keys: [String; 2],
}

impl Pair {
    fn start() -> Result<Self> {
        let server = |node: usize| Server::with_settings(&format!("pg_queue.node_id = {node}"));
        let servers = [server(1)?, server(2)?];
        for server in &servers {
            server.execute("CREATE EXTENSION pg_queue_cluster CASCADE")?;
        }
        for (n, server) in servers.iter().enumerate() {
            servers[0].execute(&format!(
                "SELECT queue_cluster.add_server('s{n}', 'host={} dbname=postgres')",
                server.dir().display()
            ))?;
        }
        servers[0].execute("SELECT queue_cluster.rebalance()")?;
        for queue in ["plain", "cluster"] {
            servers[0].execute(&format!("SELECT queue_cluster.create('{queue}', retention => '0')"))?;
        }
        let mut client = servers[0].connect()?;
        let mut key = |n: usize| -> Result<String> {
            let sql =
                "SELECT 'k' || n FROM generate_series(1, 1000) AS n WHERE queue_cluster.owner('k' || n) = $1 LIMIT 1";
            Ok(client.query_one(sql, &[&format!("s{n}")])?.try_get(0)?)
        };
        let keys = [key(0)?, key(1)?];
        Ok(Self { servers, keys })
    }

    /// Runs one client for so long; seconds of CPU of both servers per 1,000 jobs.
    fn turn(&self, way: Way, schema: &str, length: Duration) -> Result<f64> {
        let queue = if schema == "queue" { "plain" } else { "cluster" };
        let mut life = Life::prepare(self, way, schema, queue)?;
        for _ in 0..12 {
            life.live()?;
        }
        let before: f64 = self.servers.iter().map(Server::cpu_seconds).sum();
        let start = Instant::now();
        let mut jobs = 0;
        while start.elapsed() < length {
            jobs += life.live()?;
        }
        self.servers.iter().for_each(Server::settle);
        let used: f64 = self.servers.iter().map(Server::cpu_seconds).sum::<f64>() - before;
        Ok(used * 1000.0 / jobs as f64)
    }
}

/// A client's statements.
struct Life {
    producer: Client,
    /// Where the jobs are: elsewhere only for foreign keys.
    worker: Client,
    enqueue: Statement,
    claim: Statement,
    complete: Statement,
    way: Way,
    key: Option<String>,
}

impl Life {
    fn prepare(pair: &Pair, way: Way, schema: &str, queue: &str) -> Result<Self> {
        let is_foreign = way == Way::ForeignKeys && schema != "queue";
        let mut producer = pair.servers[0].client(false)?;
        let mut worker = pair.servers[usize::from(is_foreign)].client(false)?;
        let call = |verb: &str| format!("SELECT {schema}.{verb}");
        let (enqueue, claim, complete) = if way == Way::Batch {
            (
                call(&format!("enqueue_many('{queue}', array_fill($1::jsonb, '{{{BATCH}}}'))")),
                format!("SELECT id FROM {schema}.claim('{queue}', {BATCH})"),
                format!("SELECT count(*) FROM {schema}.complete_many($1)"),
            )
        } else {
            let key = if way == Way::Single { "" } else { ", unique_key => $2" };
            (
                call(&format!("enqueue('{queue}', $1{key})")),
                format!("SELECT id FROM {schema}.claim('{queue}')"),
                call("complete($1)"),
            )
        };
        let (enqueue, claim, complete) =
            (producer.prepare(&enqueue)?, worker.prepare(&claim)?, worker.prepare(&complete)?);
        let key = match way {
            Way::Single | Way::Batch => None,
            Way::OwnKeys => Some(pair.keys[0].clone()),
            Way::ForeignKeys => Some(pair.keys[1].clone()),
        };
        Ok(Self { producer, worker, enqueue, claim, complete, way, key })
    }

    /// One life, or as many as a batch has.
    fn live(&mut self) -> Result<u64> {
        match &self.key {
            None => self.producer.execute(&self.enqueue, &[&Payload::new()])?,
            Some(key) => self.producer.execute(&self.enqueue, &[&Payload::new(), key])?,
        }
        let ids = self.worker.ids(&self.claim, &[])?;
        match self.way {
            Way::Batch => self.worker.execute(&self.complete, &[&ids])?,
            _ => self.worker.execute(&self.complete, &[ids.first().ok_or("a job is gone")?])?,
        }
        Ok(ids.len() as u64)
    }
}

/// How long a worker that waits at home takes to have a job that comes to `server`, in milliseconds.
fn wake(pair: &Pair, schema: &str, server: usize, times: usize) -> Result<Vec<f64>> {
    let (mut worker, mut producer) = (pair.servers[0].connect()?, pair.servers[server].connect()?);
    let queue = if schema == "queue" { "plain" } else { "cluster" };
    let (arrived, arrivals) = mpsc::channel();
    thread::scope(|scope| {
        let working = scope.spawn(move || -> Result<()> {
            let claim = worker.prepare(&format!("SELECT id FROM {schema}.claim('{queue}', wait => '10 s')"))?;
            let complete = worker.prepare(&format!("SELECT {schema}.complete($1)"))?;
            for _ in 0..times {
                let row = worker.query_opt(&claim, &[])?.ok_or("a worker slept for ten seconds and got no job")?;
                let at = Instant::now();
                worker.execute(&complete, &[&row.try_get::<_, i64>(0)?])?;
                arrived.send(at)?;
            }
            Ok(())
        });
        let enqueue = producer.prepare(&format!("SELECT queue.enqueue('{queue}')"))?;
        let mut waits = Vec::new();
        for n in 0..times {
            // Not in step with the naps.
            thread::sleep(Duration::from_millis(7 + (n as u64 * 37) % 90));
            let sent = Instant::now();
            producer.execute(&enqueue, &[])?;
            let Ok(at) = arrivals.recv() else { break };
            waits.push((at - sent).as_secs_f64() * 1e3);
        }
        working.join().map_err(|_| "the worker panicked")??;
        Ok(waits)
    })
}

/// Measures, prints, and tells whether all targets were reached.
pub fn measure(options: &Options) -> Result<bool> {
    let pair = Pair::start()?;
    let mut is_reached = true;
    let mut judge = |is_met: bool| {
        is_reached &= is_met;
        if is_met { "" } else { "  MISSED" }
    };
    println!(
        "\nThe cluster's way beside queue.*: CPU of all servers, ms a job; medians of {} rounds (smallest and largest ratio)",
        options.rounds
    );
    let mut ratios = Vec::new();
    for way in Way::ALL {
        let mut rounds: Vec<[f64; 2]> = Vec::new();
        for round in 0..options.rounds {
            eprintln!("{}, round {}", way.name(), round + 1);
            // Neither is always first.
            let cluster_first = round % 2 == 1;
            let early = if cluster_first {
                pair.turn(way, "queue_cluster", options.turn)?
            } else {
                pair.turn(way, "queue", options.turn)?
            };
            let late = if cluster_first {
                pair.turn(way, "queue", options.turn)?
            } else {
                pair.turn(way, "queue_cluster", options.turn)?
            };
            rounds.push(if cluster_first { [late, early] } else { [early, late] });
        }
        let of: Vec<f64> = rounds.iter().map(|[plain, cluster]| cluster / plain).collect();
        let ratio = statistics::median(&of);
        let (plain, cluster): (Vec<f64>, Vec<f64>) = rounds.iter().map(|&[plain, cluster]| (plain, cluster)).unzip();
        let limit = way.limit();
        println!(
            "  {:26} {:6.3} {:6.3}   {ratio:4.2} ({:4.2} to {:4.2}){}{}",
            way.name(),
            statistics::median(&plain),
            statistics::median(&cluster),
            of.iter().copied().fold(f64::INFINITY, f64::min),
            of.iter().copied().fold(0.0, f64::max),
            limit.map_or(String::new(), |limit| format!("   at most {limit:.2}")),
            judge(limit.is_none_or(|limit| ratio <= limit)),
        );
        ratios.push((ratio, statistics::median(&plain)));
    }
    let [(single, plain_ms), (batch, _), (own, _), (foreign, _)] = ratios[..] else { return Err("four ways".into()) };

    let times = if options.quick { 20 } else { 100 };
    let (plain, home) = (wake(&pair, "queue", 0, times)?, wake(&pair, "queue_cluster", 0, times)?);
    let stolen = wake(&pair, "queue_cluster", 1, times)?;
    let p = |waits: &[f64], percent| statistics::quantile(waits, percent / 100.0);
    println!("From the enqueue to the claim of a worker that waits, ms (p50, p99)");
    println!("  queue.*                    {:7.2} {:7.2}", p(&plain, 50.0), p(&plain, 99.0));
    println!("  at home                    {:7.2} {:7.2}", p(&home, 50.0), p(&home, 99.0));
    println!(
        "  stolen from another server {:7.2} {:7.2}   at most {NAP_MS} + {THEFT_MS}{}",
        p(&stolen, 50.0),
        p(&stolen, 99.0),
        judge(p(&stolen, 99.0) <= NAP_MS + THEFT_MS)
    );

    println!("Predicted of N servers with as many clients each, of one with queue.*");
    for servers in [2.0, 4.0, 16.0, 64.0] {
        let foreign_share = (servers - 1.0) / servers;
        let keyed = own * (1.0 - foreign_share) + foreign * foreign_share;
        println!(
            "  {servers:2}: {:5.2} single, {:5.2} in batches, {:5.2} all keyed, {:5.2} all keyed from producers at the owner",
            servers / single,
            servers / batch,
            servers / keyed,
            servers / own
        );
    }
    println!("  4: at least {OF_FOUR}{}", judge(4.0 / single >= OF_FOUR));
    simulation::print(&Costs {
        job_ms: plain_ms * single,
        foreign_ms: plain_ms * (foreign - 1.0).max(0.0),
        nap_ms: NAP_MS,
    });
    Ok(is_reached)
}
