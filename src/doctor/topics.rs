//! The checks of topics: events that no queue gets, paused subscribers, and copies of events or dead jobs that were
//! left out.
//!
//! Not responsible for queues that have no worker, bound or not (`jobs::unclaimed`).

use std::collections::BTreeMap;

use crate::catalog::{queue, topic};
use crate::doctor::check::{Finding, needs_instance, patience, time};
use crate::error::Result;
use crate::log::depth::{self, Wanted};
use crate::pg::{session, time};
use crate::shmem;
use crate::shmem::troubles::Kind;

/// Checks that a queue gets each published event, and that no paused queue accumulates copies.
pub fn topics() -> Result<Finding> {
    needs_instance()?;
    if session::in_recovery() {
        return Ok(Finding::well("The primary checks this."));
    }
    let topics = topic::all()?;
    let counts = shmem::with_instance(|_, instance| instance.topics);
    let now = time::now_us();
    // Events that were lost long ago are not reported any more.
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
                "No queue is bound to topic \"{}\", and no queue got {} events, the last of them {} ago.",
                topic.name,
                sum.unrouted,
                time(now.saturating_sub(sum.unrouted_at))
            ));
        }
    }
    let counted = if bound.is_empty() { None } else { depth::known(Wanted::default()) };
    for (&lane, found) in counted.iter().flat_map(|counts| &counts.0) {
        let age = found.oldest.map_or(0, |since| now.saturating_sub(since));
        if age <= patience() {
            continue;
        }
        let Some(queue) = queue::by_lane(lane)?.filter(|queue| queue.is_paused && !queue.is_held(lane)) else {
            continue;
        };
        if let Some(topic) = bound.get(&queue.id) {
            troubles.push(format!(
                "Queue \"{}\" is paused, has had a ready job for {}, and still gets the events of topic \
                    \"{topic}\".",
                queue.name,
                time(age)
            ));
        }
    }
    Ok(Finding::of(
        &troubles,
        "No event was recently published on a topic without bindings, and no bound queue has been paused for long.",
        "Bind a queue with queue.bind, or drop the topic. queue.resume resumes a queue; \
            queue.unbind ends its subscription.",
    ))
}

/// Checks that no copy of an event or of a dead job was recently left out, and that no filter took too long. It names
/// the queue, the topic, the binding and the role that created the binding.
pub fn copies() -> Result<Finding> {
    needs_instance()?;
    let troubles = shmem::with_instance(|_, instance| instance.troubles);
    let since = time::now_us().saturating_sub(patience().saturating_mul(12));
    let mut told = Vec::new();
    for trouble in troubles.iter().flat_map(|troubles| troubles.all()).filter(|trouble| trouble.at > since) {
        let Some(queue) = queue::by_id(trouble.queue)? else { continue };
        let (name, count) = (&queue.name, trouble.count);
        told.push(match trouble.kind {
            Kind::Filter => match topic::binding(trouble.other)? {
                Some((topic, pattern, by)) => format!(
                    "The binding of queue \"{name}\" to topic \"{topic}\" with pattern '{pattern}', \
                        made by role \"{by}\", has had a \
                     filter that took too long, {count} times: the queue got no copy then."
                ),
                None => continue,
            },
            Kind::Copy | Kind::Key => {
                let topic = topic::by_id(trouble.other)?.map(|topic| topic.name.clone()).unwrap_or_default();
                let why = match trouble.kind {
                    Kind::Key => "because an open transaction held their unique key in it",
                    _ => "because an open transaction was dropping it",
                };
                format!("Queue \"{name}\" got no copy of {count} events of topic \"{topic}\", {why}.")
            }
            Kind::Letter => {
                let to = queue.dead_letter.as_deref().unwrap_or_default();
                format!("{count} jobs of queue \"{name}\" have died without a copy in \"{to}\", its dead_letter.")
            }
        });
    }
    Ok(Finding::of(
        &told,
        "No copy of an event or of a dead job was recently left out.",
        "The server log says why. Fix the filter and bind again, or call queue.unbind; \
            end the transaction that drops the queue; set another dead_letter.",
    ))
}
