//! Flows and steps: no flow ends or runs before its members have ended, none is held without reason; a job that was
//! suspended goes on when what it has made has ended; a step is known to the next attempts if, and only if, it was
//! committed.

use std::collections::{BTreeMap, BTreeSet};

use super::case::Case;
use crate::ledger::{End, Fate, Job, Micros, What};
use crate::plan::{Kind, QUEUES};

/// States in which a member does not hold up its flow.
const OUT: [&str; 3] = ["completed", "cancelled", "skipped"];

struct Look<'a> {
    case: &'a Case<'a>,
    /// The members of each flow that the views show.
    members: BTreeMap<i64, Vec<i64>>,
    /// The time at which each job ended, and the time of its first claim.
    ended: BTreeMap<i64, Micros>,
    claimed: BTreeMap<i64, Vec<Micros>>,
    /// The time of the answer to the call that made each member.
    made: BTreeMap<i64, Micros>,
    /// Flows that end with their first completed member.
    any: BTreeSet<i64>,
    /// A job's last suspension, and the latest time at which it goes on.
    suspended: BTreeMap<i64, (Micros, Option<Micros>)>,
    /// Members made by committed calls.
    enqueued: BTreeMap<i64, Vec<i64>>,
    /// Jobs that a manager has changed or may have changed, with all related jobs: the members of such flows, and the
    /// flows of such members.
    touched: BTreeSet<i64>,
}

pub fn check(case: &Case<'_>) -> Vec<String> {
    let look = Look::new(case);
    let mut found = Vec::new();
    for (id, seen) in &case.world.jobs {
        if seen.state == "held" && seen.queue == "flowing" {
            found.extend(look.stranded(*id));
        }
    }
    if !case.clock_was_set {
        for (deal, fact) in case.ledger.committed() {
            match &fact.what {
                What::Enqueued(job) if job.own_flow.is_some() => found.extend(look.flow(job)),
                What::Ended { attempt, job, end: End::Suspended { until } } => {
                    let made = deal.kept().filter_map(|fact| match &fact.what {
                        What::Enqueued(member) if member.flow == Some(*job) => Some(member.id),
                        _ => None,
                    });
                    found.extend(look.suspended(*attempt, *job, *until, made));
                }
                _ => {}
            }
        }
    }
    found.extend(steps(case));
    found.truncate(20);
    found
}

