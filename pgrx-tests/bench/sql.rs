//! Jobs that are SQL and run in the server: how soon the first statement runs, how many run a second, what becomes of
//! those that are due while the server has no process to spare, and what a day of runs leaves behind. Beside pg_cron
//! where that is installed and can do the same. Only when it is asked for by its name, as it takes minutes.

use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use queue_tests::sql::Sql;
use queue_tests::wait;

use crate::bench::Bench;
use crate::error::Result;
use crate::options::Options;
use crate::server::Server;
use crate::statistics::{median, quantile, spread};

/// Processes at once where the server is short of them: pg_queue's and pg_cron's.
const AT_ONCE: usize = 8;
/// How long all other slots are taken there.
const SHORT_FOR: Duration = Duration::from_secs(30);
/// Runs of a job that runs each second, in a day and in an hour.
const DAY: i64 = 86_400;
const HOUR: i64 = 3_600;

/// Measures, and prints each figure when it is there.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let options = bench.options;
    latency(options)?;
    for (executors, wanted) in [(1, 3_000), (4, 6_000)] {
        let jobs = options.scale(30_000, 3_000);
        let rates = (0..options.scale(7, 3)).map(|_| rate(executors, jobs)).collect::<Result<Vec<_>>>()?;
        println!("  SELECT 1, executors {executors}: {:.0} jobs/s (wanted: {wanted})", median(&rates));
    }
    shortage(options)?;
    day(options)
}

/// A server with a queue `sql`, with these options, and a session as the role that may write its commands.
fn server(settings: &str, options: &str) -> Result<(Server, Client)> {
    let server = Server::with_extension(settings)?;
    server.execute(&format!("SELECT queue.create('sql', executor => 'sql'{options})"))?;
    server.execute("CREATE ROLE writer LOGIN; SELECT queue.grant('sql', 'writer', 'manage')")?;
    let mut writer = server.connect()?;
    writer.batch_execute("SET SESSION AUTHORIZATION writer")?;
    Ok((server, writer))
}

/// Waits until a number is this one.
fn until(server: &Server, sql: &str, wanted: i64) {
    const AT_MOST: Duration = Duration::from_secs(300);
    let number = || server.number(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    wait::within(sql, AT_MOST, || (number() == wanted).then_some(()));
}

/// Enqueues so many jobs that do nothing.
fn enqueue(client: &mut Client, jobs: i64) -> Result<()> {
    Ok(client.batch_execute(&format!(
        "SELECT count(*) FROM queue.enqueue_batch('sql',
             (SELECT jsonb_agg('{{\"command\": \"SELECT 1\"}}'::jsonb) FROM generate_series(1, {jobs})))"
    ))?)
}

/// Jobs of the queue that have not ended.
const LEFT: &str = "SELECT (ready + running + scheduled + retrying)::bigint FROM queue.stats WHERE queue_name = 'sql'";

