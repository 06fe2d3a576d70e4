//! The contenders of a soak: what they are and by which statements their clients work. How often and with what the
//! clients do it is the same for all.

use std::time::Duration;

use crate::contender::{Session, Takes, Verbs};
use crate::error::Result;
use crate::queues::{ARTICLES, articles_claim, worker};
use crate::server::Server;
use crate::soak::load::{Load, Lot, RETRY};
use crate::soak::storage::Tables;

/// Jobs in one claim, at most.
pub const BATCH: i32 = 10;

/// Does what somebody outside of the server has to do ten times a second.
pub type Ticker = Box<dyn FnMut() -> Result<()> + Send>;

/// A queue with its server. A claim returns the attempt, which attempt of the job it is, and the job's number; a worker
/// gets the payload besides.
pub struct Contender {
    pub server: Server,
    /// Where its jobs are.
    pub tables: Tables,
    pub workers: usize,
    /// True if all it knows are events: no priorities, no delays, no failures.
    pub is_plain: bool,
    /// The statements of a client for the jobs of a lot.
    verbs: fn(Lot) -> Verbs,
}

/// The queue of a lot, where a contender has queues.
pub fn queue(lot: Lot) -> &'static str {
    if lot == Lot::Usual { "soak" } else { "soak-held" }
}

/// Sets one up; `None` where it is not installed.
pub fn set_up(name: &str, load: Load, length: Duration) -> Result<Option<Contender>> {
    match name {
        "ours" => ours(load, length).map(Some),
        "articles" => articles().map(Some),
        _ => pgq(length),
    }
}

impl Contender {
    /// Connects a client.
    pub fn session(&self, lot: Lot) -> Result<Session> {
        Session::new(&self.server, (self.verbs)(lot), false)
    }

    pub fn ticker(&self) -> Result<Option<Ticker>> {
        if self.is_plain { pgq_ticker(&self.server).map(Some) } else { Ok(None) }
    }
}

/// pg_queue: a queue for all, and one whose jobs nobody wants for minutes, in segments so small that the ring comes
/// round several times.
fn ours(load: Load, length: Duration) -> Result<Contender> {
    /// Turns of the ring of segments in a run, segments in the ring, and the smallest that `pg_queue.segment_rows` may
    /// be.
    const TURNS: u32 = 4;
    const RING: u32 = 8;
    const LEAST_ROWS: usize = 1_000;
    let rows = (load.jobs(length / (TURNS * RING))).max(LEAST_ROWS);
    let server = Server::with_extension(&format!("pg_queue.segment_rows = {rows}\npg_queue.reclaim_delay = 1000"))?;
    println!("  segments of {rows} rows");
    server.execute("SELECT queue.create('soak'), queue.create('soak-held')")?;
    let verbs = |lot: Lot| {
        let wait = if lot == Lot::Usual { "1 s" } else { "0" };
        // Each reason is that of an attempt that has not ended.
        let end = |call: String| format!("SELECT count(reason) FROM queue.{call}");
        let columns = "id, attempt::bigint, (payload ->> 'job')::bigint, payload";
        Verbs {
            send: "SELECT queue.enqueue($2, $1, priority => $3, delay => $4::float8 * interval '1 second')".into(),
            retry: end(format!("fail_many($1, 'not yet', retry_in => '{} ms')", RETRY.as_millis())),
            kill: end("fail_many($1, 'never', fatal => true)".into()),
            // With something to finish a claim never sleeps; without, it may.
            ..worker(queue(lot), columns, wait)
        }
    };
    let tables = Tables { schema: "queue", logs: "c.relname ~ '^(attempt|claim|outcome|note)_[0-9]+$'" };
    Ok(Contender { server, tables, workers: 4, is_plain: false, verbs })
}

