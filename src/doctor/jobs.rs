//! Checks of the jobs themselves: expired leases, jobs without a worker, dead jobs.
//!
//! Not responsible for what blocks segments (`storage`), for schedules (`schedules`), nor for whether the worker runs
//! (`server`).

use std::collections::BTreeMap;

use pg_queue_core::frontier::State;
use pg_queue_core::minutes::MINUTE_US;
use pg_queue_core::totals::Totals;

use crate::catalog::{self, queue};
use crate::doctor::check::{Finding, needs_instance, patience, time};
use crate::error::Result;
use crate::job::{held_by_dead, throttle};
use crate::log::depth::{self, Wanted};
use crate::log::history::Dead;
use crate::log::lane_counts::LaneCounts;
use crate::pg::scan::Snapshot;
use crate::pg::{session, time};
use crate::shmem;
use crate::shmem::ledger::Ledger;

/// A queue with this many dead jobs is reported.
const MIN_REPORTED_DEAD: i64 = 1_000;

/// Checks that jobs whose lease has expired are released.
pub fn leases() -> Result<Finding> {
    needs_instance()?;
    let well = "No lease has expired without its job being released.";
    let latest = time::monotonic_us().saturating_sub(patience());
    let earliest = shmem::with_instance(|frontier, i| frontier.running.next_deadline(i.deadlines)).flatten();
    if earliest.is_none_or(|at| at > latest) {
        return Ok(Finding::well(well));
    }
    let (mut count, mut oldest) = (0, i64::MAX);
    for entry in shmem::each_running() {
        // A deadline of `MIN` means that the connection has ended. It is not known when it ended.
        if entry.state == State::Running && entry.deadline <= latest && entry.deadline > i64::MIN {
            count += 1;
            oldest = oldest.min(entry.deadline);
        }
    }
    if count == 0 {
        return Ok(Finding::well(well));
    }
    let since = time(time::monotonic_us().saturating_sub(oldest));
    Ok(Finding::ill(
        format!("{count} leases have expired, the first of them {since} ago, and their jobs were not released."),
        "The worker releases them: look at the check worker.",
    ))
}

/// Checks that ready jobs find a worker.
pub fn unclaimed() -> Result<Finding> {
    needs_instance()?;
    if session::in_recovery() {
        return Ok(Finding::well("The primary checks this."));
    }
    let Some(lane_counts) = depth::known(Wanted::default()) else {
        return Ok(Finding::well("It is not known yet: the jobs are being counted."));
    };
    let (now, up) = (time::now_us(), time::monotonic_us().saturating_sub(shmem::born_at()));
    let mut troubles = Vec::new();
    for (&lane, found) in &lane_counts.0 {
        let Some(age) = found.oldest.map(|since| now.saturating_sub(since)) else { continue };
        if age <= patience() || found.counter.counts.running > 0 {
            continue;
        }
        let Some(queue) = queue::by_lane(lane)?.filter(|queue| !queue.is_held(lane)) else { continue };
        let period = queue.limits.filter(|limits| limits.rate > 0).map_or(0, |limits| limits.period);
        let limit = patience().saturating_add(period);
        // Jobs may be old and wait in a queue that makes progress. Memory does not know of claims before the server's
        // start.
        let stands = found.counter.claimed_at < now.saturating_sub(limit) && up > limit;
        if queue.is_paused || age <= limit || !stands || throttle::until(lane).is_some() {
            continue;
        }
        let name = place(&queue, lane);
        troubles.push(format!("{name} has had a ready job for {}, and no session claims any.", time(age)));
    }
    Ok(Finding::of(
        &troubles,
        "Every queue with old ready jobs is paused, throttled or being worked on.",
        "Start a worker for it.",
    ))
}

/// Returns the name of a lane for a finding.
fn place(queue: &queue::Queue, lane: i32) -> String {
    match queue.stage_of(lane) {
        Some(stage) => format!("Queue \"{}\", stage \"{stage}\",", queue.name),
        None => format!("Queue \"{}\"", queue.name),
    }
}

