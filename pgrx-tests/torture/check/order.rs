//! No claim passes over a job that ranks before and could be claimed. A job is *free* from the answer of the commit
//! that enqueued it to the first call that may have touched it. It is *jumped* if it was free during a whole call that
//! claimed a job of a later rank.

use std::collections::{BTreeMap, BTreeSet};

use super::case::Case;
use super::hold::Hold;
use crate::ledger::{End, Fate, Job, Micros, What};
use crate::plan::{Kind, QUEUES};

/// The longest time for which a session may hold jobs after its client has lost the connection.
const LINGERING: Micros = 3_000_000;

/// The longest time for which a committed claim without an answer may hold a job: a lease, and another lease after a
/// crash.
const UNHEARD: Micros = 15_000_000;

/// The times in a job's history that matter for order.
#[derive(Debug)]
pub struct Life<'a> {
    pub job: &'a Job,
    pub free_from: Micros,
    /// The time of the first call that may have touched the job.
    pub touched: Micros,
    /// The time of the first call that may have ended the job for good.
    ended: Micros,
    /// True if the job's priority or time was changed.
    is_moved: bool,
}

pub fn check(case: &Case<'_>, holds: &[Hold<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    let lives = lives(case);
    let busy = busy(case);
    for (number, queue) in QUEUES.iter().enumerate() {
        let mut lives: Vec<&Life<'_>> =
            lives.values().filter(|life| life.job.queue == number && life.job.is_due).collect();
        lives.sort_by_key(|life| life.free_from);
        let claims: Vec<&Hold<'_>> = holds.iter().filter(|hold| hold.claim.queue == number).collect();
        match queue.kind {
            Kind::Plain | Kind::Rated | Kind::Mortal => {
                let is_busy = |from, to| {
                    case.has_crashed(from, to)
                        || busy.iter().any(|(queue, b, e)| *queue == number && *b <= to && *e >= from)
                };
                let mut jumped_since = BTreeMap::new();
                for claim in &claims {
                    let Some(jumped) = jumped(&lives, claim, |life| life.touched) else { continue };
                    // Until a claim knows what its jobs cost, other claims pass over those that it will give back.
                    let since = *jumped_since.entry(jumped.job.id).or_insert(claim.from);
                    let may_jump = queue.kind == Kind::Rated && claim.called <= since + LINGERING;
                    if !may_jump && !is_busy(claim.called, claim.from) {
                        found.push(format!("order: {claim:?} has jumped {jumped:?}"));
                    }
                }
            }
            Kind::Strict => {
                found.extend(passed_failed(case, number, &claims));
                let mut groups: BTreeMap<&Option<String>, Vec<&Life<'_>>> = BTreeMap::new();
                for life in lives.into_iter().filter(|life| !life.is_moved) {
                    groups.entry(&life.job.group).or_default().push(life);
                }
                // A failed job comes again before all others.
                for claim in claims.iter().filter(|claim| claim.claim.number == 1) {
                    let Some(group) = groups.get(&claim.claim.group) else { continue };
                    if let Some(jumped) = jumped(group, claim, |life| life.ended) {
                        found.push(format!("strict order: {claim:?} has jumped {jumped:?}"));
                    }
                }
            }
            _ => {}
        }
    }
    found.truncate(20);
    found
}

/// Returns a life that ranks before the claim and was free from before its call until after its answer.
fn jumped<'a, 'b>(lives: &[&'b Life<'a>], claim: &Hold<'_>, end: impl Fn(&Life<'a>) -> Micros) -> Option<&'b Life<'a>> {
    let rank = (claim.claim.priority, claim.claim.job);
    let there = lives.partition_point(|life| life.free_from < claim.called);
    lives[..there].iter().copied().find(|life| (life.job.priority, life.job.id) < rank && end(life) > claim.from)
}

