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
use crate::settings::Settings;
use crate::shared::{Facts, Shared};

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
    /// How many heartbeats for it alone have failed since the last one that succeeded.
    pub errors: u32,
    /// True if the job may end the process: none is claimed ahead beside it.
    pub is_suspect: bool,
}

#[derive(Default)]
pub(crate) struct State {
    /// The held attempts, by id.
    pub held: BTreeMap<i64, Held>,
    /// When the first of their leases may expire. None: no job is held.
    pub expires_at: Option<Instant>,
    /// How many of them may end the process.
    pub suspects: usize,
    /// Held jobs whose handlers have not begun.
    pub ready: VecDeque<Job>,
    /// Ends that the server has not answered, except those that a claim carries, by the attempt's id.
    pub ended: BTreeMap<i64, Ending>,
    /// When the control wakes by itself. None: not before it is woken.
    pub wakes_at: Option<Instant>,
    /// The part of each attempt after errors, by the attempt's id. Others are in part 0.
    pub parts: BTreeMap<i64, usize>,
    /// What the log has said of jobs without a codec or key.
    pub unknown: BTreeSet<String>,
    pub is_closing: bool,
    /// The events so far, if the worker drains.
    pub events: Vec<Event>,
}

impl State {
    /// Returns how many jobs to claim now: held jobs and due ends take slots. A worker that claims ahead waits until a
    /// round trip is worthwhile.
    pub fn room(&self, settings: &Settings, due_ends: usize) -> usize {
        let Settings { concurrency, prefetch, .. } = *settings;
        let limit = concurrency + if self.is_wary() { 0 } else { prefetch };
        let taken = self.held.len() + due_ends;
        if taken < concurrency || taken <= limit / 2 { limit - taken } else { 0 }
    }

    /// Returns whether a job is held that may end the process.
    pub fn is_wary(&self) -> bool {
        self.suspects > 0
    }

    /// Returns the ends that the control has to send, or is sending. Ends that wait for a claim, and postponed ends,
    /// take no slot.
    pub fn due_ends(&self, now: Instant) -> impl Iterator<Item = &Ending> {
        self.ended.values().filter(move |ending| ending.due <= now)
    }

    pub fn part(&self, id: i64) -> usize {
        self.parts.get(&id).copied().unwrap_or(0)
    }

    /// Returns the attempts to extend now: all of a part, if one of them is due.
    pub fn extended(&self, now: Instant) -> Vec<&Facts> {
        let held = self.held.values().filter(|held| !held.is_over).map(|held| (&held.shared, held.beat_at));
        let ended = self.ended.values().filter(|ending| ending.due > now);
        let riders = ended.filter_map(|ending| Some((&ending.shared, ending.ride?.beat_at)));
        let all: Vec<(&Facts, Instant)> = held.chain(riders).map(|(one, beat_at)| (&one.facts, beat_at)).collect();
        let due = all.iter().filter(|(_, beat_at)| *beat_at <= now).map(|(facts, _)| self.part(facts.id));
        let due: BTreeSet<usize> = due.collect();
        all.into_iter().map(|(facts, _)| facts).filter(|facts| due.contains(&self.part(facts.id))).collect()
    }

    /// Queues an end for the control, which sends it after a delay. Returns whether the control has to be woken for it.
    pub fn send(&mut self, mut ending: Ending, delay: Duration) -> bool {
        let due = Instant::now() + delay;
        ending.due = due;
        self.ended.insert(ending.id(), ending);
        self.wakes_after(due)
    }

    /// Returns whether the control wakes later than that.
    pub fn wakes_after(&self, time: Instant) -> bool {
        self.wakes_at.is_none_or(|wakes_at| wakes_at > time)
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
