//! No enqueue is answered that leaves more jobs waiting than `max_waiting`. What other open transactions add does not
//! count, so only those are held against it that were committed before the call and untouched until its answer, and the
//! caller's own.

use super::case::Case;
use super::order::{busy, lives};
use crate::ledger::{Fact, What};
use crate::plan::QUEUES;

pub fn check(case: &Case<'_>) -> Vec<String> {
    let mut found = Vec::new();
    let (lives, busy) = (lives(case), busy(case));
    for (deal, fact) in case.ledger.all() {
        let What::Enqueued(job) = &fact.what else { continue };
        let Some(most) = QUEUES[job.queue].waiting else { continue };
        // A claim without an answer may have taken any job.
        let is_untouched = |from| !busy.iter().any(|(queue, b, e)| *queue == job.queue && *b <= fact.to && *e >= from);
        let waited = lives.values().filter(|life| {
            life.job.queue == job.queue
                && life.free_from < fact.from
                && life.touched > fact.to
                && is_untouched(life.free_from)
        });
        let is_own = |other: &&Fact| {
            other.to <= fact.to
                && other.undone.is_none_or(|undone| undone > fact.to)
                && matches!(&other.what, What::Enqueued(own) if own.queue == job.queue)
        };
        let (waited, own) = (waited.count(), deal.facts.iter().filter(is_own).count());
        if waited + own > most {
            let name = QUEUES[job.queue].name;
            found.push(format!("{waited} jobs waited in {name}, and {own} were enqueued: {fact:?}"));
        }
    }
    found.truncate(20);
    found
}
