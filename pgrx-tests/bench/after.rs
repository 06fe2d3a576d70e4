//! Jobs that are after others: how soon the next one runs, how many one end releases, and what held ones cost those that
//! run. And how soon `queue.await` returns. Only when it is asked for by its name.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;

use crate::Result;
use crate::options::Options;
use crate::server::Server;
use crate::statistics::{median, quantile};

/// Its name in `--only`.
pub const NAME: &str = "after";

/// A session that was woken needs this long to be asleep again.
const PAUSE: Duration = Duration::from_millis(5);

/// Measures, and prints each figure when it is there.
pub fn measure(options: &Options) -> Result<()> {
    let scale = |full: i64| if options.quick { full / 10 } else { full };
    println!("\nafter: jobs that are after others, and queue.await");
    let server = Server::with_extension()?;
    for queue in ["first", "next", "awaited"] {
        server.execute(&format!("SELECT queue.create('{queue}', lease => '1 hour')"))?;
    }
    let print = |what: &str, us: &[f64]| {
        let at = |share| quantile(us, share);
        println!("  {what}: p50 {:.0} us, p95 {:.0} us, p99 {:.0} us", at(0.5), at(0.95), at(0.99));
    };
    print("from sending the end of a job to having the one after it", &hops(&server, scale(2_000))?);
    print("from sending the end of a job to the return of queue.await", &awaits(&server, scale(2_000))?);
    let links = scale(10_000);
    for (commits, setting) in [("commits wait for the disk", "on"), ("they do not", "off")] {
        let (mut plain, mut chained, mut by_pgbench) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        for _ in 0..if options.quick { 3 } else { 7 } {
            plain.push(lives(&server, links, false, setting)?);
            chained.push(lives(&server, links, true, setting)?);
            by_pgbench[0].push(lives_by_pgbench(&server, links, false, setting)?);
            by_pgbench[1].push(lives_by_pgbench(&server, links, true, setting)?);
        }
        let of = |lives: &[Lives], figure: fn(&Lives) -> f64| median(&lives.iter().map(figure).collect::<Vec<_>>());
        for (what, figure) in [
            ("lives", (|lives| lives.whole) as fn(&Lives) -> f64),
            ("claimed and completed alone", |lives| lives.worked),
        ] {
            let (plain, chained) = (of(&plain, figure), of(&chained, figure));
            println!(
                "  a chain of {links}, {commits}, {what}: {chained:.0} jobs/s; as many that are after none: {plain:.0}: {:.2}",
                chained / plain
            );
        }
        let [of_plain, of_chain] = by_pgbench.map(|ms| 1e3 / median(&ms));
        println!("  the same, lives, by pgbench: {of_chain:.0} jobs/s, {of_plain:.0}: {:.2}", of_chain / of_plain);
        let (plain, chained) = (of(&plain, |lives| lives.cpu), of(&chained, |lives| lives.cpu));
        println!(
            "  the same, lives, CPU of the server: {:.0} us a job, {:.0} us: {:.2}",
            chained * 1e6,
            plain * 1e6,
            chained / plain
        );
    }
    let wide = scale(100_000);
    let ins = (0..3).map(|_| fan_in(wide)).collect::<Result<Vec<_>>>()?;
    let of = |figure: fn(&FanIn) -> f64| median(&ins.iter().map(figure).collect::<Vec<_>>());
    println!(
        "  {wide} before one, a worker: {:.0} jobs/s; as many that none waits for: {:.0}: {:.2}; the one is claimed {:.1} ms \
         after the last has ended",
        of(|fan| fan.members),
        of(|fan| fan.plain),
        of(|fan| fan.members / fan.plain),
        of(|fan| fan.claimed_ms)
    );
    let mut fans = (0..if options.quick { 3 } else { 7 }).map(|_| fan_out(wide)).collect::<Result<Vec<_>>>()?;
    fans.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (completes, all): (Vec<f64>, Vec<f64>) = fans.into_iter().unzip();
    println!(
        "  one before {wide}: it completes in {:.1} ms, all are ready after {:.2} s",
        median(&completes),
        median(&all)
    );
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..if options.quick { 3 } else { 7 } {
        without.push(claims(0)?);
        with.push(claims(scale(1_000_000))?);
    }
    let (without, with) = (median(&without), median(&with));
    println!(
        "  10,000 ready behind {} held: {with:.0} jobs/s, without those {without:.0}: {:.2}",
        scale(1_000_000),
        with / without
    );
    articles::print(links, wide, if options.quick { 1 } else { 3 })
}

