//! The pages' queries. Each returns JSON as Postgres writes it, so that no number is rounded.
//!
//! Invariants: each query reads a bounded number of index entries, however many jobs there are. Payloads are sent as
//! text. Long ones are cut or left out, and hidden ones are never sent.

use std::collections::HashMap;
use std::time::Duration;

use axum::http::StatusCode;

use crate::database::Database;
use crate::error::{Error, Result};
use crate::filter;
use crate::viewer::Viewer;

/// Shows a bounded number of queues, workers, schedules and so on. Queues with jobs come first.
macro_rules! overview {
    ($counts:literal) => {
        concat!(
            "SELECT json_build_object(
    'at', round(extract(epoch FROM clock_timestamp())::numeric, 3), 'is_standby', pg_is_in_recovery(),
    'lanes', c.lanes, 'total', c.total, 'queue_count', c.queue_count,
    'queues', coalesce((SELECT json_agg(q) FROM (
        SELECT queue_name AS queue, is_paused, max_running, rate_limit, extract(epoch FROM rate_period) AS rate_period,
               max_waiting, executor, dead_letter
        FROM queue.queues LEFT JOIN (SELECT DISTINCT n FROM unnest(c.names) AS n) AS o ON o.n = queue_name
        ORDER BY o.n IS NULL, queue_name LIMIT 1000) AS q), '[]'),
    'workers', coalesce((SELECT json_agg(w) FROM (
        SELECT left(worker, 200) AS worker, pid, host(client_addr) AS client, client_port AS port,
        application_name AS application,
               queue_name AS queue, running, round(extract(epoch FROM oldest_claim)) AS oldest,
               round(extract(epoch FROM clock_timestamp() - waiting_since)) AS waits
        FROM queue.workers
        ORDER BY oldest_claim DESC NULLS LAST, queue_name NULLS LAST, pid LIMIT 500) AS w), '[]'))::text
FROM (", $counts, ") AS c"
        )
    };
}

/// The data that are pushed each second.
const OVERVIEW: &str = overview!(
    "WITH l AS MATERIALIZED (
        SELECT queue_name AS queue, stage, ready, scheduled, retrying, running, dead, held,
               round(extract(epoch FROM oldest_ready_age)) AS oldest, enqueued, claimed, completed, failed, timed_out,
               died, expired,
               array_position(q.stages, stage) AS place
        FROM queue.stats LEFT JOIN queue.queues AS q USING (queue_name)),
    shown AS (
        SELECT * FROM l ORDER BY ready + scheduled + retrying + running + dead + held = 0, queue, place LIMIT 1000)
    SELECT (SELECT coalesce(json_agg(s ORDER BY queue, place), '[]') FROM shown AS s) AS lanes,
        (SELECT array_agg(queue) FROM shown) AS names,
        (SELECT count(DISTINCT queue) FROM l) AS queue_count,
        (SELECT json_build_object('ready', coalesce(sum(ready), 0), 'scheduled', coalesce(sum(scheduled), 0),
            'retrying', coalesce(sum(retrying), 0), 'running', coalesce(sum(running), 0), 'dead',
            coalesce(sum(dead), 0),
            'held', coalesce(sum(held), 0), 'oldest', max(oldest), 'enqueued', coalesce(sum(enqueued), 0),
            'claimed', coalesce(sum(claimed), 0), 'completed', coalesce(sum(completed), 0), 'failed',
            coalesce(sum(failed), 0),
            'timed_out', coalesce(sum(timed_out), 0), 'died', coalesce(sum(died), 0),
            'expired', coalesce(sum(expired), 0)) FROM l) AS total"
);

/// As `OVERVIEW`, for databases where counting takes too long.
const OVERVIEW_UNCOUNTED: &str = overview!(
    "SELECT NULL::json AS lanes, NULL::json AS total, NULL::text[] AS names,
        (SELECT count(*) FROM queue.queues) AS queue_count"
);

/// The lanes of one queue, for databases with more lanes than the overview shows.
const LANES: &str = "SELECT coalesce(json_agg(l ORDER BY place), '[]')::text FROM (
    SELECT queue_name AS queue, stage, ready, scheduled, retrying, running, dead, held, enqueued, claimed, completed,
    failed,
           timed_out, died, expired, array_position(q.stages, stage) AS place
    FROM queue.stats LEFT JOIN queue.queues AS q USING (queue_name) WHERE queue_name = $1) AS l";