/// Checks strict order after failures. A failed job holds its group: no other job of the group is claimed from the
/// answer of the failure's commit to the first call that may have touched the failed job.
fn passed_failed(case: &Case<'_>, queue: usize, claims: &[&Hold<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    let groups: BTreeMap<i64, &Option<String>> =
        claims.iter().map(|claim| (claim.claim.job, &claim.claim.group)).collect();
    let touches = touches(case, queue);
    for (deal, fact) in case.ledger.committed() {
        let What::Ended { job, end: End::Failed, .. } = fact.what else { continue };
        let Some(group) = groups.get(&job) else { continue };
        // A job with a cancellation request is cancelled by its failure.
        if deal.is_cut || touches.cancels.contains(&job) {
            continue;
        }
        let of_job = touches.of_job.get(&job).into_iter().flatten();
        // A claim that slept may have been called before the failure.
        let later = of_job.chain(&touches.of_queue).filter(|(_, to)| *to > fact.from);
        let until = later.map(|(from, _)| *from).min().unwrap_or(Micros::MAX);
        let passed = claims.iter().find(|claim| {
            claim.claim.job != job && claim.claim.group == **group && claim.called > deal.end_to && claim.from < until
        });
        if let Some(claim) = passed {
            found.push(format!("strict order: {claim:?} has passed job {job}, which had failed: {fact:?}"));
        }
    }
    found
}

/// The spans of time in which calls may have changed jobs of a queue.
#[derive(Debug, Default)]
struct Touches {
    /// The time of each call and of its answer.
    of_job: BTreeMap<i64, Vec<(Micros, Micros)>>,
    of_queue: Vec<(Micros, Micros)>,
    cancels: BTreeSet<i64>,
}

fn touches(case: &Case<'_>, number: usize) -> Touches {
    let mut touches = Touches::default();
    for (_, fact) in case.ledger.all() {
        let job = match &fact.what {
            What::Claimed(claim) => claim.job,
            What::Cancelled { job, .. } => {
                touches.cancels.insert(*job);
                *job
            }
            What::Retried { job } | What::Moved { job } | What::Tried { job } => *job,
            What::Queue { queue, .. } if *queue == number => {
                touches.of_queue.push((fact.from, fact.to));
                continue;
            }
            What::ClaimLost { queues } if queues.contains(&number) => {
                touches.of_queue.push((fact.from, fact.to));
                continue;
            }
            _ => continue,
        };
        touches.of_job.entry(job).or_default().push((fact.from, fact.to));
    }
    touches
}

pub fn lives<'a>(case: &Case<'a>) -> BTreeMap<i64, Life<'a>> {
    let mut lives: BTreeMap<i64, Life<'a>> = BTreeMap::new();
    for (deal, fact) in case.ledger.committed() {
        let What::Enqueued(job) = &fact.what else { continue };
        // It is unknown when these jobs became visible.
        if deal.prepared || deal.is_cut || job.key.is_some() {
            continue;
        }
        let never = Micros::MAX;
        lives.insert(job.id, Life { job, free_from: deal.end_to, touched: never, ended: never, is_moved: false });
    }
    for (_, fact) in case.ledger.all() {
        let (job, ends, moves) = match &fact.what {
            What::Claimed(claim) => (claim.job, false, false),
            What::Ended { job, end, .. } => (*job, matches!(end, End::Completed | End::CompletedPerhaps), false),
            What::Cancelled { job, .. } => (*job, true, false),
            What::Retried { job } | What::Moved { job } | What::Tried { job } => (*job, true, true),
            What::Queue { queue, verb: "purge" } => {
                for life in lives.values_mut().filter(|life| life.job.queue == *queue) {
                    life.touched = life.touched.min(fact.from);
                    life.ended = life.ended.min(fact.from);
                }
                continue;
            }
            _ => continue,
        };
        if let Some(life) = lives.get_mut(&job) {
            life.touched = life.touched.min(fact.from);
            life.is_moved |= moves;
            if ends {
                life.ended = life.ended.min(fact.from);
            }
        }
    }
    lives
}

/// Returns the times in which an unknown session may have held any job of a queue.
pub fn busy(case: &Case<'_>) -> Vec<(usize, Micros, Micros)> {
    let mut busy = Vec::new();
    for (deal, fact) in case.ledger.all() {
        let end = deal.end_to.max(fact.to) + if deal.is_cut || deal.fate == Fate::Unknown { LINGERING } else { 0 };
        match &fact.what {
            What::ClaimLost { queues } => {
                let held = if deal.fate == Fate::Committed { UNHEARD } else { LINGERING };
                busy.extend(queues.iter().map(|queue| (*queue, fact.from, end.max(fact.to + held))))
            }
            What::Queue { queue, .. } => busy.push((*queue, fact.from, end)),
            What::RetriedDead { queue, .. } => busy.push((*queue, fact.from, end)),
            _ => {}
        }
    }
    busy
}
