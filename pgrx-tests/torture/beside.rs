//! The work of administrators beside the clients: reads of views, REINDEX, VACUUM, dumps.

use std::thread;
use std::time::Duration;

use crate::place::DATABASE;
use crate::session::{Done, Session};

const LOOKS: &[&str] = &[
    "SELECT count(*), count(DISTINCT job_id) FROM queue.jobs",
    "SELECT count(*), count(DISTINCT id) FROM queue.attempts",
    "SELECT count(*), count(DISTINCT (queue_name, stage)) FROM queue.stats",
    "SELECT count(*), count(DISTINCT job_id) FROM queue.jobs WHERE queue_name = 'brief'",
    "SELECT count(*), count(*) FROM queue.workers",
    "SELECT count(*), count(*) FROM queue.errors",
    "SELECT count(*), count(*) FROM queue.throughput",
    "SELECT count(*), count(*) FROM queue.metrics()",
    "SELECT count(*), count(*) FROM queue.doctor()",
    "SELECT count(*), count(*) FROM queue.throughput_by('5 minutes')",
    "SELECT count(*), count(DISTINCT u) FROM queue.upcoming('tick') AS u",
    "SELECT count(*), count(DISTINCT j.job_id)
     FROM (SELECT DISTINCT job_id FROM (SELECT job_id FROM queue.attempts ORDER BY id DESC LIMIT 9) AS a) AS a,
         LATERAL queue.job(a.job_id) AS j",
];

/// Reads what dashboards read, and checks that no query shows a job twice.
pub fn look(session: &mut Session<'_>) {
    let torture = session.torture;
    session.go_on(
        || torture.is_over(),
        |session| {
            thread::sleep(Duration::from_millis(session.random.below(400)));
            let sql = session.random.one_of(LOOKS);
            for row in session.aside("look", sql)? {
                let (rows, different): (i64, i64) = (row.get(0), row.get(1));
                if rows != different {
                    session.torture.find(format!("{sql}: {rows} rows, of which {different} differ"));
                    evidence(session)?;
                }
            }
            Ok(())
        },
    );
}

/// Reports all rows of the jobs that a query shows twice, read without an index, and the state of each segment.
fn evidence(session: &mut Session<'_>) -> Done {
    let jobs = "SELECT job_id FROM queue.jobs GROUP BY 1 HAVING count(*) > 1 LIMIT 3";
    let twice: Vec<i64> = session.aside("look at doubles", jobs)?.iter().map(|row| row.get(0)).collect();
    if twice.is_empty() {
        return Ok(());
    }
    session.aside(
        "look at doubles",
        "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off",
    )?;
    let mut lines = Vec::new();
    for job in twice {
        let mut ids = Vec::new();
        for n in 0..10 {
            let sql = format!(
                "SELECT id, format('job {job} segment {n} %s xmin %s: %s', a.ctid, a.xmin, left(a::text, 300)) \
                    FROM queue_internal.attempt_{n} AS a WHERE job_id = {job} OR id = {job}"
            );
            for row in session.aside("look at doubles", &sql)? {
                ids.push(row.get::<_, i64>(0));
                lines.push(row.get::<_, String>(1));
            }
        }
        for n in 0..10 {
            for table in ["claim", "outcome", "note"] {
                let sql = format!(
                    "SELECT format('{table}_{n} %s xmin %s: %s', t.ctid, t.xmin, left(t::text, 200)) \
                        FROM queue_internal.{table}_{n} AS t WHERE id IN ({})",
                    ids.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
                );
                for row in session.aside("look at doubles", &sql)? {
                    lines.push(row.get::<_, String>(0));
                }
            }
        }
    }
    let sql = "SELECT format('%s', l) FROM queue_internal.segment_log AS l ORDER BY entry DESC LIMIT 30";
    lines.extend(session.aside("look at doubles", sql)?.iter().map(|row| row.get::<_, String>(0)));
    session.torture.find(format!("evidence:\n{}", lines.join("\n")));
    Ok(())
}

/// Checks that `queue.check()` reports nothing, whatever happens at the same time.
pub fn audit(session: &mut Session<'_>) {
    let torture = session.torture;
    session.go_on(
        || torture.is_over(),
        |session| {
            thread::sleep(Duration::from_millis(session.random.below(5000)));
            for row in session.aside("check", "SELECT format('%s', c) FROM queue.check() AS c")? {
                session.torture.find(format!("queue.check beside the work: {}", row.get::<_, &str>(0)));
            }
            Ok(())
        },
    );
}

/// Publishes the number of waiting jobs, so that producers know when to pause.
pub fn gauge(session: &mut Session<'_>) {
    let torture = session.torture;
    session.go_on(
        || torture.is_over(),
        |session| {
            thread::sleep(Duration::from_millis(100));
            let sql = "SELECT sum(ready + scheduled + retrying + running)::bigint FROM queue.stats";
            for row in session.aside("gauge", sql)? {
                session.torture.set_waiting(row.get::<_, Option<i64>>(0).unwrap_or(0));
            }
            Ok(())
        },
    );
}

pub fn administrate(session: &mut Session<'_>) {
    let torture = session.torture;
    session.go_on(|| torture.is_over(), step);
}

fn step(session: &mut Session<'_>) -> Done {
    thread::sleep(Duration::from_millis(200 + session.random.below(2500)));
    let tables = "SELECT oid::regclass::text FROM pg_class
                  WHERE relnamespace = 'queue_internal'::regnamespace AND relkind IN ('r') ORDER BY oid";
    let names: Vec<String> = session.aside("look at tables", tables)?.iter().map(|row| row.get(0)).collect();
    let table = &names[session.random.below(names.len() as u64) as usize];
    match session.random.below(10) {
        0..3 => session.aside("reindex", &format!("REINDEX TABLE CONCURRENTLY {table}")),
        3 => session.aside("reindex", &format!("REINDEX TABLE {table}")),
        4..7 => session.aside("vacuum", &format!("VACUUM (FREEZE, ANALYZE) {table}")),
        7 => session.aside("vacuum full", &format!("VACUUM FULL {table}")),
        _ => {
            dump(session);
            return Ok(());
        }
    }
    .map(drop)
}

/// Dumps the database. The server may end during the dump. If it does not, the dump must succeed.
fn dump(session: &Session<'_>) {
    let primary = session.torture.place.primary();
    let _ = primary.command("pg_dump").args(["-f", "/dev/null", DATABASE]).output();
}