/// The columns of a list. `$1` says whether payloads are hidden.
macro_rules! listed {
    () => {
        "json_build_object('job_id', l.job_id, 'stage', l.stage, 'state', l.state, 'priority', l.priority, 'attempt', \
            l.attempt,
    'max_attempts', l.max_attempts, 'run_at', l.run_at, 'start_by', l.start_by,
    'enqueued_at', l.enqueued_at, 'claimed_at', l.claimed_at,
    'finished_at', l.finished_at, 'lease_expires_at', l.lease_expires_at, 'worker', left(l.worker, 200),
    'error', split_part(left(l.error, 400), E'\\n', 1), 'unique_key', left(l.unique_key, 200), \
    'group_key', left(l.group_key, 200), 'flow', l.flow,
    'task', left(l.task, 200), 'here', l.here::text, 'rows_read', l.rows_read,
    'payload', CASE WHEN NOT $1::boolean AND queue.text_length(l.payload) <= 8000 THEN left(l.payload::text, 240) END,
    'payload_bytes', CASE WHEN NOT $1::boolean THEN queue.text_length(l.payload) END,
    'progress', CASE WHEN $1::boolean OR queue.text_length(l.progress) > 2000 THEN NULL ELSE l.progress::text END)"
    };
}

const LIST: &str = concat!(
    "SELECT coalesce(json_agg(",
    listed!(),
    "), '[]')::text FROM queue.search($2, states => ARRAY[$3], stage => $4, beyond => $5::jsonb) AS l"
);

const SEARCH: &str = concat!(
    "SELECT coalesce(json_agg(",
    listed!(),
    "), '[]')::text FROM queue.search($2, coalesce($3, '$')::jsonpath, states => ",
    "(SELECT array_agg(s) FROM jsonb_array_elements_text($4::jsonb) AS s), beyond => $5::jsonb, max_jobs => 50) AS l"
);

/// How many jobs a verb for many would find so far.
const COUNT: &str = "SELECT json_build_object('jobs', count(job_id), 'rows_read', coalesce(max(rows_read), 0),
        'here', (array_agg(here::text) FILTER (WHERE here IS NOT NULL))[1])::text
    FROM queue.search($1, coalesce($2, '$')::jsonpath,
        states => (SELECT array_agg(s) FROM jsonb_array_elements_text($3::jsonb) AS s), beyond => $4::jsonb,
        max_jobs => 10000)";

const QUEUE: &str = "SELECT row_to_json(q)::text FROM (
    SELECT queue_name AS queue, is_paused, max_attempts, lease, backoff, backoff_base, backoff_max, backoff_jitter,
    retention,
           dead_retention, dead_letter, max_running, max_running_per_group, strict_order, rate_limit, rate_period,
           max_waiting::text, start_within, rate_limit_per_group, rate_cost, fair_share,
           stages, notify, created_at, executor, procedure, run_as, CASE WHEN NOT $1::boolean
           THEN left(settings::text, 20000) END AS settings,
           coalesce((SELECT json_agg(f.queue_name ORDER BY f.queue_name) FROM (SELECT queue_name FROM queue.queues
               WHERE dead_letter = $2 LIMIT 50) AS f), '[]') AS feeds
    FROM queue.queues WHERE queue_name = $2) AS q";

/// How long the jobs of the last minute waited and ran: a sample that memory and an index have.
const LATENCY: &str = "SELECT coalesce(json_agg(json_build_object('stage', labels ->> 'stage', 'kind',
        CASE name WHEN 'pg_queue_wait_seconds' THEN 'wait' ELSE 'run' END, 'quantile', labels ->> 'quantile',
        'seconds', value)), '[]')::text
    FROM queue.metrics() WHERE name IN ('pg_queue_wait_seconds', 'pg_queue_run_seconds') AND labels ->> 'queue' = $1";

