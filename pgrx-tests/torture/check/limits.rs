//! Limits hold at every instant, rates in every period, and no job is held by two workers.

use std::collections::BTreeMap;

use super::case::Case;
use super::hold::{Hold, more_than};
use crate::ledger::Fate;
use crate::plan::{QUEUES, RATE_PERIOD};

pub fn check(case: &Case<'_>, holds: &[Hold<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    let mut by_job: BTreeMap<i64, Vec<&Hold<'_>>> = BTreeMap::new();
    for hold in holds {
        by_job.entry(hold.claim.job).or_default().push(hold);
    }
    for (job, holds) in &by_job {
        if let Some(two) = more_than(1, holds) {
            found.push(format!("job {job} is in the hands of two: {two:?}"));
        }
    }
    for (number, queue) in QUEUES.iter().enumerate() {
        let of_queue: Vec<&Hold<'_>> = holds.iter().filter(|hold| hold.claim.queue == number).collect();
        if let Some(limit) = queue.limit
            && let Some(held) = more_than(limit, &of_queue)
        {
            found.push(format!("{} run in {} at once: {held:?}", held.len(), queue.name));
        }
        if let Some(limit) = queue.group_limit {
            for (group, holds) in by_group(&of_queue) {
                if let Some(held) = more_than(limit, &holds) {
                    found.push(format!("{} run of group {group} in {}: {held:?}", held.len(), queue.name));
                }
            }
        }
        if let Some(limit) = queue.rate {
            rate(case, queue.name, limit, of_queue.clone(), &mut found);
        }
        if let Some(limit) = queue.group_rate {
            for (group, holds) in by_group(&of_queue) {
                rate(case, &format!("group {group} of {}", queue.name), limit, holds, &mut found);
            }
        }
    }
    found
}

fn by_group<'a>(holds: &[&'a Hold<'a>]) -> BTreeMap<&'a str, Vec<&'a Hold<'a>>> {
    let mut groups: BTreeMap<&str, Vec<&Hold<'_>>> = BTreeMap::new();
    for hold in holds {
        if let Some(group) = &hold.claim.group {
            groups.entry(group).or_default().push(hold);
        }
    }
    groups
}

/// Reports periods with more starts than the limit. A start lies between the claim's call and its answer.
fn rate(case: &Case<'_>, name: &str, limit: usize, mut starts: Vec<&Hold<'_>>, found: &mut Vec<String>) {
    starts.sort_by_key(|start| start.called);
    for (n, first) in starts.iter().enumerate() {
        let end = first.called + RATE_PERIOD;
        let within: Vec<_> =
            starts[n..].iter().take_while(|start| start.called < end).filter(|s| s.from < end).collect();
        // After a crash the server knows only committed starts.
        let crashed = case.has_crashed(first.called, end);
        let counted = within.iter().filter(|start| !crashed || start.fate == Fate::Committed).count();
        if counted > limit {
            found.push(format!("{counted} start in {name} within {RATE_PERIOD} microseconds: {within:?}"));
            return;
        }
    }
}
