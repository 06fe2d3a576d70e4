//! Shows where sessions wait when their number grows, and how long the frontier's lock is held for a job.
//!
//! One session at a time has that lock. So the time for which it is held for a job bounds the jobs per second, on any
//! number of processors.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use crate::bench::Bench;
use crate::contender::{BATCH, Contender, Payload, SINGLE, Work};
use crate::drive;
use crate::error::Result;
use crate::queues;
use crate::table::Table;

const CLIENTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The pause between two samples of the sessions' waits.
const PAUSE: Duration = Duration::from_millis(10);
/// An active session without a wait runs, or waits for a processor.
const WAITS: &str = "SELECT coalesce(wait_event_type || ' ' || wait_event, 'none'), count(*)::int8
    FROM pg_stat_activity WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()
    GROUP BY 1";
/// The function is missing in a build without the feature `lock-times`.
const LOCK_TIMES: &str = "CREATE FUNCTION public.lock_times() RETURNS text LANGUAGE c
    AS 'pg_queue', 'pg_queue_lock_times'";

/// The cell `cores`.
pub fn run(bench: &mut Bench) -> Result<()> {
    let contender = queues::set_up("ours", bench.options)?;
    let is_timed = contender.server.execute(LOCK_TIMES).is_ok();
    for work in [SINGLE, BATCH] {
        println!("  {work}");
        let columns =
            [("jobs/s", 12, 0), ("held, us/job", 14, 3), ("holds/job", 12, 2), ("held, %", 10, 1), ("bound", 12, 0)];
        let table = Table::begin(12, &columns);
        for clients in CLIENTS {
            let before = held(&contender, is_timed)?;
            let (jobs, seconds, waits) = turn(&contender, work, clients, bench.options.turn() * 2)?;
            let after = held(&contender, is_timed)?;
            let (holds, held) = ((after.0 - before.0) / jobs, (after.1 - before.1) / 1e9 / jobs);
            let figures = [jobs / seconds, held * 1e6, holds, held * jobs / seconds * 100.0, 1.0 / held];
            table.row(&format!("{clients} clients"), &figures);
            println!("    {}", shares(waits));
        }
    }
    Ok(())
}

/// Returns the number of holds of the lock, and their nanoseconds. NaN: the build does not measure them.
fn held(contender: &Contender, is_timed: bool) -> Result<(f64, f64)> {
    if !is_timed {
        return Ok((f64::NAN, f64::NAN));
    }
    let times: String = contender.server.connect()?.query_one("SELECT public.lock_times()", &[])?.try_get(0)?;
    let (holds, nanoseconds) = times.split_once(' ').ok_or("lock_times() returns two numbers")?;
    Ok((holds.parse()?, nanoseconds.parse()?))
}

/// Runs clients for a while. Returns the jobs, the seconds, and how often sessions were seen in each wait.
fn turn(
    contender: &Contender,
    work: Work,
    clients: usize,
    length: Duration,
) -> Result<(f64, f64, BTreeMap<String, i64>)> {
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let (mut session, payloads) = (contender.session(work)?, vec![Payload::new(); work.batch]);
        tasks.push(drive::warm(move || session.live(&payloads))?);
    }
    let (mut observer, mut waits) = (contender.server.connect()?, BTreeMap::new());
    let start = std::time::Instant::now();
    let (jobs, ()) = drive::side_by_side(tasks, |all_run| {
        while start.elapsed() < length && all_run() {
            for row in observer.query(WAITS, &[])? {
                *waits.entry(row.try_get(0)?).or_default() += row.try_get::<_, i64>(1)?;
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    })?;
    Ok((jobs as f64, start.elapsed().as_secs_f64(), waits))
}

/// Returns the waits of active sessions in percent of all looks, the most frequent first.
fn shares(waits: BTreeMap<String, i64>) -> String {
    let all = waits.values().sum::<i64>().max(1) as f64;
    let mut waits: Vec<_> = waits.into_iter().collect();
    waits.sort_by_key(|(_, seen)| -seen);
    let share = |(wait, seen): &(String, i64)| format!("{wait} {:.0} %", *seen as f64 / all * 100.0);
    waits.iter().take(6).map(share).collect::<Vec<_>>().join(", ")
}
