//! Compares the ledger with the last primary: lost work, work that was done twice, missing slots.

use std::collections::{BTreeMap, BTreeSet};

use postgres::Client;

use crate::ledger::Fact;

/// The findings. All lists are empty if all promises were kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub enqueued: usize,
    pub completed: usize,
    pub slots: usize,
    /// Tokens whose enqueue was acknowledged, but which have no effect.
    pub lost: Vec<i64>,
    /// Jobs whose completion was acknowledged, but which have no effect.
    pub undone: Vec<i64>,
    /// Tokens with more than one effect.
    pub twice: Vec<i64>,
    /// Tokens with an effect that no client has sent.
    pub unknown: Vec<i64>,
    /// Slots, in milliseconds, with no effect or several.
    pub slots_missing: Vec<i64>,
    pub slots_twice: Vec<i64>,
}

/// An effect: the token or the slot, and the job.
pub struct Effect {
    pub token: Option<i64>,
    pub slot_ms: Option<i64>,
    pub job_id: i64,
}

/// All effects that the database has.
pub fn effects(client: &mut Client) -> Vec<Effect> {
    let sql = "SELECT token, (extract(epoch FROM slot) * 1000)::bigint, job_id FROM effect";
    let rows = client.query(sql, &[]).expect("the effects");
    rows.iter().map(|row| Effect { token: row.get(0), slot_ms: row.get(1), job_id: row.get(2) }).collect()
}

/// How often each of them occurs.
fn counts(values: impl Iterator<Item = i64>) -> BTreeMap<i64, usize> {
    let mut counts = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    counts
}

/// Slots follow each other at this distance in milliseconds.
pub fn judge(facts: &[Fact], effects: &[Effect], every_ms: i64) -> Verdict {
    let pick = |pick: fn(&Fact) -> Option<i64>| facts.iter().filter_map(pick).collect::<BTreeSet<i64>>();
    let asked = pick(|fact| if let Fact::Asked { token } = *fact { Some(token) } else { None });
    let enqueued = pick(|fact| if let Fact::Enqueued { token, .. } = *fact { Some(token) } else { None });
    let completed = pick(|fact| if let Fact::Completed { job_id, .. } = *fact { Some(job_id) } else { None });
    let tokens = counts(effects.iter().filter_map(|effect| effect.token));
    let slots = counts(effects.iter().filter_map(|effect| effect.slot_ms));
    let jobs: BTreeSet<i64> = effects.iter().map(|effect| effect.job_id).collect();
    let more_than_one =
        |counts: &BTreeMap<i64, usize>| counts.iter().filter(|(_, n)| **n > 1).map(|(v, _)| *v).collect();
    let planned = match (slots.keys().next(), slots.keys().next_back()) {
        (Some(&first), Some(&last)) => (first..=last).step_by(every_ms as usize).collect(),
        _ => Vec::new(),
    };
    Verdict {
        enqueued: enqueued.len(),
        completed: completed.len(),
        slots: planned.len(),
        lost: enqueued.iter().filter(|token| !tokens.contains_key(token)).copied().collect(),
        undone: completed.difference(&jobs).copied().collect(),
        twice: more_than_one(&tokens),
        unknown: tokens.keys().filter(|token| !asked.contains(token)).copied().collect(),
        slots_missing: planned.iter().filter(|slot| !slots.contains_key(slot)).copied().collect(),
        slots_twice: more_than_one(&slots),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(token: i64) -> Effect {
        Effect { token: Some(token), slot_ms: None, job_id: 100 + token }
    }

    fn tick(slot_ms: i64) -> Effect {
        Effect { token: None, slot_ms: Some(slot_ms), job_id: slot_ms }
    }

    fn facts() -> Vec<Fact> {
        let asked = |token| Fact::Asked { token };
        let enqueued = |token| Fact::Enqueued { token, at_ms: 10 * token, node: 0 };
        let completed = Fact::Completed { job_id: 101, at_ms: 40, node: 1 };
        vec![asked(1), enqueued(1), asked(2), asked(3), enqueued(3), completed]
    }

    #[test]
    fn what_nobody_was_promised_may_be_there_or_not() {
        for effects in [vec![effect(1), effect(3)], vec![effect(1), effect(2), effect(3)]] {
            let expected = Verdict { enqueued: 2, completed: 1, ..Verdict::default() };
            assert_eq!(judge(&facts(), &effects, 500), expected);
        }
    }

    #[test]
    fn each_fault_is_seen() {
        let found = judge(&facts(), &[effect(3), effect(3), effect(4)], 500);
        assert_eq!((found.lost, found.undone, found.twice, found.unknown), (vec![1], vec![101], vec![3], vec![4]));
        let found = judge(&[], &[tick(1000), tick(2000), tick(2500), tick(2500)], 500);
        assert_eq!((found.slots, found.slots_missing, found.slots_twice), (4, vec![1500], vec![2500]));
    }
}
