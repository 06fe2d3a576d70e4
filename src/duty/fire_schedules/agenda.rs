//! What a process knows of all schedules, so that it does not read and plan them at each slot: their plans, the slots
//! that were dealt with, the next slots.
//!
//! Not here: firing (`duty::fire_schedules`), the schedules' rows (`catalog::schedule`), their arithmetic (`core`).
//!
//! Invariant: an agenda is used only while shared memory counts no change since it was read. The firing of another
//! process counts as a change, and so does a firing of this process that was rolled back.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use pg_queue_core::schedule::{MAX_MISSED_SLOTS, Plan, rfc3339};

use crate::catalog::{Catalog, schedule};
use crate::error::{Error, Result};
use crate::job;
use crate::log::firing::{Log, Owed};

/// The first and the longest pause, in microseconds, after which a schedule that could not be fired is tried again.
const PAUSE: RangeInclusive<i64> = 1_000_000..=60_000_000;

/// A schedule.
pub struct Entry {
    pub id: i32,
    pub version: i32,
    plan: Result<Plan>,
    /// Slots up to this one were dealt with, or are not this plan's.
    pub handled: i64,
    /// When the last job was enqueued, and its id.
    pub last: Option<(i64, i64)>,
    /// The missed slots behind `handled` that are yet to be run, if those behind them are skipped.
    pub owed: Option<Owed>,
    /// The next slot.
    pub next: Option<i64>,
    /// After a failure: not before this time, and the pause that led to it.
    retry: Option<(i64, i64)>,
}

impl Entry {
    /// Returns the plan. Errors: the reason why the schedule cannot be planned.
    pub fn plan(&self) -> Result<&Plan> {
        self.plan.as_ref().map_err(Error::clone)
    }

    /// Whether the last try to fire the schedule failed.
    pub fn has_failed(&self) -> bool {
        self.retry.is_some()
    }

    /// Returns when the schedule is to be looked at.
    fn at(&self, now: i64) -> Option<i64> {
        let next = self.next?;
        match self.retry {
            // A later time to retry means that the clock was set back.
            Some((retry_at, pause)) if retry_at <= now.saturating_add(pause) => Some(next.max(retry_at)),
            _ => Some(next),
        }
    }

    /// Records that the slots up to `handled` were dealt with, and what is owed behind them.
    pub fn fired(&mut self, handled: i64, last: Option<(i64, i64)>, owed: Option<Owed>) {
        // With the last slot that was owed the skipped ones are dealt with, too.
        let done = owed.filter(|owed| handled >= owed.run_to);
        self.handled = done.map_or(handled, |owed| handled.max(owed.skip_to));
        self.owed = owed.filter(|_| done.is_none());
        self.last = last;
        self.next = self.plan.as_ref().ok().and_then(|plan| plan.next_after(handled));
        self.retry = None;
    }

    /// Records that the schedule could not be fired. What is due stays due until it is tried again. The first failure
    /// is reported in the server log.
    pub fn failed(&mut self, catalog: &Catalog, error: &Error, now: i64) {
        let pause = self.retry.map_or(*PAUSE.start(), |(_, pause)| (pause * 2).min(*PAUSE.end()));
        if self.retry.replace((now.saturating_add(pause), pause)).is_none() {
            let name = schedule::by_id(catalog, self.id).map_or_else(String::new, |schedule| schedule.name());
            let slot = self.next.map_or_else(String::new, rfc3339);
            let mut warning =
                Error::new(error.code, format!("schedule \"{name}\" could not be fired: {}", error.message)).detail(
                    match &error.detail {
                        Some(detail) => format!("{detail}\nIts slot {slot} is tried again, less and less often."),
                        None => format!("Its slot {slot} is tried again, less and less often."),
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
    pub fn current(self, catalog: &Catalog, changes: u64) -> Self {
        if (self.instance, self.changes) == (catalog.number, changes) {
            return self;
        }
        let mut known: HashMap<(i32, i32), Entry> = HashMap::new();
        if self.instance == catalog.number {
            known.extend(self.entries.into_iter().map(|entry| ((entry.id, entry.version), entry)));
        }
        let log = Log::read(catalog);
        let mut entries = Vec::new();
        schedule::each(catalog, |schedule| {
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
                // It is tried, and fails with the plan's error.
                Err(_) => Some(handled),
            };
            let last = firing.and_then(|firing| firing.last);
            entries.push(Entry { id, version, plan, handled, last, owed, next, retry });
        });
        Self { instance: catalog.number, changes, entries }
    }

    /// Returns the indexes of up to `most` schedules that are due, the earliest slots first.
    pub fn due(&self, now: i64, most: usize) -> Vec<usize> {
        let is_due = |entry: &Entry| entry.at(now).is_some_and(|at| at <= now);
        let mut due: Vec<usize> = (0..self.entries.len()).filter(|&n| is_due(&self.entries[n])).collect();
        due.sort_by_key(|&n| self.entries[n].next);
        due.truncate(most);
        due
    }

    /// Returns when the next schedule is to be looked at; `i64::MAX`: never.
    pub fn next_at(&self, now: i64) -> i64 {
        self.entries.iter().filter_map(|entry| entry.at(now)).min().unwrap_or(i64::MAX)
    }
}
