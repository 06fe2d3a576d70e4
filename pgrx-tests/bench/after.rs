//! Jobs that are after others: how soon the next one runs, how many one end releases, and what held ones cost those
//! that run. And how soon `queue.await` returns. Only when it is asked for by its name.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, Statement};

use crate::bench::Bench;
use crate::error::Result;
use crate::latency;
use crate::queues::{ARTICLES, articles_claim};
use crate::server::Server;
use crate::statistics::{median, median_of, spread, us};

const COMPLETE: &str = "SELECT queue.complete($1)";

/// Measures, and prints each figure when it is there.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let scale = |full: i64| bench.options.scale(full, full / 10);
    let rounds = bench.options.scale(7, 3);
    let server = Server::with_extension("")?;
    for queue in ["first", "next", "awaited"] {
        server.execute(&format!("SELECT queue.create('{queue}', lease => '1 hour')"))?;
    }
    let times = bench.options.scale(2_000, 200);
    println!("  from sending the end of a job to having the one after it: {}", spread(&hops(&server, times)?, "us"));
    let awaits = awaits(&server, times)?;
    println!("  from sending the end of a job to the return of queue.await: {}", spread(&awaits, "us"));
    let links = scale(10_000);
    for (commits, setting) in [("commits wait for the disk", "on"), ("they do not", "off")] {
        let (mut plain, mut chained) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            plain.push(lives(&server, links, false, setting)?);
            chained.push(lives(&server, links, true, setting)?);
        }
        for (n, (what, unit)) in LIVES.into_iter().enumerate() {
            let (plain, chained) = (median_of(&plain, |lives| lives[n]), median_of(&chained, |lives| lives[n]));
            println!(
                "  a chain of {links}, {commits}, {what}: {chained:.0} {unit}; as many that are after none: \
                    {plain:.0}: {:.2}",
                chained / plain
            );
        }
    }
    let wide = scale(100_000);
    let ins = (0..3).map(|_| fan_in(wide)).collect::<Result<Vec<_>>>()?;
    println!(
        "  {wide} before one, a worker: {:.0} jobs/s; as many that none waits for: {:.0}: {:.2}; \
            the one is claimed {:.1} ms \
         after the last has ended",
        median_of(&ins, |fan| fan.0),
        median_of(&ins, |fan| fan.1),
        median_of(&ins, |fan| fan.0 / fan.1),
        median_of(&ins, |fan| fan.2)
    );
    let fans = (0..rounds).map(|_| fan_out(wide)).collect::<Result<Vec<_>>>()?;
    println!(
        "  one before {wide}: it completes in {:.1} ms, all are ready after {:.2} s",
        median_of(&fans, |fan| fan.0),
        median_of(&fans, |fan| fan.1)
    );
    let held = scale(1_000_000);
    let both = (0..rounds).map(|_| Ok((claims(0)?, claims(held)?))).collect::<Result<Vec<_>>>()?;
    let (without, with) = (median_of(&both, |both| both.0), median_of(&both, |both| both.1));
    println!("  10,000 ready behind {held} held: {with:.0} jobs/s, without those {without:.0}: {:.2}", with / without);
    articles(links, wide, bench.options.scale(3, 1))
}

/// The number that a statement returns.
fn first(client: &mut Client, statement: &Statement) -> Result<i64> {
    Ok(client.query_one(statement, &[])?.try_get(0)?)
}

/// Microseconds from the end of a job to the claim of the next by a worker that sleeps.
fn hops(server: &Server, jobs: usize) -> Result<Vec<f64>> {
    let mut producer = server.connect()?;
    let next = "SELECT id FROM queue.claim('next', wait => '10 s')";
    let worker = latency::worker(server.connect()?, next, COMPLETE)?;
    let enqueue = producer.prepare(
        "WITH f AS (SELECT queue.enqueue('first') AS job) SELECT queue.enqueue('next', after => ARRAY[job]) FROM f",
    )?;
    let claim = producer.prepare("SELECT id FROM queue.claim('first')")?;
    let complete = producer.prepare(COMPLETE)?;
    latency::measure(jobs, worker, |_| {
        producer.execute(&enqueue, &[])?;
        let id = first(&mut producer, &claim)?;
        thread::sleep(latency::PAUSE);
        latency::sent(&mut producer, &complete, &id)
    })
}

