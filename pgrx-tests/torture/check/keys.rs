//! Of each unique key one job lives at a time, and the newest contents that were asked for are what runs last.

use std::collections::BTreeMap;

use super::{Case, loss};
use crate::ledger::{Deal, End, Job, Micros, What};

/// Since when, until when, and which job.
type Life = (Micros, Micros, i64);

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
    // When a job may have ended for the first time, and whether anything was done about it by hand.
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
        if !meddled.contains_key(id) && !purged.contains_key(&job.queue) {
            newest(case, *id, calls, &mut found);
        }
    }
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

/// The job has the contents of the last call that was to renew it, or of one that may have been the last.
fn newest(case: &Case<'_>, id: i64, calls: &[(&Deal, &Job)], found: &mut Vec<String>) {
    let Some(seen) = case.world.jobs.get(&id) else { return };
    let first = calls.iter().map(|(deal, _)| deal.end_to).min().unwrap_or_default();
    let counts = |deal: &Deal, job: &Job| job.renews || deal.end_from <= first;
    let Some(last) = calls.iter().filter(|(deal, job)| counts(deal, job)).map(|(deal, _)| deal.end_from).max() else {
        return;
    };
    // Prepared ones have ended when nobody knows.
    let is_perhaps = |deal: &Deal| deal.end_to >= last || deal.prepared || deal.is_cut;
    if !calls.iter().any(|(deal, job)| counts(deal, job) && is_perhaps(deal) && job.token == seen.token)
        && seen.state == "completed"
        && !loss::unanswered(case).contains(seen.token.as_str())
    {
        found.push(format!("job {id} has ended with other contents than the newest: {seen:?}, of {calls:?}"));
    }
}
