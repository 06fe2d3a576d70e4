//! What `pg_queue_cluster` costs: CPU of all servers per job, beside plain `queue.*` on one of them, in one run and in
//! turns. The rate of so many servers follows from it; it cannot be measured where they all share two cores. `make
//! bench-cluster`.

use std::thread;
use std::time::Duration;

use crate::bench::Bench;
use crate::contender::{BATCH, Payload, SINGLE, Session, Verbs, Work};
use crate::drive::{drive, steady};
use crate::error::Result;
use crate::latency;
use crate::server::Server;
use crate::statistics::{median, median_of, quantile};
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
        for (n, server) in servers.iter().enumerate() {
            let place = format!("host={} dbname=postgres", server.dir().display());
            servers[0].execute(&format!("SELECT queue_cluster.add_server('s{n}', '{place}')"))?;
        }
        servers[0].execute("SELECT queue_cluster.rebalance()")?;
        for (_, queue) in SCHEMAS {
            servers[0].execute(&format!("SELECT queue_cluster.create('{queue}', retention => '0')"))?;
        }
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
        let batch = way.work.batch;
        let (enqueue, limit, complete) = match batch {
            1 => (format!("enqueue('{queue}', $1{key})"), String::new(), format!("SELECT {schema}.complete($1)")),
            _ => (
                format!("enqueue_many('{queue}', array_fill($1::jsonb, '{{{batch}}}'))"),
                format!(", {batch}"),
                format!("SELECT count(*) FROM {schema}.complete_many($1)"),
            ),
        };
        let send = format!("SELECT {schema}.{enqueue}");
        let claim = format!("SELECT id FROM {schema}.claim('{queue}'{limit})");
        let mut producer = Session::new(home, Verbs { send, ..Verbs::default() }, false)?;
        // Jobs with a foreign key are elsewhere.
        let place = if way.owner == Some(1) && schema != "queue" { other } else { home };
        let mut worker = Session::new(place, Verbs { claim, complete, ..Verbs::default() }, false)?;
        let payload = Payload::new();
        let mut life = || -> Result<u64> {
            producer.send(&payload, 0, None)?;
            worker.take(batch)
        };
        for _ in 0..12 {
            life()?;
        }
        Ok(drive(&[home, other], vec![steady(life)], length)?.cpu())
    }

    /// How long a worker that waits at home takes to have a job that comes to `server`, in milliseconds.
    fn wake(&self, (schema, queue): (&str, &str), server: usize, times: usize) -> Result<Vec<f64>> {
        let claim = format!("SELECT id FROM {schema}.claim('{queue}', wait => '10 s')");
        let complete = format!("SELECT {schema}.complete($1)");
        let worker = latency::worker(self.0[0].connect()?, &claim, &complete)?;
        let mut producer = self.0[server].connect()?;
        let enqueue = producer.prepare("SELECT queue.enqueue($1)")?;
        let waits = latency::measure(times, worker, |n| {
            // Not in step with the naps.
            thread::sleep(Duration::from_millis(7 + (n as u64 * 37) % 90));
            latency::sent(&mut producer, &enqueue, &queue)
        })?;
        Ok(waits.into_iter().map(|us| us / 1e3).collect())
    }
}

/// Measures, prints, and predicts.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let options = bench.options;
    let pair = Pair::start()?;
    println!("  medians of {} rounds: queue.*, the cluster's way, ratio (smallest and largest)", options.rounds());
    let mut found = Vec::new();
    for way in &WAYS {
        let mut rounds: Vec<[f64; 2]> = Vec::new();
        for round in 0..options.rounds() {
            eprintln!("{}, round {}", way.name, round + 1);
            // Neither is always first.
            let mut both = [0.0; 2];
            for n in [round % 2, 1 - round % 2] {
                both[n] = pair.turn(way, SCHEMAS[n], options.turn())?;
            }
            rounds.push(both);
        }
        let ratios: Vec<f64> = rounds.iter().map(|[plain, cluster]| cluster / plain).collect();
        println!(
            "  {:26} {:6.3} {:6.3}   {:4.2} ({:4.2} to {:4.2})",
            way.name,
            median_of(&rounds, |both| both[0]),
            median_of(&rounds, |both| both[1]),
            median(&ratios),
            quantile(&ratios, 0.0),
            quantile(&ratios, 1.0)
        );
        if let Some(limit) = way.limit {
            bench.target(format!("cluster: CPU, {}", way.name), &ratios, at_most(limit));
        }
        found.push(median(&ratios));
    }
    let [single, batch, own, foreign] = found[..] else { return Err("four ways".into()) };

    println!("  From the enqueue to the claim of a worker that waits, ms (p50, p99)");
    let times = options.scale(100, 20);
    let [plain, cluster] = SCHEMAS;
    for (name, schema, server) in
        [("queue.*", plain, 0), ("at home", cluster, 0), ("stolen from another server", cluster, 1)]
    {
        let waits = pair.wake(schema, server, times)?;
        println!("  {name:26} {:7.2} {:7.2}", quantile(&waits, 0.5), quantile(&waits, 0.99));
        if server == 1 {
            bench.target("cluster: theft, p99 in ms", &[quantile(&waits, 0.99)], at_most(NAP_MS + THEFT_MS));
        }
    }

    println!("  Predicted of N servers with as many clients each, of one with queue.*");
    for servers in [2.0, 4.0, 16.0, 64.0] {
        let foreign_share = (servers - 1.0) / servers;
        let keyed = own * (1.0 - foreign_share) + foreign * foreign_share;
        println!(
            "  {servers:2}: {:5.2} single, {:5.2} in batches, {:5.2} all keyed, {:5.2} all keyed from producers at \
                the owner",
            servers / single,
            servers / batch,
            servers / keyed,
            servers / own
        );
    }
    bench.target("cluster: what four servers do, of one", &[4.0 / single], at_least(3.6));
    Ok(())
}
