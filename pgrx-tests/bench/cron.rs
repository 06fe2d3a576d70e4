//! pg_cron under what of the same it can do: runs that are due while the server has no process to spare, and what a run
//! leaves behind. It has no jobs that run once, so a latency or a rate is not to be had.

use std::thread;
use std::time::Duration;

use crate::bench::Bench;
use crate::error::Result;
use crate::server::Server;
use crate::sql::{HOLDING, Holder, SHORT_FOR};

/// Schedules that are due each minute.
const SCHEDULES: i64 = 100;
/// How many of them run at once.
const AT_ONCE: usize = 8;

/// Measures, if pg_cron is installed.
pub fn measure(_: &mut Bench) -> Result<()> {
    if !Server::plain("").has("pg_cron")? {
        println!("  pg_cron is not installed");
        return Ok(());
    }
    let mut slots = Vec::new();
    for is_short in [false, true] {
        // The launcher of logical replication and pg_cron have two slots.
        let server = Server::plain(&format!(
            "shared_preload_libraries = 'pg_cron'\ncron.use_background_workers = on\ncron.max_running_jobs = {AT_ONCE}
             max_worker_processes = {}\nautovacuum = off\n{HOLDING}",
            AT_ONCE + 2
        ));
        let mut client = server.connect()?;
        client.batch_execute(
            "CREATE EXTENSION pg_cron; CREATE EXTENSION pgstattuple; \
                CREATE TABLE ran (n integer, at timestamptz DEFAULT clock_timestamp())",
        )?;
        client.batch_execute("SELECT pg_sleep(60 - extract(second FROM clock_timestamp()) + 1)")?;
        client.batch_execute(&format!(
            "SELECT cron.schedule('s' || n, '* * * * *', format('INSERT INTO ran VALUES (%s)', n)) \
                FROM generate_series(1, {SCHEDULES}) AS n"
        ))?;
        // Until just before the next minute, over its begin, and to its end.
        client.batch_execute("SELECT pg_sleep(55 - extract(second FROM clock_timestamp()))")?;
        let holder = if is_short { Some(Holder::take(&server, AT_ONCE)?) } else { None };
        thread::sleep(SHORT_FOR + Duration::from_secs(5));
        drop(holder);
        client.batch_execute("SELECT pg_sleep(58 - extract(second FROM clock_timestamp()))")?;
        client.batch_execute("UPDATE cron.job SET active = false")?;
        client.batch_execute("SELECT pg_sleep(30)")?;
        let row = client.query_one(include_str!("sql/cron-ran.sql"), &[])?;
        let numbers = (0..6).map(|n| row.try_get(n)).collect::<std::result::Result<Vec<i64>, _>>()?;
        let [ran, succeeded, failed, noted, dead, bytes] = numbers[..] else { return Err("six numbers".into()) };
        let what =
            if is_short { format!("no slot for {:.0} s", SHORT_FOR.as_secs_f64()) } else { "slots enough".into() };
        println!(
            "  pg_cron, {SCHEDULES} due at once, {what}: ran {ran}, lost {}; of {noted} notes succeeded {succeeded}, \
                failed {failed}",
            SCHEDULES - ran
        );
        slots.push((dead as f64 / noted.max(1) as f64, bytes as f64 / noted.max(1) as f64));
    }
    let (dead, bytes) = slots[0];
    println!(
        "  pg_cron, per run without vacuum: {dead:.1} dead rows, {bytes:.0} bytes of cron.job_run_details, \
            kept until they are deleted"
    );
    Ok(())
}
