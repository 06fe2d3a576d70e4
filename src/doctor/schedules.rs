//! Checks of schedules: late slots, schedules whose jobs die, and clocks that differ from PostgreSQL's.
//!
//! Not responsible for whether the worker, which fires schedules, runs (`server`).

use std::collections::{BTreeMap, HashSet};

use pg_queue_core::schedule::{Zone, rfc3339};

use crate::catalog;
use crate::catalog::schedule::{self, Schedule};
use crate::doctor::check::{Finding, needs_instance, patience, time};
use crate::error::Result;
use crate::job::find;
use crate::job::schedule::{Goal, handled, next_run};
use crate::log::dead;
use crate::log::firing::Log;
use crate::pg::scan::Snapshot;
use crate::pg::zone::Zone as ServerZone;
use crate::shmem::ledger::Ledger;

/// A schedule is reported if its last jobs have died, this many one after the other.
const MIN_DEAD_IN_A_ROW: usize = 3;
/// The time zones are compared this far ahead, in microseconds.
const COMPARED_US: i64 = 366 * 86_400_000_000;

/// Checks that the slots of schedules are fired in time, and that their jobs do not all die.
pub fn schedules() -> Result<Finding> {
    needs_instance()?;
    let now = schedule::now_us();
    let (mut troubles, mut last_jobs) = (Vec::new(), Vec::new());
    {
        let log = Log::read();
        schedule::each(|schedule| {
            match next_run(&schedule, &log) {
                Ok(Some(at)) if at < now.saturating_sub(patience()) => {
                    troubles.push(format!("\"{}\" is late by {}.", schedule.name(), time(now - at)));
                }
                Ok(next) => troubles.extend(silence(&schedule, &log, now, next)),
                Err(error) => troubles.push(format!("\"{}\" cannot be planned: {}.", schedule.name(), error.message)),
            }
            // The newest job may still be waiting or running.
            let jobs = log.last_jobs(schedule.id(), MIN_DEAD_IN_A_ROW + 1);
            if jobs.len() >= MIN_DEAD_IN_A_ROW && !schedule.is_paused() {
                last_jobs.push((schedule, jobs));
            }
        });
    }
    troubles.extend(dying(&last_jobs)?);
    Ok(Finding::of(
        &troubles,
        "No schedule is late, and none has only jobs that die.",
        "The worker fires them: look at the check worker. The server's log says why a slot could not be fired. If the \
         clock went back, queue.unschedule and queue.schedule begin anew. \
         queue.errors shows the errors of dead jobs.",
    ))
}

/// Returns a sentence if the schedule has handled slots that are still to come, because the clock went back. It fires
/// none again. `next`: its next run. `None`: it is paused, or has none.
fn silence(schedule: &Schedule, log: &Log, now: i64, next: Option<i64>) -> Option<String> {
    let next = next?;
    let (handled, _) = handled(schedule, log.last(schedule.id()));
    (handled > now.saturating_add(patience())).then(|| {
        format!(
            "\"{}\" is silent until {}: it has fired up to {}, and the clock shows {}.",
            schedule.name(),
            rfc3339(next),
            rfc3339(handled),
            rfc3339(now)
        )
    })
}

/// Returns a sentence for each schedule whose last jobs are dead. `last_jobs`: the schedules with their newest jobs,
/// the newest first.
fn dying(last_jobs: &[(Schedule, Vec<i64>)]) -> Result<Vec<String>> {
    let mut dead: HashSet<i64> = last_jobs.iter().flat_map(|(_, jobs)| jobs.iter().copied()).collect();
    if dead.is_empty() {
        return Ok(Vec::new());
    }
    let catalog = catalog::pinned();
    let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
    let mut found = HashSet::new();
    dead::each(&ledger, |job| {
        if dead.contains(&job.job_id) {
            found.insert(job.job_id);
        }
    });
    dead.retain(|job_id| found.contains(job_id));
    let all_dead =
        |jobs: &[i64]| jobs.len() >= MIN_DEAD_IN_A_ROW && jobs[..MIN_DEAD_IN_A_ROW].iter().all(|id| dead.contains(id));
    let lives = |job_id| find::find_any(job_id).is_ok_and(|found| found.outcome().is_none());
    let mut troubles = Vec::new();
    for (schedule, jobs) in last_jobs {
        if all_dead(jobs) || all_dead(&jobs[1..]) && lives(jobs[0]) {
            let goal = match Goal::by_id(schedule.queue_id())? {
                Some(Goal::Queue(queue)) => format!(", of queue \"{}\"", queue.name),
                Some(Goal::Topic(topic)) => format!(", of topic \"{}\"", topic.name),
                None => String::new(),
            };
            troubles.push(format!("The last {MIN_DEAD_IN_A_ROW} jobs of \"{}\"{goal}, have died.", schedule.name()));
        }
    }
    Ok(troubles)
}

/// Checks that the library's data for the schedules' time zones agree with PostgreSQL's for the next year.
pub fn time_zones() -> Result<Finding> {
    needs_instance()?;
    // Each zone with the name of its first schedule.
    let mut zones: BTreeMap<String, String> = BTreeMap::new();
    schedule::each(|schedule| {
        zones.entry(schedule.timing().timezone).or_insert_with(|| schedule.name());
    });
    let now = schedule::now_us();
    let mut troubles = Vec::new();
    for (name, of) in &zones {
        let Some(ours) = Zone::find(name) else { continue };
        let of = format!("Zone \"{name}\" of schedule \"{of}\"");
        let Some(theirs) = ServerZone::find(name) else {
            troubles.push(format!("{of} is unknown to PostgreSQL."));
            continue;
        };
        if let Some((at, ours, theirs)) = first_difference(&ours, &theirs, now, now.saturating_add(COMPARED_US)) {
            let (ours, theirs) = (offset(ours), offset(theirs));
            troubles.push(format!("{of} is at {ours} at {}, but by PostgreSQL's data at {theirs}.", rfc3339(at)));
        }
    }
    let version = Zone::data_version().unwrap_or("unknown");
    Ok(Finding::of(
        &troubles,
        &format!(
            "The library's time zones, version {version}, and PostgreSQL's agree for the next year of all schedules."
        ),
        &format!(
            "Slots follow the library's data, version {version}; what SQL shows follows PostgreSQL's. \
                Update pg_queue or the \
             server's time zones (the package tzdata), whichever is older: docs/schedules.md."
        ),
    ))
}

/// Returns when two clocks first differ, and both offsets at that time, in seconds. Times are in microseconds, as
/// `timestamptz` counts them. `None`: they agree until `end`.
fn first_difference(ours: &Zone, theirs: &ServerZone, from: i64, end: i64) -> Option<(i64, i64, i64)> {
    /// No zone changes its offset this often in a year.
    const MAX_CHANGES: usize = 1_000;
    let mut at = from;
    for _ in 0..MAX_CHANGES {
        let ((here, until), (there, change)) = (ours.offset_until(at), theirs.offset_until(at));
        if here != there {
            return Some((at, here, there));
        }
        at = until.min(change);
        if at >= end {
            return None;
        }
    }
    None
}

/// Returns an offset from UTC in hours and minutes.
fn offset(seconds: i64) -> String {
    let sign = if seconds < 0 { '-' } else { '+' };
    let minutes = seconds.abs() / 60;
    format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
}
