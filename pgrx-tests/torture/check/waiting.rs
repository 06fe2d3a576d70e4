//! No enqueue is accepted that leaves more jobs waiting than `max_waiting`. Jobs of other open transactions do not
//! count. So the checker counts only the caller's own jobs, and jobs that were committed before the call and untouched
//! until its answer.

use super::case::Case;
use super::order::{Life, busy, lives};
use crate::ledger::{Deal, Fact, Micros, What};
use crate::plan::QUEUES;

pub fn check(case: &Case<'_>) -> Vec<String> {
    let mut found = Vec::new();
    let (lives, busy) = (lives(case), busy(case));
    for (number, queue) in QUEUES.iter().enumerate() {
        let Some(most) = queue.waiting else { continue };
        let mut lives: Vec<&Life<'_>> = lives.values().filter(|life| life.job.queue == number).collect();
        lives.sort_by_key(|life| life.free_from);
        let mut busy: Vec<(Micros, Micros)> =
            busy.iter().filter(|(queue, ..)| *queue == number).map(|(_, from, to)| (*from, *to)).collect();
        busy.sort();
        // A claim without an answer may have taken any job that was free by the end of such a time. Of the times that
        // have begun so far, the latest end counts.
        let mut latest = Micros::MIN;
        for (_, to) in &mut busy {
            latest = latest.max(*to);
            *to = latest;
        }
        let mut calls: Vec<(&Deal, &Fact)> = case
            .ledger
            .all()
            .filter(|(_, fact)| matches!(&fact.what, What::Enqueued(job) if job.queue == number))
            .collect();
        calls.sort_by_key(|(_, fact)| fact.from);
        let (mut lives, mut waiting): (_, Vec<&Life<'_>>) = (lives.into_iter().peekable(), Vec::new());
        for (deal, fact) in calls {
            waiting.extend(std::iter::from_fn(|| lives.next_if(|life| life.free_from < fact.from)));
            waiting.retain(|life| life.touched > fact.from);
            let begun = busy.partition_point(|(from, _)| *from <= fact.to);
            let busy_until = busy[..begun].last().map_or(Micros::MIN, |(_, to)| *to);
            let is_untouched = |life: &&&Life<'_>| life.touched > fact.to && busy_until < life.free_from;
            let is_own = |other: &&Fact| {
                other.to <= fact.to
                    && other.undone.is_none_or(|undone| undone > fact.to)
                    && matches!(&other.what, What::Enqueued(own) if own.queue == number)
            };
            let waited = waiting.iter().filter(is_untouched).count();
            let own = deal.facts.iter().filter(is_own).count();
            if waited + own > most {
                let name = queue.name;
                found.push(format!("{waited} jobs waited in {name}, and {own} were enqueued: {fact:?}"));
            }
        }
    }
    found.truncate(20);
    found
}
