//! The check of topics: events that nobody gets, and subscribers that are paused and forgotten.
//!
//! Not responsible for queues that have no worker, bound or not (`jobs::unclaimed`).

use std::collections::BTreeMap;

use crate::catalog::{queue, topic};
use crate::doctor::check::{Finding, catalog, patience, time};
use crate::error::Result;
use crate::log::depth::{self, Wanted};
use crate::pg::{session, time};
use crate::shmem;

/// Checks that somebody gets what is published, and that no bound queue piles up copies because it is paused.
pub fn topics() -> Result<Finding> {
    let catalog = catalog()?;
    if session::in_recovery() {
        return Ok(Finding::well("The primary checks this."));
    }
    let topics = topic::all(&catalog)?;
    let counts = shmem::with_instance(catalog.number, |_, instance| instance.topics);
    let now = time::now_us();
    // What was lost long ago is nobody's trouble any more.
    let lost = |id: i32| {
        let found = counts.iter().flat_map(|counts| counts.all()).find(|(topic, _)| *topic == id)?.1;
        Some(found).filter(|sum| sum.unrouted_at > now.saturating_sub(patience().saturating_mul(12)))
    };
    let mut troubles = Vec::new();
    let mut bound: BTreeMap<i32, &str> = BTreeMap::new();
    for topic in &topics {
        bound.extend(topic.queues.iter().map(|&queue| (queue, topic.name.as_str())));
        if let Some(sum) = lost(topic.id).filter(|_| topic.queues.is_empty()) {
            troubles.push(format!(
                "No queue is bound to topic \"{}\", and nobody got {} events, the last of them {} ago.",
                topic.name,
                sum.unrouted,
                time(now.saturating_sub(sum.unrouted_at))
            ));
        }
    }
    let counted = if bound.is_empty() { None } else { depth::known(&catalog, Wanted { future: false, dead: false }) };
    for (&lane, found) in counted.iter().flat_map(|counts| &counts.0) {
        let age = found.oldest.map_or(0, |since| now.saturating_sub(since));
        if age <= patience() {
            continue;
        }
        let Some(queue) = queue::by_lane(&catalog, lane)?.filter(|queue| queue.is_paused && !queue.is_held(lane))
        else {
            continue;
        };
        if let Some(topic) = bound.get(&queue.id) {
            troubles.push(format!(
                "Queue \"{}\" is paused, has had a ready job for {}, and still gets what is published on topic \"{topic}\".",
                queue.name,
                time(age)
            ));
        }
    }
    Ok(Finding::of(
        &troubles,
        "No topic without bindings was published on of late, and no bound queue has been paused for long.",
        "Bind a queue by queue.bind, or drop the topic; queue.resume goes on with a queue, queue.unbind ends what it gets.",
    ))
}
