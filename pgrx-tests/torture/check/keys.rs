//! Each unique key has one living job at a time, and the newest requested contents run last.

use std::collections::{BTreeMap, BTreeSet};

use super::case::Case;
use super::loss;
use crate::ledger::{Deal, End, Job, Micros, What};

/// Beginning, end, job.
type Life = (Micros, Micros, i64);

/// A job, and when the first call about it began.
type First = (i64, Micros);

/// How long the worker may need to make a run that was requested too late for the session that ended the previous one.
const SERVED_WITHIN: Micros = 1_000_000;

pub fn check(case: &Case<'_>) -> Vec<String> {
    let mut found = Vec::new();
    let mut jobs: BTreeMap<i64, Vec<(&Deal, &Job)>> = BTreeMap::new();
    for (deal, fact) in case.ledger.committed() {
        if let What::Enqueued(job) = &fact.what
            && job.key.is_some()
        {
            jobs.entry(job.id).or_default().push((deal, job));
        }
    }
    // The earliest time at which each job may have ended, and whether a manager has changed it.
    let mut ended: BTreeMap<i64, Micros> = BTreeMap::new();
    let mut purged: BTreeMap<usize, Vec<Micros>> = BTreeMap::new();
    let mut meddled: BTreeMap<i64, bool> = BTreeMap::new();
    for (_, fact) in case.ledger.all() {
        let job = match &fact.what {
            What::Ended { job, end: End::Completed | End::CompletedPerhaps | End::Failed, .. } => *job,
            What::Cancelled { job, .. } | What::Retried { job } | What::Tried { job } | What::Forgotten { job } => {
                meddled.insert(*job, true);
                *job
            }
            What::Queue { queue, verb: "purge" } => {
                purged.entry(*queue).or_default().push(fact.from);
                continue;
            }
            _ => continue,
        };
        let time = ended.entry(job).or_insert(Micros::MAX);
        *time = (*time).min(fact.from);
    }
    // By queue and key.
    let mut firsts: BTreeMap<(usize, &Option<String>), Vec<First>> = BTreeMap::new();
    for (id, calls) in &jobs {
        let begun = calls.iter().map(|(deal, _)| deal.begun).min().expect("a call");
        firsts.entry((calls[0].1.queue, &calls[0].1.key)).or_default().push((*id, begun));
    }
    // (queue, key): lives, each with its job.
    let mut lives: BTreeMap<(usize, &str), Vec<Life>> = BTreeMap::new();
    for (id, calls) in &jobs {
        let (deal, job) = calls.iter().min_by_key(|(deal, _)| deal.end_to).expect("a call");
        let key = job.key.as_deref().unwrap_or_default();
        if let Some((_, other)) = calls.iter().find(|(_, other)| other.key != job.key) {
            found.push(format!("job {id} has two keys: {job:?}, {other:?}"));
        }
        let from = if deal.prepared || deal.is_cut { continue } else { deal.end_to };
        let mut until = ended.get(id).copied().unwrap_or(Micros::MAX);
        for purge in purged.get(&job.queue).into_iter().flatten().filter(|purge| **purge >= deal.end_from) {
            until = until.min(*purge);
        }
        lives.entry((job.queue, key)).or_default().push((from, until, *id));
        // A request for another run that comes too late for the end of the run counts for nothing if a newer call makes
        // another job of the key before the worker serves the request. It is unknown when prepared deals ended.
        let must_count = |deal: &Deal| {
            firsts[&(job.queue, &job.key)].iter().all(|(other, begun)| {
                other <= id || !deal.prepared && !deal.is_cut && *begun > deal.end_to + SERVED_WITHIN
            })
        };
        if !meddled.contains_key(id) && !purged.contains_key(&job.queue) {
            match job {
                Job { version: Some(_), .. } => newest_version(case, *id, calls, must_count, &mut found),
                // If the job has ended and its key is still taken, a call does nothing.
                Job { unique_for: Some(_), .. } => {}
                _ => newest(case, *id, calls, must_count, &mut found),
            }
        }
    }
    taken(case, &jobs, &mut found);
    for ((_, key), mut lives) in lives {
        lives.sort_unstable();
        for pair in lives.windows(2) {
            if pair[0].1 > pair[1].0 {
                found.push(format!("two jobs live under key {key}: (from, until, job) {pair:?}"));
            }
        }
    }
    found
}

