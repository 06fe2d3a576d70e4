//! What `pg_queue_cluster` costs: CPU of all servers per job, beside plain `queue.*` on one of them, in one run and in
//! turns. The rate of so many servers follows from it; it cannot be measured where they all share two cores. `make
//! bench-cluster`.

use std::thread;
use std::time::Duration;

use crate::bench::Bench;
use crate::contender::{BATCH, Payload, SINGLE, Session, Takes, Verbs, Work};
use crate::drive::{drive, in_turns, warm};
use crate::error::Result;
use crate::latency;
use crate::server::Server;
use crate::statistics::{median, quantile, ratios};
use crate::table::Table;
use crate::targets::{at_least, at_most};

/// How long a thief sleeps at home, and how much longer it may take.
const NAP_MS: f64 = 500.0;
const THEFT_MS: f64 = 5.0;

/// A way through a job's life.
struct Way {
    name: &'static str,
    work: Work,
    /// The server that owns the jobs' keys, where they are worked on.
    owner: Option<usize>,
    /// What is at most aimed at: the CPU of the cluster's way over the plain one's.
    limit: Option<f64>,
}

const WAYS: [Way; 4] = [
    Way { name: "at home, single", work: SINGLE, owner: None, limit: Some(1.10) },
    Way { name: "at home, batches of 100", work: BATCH, owner: None, limit: Some(1.10) },
    Way { name: "keys of this server", work: SINGLE, owner: Some(0), limit: None },
    Way { name: "keys of another server", work: SINGLE, owner: Some(1), limit: Some(2.5) },
];

/// The two schemas, each with a queue of its own.
const SCHEMAS: [(&str, &str); 2] = [("queue", "plain"), ("queue_cluster", "cluster")];

/// Two servers; the first is home.
struct Pair([Server; 2]);

impl Pair {
    fn start() -> Result<Self> {
        let server = |node: usize| Server::with_extension(&format!("pg_queue.node_id = {node}"));
        let servers = [server(1)?, server(2)?];
        for server in &servers {
            server.execute("CREATE EXTENSION pg_queue_cluster CASCADE")?;
        }
        let [home, other] = servers.each_ref().map(|server| server.cluster.dir().display());
        servers[0].execute_with(include_str!("sql/cluster-set-up.sql"), &[("home", &home), ("other", &other)])?;
        Ok(Self(servers))
    }

    /// Runs one client for so long; seconds of CPU of both servers per 1,000 jobs.
    fn turn(&self, way: &Way, (schema, queue): (&str, &str), length: Duration) -> Result<f64> {
        let [home, other] = &self.0;
        // A key that this server owns.
        let key = way.owner.map_or(Ok(String::new()), |owner| -> Result<String> {
            let sql = format!(
                "SELECT n::bigint FROM generate_series(1, 1000) AS n \
                    WHERE queue_cluster.owner('k' || n) = 's{owner}' LIMIT 1"
            );
            Ok(format!(", unique_key => 'k{}'", home.number(&sql)?))
        })?;
        let verbs = Verbs::of(Takes::Alone, queue, &[include_str!("sql/cluster.sql")]);
        let verbs = verbs.with("schema", schema).with("queue", queue).with("key", &key);
        let mut producer = Session::new(home, &verbs, way.work)?;
        // Jobs with a foreign key are elsewhere.
        let place = if way.owner == Some(1) && schema != "queue" { other } else { home };
        let mut worker = Session::new(place, &verbs, way.work)?;
        let payload = Payload::new();
        let life = warm(|| {
            producer.send(&payload, 0, None)?;
            worker.take(way.work.batch)
        })?;
        Ok(drive(&[home, other], vec![life], length)?.cpu())
    }

    /// How long a worker that waits at home takes to have a job that comes to `server`, in microseconds.
    fn wake(&self, (schema, queue): (&str, &str), server: usize, times: usize) -> Result<Vec<f64>> {
        let worker = latency::worker(self.0[0].connect()?, schema, queue)?;
        let mut producer = self.0[server].connect()?;
        let enqueue = producer.prepare("SELECT queue.enqueue($1)")?;
        latency::measure(times, worker, |n| {
            // Not in step with the naps.
            thread::sleep(Duration::from_millis(7 + (n as u64 * 37) % 90));
            latency::sent(&mut producer, &enqueue, &queue)
        })
    }
}

/// Measures, prints, and predicts.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let options = bench.options;
    let pair = Pair::start()?;
    println!("  medians of {} rounds", options.rounds());
    let columns = [("queue.*", 9, 3), ("cluster", 9, 3), ("ratio", 8, 2), ("smallest", 10, 2), ("largest", 9, 2)];
    let table = Table::begin(28, &columns);
    let mut found = Vec::new();
    for way in &WAYS {
        let turn = |&schema: &(_, _)| pair.turn(way, schema, options.turn());
        let both = in_turns(way.name, options.rounds(), &SCHEMAS, turn)?;
        let ratios = ratios(&both[1], &both[0], |cpu| *cpu);
        let range = [0.0, 1.0].map(|share| quantile(&ratios, share));
        table.row(way.name, &[median(&both[0]), median(&both[1]), median(&ratios), range[0], range[1]]);
        if let Some(limit) = way.limit {
            bench.target(format!("cluster: CPU, {}", way.name), &ratios, at_most(limit));
        }
        found.push(median(&ratios));
    }
    let [single, batch, own, foreign] = found[..] else { return Err("four ways".into()) };

    println!("  From the enqueue to the claim of a worker that waits, ms");
    let table = Table::begin(28, &[("p50", 8, 2), ("p99", 8, 2)]);
    let [plain, cluster] = SCHEMAS;
    for (name, schema, server) in
        [("queue.*", plain, 0), ("at home", cluster, 0), ("stolen from another server", cluster, 1)]
    {
        let waits = pair.wake(schema, server, options.scale(100, 20))?;
        let [p50, p99] = [0.5, 0.99].map(|share| quantile(&waits, share) / 1e3);
        table.row(name, &[p50, p99]);
        if server == 1 {
            bench.target("cluster: theft, p99 in ms", &[p99], at_most(NAP_MS + THEFT_MS));
        }
    }

    println!("  Predicted of N servers with as many clients each, of one with queue.*");
    let columns =
        [("single", 8, 2), ("in batches", 12, 2), ("all keyed", 11, 2), ("keyed, producers at the owner", 31, 2)];
    let table = Table::begin(6, &columns);
    for servers in [2.0, 4.0, 16.0, 64.0] {
        let foreign_share = (servers - 1.0) / servers;
        let keyed = own * (1.0 - foreign_share) + foreign * foreign_share;
        table.row(&servers.to_string(), &[single, batch, keyed, own].map(|cost| servers / cost));
    }
    bench.target("cluster: what four servers do, of one", &[4.0 / single], at_least(3.6));
    Ok(())
}
