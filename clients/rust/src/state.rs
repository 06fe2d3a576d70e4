//! What a worker knows of the attempts that it holds. All of it is behind one lock, which nothing awaits under.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::endings::Ending;
use crate::event::Event;
use crate::job::Job;
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
    /// Its handler's task, once that has begun.
    pub task: Option<AbortHandle>,
    /// Since when the handler should have ended.
    pub stopped_at: Option<Instant>,
}

#[derive(Default)]
pub(crate) struct State {
    /// By the attempt's id.
    pub held: BTreeMap<i64, Held>,
    /// Of those, what has not begun.
    pub ready: VecDeque<Job>,
    /// What the server has not answered, but what a claim has with it, by the attempt's id.
    pub ended: BTreeMap<i64, Ending>,
    pub is_closing: bool,
    /// What has happened, if the worker drains.
    pub events: Vec<Event>,
}

impl State {
    /// How many jobs to claim now. A worker that claims ahead waits until it is worth the round trip.
    pub fn room(&self, concurrency: usize, prefetch: usize) -> usize {
        let limit = concurrency + prefetch;
        let taken = self.held.len() + self.due_ends().count();
        if taken < concurrency || taken <= limit / 2 { limit - taken } else { 0 }
    }

    /// What the control sends, or is sending. Ends that wait for a claim or are put off take no slot.
    pub fn due_ends(&self) -> impl Iterator<Item = &Ending> {
        let now = Instant::now();
        self.ended.values().filter(move |ending| ending.due <= now)
    }

    /// Has the control send an end after a delay.
    pub fn send(&mut self, mut ending: Ending, delay: Duration) {
        ending.due = Instant::now() + delay;
        self.ended.insert(ending.id(), ending);
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.held.len() - self.ready.len()
    }

    /// Whether nothing is left to do with what was claimed.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty() && self.ended.is_empty()
    }
}
