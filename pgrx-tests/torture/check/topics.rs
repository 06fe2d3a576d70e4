//! All copies or none: a committed event has one job in each queue that is always bound to its key, at most one job in
//! each queue whose binding comes and goes, and no job in any other queue. If a publish has returned its jobs, `loss`
//! checks the rest.

use std::collections::BTreeMap;

use super::case::Case;
use super::loss::{forgotten, is_kept_name};
use crate::ledger::What;
use crate::plan::BINDINGS;
use crate::topics;

pub fn check(case: &Case<'_>) -> Vec<String> {
    let mut queues: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    // The contents of forgotten copies do not show their event. Each of them stands for one copy that is missing in its
    // queue.
    let forgotten = forgotten(case);
    let mut erased: BTreeMap<&str, usize> = BTreeMap::new();
    for (id, seen) in &case.world.jobs {
        if seen.token.is_empty() && forgotten.contains(id) {
            *erased.entry(&seen.queue).or_default() += 1;
        }
        queues.entry(&seen.token).or_default().push(seen.queue.clone());
    }
    let mut found = Vec::new();
    for (_, fact) in case.ledger.committed() {
        let What::PublishLost { key, token } = &fact.what else { continue };
        let mut names = queues.remove(token.as_str()).unwrap_or_default();
        // Dead jobs leave copies in `morgue`.
        names.retain(|name| name != "morgue");
        // The views do not show all jobs of such queues.
        let hidden = BINDINGS.iter().filter(|b| b.is_sure && b.keys.contains(key) && !is_kept_name(b.queue));
        names.retain(|name| is_kept_name(name));
        names.extend(hidden.map(|binding| binding.queue.to_owned()));
        for binding in BINDINGS.iter().filter(|b| b.is_sure && b.keys.contains(key)) {
            if !names.iter().any(|name| name == binding.queue)
                && let Some(left) = erased.get_mut(binding.queue).filter(|left| **left > 0)
            {
                *left -= 1;
                names.push(binding.queue.to_owned());
            }
        }
        if let Some(wrong) = topics::wrong(key, &names) {
            found.push(format!("an event of the key {key:?} {wrong}: {names:?}, {fact:?}"));
        }
    }
    found.truncate(20);
    found
}
