//! The job of a schedule: its options, and its queue while that may not be dropped.

use pg_queue_core::schedule::{Missed, rfc3339};

use crate::catalog::run_as::RunAs;
use crate::catalog::schedule::{self, Schedule};
use crate::catalog::{Catalog, queue};
use crate::error::{self, Error, Result};
use crate::job::options::Options;
use crate::log::firing::{Firing, Log, Owed};
use crate::pg::datum::{text, text_datum};
use crate::pg::jsonb;

/// The first slot that was not dealt with.
pub fn next_run(schedule: &Schedule, log: &Log) -> Result<Option<i64>> {
    if schedule.is_paused() {
        return Ok(None);
    }
    Ok(schedule.plan()?.next_after(handled(schedule, log.last(schedule.id())).0))
}

/// The slot up to which all were dealt with or are not this plan's, by the newest firing; and what is owed behind it.
pub fn handled(schedule: &Schedule, firing: Option<Firing>) -> (i64, Option<Owed>) {
    let slot = firing.map_or(i64::MIN, |firing| firing.slot).max(schedule.planned_from());
    let owed = firing.and_then(|firing| firing.owed);
    // Nothing is owed of the time before a resumption, nor if what was missed is not to be made up for any more.
    match owed.filter(|owed| schedule.missed() != Missed::All || slot >= owed.run_to) {
        Some(void) => (slot.max(void.skip_to), None),
        None => (slot, owed),
    }
}

/// The queue that a schedule enqueues into.
///
/// Errors: 42704 when it is gone.
pub fn schedule_queue(catalog: &Catalog, schedule: &Schedule) -> Result<std::rc::Rc<queue::Queue>> {
    queue::by_id(catalog, schedule.queue_id())?.ok_or_else(|| {
        let name = schedule.name();
        Error::new(error::UNDEFINED, format!("the queue of schedule \"{name}\" does not exist"))
            .hint(format!("Remove the schedule with SELECT queue.unschedule('{}').", name.replace('\'', "''")))
    })
}

impl Schedule {
    /// The options of the job for a slot, or for none; good as long as this.
    pub fn options(&self, catalog: &Catalog, slot: Option<i64>) -> Options {
        let mut own = serde_json::json!({ "schedule": self.name() });
        if let Some(slot) = slot {
            own["slot"] = rfc3339(slot).into();
        }
        let own = jsonb::of(&own).unwrap_or_else(jsonb::empty_object);
        let headers = self.0.get(schedule::column::HEADERS).map_or(own, |headers| jsonb::merged(headers, own));
        Options {
            priority: self.0.i32(schedule::column::PRIORITY),
            max_attempts: self.0.get(schedule::column::MAX_ATTEMPTS).map(|datum| datum.value() as i32),
            headers: Some(headers),
            group_key: self.0.get(schedule::column::GROUP_KEY).map(|key| text_datum(&text(key))),
            // A job is newer than a restore, and its schedule may be older.
            run_as: RunAs::read(&self.0, schedule::column::RUN_AS, schedule::column::RUN_AS_ID)
                .map(|role| role.renewed(catalog, self.0.i64(schedule::column::CREATED_AT))),
            ..Options::default()
        }
    }
}