/// What 100,000 jobs before one cost.
struct FanIn {
    /// Jobs a second that one worker claims and completes one by one, which are members of a flow.
    members: f64,
    /// The same of as many others.
    plain: f64,
    /// Milliseconds from the end of the last one to the claim of the flow by a worker that sleeps.
    claimed_ms: f64,
}

fn fan_in(jobs: i64) -> Result<FanIn> {
    let server = Server::with_extension()?;
    let mut client = server.connect()?;
    client.batch_execute("SET synchronous_commit = off; SELECT queue.create('next'), queue.create('callback')")?;
    let mut rate = |flow: &str, rest: i64| -> Result<f64> {
        client.batch_execute(&format!(
            "SELECT count(*) FROM queue.enqueue_many('next', array_fill('1'::jsonb, '{{{jobs}}}'){flow})"
        ))?;
        server.settle();
        let claim = client.prepare("SELECT id FROM queue.claim('next')")?;
        let complete = client.prepare("SELECT queue.complete($1)")?;
        let begun = Instant::now();
        for _ in rest..jobs {
            let id: i64 = client.query_one(&claim, &[])?.try_get(0)?;
            client.execute(&complete, &[&id])?;
        }
        Ok((jobs - rest) as f64 / begun.elapsed().as_secs_f64())
    };
    let plain = rate("", 0)?;
    let members = rate(", flow => queue.enqueue_flow('callback', runs => true, open => true)", 1)?;
    client.batch_execute("SELECT queue.seal(job_id) FROM queue.flows")?;
    let mut worker = server.connect()?;
    thread::scope(|scope| {
        let sleeping = scope.spawn(move || -> Result<Instant> {
            worker.query_one("SELECT id FROM queue.claim('callback', wait => '30 s')", &[])?;
            Ok(Instant::now())
        });
        server.settle();
        let id: i64 = client.query_one("SELECT id FROM queue.claim('next')", &[])?.try_get(0)?;
        client.execute("SELECT queue.complete($1)", &[&id])?;
        let ended = Instant::now();
        let claimed = sleeping.join().map_err(|_| "the worker panicked")??;
        // It may have it before the answer to the end is here.
        let claimed_ms = claimed.saturating_duration_since(ended).as_secs_f64() * 1e3;
        Ok(FanIn { members, plain, claimed_ms })
    })
}

/// The table of the articles, with a table of what is after what, and a trigger that counts down: pg-boss, graphile-worker
/// and the like need their own runtime, which this benchmark has not.
mod articles {
    use super::*;
    use crate::contender::{ARTICLES_TABLE, articles_claim};

    const AFTER: &str = "
        ALTER TABLE jobs ADD COLUMN waits integer NOT NULL DEFAULT 0;
        CREATE TABLE job_after (job bigint NOT NULL, after bigint NOT NULL);
        CREATE INDEX ON job_after (after);
        CREATE FUNCTION release() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            UPDATE jobs SET waits = waits - 1, status = CASE WHEN waits = 1 THEN 'queued' ELSE 'held' END
            WHERE id IN (SELECT job FROM job_after WHERE after = NEW.id);
            RETURN NULL;
        END $$;
        CREATE TRIGGER release AFTER UPDATE OF status ON jobs
        FOR EACH ROW WHEN (NEW.status = 'done') EXECUTE FUNCTION release();";

