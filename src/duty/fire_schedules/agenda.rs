//! What a process knows of all schedules, so that it does not read and plan them at each slot: their plans, what was
//! dealt with, what is next.
//!
//! Invariant: it is used only while shared memory counts no change since it was read, another process's firing and
//! a firing of its own that was rolled back included.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use pg_queue_core::schedule::{MOST, Plan, rfc3339};

use crate::error::{Error, Result};
use crate::instance::Catalog;
use crate::log::firing::Log;
use crate::schedule;

/// First and longest pause, in microseconds, of a schedule that could not be fired.
const PAUSE: RangeInclusive<i64> = 1_000_000..=60_000_000;

/// A schedule.
pub struct Entry {
    pub id: i32,
    pub version: i32,
    plan: Result<Plan>,
    /// Slots up to here were dealt with, or are not this plan's.
    pub handled: i64,
    /// When the last job was enqueued, and its id.
    pub last: Option<(i64, i64)>,
    /// The next slot.
    pub next: Option<i64>,
    /// After a failure: not before this time, and the pause that led to it.
    retry: Option<(i64, i64)>,
}

impl Entry {
    /// Errors: why it cannot be planned.
    pub fn plan(&self) -> Result<&Plan> {
        self.plan.as_ref().map_err(Error::clone)
    }

    /// Whether it could not be fired when it was tried last.
    pub fn has_failed(&self) -> bool {
        self.retry.is_some()
    }

    /// When it is to be looked at.
    fn at(&self, now: i64) -> Option<i64> {
        let next = self.next?;
        match self.retry {
            // Or else the clock was set back.
            Some((retry_at, pause)) if retry_at <= now.saturating_add(pause) => Some(next.max(retry_at)),
            _ => Some(next),
        }
    }

    /// What is due was dealt with.
    pub fn fired(&mut self, handled: i64, last: Option<(i64, i64)>) {
        self.handled = handled;
        self.last = last;
        self.next = self.plan.as_ref().ok().and_then(|plan| plan.next_after(handled));
        self.retry = None;
    }

    /// It could not be fired. What is due stays so until it is tried again; the log says so the first time.
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

/// Says that an outage was too long for `missed => 'all'`.
pub fn warn_of_too_many(name: &str, skipped: &RangeInclusive<i64>) {
    let (first, last) = (rfc3339(*skipped.start()), rfc3339(*skipped.end()));
    Error::new(crate::error::LIMIT, format!("schedule \"{name}\" has missed more than {MOST} slots"))
        .detail(format!("The oldest {MOST} were fired. Those from {first} to {last} are skipped."))
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
    /// What there is when shared memory counts so many changes. The token is held.
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
            let handled = firing.map_or(i64::MIN, |firing| firing.slot).max(schedule.planned_from());
            let next = match &plan {
                Ok(plan) => plan.next_after(handled),
                // To be tried, and to fail.
                Err(_) => Some(handled),
            };
            let last = firing.and_then(|firing| firing.last);
            entries.push(Entry { id, version, plan, handled, last, next, retry });
        });
        Self { instance: catalog.number, changes, entries }
    }

    /// Up to so many that are due, the earliest slots first.
    pub fn due(&self, now: i64, most: usize) -> Vec<usize> {
        let is_due = |entry: &Entry| entry.at(now).is_some_and(|at| at <= now);
        let mut due: Vec<usize> = (0..self.entries.len()).filter(|&n| is_due(&self.entries[n])).collect();
        due.sort_by_key(|&n| self.entries[n].next);
        due.truncate(most);
        due
    }

    /// When the next one is to be looked at.
    pub fn next_at(&self, now: i64) -> i64 {
        self.entries.iter().filter_map(|entry| entry.at(now)).min().unwrap_or(i64::MAX)
    }
}
