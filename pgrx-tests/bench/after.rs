//! Jobs that are after others: how soon the next one runs, how many one end releases, and what held ones cost those
//! that run. And how soon `queue.await` returns. Only when it is asked for by its name.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use queue_tests::sql::Sql;

use crate::bench::Bench;
use crate::contender::SINGLE;
use crate::drive::in_turns;
use crate::error::Result;
use crate::latency;
use crate::queues;
use crate::server::Server;
use crate::statistics::{median, median_of, spread, us};
use crate::table::Table;

const COMPLETE: &str = "SELECT queue.complete($1)";

/// Measures, and prints each figure when it is there.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let scale = |full: i64| bench.options.scale(full, full / 10);
    let (rounds, times) = bench.options.scale((7, 2_000), (3, 200));
    let (links, wide, held) = (scale(10_000), scale(100_000), scale(1_000_000));
    let server = Server::with_extension("")?;
    server.execute("SELECT queue.create(q, lease => '1 hour') FROM unnest('{first, next, awaited}'::text[]) AS q")?;
    println!("  from sending the end of a job to having the one after it: {}", spread(&hops(&server, times)?, "us"));
    let awaits = awaits(&server, times)?;
    println!("  from sending the end of a job to the return of queue.await: {}", spread(&awaits, "us"));
    // Medians of the two sides, and the ratio of these.
    let table = Table::begin(80, &[("with others", 12, 0), ("without", 10, 0), ("ratio", 8, 2)]);
    let print = |what: &str, [with, without]: [f64; 2]| table.row(what, &[with, without, with / without]);
    for (commits, setting) in [("commits wait for the disk", "on"), ("they do not", "off")] {
        let both = in_turns(commits, rounds, &[true, false], |&is_chain| lives(&server, links, is_chain, setting))?;
        for (n, what) in LIVES.into_iter().enumerate() {
            let medians = [0, 1].map(|side| median_of(&both[side], |lives| lives[n]));
            print(&format!("a chain of {links}, {commits}, {what}"), medians);
        }
    }
    let ins = in_turns("many before one", 3, &[true, false], |&is_flow| fan_in(wide, is_flow))?;
    let medians = [0, 1].map(|side| median_of(&ins[side], |fan| fan[0]));
    print(&format!("{wide} before one, a worker, jobs/s"), medians);
    let claims = in_turns("ready beside held", rounds, &[held, 0], |&held| claims(held))?;
    print(&format!("10,000 ready behind {held} held, jobs/s"), [0, 1].map(|side| median(&claims[side])));
    // More members than this take the articles' table minutes: each end makes another version of the row that all
    // wait for.
    let few = wide.min(10_000);
    for (what, jobs, edges) in [
        (format!("a chain of {links}"), links, format!("SELECT n, n - 1 FROM generate_series(2, {links}) n")),
        (format!("{few} before one"), few, format!("SELECT {few}, n FROM generate_series(1, {few} - 1) n")),
    ] {
        let sides = [edges.as_str(), "SELECT 1, 1 WHERE false"];
        let rates = in_turns(&what, bench.options.scale(3, 1), &sides, |edges| articles(jobs, edges))?;
        print(&format!("articles, best plan, {what}, jobs/s"), [0, 1].map(|side| median(&rates[side])));
    }
    let claimed = median_of(&ins[0], |fan| fan[1]);
    println!("  {wide} before one: it is claimed {claimed:.1} ms after the last has ended");
    let fans = (0..rounds).map(|_| fan_out(wide)).collect::<Result<Vec<_>>>()?;
    let [completed, ready] = [0, 1].map(|n| median_of(&fans, |fan| fan[n]));
    println!("  one before {wide}: it completes in {completed:.1} ms, all are ready after {ready:.2} s");
    Ok(())
}

