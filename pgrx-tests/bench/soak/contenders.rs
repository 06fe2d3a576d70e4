//! The contenders of a soak: their servers, and the statements of their clients. The load is the same for all.

use std::thread;
use std::time::Duration;

use crate::contender::{Contender, Session, Takes, Verbs, Work};
use crate::drive::{Task, steady};
use crate::error::Result;
use crate::queues::{ARTICLES, WORKER};
use crate::server::Server;
use crate::soak::load::{Load, Lot, RETRY};

/// The largest number of jobs in one claim.
pub const BATCH: usize = 10;

/// The queue of a lot of jobs, where a contender has queues.
pub fn queue(lot: Lot) -> &'static str {
    if lot == Lot::Usual { "soak" } else { "soak-held" }
}

/// Sets a contender up. `None` if it is not installed. A claim returns the attempt's id, the attempt's number within
/// its job, and the job's number. A worker also gets the payload.
pub fn set_up(name: &str, load: Load, length: Duration) -> Result<Option<Contender>> {
    let (server, takes, files) = match name {
        "ours" => (Some(ours(load, length)?), Takes::Next, [WORKER, include_str!("../sql/soak/ours.sql")]),
        "articles" => (Some(Server::plain("")), Takes::Alone, [ARTICLES, include_str!("../sql/soak/articles.sql")]),
        _ => (Server::with_peer("pgq")?, Takes::Batches, ["", include_str!("../sql/soak/pgq.sql")]),
    };
    // PgQ's tables rotate as often as the ring of segments turns.
    let rotation = (length / 4).as_secs().max(1);
    let verbs = Verbs::of(takes, queue(Lot::Usual), &files)
        .with("limit", "{batch}")
        .with("columns", "id, attempt::bigint, (payload ->> 'job')::bigint, payload")
        .with("retry_ms", &RETRY.as_millis().to_string())
        .with("rotation", &rotation.to_string());
    server.map(|server| Contender::new(server, verbs)).transpose()
}

/// Starts a server with one queue for all jobs and one for jobs that wait for minutes. Its segments are so small that
/// the ring turns several times.
fn ours(load: Load, length: Duration) -> Result<Server> {
    /// Turns of the ring during a run, segments in the ring, and the minimum of `pg_queue.segment_rows`.
    const TURNS: u32 = 4;
    const RING: u32 = 8;
    const LEAST_ROWS: usize = 1_000;
    let rows = (load.jobs(length / (TURNS * RING))).max(LEAST_ROWS);
    println!("  segments of {rows} rows");
    Server::with_extension(&format!("pg_queue.segment_rows = {rows}\npg_queue.reclaim_delay = 1000"))
}

/// True if the contender has only events: no priorities, no delays, no failures, and one consumer. Then only the cost
/// of an event can be compared.
pub fn is_plain(contender: &Contender) -> bool {
    contender.verbs.takes == Takes::Batches
}

/// Connects a client for the jobs of a lot.
pub fn session(contender: &Contender, lot: Lot) -> Result<Session> {
    // A claim that also completes jobs never sleeps. Other claims of a worker may sleep. In the table of the articles
    // only held jobs have such a priority.
    let (wait, condition) = if lot == Lot::Usual { ("1 s", "priority < 1000") } else { ("0", "priority = 1000") };
    let mut verbs = contender.verbs.clone().with("wait", wait).with("condition", condition);
    verbs.queue = queue(lot).into();
    Session::new(&contender.server, &verbs, Work { batch: BATCH, is_durable: false, length: 1 })
}

/// Does the work of PgQ's daemon: ticks ten times a second, and the maintenance that PgQ asks for every ten seconds.
/// Its maintenance consists of functions, each in a transaction of its own, and the word "vacuum".
pub fn ticker(server: &Server) -> Result<Task<'_>> {
    const TICK: Duration = Duration::from_millis(100);
    const TICKS: u32 = 100;
    let mut client = server.connect()?;
    let tick = client.prepare("SELECT pgq.ticker()")?;
    let mut ticks = 0;
    Ok(steady(move || {
        thread::sleep(TICK);
        client.query(&tick, &[])?;
        ticks += 1;
        if ticks % TICKS != 0 {
            return Ok(0);
        }
        for row in client.query("SELECT func_name, func_arg FROM pgq.maint_operations()", &[])? {
            let (function, argument): (String, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
            client.batch_execute(&match argument {
                Some(table) if function == "vacuum" => format!("VACUUM {table}"),
                Some(argument) => format!("SELECT {function}('{argument}')"),
                None => format!("SELECT {function}()"),
            })?;
        }
        Ok(0)
    }))
}
