//! The verbs: what a viewer may do, which is what the viewer's role may do.
//!
//! Invariants: each verb is a constant statement of public functions. Each call is noted in the audit, even if it
//! fails. A verb for many jobs does a bounded part, and returns the position at which to continue.

use axum::http::StatusCode;
use serde_json::Value;

use crate::audit::{Audit, Deed};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::filter;
use crate::viewer::Viewer;

/// A call for many jobs changes at most this many.
const MAX_JOBS: i64 = 5_000;
/// One call changes at most this many jobs by their ids.
const MAX_IDS: usize = 500;

macro_rules! on_job {
    ($call:literal) => {
        concat!(
            "SELECT json_build_object('queue', (SELECT queue_name FROM queue.job($1::bigint)), 'answer', ",
            $call,
            ")::text"
        )
    };
}
macro_rules! on_queue {
    ($call:literal) => {
        concat!("SELECT json_build_object('queue', $1, 'answer', ", $call, ")::text")
    };
}
macro_rules! on_schedule {
    ($call:literal) => {
        concat!(
            "SELECT json_build_object('queue', (SELECT queue_name FROM queue.schedules WHERE name = $1), 'answer', ",
            $call,
            ")::text"
        )
    };
}
/// A verb for the ids that a search finds. If a page did not fit into shared memory, the next call searches it again.
macro_rules! on_many {
    ($call:literal, $argument:literal) => {
        concat!(
            "WITH page AS MATERIALIZED (
                SELECT job_id, here FROM queue.search($1, $2::jsonpath,
                ARRAY(SELECT jsonb_array_elements_text($3::jsonb)), beyond => $4::jsonb,
                                                      max_jobs => $5::integer, max_rows => 100000)
             ), answers AS MATERIALIZED (
                SELECT id, outcome, reason FROM ",
            $call,
            "(ARRAY(SELECT job_id FROM page WHERE job_id IS NOT NULL), ",
            $argument,
            ")
             )
             SELECT json_build_object('queue', (SELECT queue_name FROM queue.queues WHERE queue_name = $1),
                'job_ids', coalesce((SELECT json_agg(id) FROM answers WHERE reason IS NULL), '[]'),
                'here', CASE WHEN EXISTS (SELECT FROM answers WHERE outcome = 'full')
                             THEN coalesce($4, '{\"state\": \"\", \"at\": {}}')
                             ELSE (SELECT here::text FROM page WHERE here IS NOT NULL) END,
                'full', (SELECT reason FROM answers WHERE outcome = 'full' LIMIT 1))::text"
        )
    };
}

/// A verb for jobs that are named by their ids.
macro_rules! on_ids {
    ($call:literal, $more:literal) => {
        concat!(
            "WITH answers AS MATERIALIZED (
                SELECT id, reason FROM ",
            $call,
            "(ARRAY(SELECT i::bigint FROM jsonb_array_elements_text($1::jsonb) AS i)",
            $more,
            ")
             )
             SELECT json_build_object('job_ids', coalesce((SELECT json_agg(id) FROM answers WHERE reason IS NULL),
             '[]'), 'refused', (SELECT reason FROM answers WHERE reason IS NOT NULL LIMIT 1))::text"
        )
    };
}

/// A verb: its statement, and the fields that are its parameters. The first field is required.
struct Verb {
    name: &'static str,
    sql: &'static str,
    fields: &'static [&'static str],
}

