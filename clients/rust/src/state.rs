//! What a worker knows of the attempts that it holds. All of it is behind one lock, which nothing awaits under.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::endings::Ending;
use crate::event::Event;
use crate::job::Job;
use crate::outcome::StopReason;
use crate::shared::Shared;

/// A claimed attempt whose handler has not ended.
pub(crate) struct Held {
    pub shared: Arc<Shared>,
    /// Its length.
    pub lease: Duration,
    /// When the next heartbeat is due.
    pub beat_at: Instant,
    /// When the lease is over, unless a heartbeat comes through.
    pub expires_at: Instant,
    /// Whether the handler has ended the attempt and goes on: there is no lease any more.
    pub is_over: bool,
    /// Its handler's task, once that has begun.
    pub task: Option<AbortHandle>,
    /// Since when the handler should have ended.
    pub stopped_at: Option<Instant>,
}

pub(crate) struct State {
    /// By the attempt's id.
    pub held: BTreeMap<i64, Held>,
    /// Of those, what has not begun.
    pub ready: VecDeque<Job>,
    /// How many run.
    pub running: usize,
    /// Completed without a result: a claim takes them along.
    pub done: Vec<Ending>,
    /// When the first of these has ended.
    pub done_since: Instant,
    /// What the control sends, or is sending, by the attempt's id.
    pub outbox: BTreeMap<i64, Ending>,
    /// What is put off, and until when. It takes no slot.
    pub later: Vec<(Instant, Ending)>,
    pub is_closing: bool,
    /// What has happened, if the worker drains.
    pub events: Vec<Event>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
            ready: VecDeque::new(),
            running: 0,
            done: Vec::new(),
            done_since: Instant::now(),
            outbox: BTreeMap::new(),
            later: Vec::new(),
            is_closing: false,
            events: Vec::new(),
        }
    }
}

impl State {
    /// How many jobs to claim now. A worker that claims ahead waits until it is worth the round trip.
    pub fn room(&self, concurrency: usize, prefetch: usize) -> usize {
        let limit = concurrency + prefetch;
        let held = self.running + self.ready.len() + self.outbox.len();
        if held < concurrency || held <= limit / 2 { limit - held } else { 0 }
    }

    /// Those whose leases are to be extended.
    pub fn beating(&self) -> impl Iterator<Item = &Held> {
        self.held.values().filter(|held| held.shared.reason() != Some(StopReason::Lost) && !held.is_over)
    }

    /// Whether the server has been told of all that has ended.
    pub fn is_told(&self) -> bool {
        self.done.is_empty() && self.outbox.is_empty() && self.later.is_empty()
    }

    /// Whether nothing is left to do with what was claimed.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty() && self.is_told()
    }
}
