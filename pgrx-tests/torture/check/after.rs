//! Predecessors: a successor runs only after they have ended as it requires, and none is skipped or held without
//! reason.

use std::collections::{BTreeMap, BTreeSet};

use super::case::Case;
use crate::ledger::{End, Job, Micros, What};
use crate::plan::{Kind, QUEUES};

/// How a predecessor has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Completed,
    Dead,
    Cancelled,
    Held,
    /// The job's queue keeps no jobs, or was dropped.
    Unknown,
}

struct Look<'a> {
    case: &'a Case<'a>,
    /// Ended attempts of each job.
    ends: BTreeMap<i64, Vec<(&'a str, Micros)>>,
    /// The time of the first claim of each job.
    claimed: BTreeMap<i64, Micros>,
    /// Jobs of queues that keep nothing, completed by a committed call.
    completed: BTreeSet<i64>,
    /// Jobs that a call has retried, cancelled or moved, or may have.
    touched: BTreeSet<i64>,
    /// Queues whose dead jobs were all retried.
    retried: BTreeSet<usize>,
}

pub fn check(case: &Case<'_>) -> Vec<String> {
    let look = Look::new(case);
    let mut found = Vec::new();
    for (_, fact) in case.ledger.committed() {
        if let What::Enqueued(job) = &fact.what
            && !job.after.is_empty()
        {
            found.extend(look.held(job));
            found.extend(look.skipped(job));
            if !case.clock_was_set {
                found.extend(look.early(job));
            }
        }
    }
    found
}

impl<'a> Look<'a> {
    fn new(case: &'a Case<'a>) -> Self {
        let mut look = Self {
            case,
            ends: BTreeMap::new(),
            claimed: BTreeMap::new(),
            completed: BTreeSet::new(),
            touched: BTreeSet::new(),
            retried: BTreeSet::new(),
        };
        for seen in case.world.attempts.values() {
            if let Some(at) = seen.claimed_at {
                let first = look.claimed.entry(seen.job).or_insert(at);
                *first = at.min(*first);
            }
            if let Some(at) = seen.finished_at {
                look.ends.entry(seen.job).or_default().push((&seen.state, at));
            }
        }
        for (_, fact) in case.ledger.all() {
            match &fact.what {
                What::Retried { job } | What::Cancelled { job, .. } | What::Tried { job } | What::Moved { job } => {
                    look.touched.insert(*job);
                }
                What::RetriedDead { queue } => _ = look.retried.insert(*queue),
                What::Queue { queue, .. } if QUEUES[*queue].kind == Kind::Chained => _ = look.retried.insert(*queue),
                _ => {}
            }
        }
        for (_, fact) in case.ledger.committed() {
            if let What::Ended { job, end: End::Completed, .. } = &fact.what {
                look.completed.insert(*job);
            }
        }
        look
    }

    fn fate(&self, job: i64) -> Fate {
        match self.case.world.jobs.get(&job).map(|seen| seen.state.as_str()) {
            Some("completed") => Fate::Completed,
            Some("dead") => Fate::Dead,
            Some("cancelled" | "skipped" | "expired") => Fate::Cancelled,
            Some("held") => Fate::Held,
            // A change may have run the job again. The job may also have been dropped with its queue.
            None if self.completed.contains(&job) && !self.touched.contains(&job) => Fate::Completed,
            _ => Fate::Unknown,
        }
    }

    fn state(&self, job: &Job) -> &str {
        self.case.world.jobs.get(&job.id).map_or("", |seen| seen.state.as_str())
    }

    /// Returns a finding if a job is still held at the end. Only successors of a dead job, or successors of these, may
    /// be held.
    fn held(&self, job: &Job) -> Option<String> {
        let fates: Vec<Fate> = job.after.iter().map(|job| self.fate(*job)).collect();
        let by_dead = match job.upon {
            "completed" => fates.contains(&Fate::Dead),
            "any" => fates.contains(&Fate::Dead) && !fates.contains(&Fate::Completed),
            _ => false,
        };
        let by_held = fates.contains(&Fate::Held) && !(job.upon == "any" && fates.contains(&Fate::Completed));
        let waits = by_held || by_dead;
        (self.state(job) == "held" && !waits)
            .then(|| format!("a held job is stranded: {job:?}, which is after {fates:?}"))
    }

    /// Returns a finding if a job was skipped without reason: a predecessor must be cancelled or gone, or no failure
    /// must be left to wait for.
    fn skipped(&self, job: &Job) -> Option<String> {
        let is_said = |job: &i64| matches!(self.fate(*job), Fate::Completed) && !self.touched.contains(job);
        let is_wrong = match job.upon {
            "ended" => true,
            "completed" => job.after.iter().all(is_said),
            "any" => job.after.iter().any(is_said),
            _ => false,
        };
        (self.state(job) == "skipped" && is_wrong).then(|| format!("a job is skipped without reason: {job:?}"))
    }

    /// Returns a finding if an attempt was claimed before its predecessors had ended. A retry releases a held job
    /// whatever its predecessors do.
    fn early(&self, job: &Job) -> Option<String> {
        let claimed = *self.claimed.get(&job.id)?;
        if self.touched.contains(&job.id) || self.retried.contains(&job.queue) {
            return None;
        }
        let wanted: &[&str] = match job.upon {
            "completed" | "any" => &["completed"],
            "failed" => &["dead", "timed_out"],
            _ => &["completed", "dead", "timed_out", "cancelled", "skipped"],
        };
        // For queues that keep nothing, the end times of jobs are unknown.
        let mut known = job.after.iter().filter(|job| self.case.world.jobs.contains_key(job)).peekable();
        known.peek()?;
        let has_ended = |job: &i64| {
            let ends = self.ends.get(job).into_iter().flatten();
            ends.into_iter().any(|(state, at)| wanted.contains(state) && *at <= claimed)
        };
        let is_right = match job.upon {
            "failed" | "any" => known.clone().count() < job.after.len() || known.any(has_ended),
            _ => known.all(has_ended),
        };
        (!is_right).then(|| format!("a job was claimed at {claimed}, before its time: {job:?}"))
    }
}