const VERBS: [Verb; 17] = [
    Verb {
        name: "retry",
        sql: on_job!("queue.retry($1::bigint, $2::timestamptz)::text"),
        fields: &["job_id", "run_at"],
    },
    Verb {
        name: "cancel",
        sql: on_job!("queue.cancel($1::bigint, reason => $2, force => coalesce($3::boolean, false))"),
        fields: &["job_id", "reason", "force"],
    },
    Verb {
        name: "reprioritize",
        sql: on_job!("queue.reprioritize($1::bigint, $2::integer)::text"),
        fields: &["job_id", "priority"],
    },
    Verb {
        name: "reschedule",
        sql: on_job!("queue.reschedule($1::bigint, $2::timestamptz)::text"),
        fields: &["job_id", "run_at"],
    },
    Verb { name: "forget", sql: on_job!("queue.forget($1::bigint)::text"), fields: &["job_id"] },
    Verb { name: "pause", sql: on_queue!("queue.pause($1)::text"), fields: &["queue"] },
    Verb { name: "resume", sql: on_queue!("queue.resume($1)::text"), fields: &["queue"] },
    Verb {
        name: "alter",
        sql: on_queue!(
            "queue.alter($1, max_attempts => $2::integer, lease => $3::interval, backoff => $4,
                backoff_base => $5::interval,
                backoff_max => $6::interval, backoff_jitter => $7::float8, retention => $8::interval,
                dead_retention => $9::interval, dead_letter => $10, max_running => $11::integer,
                max_running_per_group => $12::integer, rate_limit => $13::integer, rate_period => $14::interval,
                max_waiting => $15::bigint, notify => $16::boolean, start_within => $17::interval,
                rate_limit_per_group => $18::integer, rate_cost => $19, fair_share => $20,
                reset => (SELECT array_agg(r) FROM jsonb_array_elements_text($21::jsonb) AS r))::text"
        ),
        fields: &[
            "queue",
            "max_attempts",
            "lease",
            "backoff",
            "backoff_base",
            "backoff_max",
            "backoff_jitter",
            "retention",
            "dead_retention",
            "dead_letter",
            "max_running",
            "max_running_per_group",
            "rate_limit",
            "rate_period",
            "max_waiting",
            "notify",
            "start_within",
            "rate_limit_per_group",
            "rate_cost",
            "fair_share",
            "reset",
        ],
    },
    Verb {
        name: "enqueue",
        sql: on_queue!(
            "CASE WHEN $9::text IS NULL THEN
                queue.enqueue($1, payload => coalesce($2, '{}')::jsonb, priority => $3::integer, delay => $4::interval,
                    run_at => $5::timestamptz, unique_key => $6, group_key => $7, stage => $8)
            ELSE
                queue.enqueue_sql($1, $9, result_rows => 1, priority => $3::integer, delay => $4::interval,
                    run_at => $5::timestamptz, unique_key => $6, group_key => $7, stage => $8)
            END"
        ),
        fields: &["queue", "payload", "priority", "delay", "run_at", "unique_key", "group_key", "stage", "command"],
    },
    Verb { name: "pause_schedule", sql: on_schedule!("queue.pause_schedule($1)::text"), fields: &["schedule"] },
    Verb { name: "resume_schedule", sql: on_schedule!("queue.resume_schedule($1)::text"), fields: &["schedule"] },
    Verb { name: "run_schedule", sql: on_schedule!("queue.run_schedule($1)"), fields: &["schedule"] },
    Verb {
        name: "cancel_many",
        sql: on_many!("queue.cancel_many", "reason => $6"),
        fields: &["queue", "filter", "states", "beyond", "max_jobs", "reason"],
    },
    Verb {
        name: "retry_many",
        sql: on_many!("queue.retry_many", "run_at => $6::timestamptz"),
        fields: &["queue", "filter", "states", "beyond", "max_jobs", "run_at"],
    },
    Verb {
        name: "reprioritize_many",
        sql: on_many!("queue.reprioritize_many", "priority => $6::integer"),
        fields: &["queue", "filter", "states", "beyond", "max_jobs", "priority"],
    },
    Verb { name: "retry_jobs", sql: on_ids!("queue.retry_many", ""), fields: &["job_ids"] },
    Verb { name: "cancel_jobs", sql: on_ids!("queue.cancel_many", ", reason => $2"), fields: &["job_ids", "reason"] },
];

/// The fields that choose the jobs in a call for many, besides the verb's own fields.
const FIELDS_OF_MANY: [&str; 3] = ["field", "op", "value"];

/// True if a verb uses this field of a body.
pub fn is_field(name: &str) -> bool {
    FIELDS_OF_MANY.contains(&name) || VERBS.iter().any(|verb| verb.fields.contains(&name))
}

