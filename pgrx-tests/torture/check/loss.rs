//! Nothing is lost or doubled: the jobs are those of committed enqueues, each completed attempt has one effect, and an
//! attempt is claimed once and ends once.

use std::collections::{BTreeMap, BTreeSet};

use super::case::Case;
use super::flows;
use crate::ledger::{End, What};
use crate::plan::{Kind, QUEUES};

pub fn check(case: &Case<'_>) -> Vec<String> {
    let mut found = Vec::new();
    jobs(case, &mut found);
    effects(case, &mut found);
    claims(case, &mut found);
    ends(case, &mut found);
    found
}

/// True if the views show all jobs that a queue has had.
fn is_kept(queue: usize) -> bool {
    !matches!(QUEUES[queue].kind, Kind::Brief | Kind::Coming)
}

pub fn is_kept_name(name: &str) -> bool {
    QUEUES.iter().position(|queue| queue.name == name).is_some_and(is_kept)
}

fn jobs(case: &Case<'_>, found: &mut Vec<String>) {
    let mut tokens: BTreeMap<i64, BTreeSet<&str>> = BTreeMap::new();
    let unanswered = unanswered(case);
    for (_, fact) in case.ledger.committed() {
        if let What::Enqueued(job) = &fact.what {
            tokens.entry(job.id).or_default().insert(&job.token);
            match case.world.jobs.get(&job.id) {
                None if is_kept(job.queue) => found.push(format!("a committed job is lost: {fact:?}")),
                Some(seen) if is_kept(job.queue) && seen.queue != QUEUES[job.queue].name => {
                    found.push(format!("a job is in another queue: {fact:?}, {seen:?}"));
                }
                _ => {}
            }
        }
    }
    let forgotten = forgotten(case);
    for (id, seen) in &case.world.jobs {
        if forgotten.contains(id) && !seen.token.is_empty() && !is_again(case, *id) {
            found.push(format!("of a forgotten job something is left: {id} {seen:?}"));
        }
        if ["morgue", "ticking"].contains(&seen.queue.as_str()) {
            continue;
        }
        match tokens.get(id) {
            None if unanswered.contains(seen.token.as_str()) => {}
            // A call without an answer may have made the job. The contents that would show this were erased.
            None if forgotten.contains(id) && seen.token.is_empty() => {}
            None => found.push(format!("a job is there that was never committed: {id} {seen:?}")),
            Some(tokens)
                if !tokens.contains(seen.token.as_str())
                    && !forgotten.contains(id)
                    && !unanswered.contains(seen.token.as_str()) =>
            {
                found.push(format!("a job has the contents of another: {id} {seen:?}, of {tokens:?}"));
            }
            _ => {}
        }
        // `after` checks jobs with predecessors.
        let may_be_held = flows::may_be_held(&seen.queue) && ["held", "skipped"].contains(&seen.state.as_str());
        let may_expire = seen.queue == "hurried" && seen.state == "expired";
        if !["completed", "dead", "cancelled"].contains(&seen.state.as_str()) && !may_be_held && !may_expire {
            found.push(format!("a job has not ended: {id} {seen:?}"));
        }
    }
}

/// Returns the contents of calls that have counted without an answer. Their jobs are unknown.
pub fn unanswered<'a>(case: &Case<'a>) -> BTreeSet<&'a str> {
    let mut all = BTreeSet::new();
    for (_, fact) in case.ledger.committed() {
        match &fact.what {
            What::EnqueueLost { tokens, .. } => all.extend(tokens.iter().map(String::as_str)),
            What::PublishLost { token, .. } => _ = all.insert(token.as_str()),
            _ => {}
        }
    }
    all
}

/// Returns the jobs whose contents were erased.
pub fn forgotten(case: &Case<'_>) -> BTreeSet<i64> {
    let job = |what: &What| if let What::Forgotten { job } = what { Some(*job) } else { None };
    case.ledger.committed().filter_map(|(_, fact)| job(&fact.what)).collect()
}

/// True if a client ran the job again, or renewed it.
fn is_again(case: &Case<'_>, id: i64) -> bool {
    case.ledger.committed().any(|(_, fact)| match &fact.what {
        What::Retried { job } => *job == id,
        What::Enqueued(job) => job.renews && job.id == id,
        _ => false,
    })
}