/// The articles' table with its best plan: the index scan, made once.
fn articles() -> Result<Contender> {
    let server = Server::plain("");
    server.execute(ARTICLES)?;
    let verbs = |lot: Lot| {
        // Only the held jobs have such a priority.
        let condition = if lot == Lot::Usual { "priority < 1000" } else { "priority = 1000" };
        let end = |values: &str| {
            format!("UPDATE jobs SET {values}, updated_at = now() WHERE id = ANY ($1) AND status = 'running'")
        };
        let again = format!("run_at = now() + interval '{} ms'", RETRY.as_millis());
        Verbs {
            // Other plans look good to a planner that has seen the table while it was small.
            settings: "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; \
                SET enable_mergejoin = off",
            send: "INSERT INTO jobs (payload, priority, run_at)
                   SELECT $1, $3, now() + coalesce($4::float8, 0) * interval '1 second'
                   WHERE $2::text IS NOT NULL RETURNING id"
                .into(),
            claim: articles_claim(
                &BATCH.to_string(),
                condition,
                "id, attempt::bigint, (payload ->> 'job')::bigint, payload",
            ),
            complete: end("status = 'done'"),
            retry: end(&format!("status = 'queued', error = 'not yet', {again}")),
            kill: end("status = 'dead', error = 'never'"),
            ..Verbs::default()
        }
    };
    let tables = Tables { schema: "public", logs: "c.relname = 'jobs'" };
    Ok(Contender { server, tables, workers: 4, is_plain: false, verbs })
}

/// PgQ: the same number of events, in batches to one consumer. It knows no priorities, delays or outcomes, so what can
/// be compared is what an event costs the server.
fn pgq(length: Duration) -> Result<Option<Contender>> {
    let Some(server) = Server::with_peer("pgq")? else { return Ok(None) };
    // A tick for every call of the ticker, and tables that rotate as often as the segments' ring comes round.
    let rotation = (length / 4).as_secs().max(1);
    server.execute(&format!(
        "SELECT pgq.create_queue('soak'), pgq.register_consumer('soak', 'worker');
         SELECT pgq.set_queue_config('soak', 'ticker_max_lag', '0'),
                pgq.set_queue_config('soak', 'ticker_max_count', '1'),
                pgq.set_queue_config('soak', 'rotation_period', '{rotation} s')"
    ))?;
    let verbs = |_| Verbs {
        takes: Takes::Batches,
        send: "SELECT pgq.insert_event('soak', 'job', $1)".into(),
        claim: "SELECT coalesce(pgq.next_batch('soak', 'worker'), 0)".into(),
        next: "SELECT ev_id, 1::bigint, (ev_data::jsonb ->> 'job')::bigint, ev_data FROM pgq.get_batch_events($1)"
            .into(),
        complete: "SELECT 1 - pgq.finish_batch($1)::bigint".into(),
        ..Verbs::default()
    };
    let tables = Tables { schema: "pgq", logs: "true" };
    Ok(Some(Contender { server, tables, workers: 1, is_plain: true, verbs }))
}

/// The ticks, and every ten seconds what PgQ says has to be done, as its daemon would: functions, each in a transaction
/// of its own, and the word "vacuum".
fn pgq_ticker(server: &Server) -> Result<Ticker> {
    const TICKS: u32 = 100;
    let mut client = server.connect()?;
    let tick = client.prepare("SELECT pgq.ticker()")?;
    let mut ticks = 0;
    Ok(Box::new(move || {
        client.query(&tick, &[])?;
        ticks += 1;
        if ticks % TICKS != 0 {
            return Ok(());
        }
        for row in client.query("SELECT func_name, func_arg FROM pgq.maint_operations()", &[])? {
            let (function, argument): (String, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
            client.batch_execute(&match argument {
                Some(table) if function == "vacuum" => format!("VACUUM {table}"),
                Some(argument) => format!("SELECT {function}('{argument}')"),
                None => format!("SELECT {function}()"),
            })?;
        }
        Ok(())
    }))
}