/// From the commit of the enqueue, as its session sees it, to the command's first statement.
fn latency(options: &Options) -> Result<()> {
    let (server, mut client) = server("pg_queue.max_executors = 1", "")?;
    server.execute("CREATE UNLOGGED TABLE began (at timestamptz); GRANT ALL ON began TO writer")?;
    let mut observer = server.connect()?;
    let enqueue = client.prepare("SELECT queue.enqueue_sql('sql', 'INSERT INTO began VALUES (clock_timestamp())')")?;
    let now = observer.prepare("SELECT extract(epoch FROM clock_timestamp())::float8")?;
    let mut time = |is_cold: bool| -> Result<f64> {
        if is_cold {
            observer.batch_execute("SELECT pg_terminate_backend(pid) FROM queue.executors")?;
            until(&server, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_queue executor'", 0);
        }
        thread::sleep(Duration::from_millis(10));
        observer.batch_execute("TRUNCATE began")?;
        // Both clocks are this machine's.
        let before: f64 = observer.query_one(&now, &[])?.try_get(0)?;
        let start = Instant::now();
        client.query_one(&enqueue, &[])?;
        let committed = before + start.elapsed().as_secs_f64();
        until(&server, "SELECT count(*) FROM began", 1);
        Ok((observer.value::<f64>("SELECT extract(epoch FROM at)::float8 FROM began") - committed) * 1e6)
    };
    for _ in 0..10 {
        time(false)?;
    }
    for (what, count, is_cold) in
        [("a warm process", options.scale(1_000, 100), false), ("no process", options.scale(100, 10), true)]
    {
        let us = (0..count).map(|_| time(is_cold)).collect::<Result<Vec<_>>>()?;
        println!("  from the return of the enqueue to the first statement, {what}: {}", spread(&us, "us"));
    }
    Ok(())
}

/// Jobs a second of so many processes that are there.
fn rate(executors: usize, jobs: i64) -> Result<f64> {
    let settings = format!("pg_queue.max_executors = {executors}\nmax_worker_processes = 16");
    let (server, mut client) = server(&settings, "")?;
    let mut fill = |jobs: i64| -> Result<f64> {
        client.batch_execute("SELECT queue.pause('sql')")?;
        let last = server.number("SELECT coalesce(max(id), 0) FROM queue.attempts")?;
        enqueue(&mut client, jobs)?;
        client.batch_execute("SELECT queue.resume('sql')")?;
        until(&server, LEFT, 0);
        Ok(client.value(&format!(
            "SELECT count(*) / extract(epoch FROM max(finished_at) - min(claimed_at))::float8 FROM queue.attempts
             WHERE state = 'completed' AND id > {last}"
        )))
    };
    fill(500)?;
    fill(jobs)
}

/// Jobs that are all due in one second, while no process can be started for them.
fn shortage(options: &Options) -> Result<()> {
    let (jobs, short_for) = options.scale((10_000_i64, SHORT_FOR), (1_000, SHORT_FOR / 6));
    // The launchers and the worker have three slots.
    let slots = AT_ONCE + 3;
    let settings = format!("max_worker_processes = {slots}\npg_queue.max_executors = {AT_ONCE}\n{HOLDING}");
    let (server, mut client) = server(&settings, "")?;
    server.execute(
        "CREATE TABLE ran (n integer, at timestamptz DEFAULT clock_timestamp()); GRANT ALL ON ran TO writer",
    )?;
    let early = without_slots(&server, || {
        client.batch_execute(&include_str!("sql/commands/shortage.sql").replace("{jobs}", &jobs.to_string()))?;
        thread::sleep(short_for);
        server.number("SELECT count(*) FROM ran")
    })?;
    let start = Instant::now();
    until(&server, LEFT, 0);
    let took = start.elapsed().as_secs_f64();
    let ran = server.number("SELECT count(DISTINCT n) FROM ran")?;
    let twice = server.number("SELECT count(*) FROM ran")? - ran;
    let failed = server.number("SELECT count(*) FROM queue.attempts WHERE state <> 'completed'")?;
    println!(
        "  {jobs} due at once, no slot for a process for {:.0} s: {early} run meanwhile, all {took:.1} s after it; \
         lost {}, twice {twice}, attempts that failed {failed}",
        short_for.as_secs_f64(),
        jobs - ran
    );
    Ok(())
}

/// What makes a query take as many processes as there are.
const HOLDING: &str = "max_parallel_workers = 64\nmax_parallel_workers_per_gather = 64\nparallel_setup_cost = 0
parallel_tuple_cost = 0\nmin_parallel_table_scan_size = 0\nparallel_leader_participation = off";

/// Does something while a parallel query has all processes that were free.
fn without_slots<T>(server: &Server, something: impl FnOnce() -> Result<T>) -> Result<T> {
    server.execute(include_str!("sql/commands/holder.sql"))?;
    let mut client = server.connect()?;
    // It ends by the cancel, or when something has gone wrong.
    client.batch_execute("SET statement_timeout = '6 min'")?;
    let token = client.cancel_token();
    thread::scope(|scope| {
        scope.spawn(move || drop(client.batch_execute("SELECT count(pg_sleep(1)) FROM held")));
        let held = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'";
        until(server, held, AT_ONCE as i64);
        let done = something();
        token.cancel_query(NoTls)?;
        done
    })
}

/// What a job that runs each second leaves behind in a day: as many runs, an hour's at a time, as fast as they go. The
/// storage turns as often as in that day, and what has ended is gone when it does, as if its hour were over.
fn day(options: &Options) -> Result<()> {
    let hours = options.scale(DAY / HOUR, 4);
    let (server, mut client) = server(
        "pg_queue.segment_rows = 4096\npg_queue.reclaim_delay = 0\npg_queue.max_executors = 2\nautovacuum = off",
        ", retention => '0'",
    )?;
    let mut sizes = Vec::new();
    for _ in 0..hours {
        enqueue(&mut client, HOUR)?;
        until(&server, LEFT, 0);
        let size = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
                    WHERE relnamespace = 'queue_internal'::regnamespace AND relkind = 'r'";
        sizes.push(server.number(size)? as f64 / 1024.0);
    }
    server.execute("CREATE EXTENSION pgstattuple")?;
    let dead = server.number(include_str!("sql/commands/dead-rows.sql"))?;
    let (first, second) = sizes.split_at(sizes.len() / 2);
    let (first, second, most) = (median(first), median(second), quantile(&sizes, 1.0));
    println!(
        "  {} runs, schema queue without vacuum, kB after each hour's: first half p50 {first:.0}, second half p50 \
         {second:.0}, most {most:.0}; dead rows in the logs {dead}",
        hours * HOUR
    );
    Ok(())
}

/// Schedules that are due each minute.
const SCHEDULES: i64 = 100;

/// pg_cron under what of the same it can do, if it is installed. It has no jobs that run once, so it has neither
/// a latency nor a rate.
pub fn cron(_: &mut Bench) -> Result<()> {
    if !Server::plain("").has("pg_cron")? {
        println!("  pg_cron is not installed");
        return Ok(());
    }
    for is_short in [false, true] {
        // The launcher of logical replication and pg_cron have two slots.
        let slots = AT_ONCE + 2;
        let server = Server::plain(&format!(
            "shared_preload_libraries = 'pg_cron'\ncron.use_background_workers = on\ncron.max_running_jobs = {AT_ONCE}
             max_worker_processes = {slots}\nautovacuum = off\n{HOLDING}"
        ));
        server.execute_with(include_str!("sql/commands/cron.sql"), &[("schedules", &SCHEDULES)])?;
        // Until just before the next minute, over its begin.
        let wait = || -> Result<()> {
            thread::sleep(SHORT_FOR + Duration::from_secs(5));
            Ok(())
        };
        if is_short {
            without_slots(&server, wait)?
        } else {
            wait()?
        }
        server.execute(include_str!("sql/commands/cron-end.sql"))?;
        let row = server.connect()?.query_one(include_str!("sql/commands/cron-ran.sql"), &[])?;
        let [ran, succeeded, failed, noted, dead, bytes] = [0, 1, 2, 3, 4, 5].map(|n| row.get::<_, i64>(n));
        let lost = SCHEDULES - ran;
        let slots = if is_short { "no slot for 30 s" } else { "slots enough" };
        println!("  pg_cron, {SCHEDULES} due at once, {slots}: ran {ran}, lost {lost}");
        println!("  of {noted} notes succeeded {succeeded}, failed {failed}");
        let [dead, bytes] = [dead, bytes].map(|all| all as f64 / noted.max(1) as f64);
        println!(
            "  pg_cron, per run without vacuum: {dead:.1} dead rows, {bytes:.0} bytes of cron.job_run_details, kept \
             until they are deleted"
        );
    }
    Ok(())
}
