//! What was done: a line in the log for each verb, and the latest ones for the page.
//!
//! Invariants: a viewer sees the viewer's own deeds, and those done to queues that the viewer may observe. What is kept
//! is bounded in bytes, for each viewer and in total. A viewer's new deeds replace that viewer's oldest ones first.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::log;
use crate::viewer::Viewer;

/// At most this many deeds are kept, if their bytes allow it.
const MAX_DEEDS: usize = 2_000;
/// The kept deeds have at most this many bytes in total, and for each viewer.
const MAX_BYTES: usize = 4 << 20;
const MAX_BYTES_OF_A_VIEWER: usize = 1 << 20;
/// At most this many ids are shown for one deed.
const MAX_IDS: usize = 20;
/// A text of a deed has at most this many bytes.
const MAX_TEXT_BYTES: usize = 1_000;

/// A verb that a viewer has called, with its result.
pub struct Deed {
    pub database: String,
    pub viewer: Viewer,
    pub verb: String,
    pub queue: Option<String>,
    /// A job, a schedule or a filter.
    pub on: Option<String>,
    pub job_ids: Vec<i64>,
    pub count: usize,
    pub reason: Option<String>,
    /// The reason why it failed.
    pub error: Option<String>,
}

struct Kept {
    at: f64,
    bytes: usize,
    deed: Deed,
}

impl Deed {
    /// Cuts long texts and lists. Returns the deed's size in bytes.
    fn bound(&mut self) -> usize {
        self.job_ids.truncate(MAX_IDS);
        self.job_ids.shrink_to_fit();
        let mut bytes = size_of::<Kept>() + size_of_val(self.job_ids.as_slice());
        let optional = [&mut self.queue, &mut self.on, &mut self.reason, &mut self.error, &mut self.viewer.role];
        let always = [&mut self.database, &mut self.verb, &mut self.viewer.name];
        for text in optional.into_iter().flatten().chain(always) {
            cut(text);
            bytes += text.len();
        }
        bytes
    }
}

/// Cuts a text between two characters.
fn cut(text: &mut String) {
    if text.len() > MAX_TEXT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        text.push('…');
    }
    text.shrink_to_fit();
}

#[derive(Default)]
pub struct Audit(Mutex<VecDeque<Kept>>);

impl Audit {
    pub fn note(&self, mut deed: Deed) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let bytes = deed.bound();
        // The line is JSON, so that no name can end the line.
        log::say(format_args!("audit {}", line(at, &deed)));
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let viewer = deed.viewer.clone();
        kept.push_front(Kept { at, bytes, deed });
        forget(&mut kept, MAX_BYTES_OF_A_VIEWER, |other| other.viewer == viewer);
        forget(&mut kept, MAX_BYTES, |_| true);
        kept.truncate(MAX_DEEDS);
    }

    /// Returns the latest deeds in a database that the viewer may know of, the latest first.
    pub fn shown(&self, database: &str, viewer: &Viewer, observed: &HashSet<String>, hides: bool) -> Value {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let may_see = |deed: &Deed| {
            deed.database == database
                && (deed.viewer == *viewer || deed.queue.as_ref().is_some_and(|queue| observed.contains(queue)))
        };
        let shown = kept.iter().filter(|kept| may_see(&kept.deed)).take(200).map(|kept| {
            let mut line = line(kept.at, &kept.deed);
            // Another viewer's filter may reveal what payloads contain.
            if hides && kept.deed.verb.ends_with("_many") && kept.deed.viewer != *viewer {
                line["on"] = Value::Null;
            }
            line
        });
        shown.collect()
    }
}

/// Forgets the oldest deeds among those that `is_meant` selects, until the rest has at most `max` bytes.
fn forget(kept: &mut VecDeque<Kept>, max: usize, is_meant: impl Fn(&Deed) -> bool) {
    let mut bytes = 0;
    kept.retain(|kept| {
        let is_meant = is_meant(&kept.deed);
        bytes += if is_meant { kept.bytes } else { 0 };
        !is_meant || bytes <= max
    });
}

fn line(at: f64, deed: &Deed) -> Value {
    json!({
        "at": at, "user": deed.viewer.name, "role": deed.viewer.role, "database": deed.database, "verb": deed.verb,
        "queue": deed.queue, "on": deed.on, "job_ids": deed.job_ids, "count": deed.count, "reason": deed.reason,
        "error": deed.error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deed(name: &str, text: String) -> Deed {
        let viewer = Viewer { name: name.to_owned(), role: Some(name.to_owned()), has_logged_in: false };
        Deed {
            database: "app".to_owned(),
            viewer,
            verb: text.clone(),
            queue: Some(text.clone()),
            on: Some(text.clone()),
            job_ids: vec![1; 5_000],
            count: 1,
            reason: Some(text.clone()),
            error: Some(text),
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_others_keep_theirs() {
        let audit = Audit::default();
        audit.note(deed("ada", "first".to_owned()));
        for _ in 0..1_000 {
            audit.note(deed("eve", "ä".repeat(100_000)));
        }
        let kept = audit.0.lock().unwrap();
        let bytes: usize = kept.iter().map(|kept| kept.bytes).sum();
        assert!(bytes > MAX_BYTES_OF_A_VIEWER / 2 && bytes < MAX_BYTES_OF_A_VIEWER + 1_000, "{bytes}");
        assert!(kept.iter().any(|kept| kept.deed.viewer.name == "ada"));
        assert!(kept.iter().all(|kept| kept.deed.job_ids.capacity() <= MAX_IDS && kept.deed.verb.len() < 1_010));
    }
}
