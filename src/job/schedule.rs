//! The job of a schedule: its options, and its target, which is a queue or a topic.

use std::rc::Rc;

use pg_queue_core::schedule::{LATEST, Missed, rfc3339};
use pgrx::pg_sys::Datum;

use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue;
use crate::catalog::queue::Queue;
use crate::catalog::run_as::RunAs;
use crate::catalog::schedule::{self, Schedule};
use crate::catalog::topic::{self, Topic};
use crate::error::{self, Error, Result};
use crate::job::enqueue::{self, By};
use crate::job::options::Options;
use crate::job::publish::{self, Event, Full};
use crate::job::timing::{StartBy, Timing};
use crate::log::firing::{Firing, Log, Owed};
use crate::pg::datum::{text, text_datum};
use crate::pg::jsonb;
use crate::pg::memory;

/// Returns the first slot that no firing has handled.
pub fn next_run(schedule: &Schedule, log: &Log) -> Result<Option<i64>> {
    if schedule.is_paused() {
        return Ok(None);
    }
    Ok(schedule.plan()?.next_after(handled(schedule, log.last(schedule.id())).0))
}

/// Returns the first slot that no visible firing has handled.
pub fn next_run_now(schedule: &Schedule) -> Result<Option<i64>> {
    next_run(schedule, &Log::read())
}

/// Returns the slots that will be fired after `now`, even if the schedule is paused. After the clock went back, slots
/// that were handled come after `now`, and are not fired again.
pub fn upcoming(schedule: &Schedule, now: i64, count: usize) -> Result<Vec<i64>> {
    let handled = handled(schedule, Log::read().last(schedule.id())).0;
    Ok(schedule.plan()?.between(now.max(handled), LATEST).take(count).collect())
}

/// Returns the last slot that was handled, according to the newest firing, or that is before this plan. Also returns
/// the owed slots behind it.
pub fn handled(schedule: &Schedule, firing: Option<Firing>) -> (i64, Option<Owed>) {
    let slot = firing.map_or(i64::MIN, |firing| firing.slot).max(schedule.planned_from());
    let owed = firing.and_then(|firing| firing.owed);
    // Nothing is owed for the time before a resumption. Nothing is owed either if missed slots no longer have to be
    // made up for.
    match owed.filter(|owed| schedule.missed() != Missed::All || slot >= owed.run_to) {
        Some(void) => (slot.max(void.skip_to), None),
        None => (slot, owed),
    }
}

/// The target of a schedule's jobs.
#[derive(Clone)]
pub enum Goal {
    /// This queue.
    Queue(Rc<Queue>),
    /// The queues that are bound to this topic.
    Topic(Rc<Topic>),
}

impl Goal {
    /// Returns the queue or the topic of this number. `None`: there is none.
    pub fn by_id(id: i32) -> Result<Option<Self>> {
        Ok(match queue::by_id(id)? {
            Some(queue) => Some(Self::Queue(queue)),
            None => topic::by_id(id)?.map(Self::Topic),
        })
    }

    /// Returns the queue or the topic of this name.
    ///
    /// Errors: 42704 when there is none.
    pub fn by_name(name: &str) -> Result<Self> {
        match topic::find(name)? {
            Some(topic) => Ok(Self::Topic(topic)),
            None => queue::by_name(name).map(Self::Queue),
        }
    }

    /// Returns its number.
    pub fn id(&self) -> i32 {
        match self {
            Self::Queue(queue) => queue.id,
            Self::Topic(topic) => topic.id,
        }
    }

    /// Checks that the current user may do this with it.
    ///
    /// Errors: 42501 otherwise.
    pub fn check(&self, wanted: Privilege) -> Result<()> {
        match self {
            Self::Queue(queue) => permission::check(queue, wanted),
            Self::Topic(topic) => permission::check_topic(topic, wanted),
        }
    }

    /// Makes the jobs. Returns an id for each. If there are several copies, it is the id of the first. 0: no queue got
    /// a copy.
    ///
    /// Errors: those of `enqueue::produce` and `publish::publish`.
    pub fn produce(&self, jobs: &[(Datum, Options)], now: i64) -> Result<Vec<i64>> {
        let topic = match self {
            Self::Queue(queue) => return Ok(enqueue::produce(queue, jobs, now, By::Producer)?.ids),
            Self::Topic(topic) => topic,
        };
        let mut ids = memory::list(jobs.len());
        for (payload, options) in jobs {
            let event = Event { key: String::new(), payload: *payload, headers: options.headers, id: None };
            let outcomes = publish::publish_plainly(topic, &[event], options, now, Full::AsBound)?;
            ids.extend(outcomes.iter().map(|outcome| outcome.copies.first().map_or(0, |copy| copy.job_id)));
        }
        Ok(ids)
    }
}

/// Returns the target of a schedule's jobs.
///
/// Errors: 42704 when the target is gone.
pub fn goal(schedule: &Schedule) -> Result<Goal> {
    Goal::by_id(schedule.queue_id())?.ok_or_else(|| {
        let name = schedule.name();
        Error::new(error::UNDEFINED, format!("the queue of schedule \"{name}\" does not exist"))
            .hint(format!("Remove the schedule with SELECT queue.unschedule('{}').", name.replace('\'', "''")))
    })
}

impl Schedule {
    /// Returns the options of the job for a slot, or for a job without a slot. They are valid as long as this value.
    pub fn options(&self, slot: Option<i64>) -> Options {
        let mut own = serde_json::json!({ "schedule": self.name() });
        if let Some(slot) = slot {
            own["slot"] = rfc3339(slot).into();
        }
        let own = jsonb::of(&own).unwrap_or_else(jsonb::empty_object);
        let row = schedule::column::Row::read(&self.0);
        let headers = row.headers.map_or(own, |headers| jsonb::merged(headers, own));
        // The span was checked when the schedule was made.
        let timing = Timing::new(row.start_within.map(StartBy::Within), None, false).ok().flatten();
        Options {
            timing: timing.map(Rc::new),
            priority: row.priority,
            max_attempts: row.max_attempts,
            headers: Some(headers),
            group_key: row.group_key.map(|key| text_datum(&text(key))),
            // A job is newer than the last restore, but its schedule may be older.
            run_as: RunAs::of(row.run_as, row.run_as_id).map(|role| role.renewed(row.created_at)),
            ..Options::default()
        }
    }
}
