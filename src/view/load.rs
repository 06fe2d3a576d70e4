//! `queue.load`: how many jobs of each queue and stage have to run at the same time.
//!
//! Not responsible for the arithmetic (`pg_queue_core::load`), nor for counting (`log::depth`).

use std::collections::BTreeMap;
use std::rc::Rc;

use pg_queue_core::frontier::Running;
use pg_queue_core::load::{self, Load, Seen};
use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege, Rights};
use crate::catalog::queue;
use crate::catalog::queue::Queue;
use crate::error::{Error, Result};
use crate::job::throttle;
use crate::log::depth::{self, Wanted};
use crate::log::lane_counts::{Lane, LaneCounts};
use crate::pg::datum::{Interval, text_datum};
use crate::pg::function::Call;
use crate::pg::{memory, session, time};
use crate::shmem;
use crate::view::list::observed;

sql_function!(pg_queue_load, pg_finfo_pg_queue_load => load, api::run_briefly);

/// How long a waiting job may take to begin, unless the call says otherwise.
const DEFAULT_TARGET_AGE_US: i64 = 30_000_000;

/// `queue.load(queue_name, target_age)`: returns a row for each queue and stage that jobs are claimed from. Returns no
/// row on a standby, where it would have to read the logs.
///
/// Errors: 42704, 22023 unless `target_age` is positive.
fn load(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let name = call.get(args::load::QUEUE_NAME);
    let target_age_us = call.get(args::load::TARGET_AGE).map_or(DEFAULT_TARGET_AGE_US, Interval::us);
    if target_age_us <= 0 {
        let given = call.get(args::load::TARGET_AGE).map(Interval::text).unwrap_or_default();
        return Err(Error::invalid("target_age must be positive")
            .detail(format!("It is {given}."))
            .hint("Leave it out for 30 seconds."));
    }
    let queues = queues(&permission::rights(), name.as_deref())?;
    if session::in_recovery() || queues.is_empty() {
        return Ok(None);
    }
    let soon = time::now_us().saturating_add(target_age_us);
    let known = depth::known(Wanted { future: true, soon, ..Wanted::default() });
    let is_counted = known.is_some();
    let lane_counts = known.unwrap_or_else(|| LaneCounts::take(soon));
    let started = started();
    let now_us = time::now_us();
    for (name, queue) in queues {
        let lanes = shown(&queue, &lane_counts);
        let limits = queue.limits.unwrap_or_default();
        let mut loads: Vec<Load> = memory::list(lanes.len());
        for &(lane, found) in &lanes {
            let minutes = if is_counted { shmem::minutes_of(lane) } else { None };
            let seen = Seen {
                ready: found.ready(),
                due_soon: found.due_soon,
                running: found.counter.counts.running,
                started_at: started.get(&lane).map_or(&[], Vec::as_slice),
                minutes: minutes.as_ref(),
                now_us,
                target_age_us,
                is_paused: queue.is_paused,
                max_running: limits.running,
                rate: limits.rate,
                period_us: limits.period,
            };
            loads.push(seen.load());
        }
        load::share(&mut loads, limits.running);
        for ((lane, found), load) in lanes.into_iter().zip(loads) {
            rows.add_options(&[
                Some(text_datum(&name)),
                queue.stage_of(lane).map(text_datum),
                Some(found.ready().into()),
                Some(found.due_soon.into()),
                Some(found.counter.counts.running.into()),
                found.oldest.map(|since| interval((now_us - since).max(0) as f64)),
                Some(float(load.arrivals)),
                Some(float(load.ends)),
                load.run_mean_us.map(interval),
                load.drain_us.map(interval),
                Some(load.needed.into()),
                throttle::until(lane).map(Datum::from),
            ])?;
        }
    }
    Ok(None)
}

/// Returns when each running attempt of each lane was claimed, as far as memory knows.
fn started() -> BTreeMap<i32, Vec<i64>> {
    let mut started = BTreeMap::<i32, Vec<i64>>::new();
    let is_known = |entry: &Running| entry.claimed != 0 && entry.system == 0 && entry.started_at != 0;
    for entry in shmem::each_running().filter(is_known) {
        started.entry(entry.lane).or_default().push(entry.started_at);
    }
    started
}

/// Returns the queue of this name, or all queues, as far as the user may observe them.
///
/// Errors: 42704.
fn queues(rights: &Rights, name: Option<&str>) -> Result<BTreeMap<String, Rc<Queue>>> {
    let mut queues = BTreeMap::new();
    if let Some(name) = name {
        queues.extend(observed(rights, name)?.map(|queue| (queue.name.clone(), queue)));
        return Ok(queues);
    }
    for lane in queue::lanes().into_iter().filter(|&lane| rights.on_lane(lane, Privilege::Observe)) {
        if let Some(queue) = queue::by_lane(lane)? {
            queues.insert(queue.name.clone(), queue);
        }
    }
    Ok(queues)
}

/// Returns the lanes of a queue that have a row. Jobs outside stages have one in a queue with stages only while there
/// are any.
fn shown<'a>(queue: &Queue, lane_counts: &'a LaneCounts) -> Vec<(i32, &'a Lane)> {
    let of = |lane: i32| (lane, lane_counts.0.get(&lane).unwrap_or(&Lane::NONE));
    let has_jobs = |found: &Lane| found.counter.counts.waiting > 0 || found.counter.counts.running > 0;
    let is_shown = |(lane, found): &(i32, &Lane)| *lane != queue.lane || queue.stages.is_empty() || has_jobs(found);
    queue.lanes().iter().copied().map(of).filter(is_shown).collect()
}

fn interval(us: f64) -> Datum {
    Interval { months: 0, days: 0, time: us.round() as i64 }.datum()
}

fn float(value: f64) -> Datum {
    value.to_bits().into()
}