/// Microseconds from the end of a job to the return of a call that awaits it.
fn awaits(server: &Server, jobs: usize) -> Result<Vec<f64>> {
    let (mut worker, mut waiter) = (server.connect()?, server.connect()?);
    let (begin, begun) = mpsc::channel::<i64>();
    let enqueue = worker.prepare("SELECT queue.enqueue('awaited')")?;
    let claim = worker.prepare("SELECT id, job_id FROM queue.claim('awaited')")?;
    let complete = worker.prepare(COMPLETE)?;
    let sleep = move || {
        waiter.batch_execute(&format!("CALL queue.await({}, '10 s')", begun.recv()?))?;
        Ok(Instant::now())
    };
    latency::measure(jobs, sleep, move |_| {
        worker.execute(&enqueue, &[])?;
        let row = worker.query_one(&claim, &[])?;
        begin.send(row.try_get(1)?)?;
        thread::sleep(latency::PAUSE);
        latency::sent(&mut worker, &complete, &row.try_get::<_, i64>(0)?)
    })
}

/// What is measured of the lives of jobs, and its unit. Each step is a statement and a commit, one after the other.
const LIVES: [(&str, &str); 4] = [
    ("lives", "jobs/s"),
    ("claimed and completed alone", "jobs/s"),
    // Through libpq.
    ("lives, by pgbench", "jobs/s"),
    ("lives, CPU of the server", "us a job"),
];

/// The lives of so many jobs, each after the one before or after none: all are enqueued before the first one is
/// claimed.
fn lives(server: &Server, jobs: i64, is_chain: bool, synchronous_commit: &str) -> Result<[f64; 4]> {
    let mut client = server.connect()?;
    client.batch_execute(&format!("SET synchronous_commit = {synchronous_commit}"))?;
    server.settle();
    let enqueue = client.prepare(if is_chain {
        "SELECT queue.enqueue('next', after => ARRAY[$1::bigint])"
    } else {
        "SELECT queue.enqueue('next') WHERE $1::bigint IS NOT NULL"
    })?;
    let claim = client.prepare("SELECT id FROM queue.claim('next', wait => '10 s')")?;
    let complete = client.prepare(COMPLETE)?;
    let used = server.cpu_seconds();
    let begun = Instant::now();
    let mut job = server.number("SELECT queue.enqueue('next')")?;
    for _ in 1..jobs {
        job = client.query_one(&enqueue, &[&job])?.try_get(0)?;
    }
    let enqueued = begun.elapsed();
    server.settle();
    let begun = Instant::now();
    for _ in 0..jobs {
        let id = first(&mut client, &claim)?;
        client.execute(&complete, &[&id])?;
    }
    let worked = begun.elapsed();
    server.settle();
    let cpu_us = (server.cpu_seconds() - used) * 1e6 / jobs as f64;
    // By pgbench a session enqueues them all, and one works. It keeps its variables from one run to the next.
    let first = server.number("SELECT queue.enqueue('next')")?;
    let enqueue = if is_chain {
        "SELECT queue.enqueue('next', after => ARRAY[:job::bigint]) AS job \\gset\n"
    } else {
        "SELECT queue.enqueue('next') WHERE :job::bigint IS NOT NULL;\n"
    };
    let work = "SELECT id FROM queue.claim('next', wait => '10 s') \\gset\nSELECT queue.complete(:id);\n";
    let enqueue_ms = server.pgbench(enqueue, first, jobs - 1, synchronous_commit)?;
    server.settle();
    let ms = enqueue_ms + server.pgbench(work, first, jobs, synchronous_commit)?;
    let rate = |took: Duration| jobs as f64 / took.as_secs_f64();
    Ok([rate(enqueued + worked), rate(worked), 1e3 / ms, cpu_us])
}

/// A server with some queues, and a session.
fn queues(names: &str) -> Result<(Server, Client)> {
    let server = Server::with_extension("")?;
    server.execute(&format!("SELECT queue.create(q) FROM unnest('{{{names}}}'::text[]) AS q"))?;
    let mut client = server.connect()?;
    client.batch_execute("SET synchronous_commit = off")?;
    Ok((server, client))
}

/// Enqueues so many jobs into `next`, with these other arguments.
fn enqueue(server: &Server, jobs: i64, arguments: &str) -> Result<()> {
    server.number(&format!(
        "SELECT count(*) FROM queue.enqueue_many('next', array_fill('1'::jsonb, '{{{jobs}}}'){arguments})"
    ))?;
    Ok(())
}

