//! The contenders that take turns: pg_queue as programs use it, the floor below it, and the table that articles
//! recommend.

use std::time::SystemTime;

use crate::contender::{Contender, Payload, Takes, Verbs, Work};
use crate::error::Result;
use crate::options::Options;
use crate::server::Server;

/// Groups whose starts are counted at once, all of them within the period of a second.
const RATED_GROUPS: u32 = 3_000;
/// Jobs that wait in the articles' table.
const BACKLOG: i32 = 200_000;
/// Jobs that wait in a deep queue, or fall due next year in it.
pub const MANY: usize = 1_000_000;

const DEFAULTS: &str = "if_not_exists => false";
const UNKEPT: &str = "retention => '0', dead_retention => '0'";
/// A segment is full within a turn.
const TURNING: &str = "pg_queue.segment_rows = 5000\npg_queue.reclaim_delay = 0";

/// How a contender is called in results and in `--only`, and how it is set up.
type Named = (&'static str, fn(&Options) -> Result<Contender>);

/// All of them. From `plain` to `strict-order` each job carries a text of its own, which is its group or stands among
/// its headers; no limit is ever reached.
pub const ALL: [Named; 18] = [
    ("ours", |_| ours("", DEFAULTS)),
    ("ours-retention-0", |_| ours("", UNKEPT)),
    ("loop", |_| looped()),
    ("floor", |_| floor()),
    ("articles", |_| articles(false)),
    ("articles-index", |_| articles(true)),
    ("still", |_| ours("pg_queue.reclaim = off", DEFAULTS)),
    ("turning", |_| ours(TURNING, DEFAULTS)),
    ("turning-retention-0", |_| ours(TURNING, UNKEPT)),
    ("shallow", |_| filled(1_000)),
    ("deep", |options| filled(options.scale(MANY, MANY / 5))),
    ("far", |options| with_far(options.scale(MANY, MANY / 5), "")),
    ("plain", |_| marking("", DEFAULTS, "headers", None)),
    ("max-running", |_| marking("", "max_running => 10000", "headers", None)),
    ("rate-limit", |_| marking("", "rate_limit => 1000000000", "headers", None)),
    ("rate-per-group", |_| marking("", "rate_limit_per_group => 1000000000", "group_key", Some(RATED_GROUPS))),
    ("groups", |_| marking("", "max_running_per_group => 1", "group_key", None)),
    ("strict-order", |_| marking("", "strict_order => true", "group_key", None)),
];

/// Sets one up.
pub fn set_up(name: &str, options: &Options) -> Result<Contender> {
    eprintln!("setting up {name}");
    let (_, set_up) = ALL.iter().find(|(other, _)| *other == name).ok_or_else(|| format!("no contender is {name}"))?;
    let contender = set_up(options)?;
    contender.server.settle();
    Ok(contender)
}

/// The queue of `ours`.
pub const QUEUE: &str = "bench";

/// pg_queue with these settings and a queue with these options, which are SQL such as `retention => '0'`.
pub fn ours(settings: &str, options: &str) -> Result<Contender> {
    // The floor tells how many, not which; so does this.
    by(settings, options, "queue.enqueue($2, $1)".into(), "queue.enqueue_many($2, $1)".into())
}

fn by(settings: &str, options: &str, enqueue: String, enqueue_many: String) -> Result<Contender> {
    let server = Server::with_extension(settings)?;
    server.execute(&format!("SELECT queue.create('{QUEUE}', {options})"))?;
    let verbs = move |work: Work| {
        let (send, complete) = match work.batch {
            1 => (format!("SELECT {enqueue}"), "SELECT queue.complete($1)"),
            _ => (format!("SELECT count(*) FROM {enqueue_many}"), "SELECT count(*) FROM queue.complete_many($1)"),
        };
        let claim = "SELECT id, payload FROM queue.claim($2, $1)".into();
        Verbs { queue: QUEUE.into(), send, claim, complete: complete.into(), ..Verbs::default() }
    };
    Ok(Contender { server, verbs: Box::new(verbs) })
}

/// pg_queue in a worker's loop: the call that claims the next job completes the one before.
fn looped() -> Result<Contender> {
    let Contender { server, verbs } = ours("", DEFAULTS)?;
    let verbs = move |work| Verbs {
        takes: Takes::Next,
        next: "SELECT id, payload FROM queue.claim($2, $1, completed => $3)".into(),
        complete: "SELECT queue.complete_many($1)".into(),
        ..verbs(work)
    };
    Ok(Contender { server, verbs: Box::new(verbs) })
}

/// pg_queue whose jobs carry a text in this option of `queue.enqueue`. It is the job's own, or one of `texts` in turn.
fn marking(settings: &str, options: &str, option: &str, texts: Option<u32>) -> Result<Contender> {
    let number = texts.map_or("nextval('numbers')".to_owned(), |texts| format!("nextval('numbers') % {texts}"));
    let mark = format!("('n' || {number})");
    let value = if option == "headers" { format!("to_jsonb({mark})") } else { mark.clone() };
    let ours = by(
        settings,
        options,
        format!("queue.enqueue($2, $1, {option} => {value})"),
        format!(
            "queue.enqueue_batch($2, (SELECT jsonb_agg(jsonb_build_object('payload', p, '{option}', {mark}))
                                      FROM unnest($1::jsonb[]) AS p))"
        ),
    )?;
    // Sessions take so many numbers at once, so that they are not in each other's way.
    ours.server.execute("CREATE SEQUENCE numbers CACHE 1000")?;
    Ok(ours)
}