/// The job has the contents of the last call that must renew it, or of one that may have been the last.
fn newest(
    case: &Case<'_>,
    id: i64,
    calls: &[(&Deal, &Job)],
    must_count: impl Fn(&Deal) -> bool,
    found: &mut Vec<String>,
) {
    let Some(seen) = case.world.jobs.get(&id) else { return };
    let first = calls.iter().map(|(deal, _)| deal.end_to).min().unwrap_or_default();
    let counts = |deal: &Deal, job: &Job| job.renews || deal.end_from <= first;
    let last = calls.iter().filter(|(deal, job)| counts(deal, job) && must_count(deal));
    let Some(last) = last.map(|(deal, _)| deal.end_from).max() else { return };
    // It is unknown when prepared deals ended.
    let is_perhaps = |deal: &Deal| deal.end_to >= last || deal.prepared || deal.is_cut;
    if !calls.iter().any(|(deal, job)| counts(deal, job) && is_perhaps(deal) && job.token == seen.token)
        && seen.state == "completed"
        && !loss::unanswered(case).contains(seen.token.as_str())
    {
        found.push(format!("job {id} has ended with other contents than the newest: {seen:?}, of {calls:?}"));
    }
}

/// The job has the contents of the call with the largest version, in any order of the calls.
fn newest_version(
    case: &Case<'_>,
    id: i64,
    calls: &[(&Deal, &Job)],
    must_count: impl Fn(&Deal) -> bool,
    found: &mut Vec<String>,
) {
    let Some(seen) = case.world.jobs.get(&id).filter(|seen| seen.state == "completed") else { return };
    let Some(newest) = calls.iter().filter(|(deal, _)| must_count(deal)).map(|(_, job)| job.version).max() else {
        return;
    };
    // Of equal versions the first counts.
    let is_newest = calls.iter().any(|(_, job)| job.version >= newest && job.token == seen.token);
    if !is_newest && !loss::unanswered(case).contains(seen.token.as_str()) {
        found.push(format!("job {id} has ended with another version than the newest: {seen:?}, of {calls:?}"));
    }
}

/// Checks that a key with `unique_for` stays taken for that time, even if its job has ended. It is unknown which call
/// made the job, so the earliest end counts.
fn taken(case: &Case<'_>, jobs: &BTreeMap<i64, Vec<(&Deal, &Job)>>, found: &mut Vec<String>) {
    let mut unknown: BTreeSet<(usize, Option<&str>)> = BTreeSet::new();
    let mut forgotten: BTreeSet<i64> = BTreeSet::new();
    for (_, fact) in case.ledger.all() {
        match &fact.what {
            What::EnqueueLost { queue, key, .. } => drop(unknown.insert((*queue, key.as_deref()))),
            What::Forgotten { job } => drop(forgotten.insert(*job)),
            _ => {}
        }
    }
    // For each queue and key: the times for which the key is certainly taken, and the job that takes it.
    let mut taken: BTreeMap<(usize, Option<&str>), Vec<Life>> = BTreeMap::new();
    for (id, calls) in jobs.iter().filter(|(id, _)| !forgotten.contains(id)) {
        let until = calls.iter().filter_map(|(deal, job)| Some(deal.begun + job.unique_for?)).min();
        let since = calls.iter().filter(|(deal, _)| !deal.prepared && !deal.is_cut).map(|(deal, _)| deal.end_to).min();
        let key = (calls[0].1.queue, calls[0].1.key.as_deref());
        if let (Some(since), Some(until)) = (since, until)
            && !unknown.contains(&key)
            && !case.clock_was_set
        {
            taken.entry(key).or_default().push((since, until, *id));
        }
    }
    for (_, fact) in case.ledger.committed() {
        let What::Enqueued(job) = &fact.what else { continue };
        let of_key = taken.get(&(job.queue, job.key.as_deref())).into_iter().flatten();
        let is_other = |(since, until, id): &&Life| *id != job.id && *since < fact.from && fact.to < *until;
        if let Some(other) = of_key.into_iter().find(is_other) {
            found.push(format!("a second job of a key in its time: {fact:?}, (since, until, job) {other:?}"));
        }
    }
}
