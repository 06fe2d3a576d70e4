//! Holds: the times in which a worker has had an attempt for sure, however the clocks of a call are read.
//!
//! A hold begins when the claim was answered, and ends at the earliest moment at which it may have ended: where the
//! call began that was to end it, where the lease that was answered runs out, where the connection was heard of for the
//! last time. So two holds that overlap have overlapped; holds that have overlapped may not.

use std::collections::BTreeMap;

use super::case::Case;
use crate::ledger::{Claim, Fact, Fate, Micros, What};

#[derive(Debug)]
#[expect(dead_code, reason = "findings are printed whole")]
pub struct Hold<'a> {
    pub claim: &'a Claim,
    pub deal: i64,
    pub fate: Fate,
    /// The time of the call of the claim.
    pub called: Micros,
    /// The attempt was certainly held from `from` until `until`. If `until` is earlier, no time is certain.
    pub from: Micros,
    pub until: Micros,
}

/// The calls that may end an attempt's hold, except those in the attempt's own deal.
#[derive(Debug, Default)]
struct Ends {
    of_attempt: BTreeMap<i64, Vec<Micros>>,
    of_job: BTreeMap<i64, Vec<Micros>>,
    leases: BTreeMap<i64, Vec<Micros>>,
}

impl Ends {
    fn of(case: &Case<'_>) -> Self {
        let mut ends = Self::default();
        for (_, fact) in case.ledger.all() {
            match &fact.what {
                What::Ended { attempt, .. } => ends.of_attempt.entry(*attempt).or_default().push(fact.from),
                What::Cancelled { job, is_forced: true, .. } => ends.of_job.entry(*job).or_default().push(fact.from),
                What::Extended { attempt, length, .. } | What::ExtendLost { attempt, length } => {
                    ends.leases.entry(*attempt).or_default().push(fact.from + length);
                }
                _ => {}
            }
        }
        ends
    }
}

/// Returns the holds of all claims, including rolled-back ones, in the order of their beginning.
pub fn holds<'a>(case: &Case<'a>) -> Vec<Hold<'a>> {
    let ends = Ends::of(case);
    let mut holds = Vec::new();
    for deal in &case.ledger.deals {
        // If the connection was lost, the server's last answer is its last sign of life.
        let last_sign = deal.facts.iter().map(Fact::last_sign).max().unwrap_or(deal.begun);
        for fact in &deal.facts {
            let What::Claimed(claim) = &fact.what else { continue };
            let mut until = match (fact.undone, deal.fate) {
                (Some(undone), _) => undone,
                (None, Fate::Committed) => deal.end_from + claim.disconnect.unwrap_or(claim.lease).min(claim.lease),
                _ if deal.is_cut => last_sign,
                _ => deal.end_from,
            };
            let mut at_most = |time: Micros| {
                if time >= fact.from {
                    until = until.min(time);
                }
            };
            for time in ends.of_attempt.get(&claim.attempt).into_iter().flatten() {
                // A rolled-back end also counts, because its transaction may have used the place.
                at_most(*time);
            }
            ends.of_job.get(&claim.job).into_iter().flatten().for_each(|time| at_most(*time));
            if fact.undone.is_none() && deal.fate == Fate::Committed {
                ends.leases.get(&claim.attempt).into_iter().flatten().for_each(|time| at_most(*time));
                if let Some(ended) = case.world.attempts.get(&claim.attempt).and_then(|seen| seen.finished_at) {
                    at_most(ended);
                }
            }
            let (called, from) = (fact.from, fact.to);
            holds.push(Hold { claim, deal: deal.number, fate: deal.fate, called, from, until });
        }
    }
    holds.sort_by_key(|hold| hold.from);
    holds
}

/// Returns the first moment at which more than `most` attempts are held, with these attempts.
pub fn more_than<'a, 'b>(most: usize, holds: &[&'b Hold<'a>]) -> Option<Vec<&'b Hold<'a>>> {
    let mut held: Vec<&Hold<'_>> = Vec::new();
    for hold in holds.iter().filter(|hold| hold.from < hold.until) {
        held.retain(|other| other.until > hold.from);
        held.push(hold);
        if held.len() > most {
            return Some(held);
        }
    }
    None
}
