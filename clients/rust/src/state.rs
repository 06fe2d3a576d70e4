//! What a worker knows of the attempts that it holds. All of it is behind one lock, which nothing awaits under.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::endings::Ending;
use crate::job::{Job, Shared};
use crate::outcome::StopReason;

/// A claimed attempt whose handler has not ended.
pub(crate) struct Held {
    pub shared: Arc<Shared>,
    /// Its length.
    pub lease: Duration,
    /// When the next heartbeat is due.
    pub beat_at: Instant,
    /// When the lease is over, unless a heartbeat comes through.
    pub expires_at: Instant,
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
    /// What the control sends.
    pub outbox: Vec<Ending>,
    /// How many it is sending.
    pub sending: usize,
    /// What is to be sent again, and when: an open transaction has the attempt, such as the handler's own, which is just
    /// being rolled back. It takes no slot.
    pub later: Vec<(Instant, Ending)>,
    /// What the claim that runs has left out of what it was to complete: lost ones.
    pub refused: Vec<i64>,
    /// And those that another open transaction has.
    pub busy: Vec<i64>,
    pub is_closing: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
            ready: VecDeque::new(),
            running: 0,
            done: Vec::new(),
            done_since: Instant::now(),
            outbox: Vec::new(),
            sending: 0,
            later: Vec::new(),
            refused: Vec::new(),
            busy: Vec::new(),
            is_closing: false,
        }
    }
}

impl State {
    /// How many jobs to claim now. A worker that claims ahead waits until it is worth the round trip.
    pub fn room(&self, concurrency: usize, prefetch: usize) -> usize {
        let limit = concurrency + prefetch;
        let held = self.running + self.ready.len() + self.outbox.len() + self.sending;
        if held < concurrency || held <= limit / 2 { limit - held } else { 0 }
    }

    /// Those whose leases are to be extended.
    pub fn beating(&self) -> impl Iterator<Item = &Held> {
        self.held.values().filter(|held| held.shared.reason() != Some(StopReason::Lost))
    }

    /// Whether the server has been told of all that has ended.
    pub fn is_told(&self) -> bool {
        self.done.is_empty() && self.outbox.is_empty() && self.later.is_empty() && self.sending == 0
    }

    /// Whether nothing is left to do with what was claimed.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty() && self.is_told()
    }
}
