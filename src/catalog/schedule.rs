//! A row of `queue.schedule`: the timing of a schedule, its plan, and the payload of its jobs. Also the clock of
//! schedules.
//!
//! Not responsible for the times of slots (`pg_queue_core::schedule`), for enqueuing jobs (`job::schedule`), nor for
//! firing slots (`duty::fire_schedules`).

use pg_queue_core::schedule::{Cron, Missed, Period, PeriodError, Plan, Zone};
use pgrx::pg_sys::Datum;

use crate::catalog;
pub use crate::catalog::tables::schedule as column;
use crate::error::{self, Error, Result};
use crate::guc;
use crate::pg::datum::{self, Interval, text, text_datum};
use crate::pg::row::Row;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::Relation;
use crate::pg::{jsonb, time};

/// Returns the current time for schedules: the server's clock plus `pg_queue.clock_offset`, in microseconds as
/// `timestamptz` counts them.
pub fn now_us() -> i64 {
    time::now_us().saturating_add((guc::CLOCK_OFFSET.get() * 1e6) as i64)
}

/// The values that determine the times of a schedule's slots. Times are in microseconds as `timestamptz` counts them.
#[derive(PartialEq, Eq)]
pub struct Timing {
    pub cron: Option<String>,
    pub every: Option<Interval>,
    pub timezone: String,
    pub starts_at: Option<i64>,
    pub ends_at: Option<i64>,
}

impl Timing {
    /// Returns the plan. If there is no `starts_at`, `every` is counted from `anchor`.
    ///
    /// Errors: 22023 if the zone, the cron expression or the period is invalid, or unless exactly one of `cron` and
    /// `every` is given.
    pub fn plan(&self, anchor: i64) -> Result<Plan> {
        let zone = zone(&self.timezone)?;
        let plan = match (&self.cron, self.every) {
            (Some(cron), None) => Plan::cron(parse(cron)?, zone),
            (None, Some(Interval { months, days, time })) => {
                let period = Period::new(months, days, time).map_err(|error| match error {
                    PeriodError::Negative => {
                        Error::invalid("the period of a schedule cannot be negative, nor any part of it")
                    }
                    PeriodError::TooShort => {
                        Error::invalid("the period of a schedule must be at least 100 milliseconds")
                    }
                })?;
                Plan::every(period, self.starts_at.unwrap_or(anchor), zone)
            }
            _ => return Err(Error::invalid("either cron or every must be given").hint("Give one of the two.")),
        };
        Ok(plan.within(self.starts_at, self.ends_at))
    }
}

/// Returns the time zone of this name.
///
/// Errors: 22023 if it does not exist.
pub fn zone(name: &str) -> Result<Zone> {
    Zone::find(name).ok_or_else(|| {
        Error::invalid(format!("time zone \"{name}\" not recognized"))
            .hint("Use a name such as 'Europe/Berlin' or 'UTC'; view pg_timezone_names lists them.")
    })
}

/// Parses a cron expression.
///
/// Errors: 22023. The detail shows the place of the fault.
fn parse(cron: &str) -> Result<Cron> {
    Cron::parse(cron).map_err(|error| {
        let before = cron.get(..error.position.start).map_or(0, |text| text.chars().count());
        let blamed = cron.get(error.position.clone()).map_or(1, |text| text.chars().count().max(1));
        let place = format!("{}{}", " ".repeat(before), "^".repeat(blamed));
        let shown = Error::invalid(error.message)
            .detail(format!("At character {} of the expression:\n{cron}\n{place}", before + 1));
        match error.hint {
            Some(hint) => shown.hint(hint),
            None => shown,
        }
    })
}

/// A schedule, as its row was when it was read.
pub struct Schedule(pub Row);

impl Schedule {
    /// Returns whether its jobs are commands.
    pub fn is_of_commands(&self) -> bool {
        self.0.get(column::RUN_AS).is_some()
    }

    pub fn id(&self) -> i32 {
        self.0.i32(column::SCHEDULE_ID)
    }

    pub fn name(&self) -> String {
        self.0.get(column::SCHEDULE_NAME).map(text).unwrap_or_default()
    }

    pub fn queue_id(&self) -> i32 {
        self.0.i32(column::QUEUE_ID)
    }

    pub fn is_paused(&self) -> bool {
        self.bool(column::IS_PAUSED)
    }