/// Microseconds from the end of a job to the claim of the next by a worker that sleeps.
fn hops(server: &Server, jobs: usize) -> Result<Vec<f64>> {
    let mut producer = server.connect()?;
    let enqueue = producer.prepare(
        "WITH f AS (SELECT queue.enqueue('first') AS job) SELECT queue.enqueue('next', after => ARRAY[job]) FROM f",
    )?;
    let complete = producer.prepare(COMPLETE)?;
    latency::measure(jobs, latency::worker(server.connect()?, "queue", "next")?, |_| {
        producer.execute(&enqueue, &[])?;
        let id = producer.claim("first");
        thread::sleep(latency::PAUSE);
        latency::sent(&mut producer, &complete, &id)
    })
}

/// Microseconds from the end of a job to the return of a call that awaits it.
fn awaits(server: &Server, jobs: usize) -> Result<Vec<f64>> {
    let (mut worker, mut waiter) = (server.connect()?, server.connect()?);
    let (begin, begun) = mpsc::channel::<i64>();
    let complete = worker.prepare(COMPLETE)?;
    let sleep = move || {
        waiter.batch_execute(&format!("CALL queue.await({}, '10 s')", begun.recv()?))?;
        Ok(Instant::now())
    };
    latency::measure(jobs, sleep, move |_| {
        begin.send(worker.enqueue("awaited"))?;
        let id = worker.claim("awaited");
        thread::sleep(latency::PAUSE);
        latency::sent(&mut worker, &complete, &id)
    })
}

/// What is measured of the lives of jobs. Each step is a statement and a commit, one after the other.
const LIVES: [&str; 4] = [
    "lives, jobs/s",
    "claimed and completed alone, jobs/s",
    // Through libpq.
    "lives, by pgbench, jobs/s",
    "lives, CPU us a job",
];

/// The lives of so many jobs, each after the one before or after none: all are enqueued before the first one is
/// claimed.
fn lives(server: &Server, jobs: i64, is_chain: bool, synchronous_commit: &str) -> Result<[f64; 4]> {
    let mut client = server.connect()?;
    client.batch_execute(&format!("SET synchronous_commit = {synchronous_commit}"))?;
    server.settle();
    let sql = if is_chain {
        "SELECT queue.enqueue('next', after => ARRAY[$1::bigint]) AS job"
    } else {
        "SELECT queue.enqueue('next') AS job WHERE $1::bigint IS NOT NULL"
    };
    let enqueue = client.prepare(sql)?;
    let used = server.cpu_seconds();
    let begun = Instant::now();
    let mut job = server.number("SELECT queue.enqueue('next')")?;
    for _ in 1..jobs {
        job = client.query_one(&enqueue, &[&job])?.try_get(0)?;
    }
    let enqueued = begun.elapsed();
    let mut worker = latency::worker(client, "queue", "next")?;
    server.settle();
    let begun = Instant::now();
    (0..jobs).try_for_each(|_| worker().map(drop))?;
    let worked = begun.elapsed();
    server.settle();
    let cpu_us = (server.cpu_seconds() - used) * 1e6 / jobs as f64;
    // By pgbench a session enqueues them all, and one works. It keeps its variables from one run to the next.
    let first = server.number("SELECT queue.enqueue('next')")?;
    let enqueue = format!("{} \\gset\n", sql.replace("$1", ":job"));
    let work = "SELECT id FROM queue.claim('next', wait => '10 s') \\gset\nSELECT queue.complete(:id);\n";
    let enqueue_ms = server.pgbench(&enqueue, first, jobs - 1, synchronous_commit)?;
    server.settle();
    let ms = enqueue_ms + server.pgbench(work, first, jobs, synchronous_commit)?;
    let rate = |took: Duration| jobs as f64 / took.as_secs_f64();
    Ok([rate(enqueued + worked), rate(worked), 1e3 / ms, cpu_us])
}

/// A server with some queues, and a session.
fn with_queues(names: &str) -> Result<(Server, Client)> {
    let server = Server::with_extension("")?;
    server.execute(&format!("SELECT queue.create(q) FROM unnest('{{{names}}}'::text[]) AS q"))?;
    let mut client = server.connect()?;
    client.batch_execute("SET synchronous_commit = off")?;
    Ok((server, client))
}