    /// Jobs a second that one worker claims and completes one by one. `edges`: what is after what, of `jobs` jobs.
    fn lives(jobs: i64, edges: &str) -> Result<f64> {
        let server = Server::plain();
        let mut client = server.connect()?;
        client.batch_execute(ARTICLES_TABLE)?;
        client.batch_execute(AFTER)?;
        client.batch_execute(&format!(
            "INSERT INTO jobs (payload) SELECT '1' FROM generate_series(1, {jobs});
             INSERT INTO job_after (job, after) {edges};
             UPDATE jobs SET status = 'held', waits = n FROM (SELECT job, count(*) AS n FROM job_after GROUP BY job) a WHERE id = job;"
        ))?;
        client.batch_execute("VACUUM ANALYZE jobs")?;
        client.batch_execute("VACUUM ANALYZE job_after")?;
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

    /// Measures and prints.
    pub fn print(links: i64, wide: i64, rounds: usize) -> Result<()> {
        // More members than this take it minutes: each end makes another version of the row that all wait for.
        let wide = wide.min(10_000);
        let chain = format!("SELECT n, n - 1 FROM generate_series(2, {links}) n");
        let fan_in = format!("SELECT {wide}, n FROM generate_series(1, {wide} - 1) n");
        let none = "SELECT 1, 1 WHERE false";
        let of = |jobs: i64, edges: &str| -> Result<f64> {
            Ok(median(&(0..rounds).map(|_| lives(jobs, edges)).collect::<Result<Vec<_>>>()?))
        };
        for (what, jobs, edges) in
            [(format!("a chain of {links}"), links, chain), (format!("{wide} before one"), wide, fan_in)]
        {
            let (with, plain) = (of(jobs, &edges)?, of(jobs, none)?);
            println!(
                "  articles, best plan, {what}: {with:.0} jobs/s; as many that are after none: {plain:.0}: {:.2}",
                with / plain
            );
        }
        Ok(())
    }
}

/// Microseconds from the end of a job to the claim of the next by a worker that sleeps.
fn hops(server: &Server, jobs: i64) -> Result<Vec<f64>> {
    let (mut producer, mut worker) = (server.connect()?, server.connect()?);
    let (arrived, arrivals) = mpsc::channel();
    thread::scope(|scope| {
        let working = scope.spawn(move || -> Result<()> {
            let claim = worker.prepare("SELECT id FROM queue.claim('next', wait => '10 s')")?;
            for _ in 0..jobs {
                let row = worker.query_opt(&claim, &[])?.ok_or("a worker slept for ten seconds and got no job")?;
                let at = Instant::now();
                worker.execute("SELECT queue.complete($1)", &[&row.try_get::<_, i64>(0)?])?;
                arrived.send(at)?;
            }
            Ok(())
        });
        let enqueue =
            "WITH f AS (SELECT queue.enqueue('first') AS job) SELECT queue.enqueue('next', after => ARRAY[job]) FROM f";
        let enqueue = producer.prepare(enqueue)?;
        let claim = producer.prepare("SELECT id FROM queue.claim('first')")?;
        let complete = producer.prepare("SELECT queue.complete($1)")?;
        let mut took = Vec::new();
        for _ in 0..jobs {
            producer.execute(&enqueue, &[])?;
            let id: i64 = producer.query_one(&claim, &[])?.try_get(0)?;
            thread::sleep(PAUSE);
            let sent = Instant::now();
            producer.execute(&complete, &[&id])?;
            // The other end is gone when the worker has failed; it says why.
            let Ok(at) = arrivals.recv() else { break };
            took.push((at - sent).as_secs_f64() * 1e6);
        }
        working.join().map_err(|_| "the worker panicked")??;
        Ok(took)
    })
}

/// Microseconds from the end of a job to the return of a call that awaits it.
fn awaits(server: &Server, jobs: i64) -> Result<Vec<f64>> {
    let (mut worker, mut waiter) = (server.connect()?, server.connect()?);
    let (begin, begun) = mpsc::channel::<i64>();
    let (returned, returns) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || -> Result<()> {
            for job in begun {
                waiter.batch_execute(&format!("CALL queue.await({job}, '10 s')"))?;
                returned.send(Instant::now())?;
            }
            Ok(())
        });
        let claim = worker.prepare("SELECT id, job_id FROM queue.claim('awaited')")?;
        let complete = worker.prepare("SELECT queue.complete($1)")?;
        let mut took = Vec::new();
        for _ in 0..jobs {
            worker.execute("SELECT queue.enqueue('awaited')", &[])?;
            let row = worker.query_one(&claim, &[])?;
            begin.send(row.try_get(1)?)?;
            thread::sleep(PAUSE);
            let sent = Instant::now();
            worker.execute(&complete, &[&row.try_get::<_, i64>(0)?])?;
            let Ok(at) = returns.recv() else { break };
            took.push((at - sent).as_secs_f64() * 1e6);
        }
        drop(begin);
        waiting.join().map_err(|_| "the waiter panicked")??;
        Ok(took)
    })
}

/// Jobs a second, of a session that does one after the other, each step a statement and a commit.
struct Lives {
    /// Enqueued, claimed, completed.
    whole: f64,
    /// Claimed and completed.
    worked: f64,
    /// Seconds of the server's CPU for one, whole.
    cpu: f64,
}