/// As `LATENCY`, exact and of the last hour. It reads the logs, so it runs only when a viewer asks for it.
const LATENCY_OF_HOUR: &str = "SELECT coalesce(json_agg(json_build_object('stage', t.stage, 'kind', v.kind,
        'quantile', v.quantile, 'seconds', extract(epoch FROM v.length))), '[]')::text
    FROM (SELECT * FROM queue.throughput_by('36500 days', now() - interval '1 hour')
          WHERE queue_name = $1 ORDER BY starts_at DESC LIMIT 200) AS t
    CROSS JOIN LATERAL (VALUES
        ('wait', '0.5', t.wait_p50), ('wait', '0.95', t.wait_p95), ('wait', '0.99', t.wait_p99),
        ('run', '0.5', t.run_p50), ('run', '0.95', t.run_p95), ('run', '0.99', t.run_p99)) AS v (kind, quantile, length)
    WHERE v.length IS NOT NULL";

/// Rows: queue, begin, enqueued, completed, failed, timed out, died, is_complete, stage. They are of one queue; or of
/// all queues: first sums without a queue, then each stage of each queue.
const ACTIVITY: &str =
    "SELECT coalesce(json_agg(json_build_array(queue_name, extract(epoch FROM starts_at), enqueued, completed,
        failed, timed_out, died, is_complete, stage)), '[]')::text FROM (
    SELECT queue_name, stage, starts_at, sum(enqueued) AS enqueued, sum(completed) AS completed, sum(failed) AS failed,
           sum(timed_out) AS timed_out, sum(died) AS died, bool_and(is_complete) AS is_complete
    FROM queue.activity($1, since => now() - $2::interval, period => $3::interval)
    GROUP BY GROUPING SETS ((queue_name, stage, starts_at), (starts_at))
    HAVING $1 IS NULL OR grouping(queue_name) = 0
    ORDER BY queue_name NULLS FIRST, starts_at LIMIT 60000) AS a";

/// A value that is stored small may be long as text. So only values that are short as text are made text.
const JOB: &str = "SELECT json_build_object(
    'job', json_build_object('job_id', j.job_id, 'queue', j.queue_name, 'stage', j.stage, 'state', j.state,
        'priority', j.priority, 'attempt', j.attempt, 'max_attempts', j.max_attempts, 'run_at', j.run_at,
        'start_by', j.start_by, 'timing', j.timing,
        'enqueued_at', j.enqueued_at, 'claimed_at', j.claimed_at, 'finished_at', j.finished_at,
        'lease_expires_at', j.lease_expires_at, 'worker', left(j.worker, 200), 'error', left(j.error, 20000),
        'unique_key', left(j.unique_key, 2000),
        'group_key', left(j.group_key, 2000), 'flow', j.flow, 'task', left(j.task, 2000), 'upon', j.upon),
    'bytes', CASE WHEN NOT $2::boolean THEN json_build_object('payload', queue.text_length(j.payload),
        'result', queue.text_length(j.result), 'progress', queue.text_length(j.progress),
        'headers', queue.text_length(j.headers)) END,
    'payload', CASE WHEN NOT $2::boolean AND queue.text_length(j.payload) < 60000 THEN jsonb_pretty(j.payload) END,
    'result', CASE WHEN NOT $2::boolean AND queue.text_length(j.result) < 60000 THEN jsonb_pretty(j.result) END,
    'headers', CASE WHEN NOT $2::boolean AND queue.text_length(j.headers) < 60000 THEN jsonb_pretty(j.headers) END,
    'progress', CASE WHEN NOT $2::boolean AND queue.text_length(j.progress) < 60000 THEN jsonb_pretty(j.progress) END,
    'attempts', coalesce((SELECT json_agg(a) FROM (
        SELECT id, attempt, state, claimed_at, finished_at, left(worker, 200) AS worker, stage,
            CASE WHEN row_number() OVER (ORDER BY id DESC) <= 10 THEN left(error, 8000)
                ELSE split_part(left(error, 2000), E'\\n', 1) END AS error
        FROM queue.job_attempts(j.job_id) ORDER BY id DESC LIMIT 100) AS a), '[]'),
    'steps', coalesce((SELECT json_agg(json_build_object('name', left(name, 200), 'result', CASE WHEN NOT $2::boolean
    AND queue.text_length(result) < 60000 THEN left(result::text, 400) END))
        FROM (SELECT name, result FROM queue.job_steps(j.job_id) LIMIT 500) AS s), '[]'),
    'after', coalesce((SELECT json_agg(json_build_object('job_id', a.id, 'queue', o.queue_name, 'state', o.state,
    'task', left(o.task, 200)))
        FROM unnest(j.after) AS a (id) LEFT JOIN LATERAL queue.job(a.id) AS o ON true), '[]'),
    'members', coalesce((SELECT json_agg(json_build_object('job_id', m.job_id, 'queue', m.queue_name, 'state', m.state,
            'task', left(m.task, 200), 'attempt', m.attempt, 'error', split_part(left(m.error, 200), E'\\n', 1)))
        FROM (SELECT job_id, queue_name, state, task, attempt, error FROM queue.members(j.job_id, max_jobs => 500)
            UNION SELECT job_id, queue_name, state, task, attempt, error
            FROM queue.members(j.job_id, 'dead', max_jobs => 100)) AS m), '[]'))::text
    FROM queue.job($1::bigint) AS j";