/// pg_queue with so many jobs waiting.
fn filled(jobs: usize) -> Result<Contender> {
    /// Jobs in one transaction.
    const AT_ONCE: usize = 10_000;
    let ours = ours("", DEFAULTS)?;
    let payload = Payload::new().sql();
    for first in (0..jobs).step_by(AT_ONCE) {
        let count = (jobs - first).min(AT_ONCE);
        ours.server.number(&format!(
            "SELECT count(*) FROM queue.enqueue_many('{QUEUE}', array_fill({payload}, '{{{count}}}'))"
        ))?;
    }
    Ok(ours)
}

/// Columns, keys and storage options as those of the extension; a sequence that costs next to nothing.
pub const FLOOR: &str = include_str!("sql/floor.sql");

/// The statements of a client of pg_queue that sends into a queue, and whose claims wait so long, return these columns
/// and complete the jobs before.
pub fn worker(queue: &str, columns: &str, wait: &str) -> Verbs {
    let claim = format!("SELECT {columns} FROM queue.claim($2, $1, wait => '{wait}'");
    Verbs {
        takes: Takes::Next,
        queue: queue.into(),
        send: "SELECT queue.enqueue($2, $1)".into(),
        next: format!("{claim}, completed => $3)"),
        claim: claim + ")",
        // Each reason is that of an attempt that has not ended.
        complete: "SELECT count(reason) FROM queue.complete_many($1)".into(),
        ..Verbs::default()
    }
}

/// The floor: the three inserts that pg_queue makes for a job, on plain tables of the same shape, without the
/// extension.
fn floor() -> Result<Contender> {
    let server = Server::plain("");
    server.execute(FLOOR)?;
    let verbs = |work: Work| {
        let columns = "INSERT INTO attempt (id, job_id, enqueued_at, lane, priority, attempt, payload)";
        let (source, claim, complete) = if work.batch == 1 {
            (
                "VALUES (nextval('attempt_id'), currval('attempt_id'), now(), 1, 0, 1, $1)",
                "VALUES ($1, now(), 300000000, pg_backend_pid(), 'w')",
                "VALUES ($1, now(), 'c')",
            )
        } else {
            (
                "SELECT id, id, now(), 1, 0, 1, payload
                 FROM (SELECT nextval('attempt_id') AS id, payload FROM unnest($1::jsonb[]) payload) j",
                "SELECT id, now(), 300000000, pg_backend_pid(), 'w' FROM unnest($1::bigint[]) id",
                "SELECT id, now(), 'c' FROM unnest($1::bigint[]) id",
            )
        };
        Verbs {
            takes: Takes::Sent,
            send: format!("{columns} {source} RETURNING id"),
            claim: format!("INSERT INTO claim {claim}"),
            complete: format!("INSERT INTO outcome {complete}"),
            ..Verbs::default()
        }
    };
    Ok(Contender { server, verbs: Box::new(verbs) })
}

