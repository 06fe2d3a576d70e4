//! What the worker and a handler share about a job.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;

use crate::hooks::Hooks;
use crate::outcome::StopReason;

/// Identifies an attempt and its job, for logs and events.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub id: i64,
    pub job_id: i64,
    pub queue: Arc<str>,
    pub attempt: i32,
}

/// State that the worker and the handler share.
pub(crate) struct Shared {
    pub facts: Facts,
    pub codec: Hooks,
    /// Why the handler is to stop.
    pub reason: Mutex<Option<StopReason>>,
    /// Wakes who waits for that reason.
    pub stopped: Notify,
    /// True if the handler itself has ended the attempt.
    pub ended: AtomicBool,
    /// The steps that have run in this attempt.
    pub steps: Mutex<HashSet<String>>,
    /// How many connections the handler has.
    pub connections: Arc<AtomicUsize>,
    /// How long the handler may take.
    pub limit: OnceLock<Duration>,
    /// The result, if the job's effects are committed on another server, and its completion with them.
    pub committed: OnceLock<Value>,
}

/// Marks attempts as ended by their handlers before the commit. A heartbeat may learn of the commit before the handler
/// does, and must not stop it. When dropped, it removes the marks, unless the commit was confirmed.
pub(crate) struct Committing<'a>(pub Vec<&'a Shared>);

impl<'a> Committing<'a> {
    pub fn begin(attempts: impl Iterator<Item = &'a Shared>) -> Self {
        let attempts: Vec<&Shared> = attempts.collect();
        attempts.iter().for_each(|one| one.ended.store(true, Ordering::Release));
        Self(attempts)
    }

    pub fn confirmed(mut self) {
        self.0.clear();
    }
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|one| one.ended.store(false, Ordering::Release));
    }
}

impl Shared {
    pub fn reason(&self) -> Option<StopReason> {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the handler to stop. The first reason counts, but a lost lease replaces any other reason. Returns whether
    /// the reason is new.
    pub fn stop(&self, reason: StopReason) -> bool {
        let mut now = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = now.is_none() || (reason == StopReason::Lost && *now != Some(reason));
        if is_news {
            *now = Some(reason);
            self.stopped.notify_waiters();
        }
        is_news
    }

    pub fn has_run(&self, step: &str) -> bool {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).contains(step)
    }

    pub fn note_step(&self, step: &str) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).insert(step.to_owned());
    }
}
