//! What a worker knows about the attempts that it holds. One lock guards all of it; no code awaits while it holds that
//! lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
    /// The length of the lease.
    pub lease: Duration,
    /// When the next heartbeat is due.
    pub beat_at: Instant,
    /// When the lease expires, unless a heartbeat succeeds.
    pub expires_at: Instant,
    /// The handler's task, once it has begun.
    pub task: Option<AbortHandle>,
    /// Since when the handler should have ended.
    pub stopped_at: Option<Instant>,
    /// Stops the handler when its time is over.
    pub limit: Option<AbortHandle>,
    /// True if the attempt has failed for its time, and its handler goes on.
    pub is_over: bool,
    /// True if the job may end the process: none is claimed ahead beside it.
    pub is_suspect: bool,
}

#[derive(Default)]
pub(crate) struct State {
    /// The held attempts, by id.
    pub held: BTreeMap<i64, Held>,
    /// Held jobs whose handlers have not begun.
    pub ready: VecDeque<Job>,
    /// Ends that the server has not answered, except those that a claim carries, by the attempt's id.
    pub ended: BTreeMap<i64, Ending>,
    /// What the log has said of jobs without a codec or key.
    pub unknown: BTreeSet<String>,
    pub is_closing: bool,
    /// The events so far, if the worker drains.
    pub events: Vec<Event>,
}

impl State {
    /// Returns how many jobs to claim now. A worker that claims ahead waits until a round trip is worthwhile.
    pub fn room(&self, concurrency: usize, prefetch: usize) -> usize {
        let limit = concurrency + if self.is_wary() { 0 } else { prefetch };
        let taken = self.held.len() + self.due_ends(Instant::now()).count();
        if taken < concurrency || taken <= limit / 2 { limit - taken } else { 0 }
    }

    /// Returns whether a job is held that may end the process.
    pub fn is_wary(&self) -> bool {
        self.held.values().any(|held| held.is_suspect)
    }

    /// Returns the ends that the control has to send, or is sending. Ends that wait for a claim, and postponed ends,
    /// take no slot.
    pub fn due_ends(&self, now: Instant) -> impl Iterator<Item = &Ending> {
        self.ended.values().filter(move |ending| ending.due <= now)
    }

    /// Returns the attempts to extend now: all, if one of them is due.
    pub fn extended(&self, now: Instant) -> Vec<i64> {
        let held = self.held.iter().filter(|(_, held)| !held.is_over).map(|(&id, held)| (id, held.beat_at));
        let ended = self.ended.iter().filter(|(_, ending)| ending.due > now);
        let riders = ended.filter_map(|(&id, ending)| Some((id, ending.ride?.beat_at)));
        let all: Vec<(i64, Instant)> = held.chain(riders).collect();
        let is_due = all.iter().any(|(_, beat_at)| *beat_at <= now);
        if is_due { all.into_iter().map(|(id, _)| id).collect() } else { Vec::new() }
    }

    /// Queues an end for the control, which sends it after a delay.
    pub fn send(&mut self, mut ending: Ending, delay: Duration) {
        ending.due = Instant::now() + delay;
        self.ended.insert(ending.id(), ending);
    }

    /// Returns how many handlers run.
    pub fn running(&self) -> usize {
        self.held.len() - self.ready.len()
    }

    /// Returns whether no attempt is held and no end waits for an answer.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty() && self.ended.is_empty()
    }
}