fn effects(case: &Case<'_>, found: &mut Vec<String>) {
    let mut effects: BTreeMap<i64, usize> = BTreeMap::new();
    for (attempt, job) in &case.world.effects {
        *effects.entry(*attempt).or_default() += 1;
        if let Some(seen) = case.world.attempts.get(attempt)
            && (seen.job != *job || seen.state != "completed")
        {
            found.push(format!("an effect of what was not completed: attempt {attempt} of job {job}: {seen:?}"));
        }
    }
    for (attempt, count) in effects.iter().filter(|(_, count)| **count > 1) {
        found.push(format!("attempt {attempt} has had its effect {count} times"));
    }
    // A job is completed once, unless it was to run again.
    let mut again: BTreeMap<i64, usize> = BTreeMap::new();
    for (_, fact) in case.ledger.committed() {
        match &fact.what {
            What::Retried { job } => *again.entry(*job).or_default() += 1,
            What::Enqueued(job) if job.renews => *again.entry(job.id).or_default() += 1,
            // The call may have renewed any job with its key.
            What::EnqueueLost { queue, key: Some(key), .. } => {
                for (_, other) in case.ledger.committed() {
                    if let What::Enqueued(job) = &other.what
                        && (job.queue, job.key.as_ref()) == (*queue, Some(key))
                    {
                        *again.entry(job.id).or_default() += 1;
                    }
                }
            }
            _ => {}
        }
    }
    let mut completed: BTreeMap<i64, usize> = BTreeMap::new();
    for (id, seen) in &case.world.attempts {
        // A flow without a worker completes by itself.
        if seen.state == "completed" && seen.claimed_at.is_some() {
            *completed.entry(seen.job).or_default() += 1;
            if !effects.contains_key(id) && is_kept_name(&case.queue_of(seen.job)) {
                found.push(format!("attempt {id} is completed and has had no effect: {seen:?}"));
            }
        }
    }
    for (job, count) in completed {
        let most = 1 + again.get(&job).copied().unwrap_or(0);
        if count > most {
            found.push(format!("job {job} was completed {count} times, which was to be {most} at most"));
        }
    }
}

fn claims(case: &Case<'_>, found: &mut Vec<String>) {
    let mut claimed = BTreeMap::new();
    let (forgotten, unanswered) = (forgotten(case), unanswered(case));
    let tokens: BTreeSet<(i64, &str)> = case
        .ledger
        .committed()
        .filter_map(
            |(_, fact)| if let What::Enqueued(job) = &fact.what { Some((job.id, job.token.as_str())) } else { None },
        )
        .collect();
    for (deal, fact) in case.ledger.committed() {
        let What::Claimed(claim) = &fact.what else { continue };
        if let Some(other) = claimed.insert(claim.attempt, deal.number) {
            found.push(format!("attempt {} was claimed by deals {other} and {}", claim.attempt, deal.number));
        }
        match case.world.attempts.get(&claim.attempt) {
            None if is_kept(claim.queue) => found.push(format!("a claimed attempt is not there: {fact:?}")),
            Some(seen) if seen.job != claim.job || seen.number != claim.number || seen.claimed_at.is_none() => {
                found.push(format!("a claim was of another attempt: {fact:?}, {seen:?}"));
            }
            _ => {}
        }
        let is_ours = !matches!(QUEUES[claim.queue].kind, Kind::Morgue | Kind::Ticking);
        let is_empty = claim.token.is_empty() && forgotten.contains(&claim.job);
        let is_unanswered = unanswered.contains(claim.token.as_str());
        if is_ours && !is_empty && !is_unanswered && !tokens.contains(&(claim.job, claim.token.as_str())) {
            found.push(format!("a claim has got contents that its job never had: {fact:?}"));
        }
    }
}

/// Checks that an answered end is final.
fn ends(case: &Case<'_>, found: &mut Vec<String>) {
    let mut ended: BTreeMap<i64, (End, i64)> = BTreeMap::new();
    // Once the fence has refused an attempt, it never accepts it again.
    let mut refused: BTreeMap<i64, i64> = BTreeMap::new();
    for (_, fact) in case.ledger.all() {
        if let What::Refused { attempt } = fact.what {
            refused.entry(attempt).or_insert(fact.to);
        }
    }
    for (deal, fact) in case.ledger.committed() {
        if let What::Answered { attempt, outcome } = &fact.what
            && let Some(seen) = case.world.attempts.get(attempt)
            && seen.state != *outcome
        {
            let (number, state) = (deal.number, &seen.state);
            found.push(format!("attempt {attempt} was answered to be {outcome} in deal {number}, and is {state}"));
        }
        let What::Ended { attempt, end, .. } = fact.what else { continue };
        let is_after = |time: &i64| *time < fact.from && !case.was_promoted(*time, fact.from);
        if refused.get(&attempt).is_some_and(is_after) && end != End::CompletedPerhaps {
            found.push(format!("attempt {attempt} was ended after it was lost: {fact:?}"));
        }
        if end == End::CompletedPerhaps {
            continue;
        }
        if let Some((other, number)) = ended.insert(attempt, (end, deal.number)) {
            found.push(format!("attempt {attempt} was ended twice: {other:?} by {number}, {end:?} by {}", deal.number));
        }
        let Some(seen) = case.world.attempts.get(&attempt) else { continue };
        let is_so = match end {
            End::Completed => seen.state == "completed",
            // A job with a cancellation request is cancelled instead.
            End::Failed => ["failed", "dead", "cancelled", "superseded"].contains(&seen.state.as_str()),
            End::Released => ["released", "cancelled", "superseded"].contains(&seen.state.as_str()),
            End::Advanced => ["advanced", "cancelled"].contains(&seen.state.as_str()),
            End::Suspended { .. } => ["suspended", "cancelled"].contains(&seen.state.as_str()),
            End::CompletedPerhaps => true,
        };
        if !is_so {
            found.push(format!("attempt {attempt} was ended {end:?} by deal {}, and is {}", deal.number, seen.state));
        }
    }
}

impl Case<'_> {
    /// Returns the name of the job's queue, or an empty text if the views do not show the job.
    pub fn queue_of(&self, job: i64) -> String {
        self.world.jobs.get(&job).map(|seen| seen.queue.clone()).unwrap_or_default()
    }
}