/// One of the four documents, complete. NULL: the job has none. Empty: it is too long.
const DOCUMENT: &str = "SELECT CASE WHEN octet_length(d.text) > 16 * 1024 * 1024 THEN '' ELSE d.text END
    FROM (SELECT (CASE $2 WHEN 'payload' THEN payload WHEN 'result' THEN result WHEN 'headers' THEN headers
        WHEN 'progress' THEN progress END)::text FROM queue.job($1::bigint)) AS d (text)";

const SCHEDULES: &str = "SELECT coalesce(json_agg(s), '[]')::text FROM (
    SELECT name, queue_name AS queue, cron, every, timezone, next_run_at, last_run_at, last_job_id, is_paused, missed,
    overlap,
           starts_at, ends_at, priority, CASE WHEN NOT $1::boolean THEN left(payload::text, 400) END AS payload,
           (SELECT json_agg(u) FROM queue.upcoming(name, 5) AS u) AS upcoming
    FROM queue.schedules ORDER BY name LIMIT 500) AS s";

const WORKERS: &str = "SELECT json_build_object('executors', coalesce((SELECT json_agg(e) FROM (
    SELECT pid, role_name AS role, queue_name AS queue, state, job_id,
    round(extract(epoch FROM clock_timestamp() - since)) AS seconds,
           CASE WHEN NOT $1::boolean THEN left(command, 400) END AS command
    FROM queue.executors ORDER BY since LIMIT 200) AS e), '[]'))::text";

const ERRORS: &str = "SELECT coalesce(json_agg(e), '[]')::text FROM (
    SELECT queue_name AS queue, left(error, 1000) AS error, length(error) > 1000 AS is_cut, jobs, dead, retrying,
    first_died_at,
           last_died_at, example_job_id, is_complete
    FROM queue.error_groups($1, max_jobs => $2::integer) ORDER BY jobs DESC, error LIMIT 200) AS e";

const GROUPS: &str =
    "SELECT coalesce(json_agg(g ORDER BY stage, throttled_until NULLS FIRST, ahead), '[]')::text FROM (
    SELECT stage, left(group_key, 200) AS group_key, weight, running, next_job_id,
    round(extract(epoch FROM clock_timestamp() - waits_since)) AS waits, ahead, throttled_until
    FROM queue.groups($1, 50)) AS g";

const TOPICS: &str = "SELECT json_build_object(
    'topics', coalesce((SELECT json_agg(t) FROM (
        SELECT topic_name AS topic, bindings, published, copies, unrouted, dropped, filter_errors, created_at
        FROM queue.topics ORDER BY topic_name LIMIT 500) AS t), '[]'),
    'bindings', coalesce((SELECT json_agg(b) FROM (
        SELECT topic_name AS topic, queue_name AS queue, left(pattern, 200) AS pattern,
        left(filter::text, 400) AS filter, priority, on_full, bound_by, binding_id
        FROM queue.bindings ORDER BY topic_name, binding_id LIMIT 1000) AS b), '[]'))::text";