/// Runs a verb, and notes it in the audit.
///
/// Errors: 404 for an unknown verb, 400 if a field is missing, and those of Postgres.
pub async fn act(
    database: &Database,
    viewer: &Viewer,
    hides: bool,
    audit: &Audit,
    verb: &str,
    given: Fields,
) -> Result<String> {
    let is_verb = VERBS.iter().any(|known| known.name == verb);
    // The fields of an unknown verb are not noted.
    let said = |name| given.get(name).filter(|_| is_verb).cloned();
    let mut deed = Deed {
        database: database.name.clone(),
        viewer: viewer.clone(),
        verb: if is_verb { verb.to_owned() } else { verb.chars().take(40).collect() },
        queue: said("queue"),
        on: None,
        job_ids: Vec::new(),
        count: 0,
        reason: said("reason"),
        error: None,
    };
    let done = run(database, viewer, hides, verb, given, &mut deed).await;
    if let Err(e) = &done {
        deed.error = Some(format!("{} {}", e.code, e.message).trim().to_owned());
    }
    audit.note(deed);
    done
}

async fn run(
    database: &Database,
    viewer: &Viewer,
    hides: bool,
    verb: &str,
    mut given: Fields,
    deed: &mut Deed,
) -> Result<String> {
    let found = VERBS.iter().find(|known| known.name == verb);
    let found = found.ok_or_else(|| Error::missing(format!("{:?} is no verb", deed.verb)))?;
    if hides && given.contains_key("command") {
        return Err(Error::forbidden("payloads are hidden, and a command could show them"));
    }
    if found.fields[0] == "job_ids" {
        let ids: Option<Vec<i64>> = given.get("job_ids").and_then(|ids| serde_json::from_str(ids).ok());
        if ids.is_none_or(|ids| ids.is_empty() || ids.len() > MAX_IDS) {
            return Err(Error::bad(format!("job_ids: from 1 to {MAX_IDS} ids")));
        }
    }
    if found.name.ends_with("_many") {
        let filter = filter::of_query(&given, hides)?;
        deed.on.clone_from(&filter);
        let asked = given.get("max_jobs").and_then(|said| said.parse().ok()).unwrap_or(MAX_JOBS);
        given.insert("max_jobs".to_owned(), asked.clamp(1, MAX_JOBS).to_string());
        match filter {
            Some(filter) => given.insert("filter".to_owned(), filter),
            None => given.remove("filter"),
        };
        if !given.contains_key("states") {
            return Err(Error::bad("states is missing"));
        }
    }
    if found.fields.contains(&"reason") {
        let reason = given.get("reason").map_or("cancelled in the dashboard", String::as_str);
        let reason = format!("{reason} ({})", viewer.name);
        given.insert("reason".to_owned(), reason);
    }
    let params: Vec<Option<&str>> = found.fields.iter().map(|field| given.get(*field).map(String::as_str)).collect();
    if params[0].is_none() {
        return Err(Error::bad(format!("{} is missing", found.fields[0])));
    }
    if !["queue", "job_ids"].contains(&found.fields[0]) {
        deed.on = params[0].map(str::to_owned);
    }
    let answer = database.act(viewer, found.sql, &params).await?;
    let told: Value = serde_json::from_str(&answer).unwrap_or_default();
    if told.get("queue").is_some_and(Value::is_null) && found.name.ends_with("_many") {
        return Err(Error::missing("there is no such queue, or you may not observe it"));
    }
    if let Some(queue) = told["queue"].as_str() {
        deed.queue = Some(queue.to_owned());
    }
    match told["job_ids"].as_array() {
        // Nothing was done, and a next call would do nothing either.
        Some(ids) if ids.is_empty() && told["full"].is_string() => {
            return Err(Error::new(StatusCode::SERVICE_UNAVAILABLE, told["full"].as_str().unwrap_or_default()));
        }
        Some(ids) => {
            deed.count = ids.len();
            deed.job_ids = ids.iter().filter_map(Value::as_i64).collect();
        }
        None => {
            deed.count = 1;
            deed.job_ids = given.get("job_id").and_then(|id| id.parse().ok()).into_iter().collect();
        }
    }
    Ok(answer)
}