impl<'a> Look<'a> {
    fn new(case: &'a Case<'a>) -> Self {
        let (mut members, mut ended, mut claimed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (id, seen) in &case.world.jobs {
            if let Some(flow) = seen.flow {
                members.entry(flow).or_insert_with(Vec::new).push(*id);
            }
        }
        for seen in case.world.attempts.values() {
            if let Some(at) = seen.finished_at {
                let last = ended.entry(seen.job).or_insert(at);
                *last = at.max(*last);
            }
            claimed.entry(seen.job).or_insert_with(Vec::new).extend(seen.claimed_at);
        }
        let mut touched: BTreeSet<i64> = case
            .ledger
            .all()
            .filter_map(|(_, fact)| match fact.what {
                What::Retried { job } | What::Cancelled { job, .. } | What::Tried { job } | What::Moved { job } => {
                    Some(job)
                }
                _ => None,
            })
            .collect();
        // A change of a flow changes its members. A change of a member may end its flow or run it again.
        loop {
            let before = touched.len();
            for (flow, members) in &members {
                if touched.contains(flow) || members.iter().any(|member| touched.contains(member)) {
                    touched.insert(*flow);
                    touched.extend(members);
                }
            }
            if touched.len() == before {
                break;
            }
        }
        let made = case.ledger.committed().filter_map(|(_, fact)| match &fact.what {
            What::Enqueued(job) => Some((job.id, fact.to)),
            _ => None,
        });
        let (mut any, mut suspended, mut enqueued) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        for (_, fact) in case.ledger.committed() {
            match &fact.what {
                What::Enqueued(job) => {
                    if job.own_flow.is_some_and(|own| own.is_any) {
                        any.insert(job.id);
                    }
                    if let Some(flow) = job.flow {
                        enqueued.entry(flow).or_insert_with(Vec::new).push(job.id);
                    }
                }
                What::Ended { job, end: End::Suspended { until }, .. } => {
                    let last = suspended.entry(*job).or_insert((fact.to, *until));
                    *last = (*last).max((fact.to, *until));
                }
                _ => {}
            }
        }
        Self { case, members, any, suspended, enqueued, ended, claimed, made: made.collect(), touched }
    }

    fn members(&self, flow: i64) -> &[i64] {
        self.members.get(&flow).map_or(&[], Vec::as_slice)
    }

    fn state(&self, job: i64) -> &str {
        self.case.world.jobs.get(&job).map_or("", |seen| seen.state.as_str())
    }

    /// Returns a finding if a flow is still held at the end, when all flows are sealed. Only a dead or held member may
    /// hold it.
    fn stranded(&self, flow: i64) -> Option<String> {
        let states: Vec<&str> = self.members(flow).iter().map(|member| self.state(*member)).collect();
        let mut is_held_up = states.iter().any(|state| ["dead", "held"].contains(state));
        if !self.touched.contains(&flow) {
            is_held_up &= !(self.any.contains(&flow) && states.contains(&"completed"));
            is_held_up &= self.suspended.get(&flow).is_none_or(|(_, until)| until.is_none());
        }
        (!is_held_up).then(|| format!("a flow is stranded: {flow}, whose members are {states:?}"))
    }

    /// Returns a finding if a flow ends or runs before its members have ended. A running flow may get more members and
    /// wait for them.
    fn flow(&self, job: &Job) -> Option<String> {
        if self.touched.contains(&job.id) || self.state(job.id) != "completed" {
            return None;
        }
        let claims = self.claimed.get(&job.id).and_then(|times| times.iter().min());
        let begun = claims.or(self.ended.get(&job.id))?;
        let was_there = |member: &&i64| self.made.get(member).is_some_and(|made| made < begun);
        if self.any.contains(&job.id) {
            let made = self.enqueued.get(&job.id).map_or(&[][..], Vec::as_slice);
            let is_first = |member: &i64| {
                self.state(*member) == "completed" && self.ended.get(member).is_some_and(|at| at <= begun)
            };
            // A member without rows in the logs and in history may have completed.
            let has_one = made.iter().any(|member| is_first(member) || self.state(*member).is_empty());
            return (!has_one).then(|| format!("a flow has run or ended at {begun}, before its first member: {job:?}"));
        }
        let members: Vec<i64> = self.members(job.id).iter().filter(was_there).copied().collect();
        if let Some(member) = members.iter().find(|member| !OUT.contains(&self.state(**member))) {
            return Some(format!("a flow has completed, and its member {member} is {}: {job:?}", self.state(*member)));
        }
        let late = members.iter().find(|member| self.ended.get(member).is_some_and(|ended| ended > begun))?;
        Some(format!("a flow has run or ended at {begun}, before its member {late}: {job:?}"))
    }

    /// Returns a finding if a suspended job was claimed before its time and before the jobs that it had made ended.
    fn suspended(
        &self,
        attempt: i64,
        job: i64,
        until: Option<Micros>,
        mut made: impl Iterator<Item = i64>,
    ) -> Option<String> {
        if self.touched.contains(&job) {
            return None;
        }
        let at = self.case.world.attempts.get(&attempt)?.finished_at?;
        let next = *self.claimed.get(&job)?.iter().filter(|claimed| **claimed >= at).min()?;
        if until.is_some_and(|until| until <= next) {
            return None;
        }
        let late = made.find(|member| self.ended.get(member).is_some_and(|ended| *ended > next))?;
        Some(format!("job {job} was suspended at {at} and claimed at {next}, before its member {late} had ended"))
    }
}

/// A step that was done: the fate of its deal, whether no savepoint undid it, when the deal ended, and its number.
type Done = (Fate, bool, Micros, i64);

/// Checks the answers about steps. A run after a completed one begins without steps, so jobs that ran again do not
/// count.
fn steps(case: &Case<'_>) -> Vec<String> {
    let mut again: BTreeSet<i64> = BTreeSet::new();
    let mut done: BTreeMap<(i64, &str), Vec<Done>> = BTreeMap::new();
    for (deal, fact) in case.ledger.all() {
        match &fact.what {
            What::Retried { job } | What::Tried { job } => _ = again.insert(*job),
            What::StepDone { job, name } => {
                let is_kept = fact.undone.is_none();
                done.entry((*job, name)).or_default().push((deal.fate, is_kept, deal.end_to, deal.number));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    for (deal, fact) in case.ledger.all() {
        let What::StepSeen { job, name, is_done } = &fact.what else { continue };
        if again.contains(job) {
            continue;
        }
        let known = done.get(&(*job, *name)).map_or(&[][..], Vec::as_slice);
        if *is_done && !known.iter().any(|(fate, _, _, number)| *fate == Fate::Committed || *number == deal.number) {
            found.push(format!("a step counts as done that was never committed: {fact:?}"));
        }
        let is_wanted = known.iter().any(|(fate, is_kept, end, _)| {
            *fate == Fate::Committed && *is_kept && *end < fact.from && !case.was_promoted(*end, fact.from)
        });
        if !*is_done && is_wanted && !case.clock_was_set {
            found.push(format!("a committed step is not known: {fact:?}"));
        }
    }
    found
}

/// True if jobs of such a queue may be held or skipped at the end.
pub fn may_be_held(queue: &str) -> bool {
    QUEUES.iter().any(|known| known.name == queue && matches!(known.kind, Kind::Chained | Kind::Flowing))
}
