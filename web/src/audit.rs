//! What was done: a line in the log for each verb, and the last of them for the page.
//!
//! Invariant: a viewer is shown what the viewer did, and what was done to queues that the viewer may observe.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::viewer::Viewer;

/// So many are kept.
const MOST: usize = 2_000;
/// So many ids are told of one.
const IDS: usize = 20;

/// What was done.
pub struct Deed {
    pub database: String,
    pub viewer: Viewer,
    pub verb: String,
    pub queue: Option<String>,
    /// A job or schedule, or a filter.
    pub on: Option<String>,
    pub job_ids: Vec<i64>,
    pub count: usize,
    pub reason: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
}

struct Kept {
    at: f64,
    deed: Deed,
}

#[derive(Default)]
pub struct Audit(Mutex<VecDeque<Kept>>);

impl Audit {
    pub fn note(&self, mut deed: Deed) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        deed.job_ids.truncate(IDS);
        // As JSON, so that no name ends the line.
        eprintln!("pg_queue_web: audit {}", line(at, &deed));
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_front(Kept { at, deed });
        kept.truncate(MOST);
    }

    /// Returns the last deeds in a database that the viewer may know of, the latest first.
    pub fn shown(&self, database: &str, viewer: &Viewer, observed: &HashSet<String>, hides: bool) -> Value {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let may_see = |deed: &Deed| {
            deed.database == database
                && (deed.viewer == *viewer || deed.queue.as_ref().is_some_and(|queue| observed.contains(queue)))
        };
        let shown = kept.iter().filter(|kept| may_see(&kept.deed)).take(200).map(|kept| {
            let mut line = line(kept.at, &kept.deed);
            // A filter of somebody else may name what is in payloads.
            if hides && kept.deed.verb.ends_with("_many") && kept.deed.viewer != *viewer {
                line["on"] = Value::Null;
            }
            line
        });
        shown.collect()
    }
}

fn line(at: f64, deed: &Deed) -> Value {
    json!({
        "at": at, "user": deed.viewer.name, "role": deed.viewer.role, "database": deed.database, "verb": deed.verb,
        "queue": deed.queue, "on": deed.on, "job_ids": deed.job_ids, "count": deed.count, "reason": deed.reason,
        "error": deed.error,
    })
}
