//! The extension's inserts go straight to table and index. This measures what kept SPI plans, as PL/pgSQL makes
//! them, would cost in their place: many calls in one statement, so that the protocol and the commit do not count.

use std::time::Instant;

use postgres::Client;

use crate::contender::{FLOOR_TABLES, Payload};
use crate::options::Options;
use crate::server::Server;
use crate::{Result, statistics};

/// Its name in `--only`.
pub const NAME: &str = "direct";

/// A pair of ways to do the same.
pub struct Comparison {
    /// What is done.
    pub what: &'static str,
    /// Microseconds per call of the extension.
    pub direct: f64,
    /// Microseconds per call of a PL/pgSQL function with the same insert into the same kind of table.
    pub plan: f64,
}

const FUNCTIONS: &str = "
    CREATE FUNCTION plan_enqueue(lane integer, payload jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
        DECLARE new_id bigint := nextval('attempt_id');
        BEGIN
            INSERT INTO attempt (id, job_id, enqueued_at, lane, priority, attempt, payload)
            VALUES (new_id, new_id, now(), lane, 0, 1, payload);
            RETURN new_id;
        END $$;
    CREATE FUNCTION plan_claim(id bigint) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO claim VALUES (id, now(), 300000000, pg_backend_pid(), 'w'); END $$;
    CREATE FUNCTION plan_complete(id bigint) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO outcome VALUES (id, now(), 'c'); END $$;";

/// Compares the three verbs.
pub fn measure(options: &Options) -> Result<Vec<Comparison>> {
    let calls = if options.quick { 5_000 } else { 20_000 };
    eprintln!("direct inserts against kept plans, {calls} calls");
    let server = Server::with_extension()?;
    server.execute("SELECT queue.create('direct')")?;
    server.execute(FLOOR_TABLES)?;
    server.execute(FUNCTIONS)?;
    let mut client = server.connect()?;
    client.batch_execute("CREATE TEMP TABLE given (id bigint)")?;
    let payload = Payload::new().sql();
    let series = format!("FROM generate_series(1, {calls})");
    let mut time = |sql: &str| time(&mut client, sql, calls);
    let mut times: [[Vec<f64>; 2]; 3] = Default::default();
    for _ in 0..options.rounds {
        times[0][0].push(time(&format!("SELECT count(queue.enqueue('direct', {payload})) {series}"))?);
        times[0][1].push(time(&format!("SELECT count(plan_enqueue(1, {payload})) {series}"))?);
        time("TRUNCATE given")?;
        times[1][0].push(time(&format!("INSERT INTO given SELECT (queue.claim('direct')).id {series}"))?);
        times[1][1].push(time("SELECT count(*) FROM (SELECT plan_claim(id) FROM given OFFSET 0) AS done")?);
        times[2][0].push(time("SELECT count(*) FROM (SELECT queue.complete(id) FROM given OFFSET 0) AS done")?);
        times[2][1].push(time("SELECT count(*) FROM (SELECT plan_complete(id) FROM given OFFSET 0) AS done")?);
    }
    let whats = ["enqueue", "claim (the whole of it against its insert)", "complete"];
    Ok(whats
        .into_iter()
        .zip(times)
        .map(|(what, [direct, plan])| Comparison {
            what,
            direct: statistics::median(&direct),
            plan: statistics::median(&plan),
        })
        .collect())
}

/// Microseconds per call.
fn time(client: &mut Client, sql: &str, calls: u32) -> Result<f64> {
    let start = Instant::now();
    client.batch_execute(sql)?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
}