/// Flows are found by search, because `queue.flows` reads all jobs. For each flow the states of its first members are
/// counted. The dead ones hold it, so they are counted even if they come later.
const FLOWS: &str = "SELECT coalesce(json_agg(json_build_object('job_id', l.job_id, 'state', l.state, 'task',
    left(l.task, 200),
        'enqueued_at', l.enqueued_at, 'finished_at', l.finished_at, 'here', l.here::text, 'rows_read', l.rows_read,
        'flow', l.flow, 'unique_key', left(l.unique_key, 200),
        'payload', CASE WHEN NOT $3::boolean AND queue.text_length(l.payload) <= 8000
            THEN left(l.payload::text, 240) END,
        'members', CASE WHEN l.job_id IS NOT NULL THEN (SELECT json_object_agg(state, n) FROM (
            SELECT m.state, count(*) AS n FROM (
                SELECT job_id, state FROM queue.members(l.job_id, max_jobs => 200)
                UNION SELECT job_id, state FROM queue.members(l.job_id, 'dead', max_jobs => 200)) AS m
            GROUP BY m.state) AS c) END)), '[]')::text
    FROM queue.search($1, '$.is_flow == true', states =>
    '{held,running,retrying,dead,scheduled,ready,cancelled,completed}',
        beyond => $2::jsonb, max_jobs => 20, max_rows => 2000) AS l";

const DOCTOR: &str = "SELECT coalesce(json_agg(d), '[]')::text FROM queue.doctor() AS d";

/// The queues that the viewer may observe, for the audit.
pub const OBSERVED: &str = "SELECT coalesce(json_agg(queue_name), '[]')::text FROM queue.queues";

