//! A lease lasts as long as it was promised: no attempt times out earlier.

use std::collections::BTreeMap;

use super::case::Case;
use crate::ledger::{Fate, Micros, What};

/// The clocks of a call are read at different moments.
const GRACE: Micros = 5_000;

/// The lease that a worker was promised.
#[derive(Debug, Default, Clone, Copy)]
struct Told {
    /// The deal of the claim, and the time of the claim's answer.
    deal: i64,
    answered: Micros,
    /// The commit of the claim, from which the claim's lease lasts.
    commit: Micros,
    lease: Micros,
    /// The last heartbeat: its time, the end of the lease, and whether its transaction committed.
    extended: Option<(Micros, Micros, bool)>,
    /// The last heartbeat without an answer: the time of its call, and the end of the lease if it counted.
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
            // The connection ended with this heartbeat. So another heartbeat of the attempt came before its call or
            // after its end.
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
            // A longer lease that was not committed does not survive a crash. Then the claim's lease begins anew.
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