/// The lives of so many jobs, each after the one before or after none: all are enqueued before the first one is claimed.
fn lives(server: &Server, jobs: i64, is_chain: bool, synchronous_commit: &str) -> Result<Lives> {
    let mut client = server.connect()?;
    client.batch_execute(&format!("SET synchronous_commit = {synchronous_commit}"))?;
    server.settle();
    let enqueue = client.prepare(if is_chain {
        "SELECT queue.enqueue('next', after => ARRAY[$1::bigint])"
    } else {
        "SELECT queue.enqueue('next') WHERE $1::bigint IS NOT NULL"
    })?;
    let claim = client.prepare("SELECT id FROM queue.claim('next', wait => '10 s')")?;
    let complete = client.prepare("SELECT queue.complete($1)")?;
    let used = server.cpu_seconds();
    let begun = Instant::now();
    let mut job: i64 = client.query_one("SELECT queue.enqueue('next')", &[])?.try_get(0)?;
    for _ in 1..jobs {
        job = client.query_one(&enqueue, &[&job])?.try_get(0)?;
    }
    let enqueued = begun.elapsed();
    server.settle();
    let begun = Instant::now();
    for _ in 0..jobs {
        let row = client.query_opt(&claim, &[])?.ok_or("a worker slept for ten seconds and got no job")?;
        client.execute(&complete, &[&row.try_get::<_, i64>(0)?])?;
    }
    let worked = begun.elapsed();
    server.settle();
    Ok(Lives {
        whole: jobs as f64 / (enqueued + worked).as_secs_f64(),
        worked: jobs as f64 / worked.as_secs_f64(),
        cpu: (server.cpu_seconds() - used) / jobs as f64,
    })
}

/// Milliseconds of one of such lives by pgbench, through libpq: a session that enqueues them all, and one that works.
fn lives_by_pgbench(server: &Server, jobs: i64, is_chain: bool, synchronous_commit: &str) -> Result<f64> {
    let mut client = server.connect()?;
    server.settle();
    let first: i64 = client.query_one("SELECT queue.enqueue('next')", &[])?.try_get(0)?;
    // pgbench keeps its variables from one run to the next.
    let enqueue = if is_chain {
        "SELECT queue.enqueue('next', after => ARRAY[:job::bigint]) AS job \\gset\n"
    } else {
        "SELECT queue.enqueue('next') WHERE :job::bigint IS NOT NULL;\n"
    };
    let work = "SELECT id FROM queue.claim('next', wait => '10 s') \\gset\nSELECT queue.complete(:id);\n";
    let enqueued = server.pgbench(enqueue, first, jobs - 1, synchronous_commit)?;
    server.settle();
    Ok(enqueued + server.pgbench(work, first, jobs, synchronous_commit)?)
}

fn complete_first(client: &mut Client) -> Result<f64> {
    let id: i64 = client.query_one("SELECT id FROM queue.claim('first')", &[])?.try_get(0)?;
    let complete = client.prepare("SELECT queue.complete($1)")?;
    let begun = Instant::now();
    client.execute(&complete, &[&id])?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Milliseconds that the end of a job takes that so many are after, and seconds until all of these are ready.
fn fan_out(jobs: i64) -> Result<(f64, f64)> {
    let server = Server::with_extension()?;
    let mut client = server.connect()?;
    client.batch_execute("SELECT queue.create('first'), queue.create('next')")?;
    client.batch_execute(&format!(
        "DO $$ DECLARE job bigint := queue.enqueue('first');
         BEGIN PERFORM count(*) FROM queue.enqueue_many('next', array_fill('1'::jsonb, '{{{jobs}}}'), after => ARRAY[job]); END $$"
    ))?;
    server.settle();
    let begun = Instant::now();
    let completed = complete_first(&mut client)?;
    let ready = client.prepare("SELECT ready FROM queue.stats WHERE queue_name = 'next'")?;
    while client.query_one(&ready, &[])?.try_get::<_, i64>(0)? < jobs {
        thread::sleep(Duration::from_millis(5));
    }
    Ok((completed * 1e3, begun.elapsed().as_secs_f64()))
}

/// Jobs a second claimed and completed in batches of 100, of 10,000 that are behind so many held ones in their queue.
fn claims(held: i64) -> Result<f64> {
    let server = Server::with_extension()?;
    let mut client = server.connect()?;
    client.batch_execute("SELECT queue.create('first'), queue.create('next')")?;
    if held > 0 {
        client.batch_execute(&format!(
            "DO $$ DECLARE job bigint := queue.enqueue('first');
             BEGIN PERFORM count(*) FROM queue.enqueue_many('next', array_fill('1'::jsonb, '{{{held}}}'), after => ARRAY[job]); END $$"
        ))?;
    }
    client.batch_execute("SELECT count(*) FROM queue.enqueue_many('next', array_fill('1'::jsonb, '{10000}'))")?;
    client.batch_execute("CHECKPOINT")?;
    server.settle();
    let work =
        client.prepare("SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('next', 100)))")?;
    let begun = Instant::now();
    for _ in 0..100 {
        client.execute(&work, &[])?;
    }
    Ok(10_000.0 / begun.elapsed().as_secs_f64())
}