/// What many jobs before one cost: jobs a second that one worker claims and completes one by one, which are members of
/// a flow, and of as many others; milliseconds from the end of the last one to the claim of the flow by a worker that
/// sleeps.
fn fan_in(jobs: i64) -> Result<(f64, f64, f64)> {
    let (server, mut client) = queues("next, callback")?;
    let claim = client.prepare("SELECT id FROM queue.claim('next')")?;
    let complete = client.prepare(COMPLETE)?;
    let mut one = || -> Result<Instant> {
        let id = first(&mut client, &claim)?;
        client.execute(&complete, &[&id])?;
        Ok(Instant::now())
    };
    let mut rate = |arguments: &str, jobs: i64, rest: i64| -> Result<f64> {
        enqueue(&server, jobs, arguments)?;
        server.settle();
        let begun = Instant::now();
        for _ in rest..jobs {
            one()?;
        }
        Ok((jobs - rest) as f64 / begun.elapsed().as_secs_f64())
    };
    let plain = rate("", jobs, 0)?;
    let members = rate(", flow => queue.enqueue_flow('callback', runs => true, open => true)", jobs, 1)?;
    server.execute("SELECT queue.seal(job_id) FROM queue.flows")?;
    let callback = "SELECT id FROM queue.claim('callback', wait => '30 s')";
    let worker = latency::worker(server.connect()?, callback, COMPLETE)?;
    // The worker may have it before the answer to the end is here.
    let claimed = latency::measure(1, worker, |_| {
        server.settle();
        one()
    })?;
    Ok((members, plain, median(&claimed) / 1e3))
}

/// Milliseconds that the end of a job takes that so many are after, and seconds until all of these are ready.
fn fan_out(jobs: i64) -> Result<(f64, f64)> {
    let (server, mut client) = queues("first, next")?;
    let job = server.number("SELECT queue.enqueue('first')")?;
    enqueue(&server, jobs, &format!(", after => '{{{job}}}'"))?;
    server.settle();
    let claim = client.prepare("SELECT id FROM queue.claim('first')")?;
    let complete = client.prepare(COMPLETE)?;
    let id = first(&mut client, &claim)?;
    let begun = Instant::now();
    let completed = us(|| client.execute(&complete, &[&id]))?;
    while server.number("SELECT ready FROM queue.stats WHERE queue_name = 'next'")? < jobs {
        thread::sleep(Duration::from_millis(5));
    }
    Ok((completed / 1e3, begun.elapsed().as_secs_f64()))
}

/// Jobs a second claimed and completed in batches of 100, of 10,000 that are behind so many held ones in their queue.
fn claims(held: i64) -> Result<f64> {
    let (server, mut client) = queues("first, next")?;
    if held > 0 {
        let job = server.number("SELECT queue.enqueue('first')")?;
        enqueue(&server, held, &format!(", after => '{{{job}}}'"))?;
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
fn articles_lives(jobs: i64, edges: &str) -> Result<f64> {
    let server = Server::plain("");
    server.execute(ARTICLES)?;
    server.execute(include_str!("sql/articles-after.sql"))?;
    server.execute(&format!(
        "INSERT INTO jobs (payload) SELECT '1' FROM generate_series(1, {jobs});
         INSERT INTO job_after (job, after) {edges};
         UPDATE jobs SET status = 'held', waits = n FROM (SELECT job, count(*) AS n FROM job_after GROUP BY job) a
         WHERE id = job;"
    ))?;
    server.execute("VACUUM ANALYZE jobs")?;
    server.execute("VACUUM ANALYZE job_after")?;
    let mut client = server.connect()?;
    client.batch_execute("SET synchronous_commit = off; SET enable_seqscan = off; SET enable_bitmapscan = off")?;
    server.settle();
    let claim = client.prepare(&articles_claim("1", "true", "id"))?;
    let complete = client.prepare("UPDATE jobs SET status = 'done', updated_at = now() WHERE id = $1")?;
    let begun = Instant::now();
    let mut done = 0;
    while let Some(row) = client.query_opt(&claim, &[])? {
        client.execute(&complete, &[&row.try_get::<_, i64>(0)?])?;
        done += 1;
    }
    if done == jobs { Ok(jobs as f64 / begun.elapsed().as_secs_f64()) } else { Err("jobs were left".into()) }
}

fn articles(links: i64, wide: i64, rounds: usize) -> Result<()> {
    // More members than this take it minutes: each end makes another version of the row that all wait for.
    let wide = wide.min(10_000);
    let chain = format!("SELECT n, n - 1 FROM generate_series(2, {links}) n");
    let fan_in = format!("SELECT {wide}, n FROM generate_series(1, {wide} - 1) n");
    let of = |jobs: i64, edges: &str| -> Result<f64> {
        Ok(median(&(0..rounds).map(|_| articles_lives(jobs, edges)).collect::<Result<Vec<_>>>()?))
    };
    for (what, jobs, edges) in
        [(format!("a chain of {links}"), links, chain), (format!("{wide} before one"), wide, fan_in)]
    {
        let (with, plain) = (of(jobs, &edges)?, of(jobs, "SELECT 1, 1 WHERE false")?);
        println!(
            "  articles, best plan, {what}: {with:.0} jobs/s; as many that are after none: {plain:.0}: {:.2}",
            with / plain
        );
    }
    Ok(())
}