/// A page: its name, the fields that it reads, and the maximal age of an answer.
struct Page(&'static str, &'static [&'static str], Duration);

const SEARCHED: &[&str] = &["queue", "states", "beyond", "filter", "field", "op", "value"];

const PAGES: [Page; 16] = [
    Page("overview", &[], Duration::from_secs(1)),
    Page("queue", &["queue"], Duration::from_secs(1)),
    Page("lanes", &["queue"], Duration::from_secs(1)),
    Page("latency", &["queue", "span"], Duration::from_secs(5)),
    Page("activity", &["queue", "span", "tz"], Duration::from_secs(5)),
    Page("jobs", &["queue", "state", "stage", "beyond"], Duration::from_secs(1)),
    Page("search", SEARCHED, Duration::from_secs(1)),
    Page("count", SEARCHED, Duration::from_secs(1)),
    Page("job", &["job"], Duration::from_secs(1)),
    Page("schedules", &[], Duration::from_secs(1)),
    Page("workers", &[], Duration::from_secs(2)),
    Page("errors", &["queue", "more"], Duration::from_secs(5)),
    Page("groups", &["queue"], Duration::from_secs(2)),
    Page("topics", &[], Duration::from_secs(1)),
    Page("flows", &["queue", "beyond"], Duration::from_secs(1)),
    Page("doctor", &[], Duration::from_secs(5)),
];

/// Returns the question of a request in its only spelling, and the maximal age of an answer.
///
/// Errors: 404 for an unknown page.
pub fn question(what: &str, query: &Query) -> Result<(String, Duration)> {
    let page = PAGES.iter().find(|page| page.0 == what);
    let Page(name, fields, age) = page.ok_or_else(|| Error::missing("there is no such page"))?;
    let said = fields.iter().filter_map(|field| {
        let text = query.get(*field).filter(|text| !text.is_empty())?;
        // Some fields can be spelt in several ways, or count only by their presence.
        let text = match (*name, *field) {
            ("job", "job") => id(text).unwrap_or_default(),
            ("errors", "more") => "1".to_owned(),
            ("activity", "span") if text == "hour" => return None,
            ("activity", "tz") if text == "UTC" => return None,
            ("search" | "count", "filter" | "field" | "op" | "value") => text.trim().to_owned(),
            _ => text.clone(),
        };
        Some((*field, text))
    });
    Ok((format!("{name} {:?}", said.collect::<Vec<_>>()), *age))
}

pub type Query = HashMap<String, String>;

/// Returns the overview. On a standby, and after a start, the jobs must be counted first. If that takes too long,
/// everything else is shown.
pub async fn overview(database: &Database, viewer: &Viewer) -> Result<String> {
    match database.look(viewer, OVERVIEW, &[]).await {
        Err(e) if e.code == "57014" => database.look(viewer, OVERVIEW_UNCOUNTED, &[]).await,
        other => other,
    }
}

/// Answers the question of a page.
///
/// Errors: 404 for an unknown page or thing, 400 if a field is missing, 413 if a document is too long, and those of
/// Postgres.
pub async fn ask(database: &Database, viewer: &Viewer, hides: bool, what: &str, query: &Query) -> Result<String> {
    let said = |name: &str| query.get(name).map(String::as_str).filter(|text| !text.is_empty());
    let required = |name: &str| said(name).ok_or_else(|| Error::bad(format!("{name} is missing")));
    let hidden = Some(if hides { "true" } else { "false" });
    match what {
        "overview" => database.look(viewer, OVERVIEW, &[]).await,
        "queue" => {
            let name = required("queue")?;
            let found = database.look(viewer, QUEUE, &[hidden, Some(name)]).await?;
            or_missing(found, || format!("there is no queue {name:?} that you may observe"))
        }
        "lanes" => database.look(viewer, LANES, &[Some(required("queue")?)]).await,
        "latency" => {
            let sql = match said("span") {
                None => LATENCY,
                Some("hour") => LATENCY_OF_HOUR,
                Some(other) => return Err(Error::bad(format!("{other:?} is no span: hour"))),
            };
            database.look(viewer, sql, &[Some(required("queue")?)]).await
        }
        "activity" => {
            let (since, period) = match said("span") {
                None | Some("hour") => ("59 minutes", "1 minute"),
                Some("day") => ("24 hours", "15 minutes"),
                Some("quarter") => ("90 days", "1 day"),
                Some(other) => return Err(Error::bad(format!("{other:?} is no span: hour, day, quarter"))),
            };
            let zone = said("tz").unwrap_or("UTC");
            database.look_in(viewer, zone, ACTIVITY, &[said("queue"), Some(since), Some(period)]).await
        }
        "jobs" => {
            let params = [hidden, Some(required("queue")?), Some(required("state")?), said("stage"), said("beyond")];
            database.look(viewer, LIST, &params).await
        }
        "search" => {
            let filter = filter::of_query(query, hides)?;
            let params = [hidden, Some(required("queue")?), filter.as_deref(), said("states"), said("beyond")];
            database.look(viewer, SEARCH, &params).await
        }
        "count" => {
            let filter = filter::of_query(query, hides)?;
            let params = [Some(required("queue")?), filter.as_deref(), said("states"), said("beyond")];
            database.look(viewer, COUNT, &params).await
        }
        "job" => {
            let id = id(required("job")?)?;
            let found = database.look(viewer, JOB, &[Some(&id), hidden]).await?;
            or_missing(found, || format!("there is no job {id}, or no longer, or you may not observe its queue"))
        }
        "document" => {
            if hides {
                return Err(Error::forbidden("payloads are hidden"));
            }
            let id = id(required("job")?)?;
            let what = required("what")?;
            let found = database.look(viewer, DOCUMENT, &[Some(&id), Some(what)]).await?;
            if found.is_empty() {
                return Err(Error::new(StatusCode::PAYLOAD_TOO_LARGE, "it is longer than 16 MB")
                    .hint(format!("With psql: SELECT {what} FROM queue.job({id})")));
            }
            Ok(found)
        }
        "schedules" => database.look(viewer, SCHEDULES, &[hidden]).await,
        "workers" => database.look(viewer, WORKERS, &[hidden]).await,
        "errors" => {
            // The newest jobs tell most, and quickly. On request all that a query may read.
            let most = if said("more").is_some() { "10000" } else { "2000" };
            database.look(viewer, ERRORS, &[said("queue"), Some(most)]).await
        }
        "groups" => database.look(viewer, GROUPS, &[Some(required("queue")?)]).await,
        "topics" => database.look(viewer, TOPICS, &[]).await,
        "flows" => database.look(viewer, FLOWS, &[Some(required("queue")?), said("beyond"), hidden]).await,
        "doctor" => database.look(viewer, DOCTOR, &[]).await,
        _ => Err(Error::missing("there is no such page")),
    }
}

fn or_missing(found: String, why: impl FnOnce() -> String) -> Result<String> {
    if found == "null" { Err(Error::missing(why())) } else { Ok(found) }
}

/// Returns an id in its only spelling.
fn id(said: &str) -> Result<String> {
    let id: i64 = said.trim().parse().map_err(|_| Error::bad(format!("{said:?} is no id")))?;
    Ok(id.to_string())
}