/// The table with a status column and SKIP LOCKED, as articles on "Postgres as a queue" recommend it.
pub const ARTICLES: &str = include_str!("sql/articles.sql");

/// The statement that claims jobs that meet the condition; `limit` is a parameter or a number.
pub fn articles_claim(limit: &str, condition: &str, columns: &str) -> String {
    format!(
        "UPDATE jobs SET status = 'running', attempt = attempt + 1, locked_at = now(), locked_by = pg_backend_pid(),
                         updated_at = now()
         WHERE id IN (SELECT id FROM jobs WHERE status = 'queued' AND run_at <= now() AND {condition}
                      ORDER BY priority, id LIMIT {limit} FOR UPDATE SKIP LOCKED)
         RETURNING {columns}"
    )
}

/// The table with a backlog.
///
/// Not tuned, the claim's limit is a parameter, as libraries send it, and the planner is free: for an unknown limit it
/// would join with the whole table, so it makes a new plan for each claim. Tuned, the limit is a constant and other
/// plans than by the index are forbidden, so that the plan is made once and is the best.
fn articles(is_tuned: bool) -> Result<Contender> {
    let server = Server::plain("");
    server.execute(ARTICLES)?;
    let payload = Payload::new().sql();
    server.execute(&format!("INSERT INTO jobs (payload) SELECT {payload} FROM generate_series(1, {BACKLOG})"))?;
    server.execute("VACUUM ANALYZE jobs")?;
    let verbs = move |work: Work| {
        let (values, which) =
            if work.batch == 1 { ("VALUES ($1)", "= $1") } else { ("SELECT unnest($1::jsonb[])", "= ANY ($1)") };
        let limit = if is_tuned { work.batch.to_string() } else { "$1::integer".into() };
        Verbs {
            settings: if is_tuned { "SET enable_seqscan = off; SET enable_bitmapscan = off" } else { "" },
            send: format!("INSERT INTO jobs (payload) {values} RETURNING id"),
            claim: articles_claim(&limit, "true", "id, payload"),
            complete: format!(
                "UPDATE jobs SET status = 'done', updated_at = now() WHERE id {which} AND status = 'running'"
            ),
            ..Verbs::default()
        }
    };
    Ok(Contender { server, verbs: Box::new(verbs) })
}

/// A server with a queue in which so many jobs wait for next year.
pub fn with_far(jobs: usize, settings: &str) -> Result<Contender> {
    const YEAR: i64 = 365 * 86_400 * 1_000_000;
    let ours = ours(settings, "if_not_exists => false")?;
    enqueue_due(&ours.server, QUEUE, jobs, now() + YEAR, YEAR)?;
    Ok(ours)
}

/// Enqueues so many jobs that fall due at times spread evenly over so many microseconds from `from`, in an order that
/// has nothing to do with that of their ids.
pub fn enqueue_due(server: &Server, queue: &str, jobs: usize, from: i64, span: i64) -> Result<()> {
    const AT_ONCE: usize = 10_000;
    let mut client = server.connect()?;
    let enqueue = client.prepare(include_str!("sql/delayed.sql"))?;
    for first in (0..jobs).step_by(AT_ONCE) {
        client.query(&enqueue, &[&queue, &((jobs - first).min(AT_ONCE) as i32), &from, &span])?;
    }
    Ok(())
}

/// Microseconds since 1970, as the server counts them.
pub fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}
