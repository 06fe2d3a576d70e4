//! What a process knows of all schedules, so that it does not read and plan them for each slot: their plans, handled
//! slots and next slots.
//!
//! Not responsible for firing (`duty::fire_schedules`), for the schedules' rows (`catalog::schedule`), nor for their
//! arithmetic (`core`).
//!
//! Invariant: an agenda is used only while shared memory counts no change since it was read. A firing by another
//! process counts as a change, and so does a firing of this process that is rolled back.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use pg_queue_core::schedule::{MAX_MISSED_SLOTS, Plan, rfc3339};

use crate::catalog::schedule;
use crate::error::{Error, Result};
use crate::job;
use crate::log::firing::{Log, Owed};
use crate::shmem::here;

/// The first and the longest pause before a schedule that could not be fired is retried, in microseconds.
const RETRY_PAUSE_US: RangeInclusive<i64> = 1_000_000..=60_000_000;

/// A schedule.
pub struct Entry {
    pub id: i32,
    pub version: i32,
    plan: Result<Plan>,
    /// Slots up to this one were handled, or are not this plan's.
    pub handled: i64,
    /// When the last job was enqueued, and the job's id.
    pub last: Option<(i64, i64)>,
    /// The missed slots after `handled` that are still to run, and those that are skipped after them.
    pub owed: Option<Owed>,
    /// The next slot.
    pub next: Option<i64>,
    /// After a failure: the time of the next try, and the pause before it.
    retry: Option<(i64, i64)>,
}

impl Entry {
    /// Returns the plan. Errors: the reason why the schedule cannot be planned.
    pub fn plan(&self) -> Result<&Plan> {
        self.plan.as_ref().map_err(Error::clone)
    }

    /// True if the last try to fire the schedule failed.
    pub fn has_failed(&self) -> bool {
        self.retry.is_some()
    }

    /// Returns when the schedule must be looked at.
    fn at(&self, now: i64) -> Option<i64> {
        let next = self.next?;
        match self.retry {
            // If the time of the retry is too far away, the clock was set back.
            Some((retry_at, pause)) if retry_at <= now.saturating_add(pause) => Some(next.max(retry_at)),
            _ => Some(next),
        }
    }

    /// Records that the slots up to `handled` were handled, and which missed slots are still to run.
    pub fn fired(&mut self, handled: i64, last: Option<(i64, i64)>, owed: Option<Owed>) {
        // When the last owed slot was handled, the skipped slots count as handled, too.
        let done = owed.filter(|owed| handled >= owed.run_to);
        self.handled = done.map_or(handled, |owed| handled.max(owed.skip_to));
        self.owed = owed.filter(|_| done.is_none());
        self.last = last;
        self.next = self.plan.as_ref().ok().and_then(|plan| plan.next_after(handled));
        self.retry = None;
    }

    /// Records that the schedule could not be fired. Its slots stay due until the retry. The first failure is reported
    /// in the server log.
    pub fn failed(&mut self, error: &Error, now: i64) {
        let pause = self.retry.map_or(*RETRY_PAUSE_US.start(), |(_, pause)| (pause * 2).min(*RETRY_PAUSE_US.end()));
        if self.retry.replace((now.saturating_add(pause), pause)).is_none() {
            let name = schedule::by_id(self.id).map_or_else(String::new, |schedule| schedule.name());
            let slot = self.next.map_or_else(String::new, rfc3339);
            let mut warning =
                Error::new(error.code, format!("schedule \"{name}\" could not be fired: {}", error.message)).detail(
                    match &error.detail {
                        Some(detail) => format!("{detail}\nIts slot {slot} is retried, less and less often."),
                        None => format!("Its slot {slot} is retried, less and less often."),
                    },
                );
            warning.hint.clone_from(&error.hint);
            warning.warn();
        }
    }
}

/// Warns that an outage was too long for `missed => 'all'`.
pub fn warn_of_too_many(name: &str, skipped: &RangeInclusive<i64>) {
    let (first, last) = (rfc3339(*skipped.start()), rfc3339(*skipped.end()));
    Error::new(crate::error::LIMIT, format!("schedule \"{name}\" has missed more than {MAX_MISSED_SLOTS} slots"))
        .detail(format!("The oldest {MAX_MISSED_SLOTS} were fired. Those from {first} to {last} are skipped."))
        .warn();
}

/// All schedules.
#[derive(Default)]
pub struct Agenda {
    instance: u32,
    changes: u64,
    pub entries: Vec<Entry>,
}

impl Agenda {
    /// Returns this agenda if it was read at this number of changes, else a new one. The caller holds the token.
    pub fn current(self, changes: u64) -> Self {
        if (self.instance, self.changes) == (here::number(), changes) {
            return self;
        }
        let mut known: HashMap<(i32, i32), Entry> = HashMap::new();
        if self.instance == here::number() {
            known.extend(self.entries.into_iter().map(|entry| ((entry.id, entry.version), entry)));
        }
        let log = Log::read();
        let mut entries = Vec::new();
        schedule::each(|schedule| {
            if schedule.is_paused() {
                return;
            }
            let (id, version) = (schedule.id(), schedule.version());
            let (plan, retry) = match known.remove(&(id, version)) {
                Some(entry) => (entry.plan, entry.retry),
                None => (schedule.plan(), None),
            };
            let firing = log.last(id);
            let (handled, owed) = job::schedule::handled(&schedule, firing);
            let next = match &plan {
                Ok(plan) => plan.next_after(handled),
                // The schedule is tried, and fails with the plan's error.
                Err(_) => Some(handled),
            };
            let last = firing.and_then(|firing| firing.last);
            entries.push(Entry { id, version, plan, handled, last, owed, next, retry });
        });
        Self { instance: here::number(), changes, entries }
    }

    /// Returns the indexes of at most `most` due schedules, the earliest slots first.
    pub fn due(&self, now: i64, most: usize) -> Vec<usize> {
        let is_due = |entry: &Entry| entry.at(now).is_some_and(|at| at <= now);
        let mut due: Vec<usize> = (0..self.entries.len()).filter(|&n| is_due(&self.entries[n])).collect();
        due.sort_by_key(|&n| self.entries[n].next);
        due.truncate(most);
        due
    }

    /// Returns when the next schedule must be looked at. `i64::MAX`: never.
    pub fn next_at(&self, now: i64) -> i64 {
        self.entries.iter().filter_map(|entry| entry.at(now)).min().unwrap_or(i64::MAX)
    }
}
