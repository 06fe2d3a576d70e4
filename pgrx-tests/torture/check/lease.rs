//! A lease lasts as long as answered: no attempt times out earlier.

use std::collections::BTreeMap;

use super::case::Case;
use crate::ledger::{Fate, Micros, What};

/// A call reads clocks at different moments.
const GRACE: Micros = 5_000;

/// What a worker was told.
#[derive(Debug, Default, Clone, Copy)]
struct Told {
    /// The deal of the claim, and when the claim was answered.
    deal: i64,
    answered: Micros,
    /// By the claim: from its commit.
    commit: Micros,
    lease: Micros,
    /// By the last heartbeat: its time, the lease's end, and whether its transaction committed.
    extended: Option<(Micros, Micros, bool)>,
    /// By the last heartbeat without an answer: its call, and the lease's end if it counted.
    unanswered: Option<(Micros, Micros)>,
}

pub fn check(case: &Case<'_>) -> Vec<String> {
    if case.clock_was_set {
        return Vec::new();
    }
    let mut told: BTreeMap<i64, Told> = BTreeMap::new();
    for (deal, fact) in case.ledger.committed() {
        if let What::Claimed(claim) = &fact.what
            && claim.disconnect.is_none()
        {
            let one = Told {
                deal: deal.number,
                answered: fact.to,
                commit: deal.end_from,
                lease: claim.lease,
                extended: None,
                unanswered: None,
            };
            told.insert(claim.attempt, one);
        }
    }
    for (deal, fact) in case.ledger.all() {
        if let What::Extended { attempt, until, length } = fact.what
            && let Some(one) = told.get_mut(&attempt)
            && one.extended.is_none_or(|(at, ..)| at < fact.from)
            // An earlier claim of the same attempt may have been rolled back.
            && fact.from >= one.answered
        {
            // In the claim's own transaction the lease begins with the commit.
            if deal.number == one.deal {
                one.lease = one.lease.min(length);
                continue;
            }
            let is_kept = deal.fate == Fate::Committed && fact.undone.is_none();
            one.extended = Some((fact.from, until, is_kept));
        }
    }
    for (_, fact) in case.ledger.all() {
        if let What::ExtendLost { attempt, length } = fact.what
            && let Some(one) = told.get_mut(&attempt)
        {
            // The connection ended with it. So another heartbeat of the attempt came later, or before its call.
            one.unanswered = one.unanswered.max(Some((fact.from, fact.from + length)));
        }
    }
    let mut found = Vec::new();
    for (attempt, one) in told {
        let Some(seen) = case.world.attempts.get(&attempt) else { continue };
        let (Some(finished), "timed_out") = (seen.finished_at, seen.state.as_str()) else { continue };
        let promised = match one.extended {
            None => one.commit + one.lease,
            Some((_, until, true)) => until,
            // An uncommitted longer lease does not survive a crash: the claim's lease begins anew then.
            Some((at, until, false)) if case.has_crashed(at, finished) => until.min(at + one.lease),
            Some((_, until, false)) => until,
        };
        let last = one.extended.map_or(i64::MIN, |(at, ..)| at);
        let promised = match one.unanswered {
            Some((at, until)) if at > last => promised.min(until),
            _ => promised,
        };
        if finished + GRACE < promised {
            let early = promised - finished;
            found.push(format!(
                "attempt {attempt} has timed out {early} microseconds before what was answered: {one:?}, {seen:?}, \
                 crashed since: {}",
                case.has_crashed(one.commit, finished)
            ));
        }
    }
    found
}
