//! What the worker and a handler know in common of a job.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::outcome::StopReason;

/// Which attempt of which job it is: for logs and events.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub id: i64,
    pub job_id: i64,
    pub queue: Arc<str>,
    pub attempt: i32,
}

/// What the worker and the handler have in common.
pub(crate) struct Shared {
    pub facts: Facts,
    pub stop: watch::Sender<Option<StopReason>>,
    /// Whether the handler has ended the attempt itself.
    pub ended: AtomicBool,
}

/// Notes that handlers end their attempts, from before the commit on: a heartbeat may hear of that before the handler
/// does, and must not stop it. Takes the note back when it is dropped, unless the commit was confirmed.
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
        *self.stop.borrow()
    }

    /// The first reason counts, but that a lost lease beats all. Whether it was news.
    pub fn stop(&self, reason: StopReason) -> bool {
        self.stop.send_if_modified(|now| {
            let is_news = now.is_none() || (reason == StopReason::Lost && *now != Some(reason));
            if is_news {
                *now = Some(reason);
            }
            is_news
        })
    }
}