    /// Returns whether a slot fires even if the job of the last slot is still alive.
    pub fn may_overlap(&self) -> bool {
        self.bool(column::OVERLAP)
    }

    /// Returns the time from which `every` is counted.
    pub fn anchor(&self) -> i64 {
        self.0.i64(column::ANCHOR)
    }

    /// Returns the time from which slots belong to this plan.
    pub fn planned_from(&self) -> i64 {
        self.0.i64(column::PLANNED_FROM)
    }

    /// Returns how often the row was changed.
    pub fn version(&self) -> i32 {
        self.0.i32(column::VERSION)
    }

    pub fn missed(&self) -> Missed {
        self.0.get(column::MISSED).and_then(|name| Missed::parse(&text(name))).unwrap_or(Missed::Once)
    }

    pub fn timing(&self) -> Timing {
        let time = |column| self.0.get(column).map(|datum| datum.value() as i64);
        Timing {
            cron: self.0.get(column::CRON).map(text),
            every: self.0.get(column::EVERY).map(Interval::read),
            timezone: self.0.get(column::TIMEZONE).map(text).unwrap_or_default(),
            starts_at: time(column::STARTS_AT),
            ends_at: time(column::ENDS_AT),
        }
    }

    /// Returns the plan.
    ///
    /// Errors: as `Timing::plan`. The values were checked when they were written, but perhaps by another version of the
    /// library.
    pub fn plan(&self) -> Result<Plan> {
        self.timing().plan(self.anchor())
    }

    /// Returns the payload of its jobs. A TOASTed value is fetched.
    pub fn payload(&self) -> Datum {
        self.0.get(column::PAYLOAD).map_or_else(jsonb::empty_object, datum::fetched)
    }

    fn bool(&self, column: usize) -> bool {
        self.0.get(column).is_some_and(|datum| datum.value() & 1 != 0)
    }
}

/// Returns the schedule of this name.
///
/// Errors: 42704 if it does not exist.
pub fn by_name(name: &str) -> Result<Schedule> {
    find(catalog::pinned().schedule_name, &Key::eq_text(1, text_datum(name))).ok_or_else(|| {
        Error::new(error::UNDEFINED, format!("schedule \"{name}\" does not exist"))
            .hint("View queue.schedules lists them.")
    })
}

/// Returns the schedule of this id, if it still exists.
pub fn by_id(id: i32) -> Option<Schedule> {
    find(catalog::pinned().schedule_pkey, &Key::eq_i32(1, id))
}

fn find(index: pgrx::pg_sys::Oid, key: &Key) -> Option<Schedule> {
    let table = Relation::read(catalog::pinned().schedule);
    let index = Relation::read_index(index);
    let _latest = ActiveSnapshot::latest();
    let mut scan = table.scan(&index, std::slice::from_ref(key), Snapshot::Statement);
    scan.next().map(|_| Schedule(scan.row()))
}

/// Calls `f` with every schedule that exists now.
pub fn each(f: impl FnMut(Schedule)) {
    let _latest = ActiveSnapshot::latest();
    each_seen(f);
}

/// Calls `f` with every schedule that the calling statement sees.
pub fn each_seen(mut f: impl FnMut(Schedule)) {
    let catalog = catalog::pinned();
    let table = Relation::read(catalog.schedule);
    let index = Relation::read_index(catalog.schedule_pkey);
    let mut scan = table.scan(&index, &[], Snapshot::Statement);
    while scan.next().is_some() {
        f(Schedule(scan.row()));
    }
}

/// Returns the ids of all schedules.
pub fn ids() -> Vec<i32> {
    let mut ids = Vec::new();
    each(|schedule| ids.push(schedule.id()));
    ids
}

/// Returns the name of a schedule that enqueues into this queue and for which `matters` returns true. It also finds
/// schedules that an open transaction is making or changing.
pub fn of_queue(queue: i32, matters: impl Fn(&Schedule) -> bool) -> Option<String> {
    let catalog = catalog::pinned();
    let table = Relation::read(catalog.schedule);
    let index = Relation::read_index(catalog.schedule_queue);
    let mut scan = table.scan(&index, &[Key::eq_i32(1, queue)], Snapshot::Dirty);
    while scan.next().is_some() {
        let schedule = Schedule(scan.row());
        if matters(&schedule) {
            return Some(schedule.name());
        }
    }
    None
}