/// Enqueues so many jobs into `next`, with these other arguments.
fn enqueue(server: &Server, jobs: i64, arguments: &str) -> Result<()> {
    server.execute(&format!("SELECT FROM queue.enqueue_many('next', array_fill('1'::jsonb, '{{{jobs}}}'){arguments})"))
}

/// What many jobs before one cost: jobs a second that one worker claims and completes one by one, which are members of
/// a flow or not; milliseconds from the end of the last one to the claim of the flow by a worker that sleeps.
fn fan_in(jobs: i64, is_flow: bool) -> Result<[f64; 2]> {
    let (server, client) = with_queues("next, callback")?;
    let flow = ", flow => queue.enqueue_flow('callback', runs => true, open => true)";
    enqueue(&server, jobs, if is_flow { flow } else { "" })?;
    let mut worker = latency::worker(client, "queue", "next")?;
    server.settle();
    let begun = Instant::now();
    (1..jobs).try_for_each(|_| worker().map(drop))?;
    let rate = (jobs - 1) as f64 / begun.elapsed().as_secs_f64();
    if !is_flow {
        return Ok([rate, f64::NAN]);
    }
    server.execute("SELECT queue.seal(job_id) FROM queue.flows")?;
    // The worker of the flow may have it before the answer to the end is here.
    let claimed = latency::measure(1, latency::worker(server.connect()?, "queue", "callback")?, |_| {
        server.settle();
        worker()?;
        Ok(Instant::now())
    })?;
    Ok([rate, claimed[0] / 1e3])
}

/// Enqueues jobs with one predecessor, which is the only job in `first`.
fn enqueue_after_one(server: &Server, jobs: i64) -> Result<()> {
    let job = server.number("SELECT queue.enqueue('first')")?;
    enqueue(server, jobs, &format!(", after => '{{{job}}}'"))
}

/// Measures the end of a job with many successors: its milliseconds, and the seconds until all successors are ready.
fn fan_out(jobs: i64) -> Result<[f64; 2]> {
    let (server, mut client) = with_queues("first, next")?;
    enqueue_after_one(&server, jobs)?;
    server.settle();
    let complete = client.prepare(COMPLETE)?;
    let id = client.claim("first");
    let begun = Instant::now();
    let completed = us(|| client.execute(&complete, &[&id]))?;
    while server.number("SELECT ready FROM queue.stats WHERE queue_name = 'next'")? < jobs {
        thread::sleep(Duration::from_millis(5));
    }
    Ok([completed / 1e3, begun.elapsed().as_secs_f64()])
}

/// Jobs a second claimed and completed in batches of 100, of 10,000 that are behind so many held ones in their queue.
fn claims(held: i64) -> Result<f64> {
    let (server, mut client) = with_queues("first, next")?;
    if held > 0 {
        enqueue_after_one(&server, held)?;
    }
    enqueue(&server, 10_000, "")?;
    server.execute("CHECKPOINT")?;
    server.settle();
    let work =
        client.prepare("SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('next', 100)))")?;
    Ok(10_000.0 * 1e6 / us(|| (0..100).try_for_each(|_| client.execute(&work, &[]).map(drop)))?)
}

/// Jobs a second that one worker claims and completes one by one in the articles' table. `edges`: what is after what;
/// a trigger counts down. pg-boss, graphile-worker and the like need their own runtime, which this benchmark has not.
fn articles(jobs: i64, edges: &str) -> Result<f64> {
    let articles = queues::articles(true)?;
    articles.server.execute_with(include_str!("sql/articles-after.sql"), &[("jobs", &jobs), ("edges", &edges)])?;
    articles.server.settle();
    let mut session = articles.session(SINGLE)?;
    let begun = Instant::now();
    let done = session.read_all()?;
    if done as i64 == jobs { Ok(jobs as f64 / begun.elapsed().as_secs_f64()) } else { Err("jobs were left".into()) }
}