/// Checks that few jobs expire.
pub fn expiring() -> Result<Finding> {
    /// A queue is reported if at least this many of its jobs expired in the last hour…
    const MIN_EXPIRED: i64 = 10;
    /// … and if of all jobs that expired or were claimed at least one in this many expired.
    const MAX_SHARE: i64 = 10;
    needs_instance()?;
    if session::in_recovery() {
        return Ok(Finding::well("The primary checks this."));
    }
    let minute = time::now_us() / MINUTE_US;
    // Held jobs, and those of all stages, count for their queue.
    let mut queues: BTreeMap<i32, (String, Totals)> = BTreeMap::new();
    for lane in queue::lanes() {
        let found = shmem::minutes_of(lane);
        let (Some(minutes), Some(queue)) = (found, queue::by_lane(lane)?) else { continue };
        let totals = &mut queues.entry(queue.id).or_insert_with(|| (queue.name.clone(), Totals::NONE)).1;
        minutes.of_the_hour(minute).for_each(|(_, of_minute)| totals.add(&of_minute));
    }
    let mut troubles = Vec::new();
    for (name, totals) in queues.into_values() {
        let expired = totals.expired;
        if expired >= MIN_EXPIRED && expired.saturating_mul(MAX_SHARE) >= expired + totals.claimed {
            troubles.push(format!(
                "In the last hour {expired} jobs of queue \"{name}\" expired, and workers claimed {}.",
                totals.claimed
            ));
        }
    }
    Ok(Finding::of(
        &troubles,
        "In the last hour few jobs expired.",
        "Start more workers for it, or give its jobs more time: start_within.",
    ))
}

/// Checks that no queue has accumulated dead jobs.
pub fn dead() -> Result<Finding> {
    needs_instance()?;
    let mut many = dead_jobs()?;
    many.retain(|_, count| *count >= MIN_REPORTED_DEAD);
    let troubles: Vec<String> =
        many.iter().map(|(name, count)| format!("Queue \"{name}\" has {count} dead jobs.")).collect();
    let first = many.keys().next().map_or_else(String::new, |name| name.replace('\'', "''"));
    Ok(Finding::of(
        &troubles,
        &format!("No queue has {MIN_REPORTED_DEAD} dead jobs."),
        &format!(
            "queue.errors shows their errors. SELECT queue.retry_many(ARRAY(SELECT job_id FROM queue.search('{first}', \
                states => '{{dead}}'))) runs them again. dead_retention says how long they are kept."
        ),
    ))
}

/// Checks that no job waits for one that is dead.
pub fn held() -> Result<Finding> {
    needs_instance()?;
    if session::in_recovery() {
        return Ok(Finding::well("The primary checks this."));
    }
    let latest = time::now_us().saturating_sub(patience());
    let holders = held_by_dead::find()?;
    let is_complete =
        holders.iter().flat_map(|holder| holder.held.values()).sum::<i64>() < held_by_dead::MAX_COUNTED as i64;
    let old: Vec<(i64, Dead)> = holders
        .iter()
        .filter(|holder| holder.dead.ended_at <= latest)
        .map(|holder| (holder.held.values().sum(), holder.dead))
        .collect();
    let Some(&(most, first)) = old.iter().max_by_key(|(held, dead)| (*held, -dead.job_id)) else {
        return Ok(Finding::well("No job waits for one that has been dead for long."));
    };
    let all: i64 = old.iter().map(|(held, _)| held).sum();
    let least = if is_complete { "" } else { "At least " };
    let name = queue::by_lane(first.lane)?.map(|queue| queue.name.clone()).unwrap_or_default();
    let since = time(time::now_us().saturating_sub(first.ended_at));
    Ok(Finding::ill(
        format!(
            "{least}{all} held jobs wait for {} dead ones. Most of them, {most}, wait for job {} of queue \"{name}\", \
                dead for {since}.",
            old.len(),
            first.job_id
        ),
        "queue.retry(job_id) runs a dead job again, queue.retry_many(job_ids) runs many. When they complete, the held \
         jobs start. queue.cancel(job_id) cancels a held job.",
    ))
}

/// Returns the number of dead jobs of each queue that has any.
fn dead_jobs() -> Result<BTreeMap<String, i64>> {
    let mut lane_counts = LaneCounts::default();
    let catalog = catalog::pinned();
    let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
    lane_counts.add_dead(&ledger);
    let mut found = BTreeMap::new();
    for (&lane, counted) in &lane_counts.0 {
        if let Some(queue) = queue::by_lane(lane)? {
            *found.entry(queue.name.clone()).or_insert(0) += counted.dead;
        }
    }
    Ok(found)
}
