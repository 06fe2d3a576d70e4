//! Fair shares: which group is served next, and how many jobs of other groups come first.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::memory::{Memory, Sizes};
use crate::frontier::*;

const INSTANCE: u32 = 1;
const LANE: i32 = 1;

/// A queue with groups, workers, and the logs.
struct World {
    memory: Memory,
    root: DeadlineRoot,
    limits: Limits,
    /// The waiting jobs of each group. All of them are in the groups' index.
    waiting: BTreeMap<i64, BTreeMap<Rank, Ready>>,
    charges: Vec<(i64, u64)>,
    jobs: i64,
}

impl World {
    /// Returns a queue with fair shares.
    fn new(groups: usize, ahead: usize) -> Self {
        let sizes = Sizes { lanes: 1, ready: 8, running: 64, sessions: 1, gates: 1, groups, ahead, ..Sizes::default() };
        Self::of(sizes, Limits { is_fair: true, ..Limits::default() })
    }

    fn of(sizes: Sizes, limits: Limits) -> Self {
        let (waiting, charges) = (BTreeMap::new(), Vec::new());
        let mut world = Self { memory: Memory::new(sizes), root: None, limits, waiting, charges, jobs: 0 };
        // The first claim makes the gate.
        assert_eq!(world.next(), None);
        world
    }

    /// Commits a job.
    fn add(&mut self, group: i64, priority: i32) {
        self.jobs += 1;
        let rank = Rank { priority, job_id: self.jobs << 4 };
        let place = Place { is_indexed: true, ..Place::default() };
        let entry = Ready { rank, id: rank.job_id, place, group };
        self.waiting.entry(group).or_default().insert(rank, entry);
        self.memory.frontier().push(INSTANCE, LANE, entry);
    }

    fn add_many(&mut self, group: i64, count: usize) {
        (0..count).for_each(|_| self.add(group, 0));
    }

    /// Claims up to `most` jobs.
    fn claim(&mut self, session: u32, most: usize) -> Vec<Ready> {
        let charges = &self.charges;
        let claimer = Claimer { queue: 7, limits: self.limits, lanes: &[LANE], charges, ending: None, now: self.jobs };
        let owner = Owner { session, pid: session as i32 + 1 };
        let mut claimed = Vec::new();
        for _ in 0..10 * most + 100 {
            if claimed.len() == most {
                return claimed;
            }
            let mut out = vec![Ready::default(); most - claimed.len()];
            let mut frontier = self.memory.frontier();
            let taken = match frontier.take_to(INSTANCE, LANE, owner, Some(&claimer), Rank::MAX, &mut out) {
                Take::Some { taken, .. } => taken,
                Take::Turn(turn) => {
                    let behind = self.waiting.get(&turn.group).into_iter().flatten();
                    let behind = behind.filter(|&(&rank, _)| rank > turn.after).map(|(_, &entry)| entry);
                    let mut found: Vec<Ready> = behind.take(turn.wanted + turn.ahead + 1).collect();
                    let is_all = found.len() <= turn.wanted + turn.ahead;
                    let read_to =
                        if is_all { Rank::MAX } else { found.pop().map_or(Rank::MAX, |next| next.rank.before()) };
                    let served = Served { turn, found: &found, read_to, is_held: false, is_free: false };
                    frontier.turn_end(INSTANCE, LANE, owner, &claimer, &served, &mut out)
                }
                Take::Refill => {
                    let after = frontier.refill_begin(INSTANCE, LANE, session).unwrap();
                    let all = self.waiting.values().flatten().filter(|&(&rank, _)| rank > after);
                    let mut found: Vec<Ready> = all.map(|(_, &entry)| entry).collect();
                    found.sort_unstable_by_key(|entry| entry.rank);
                    frontier.refill_push(INSTANCE, LANE, session, &mut found, Rank::MAX);
                    frontier.refill_end(INSTANCE, LANE, session);
                    0
                }
                Take::Empty => return claimed,
                other => panic!("{other:?}"),
            };
            for &Ready { id, rank, group, .. } in &out[..taken] {
                let of_group = self.waiting.get_mut(&group).unwrap();
                let first = of_group.keys().next().copied();
                let Some(entry) = of_group.remove(&rank) else {
                    self.memory.frontier().discard_stale(&mut self.root, INSTANCE, id);
                    continue;
                };
                // With fair shares no job passes an earlier job of its group, unless memory has forgotten groups.
                let may_pass = !self.limits.is_fair || self.memory.groups.len() < 20;
                assert!(first == Some(rank) || may_pass, "{rank:?} before {first:?}");
                self.memory.frontier().claimed(&mut self.root, INSTANCE, id, 1, 1, Disconnect::KEEPS);
                claimed.push(entry);
            }
        }
        panic!("a claim without end");
    }

    /// Completes claimed jobs.
    fn complete(&mut self, claimed: &[Ready]) {
        for &Ready { id, .. } in claimed {
            let mut frontier = self.memory.frontier();
            let end = frontier.running.end(&mut self.root, INSTANCE, id, 0, i64::MAX, |_| true);
            assert!(matches!(end, Hold::Yours(_)));
            frontier.ended(&mut self.root, INSTANCE, id);
        }
    }

    /// Claims a job and completes it. Returns its group.
    fn next(&mut self) -> Option<i64> {
        let claimed = self.claim(0, 1);
        self.complete(&claimed);
        claimed.first().map(|entry| entry.group)
    }

    fn take(&mut self, count: usize) -> Vec<i64> {
        (0..count).map_while(|_| self.next()).collect()
    }
}

/// A group that was throttled has no credit for that time, whether the throttle ends by itself or a call ends it.
#[test]
fn a_group_gets_no_saved_up_turns_after_a_throttle() {
    for ends_by_call in [false, true] {
        let mut world = World::new(10, 4);
        [1, 2].into_iter().for_each(|group| world.add_many(group, 100));
        world.take(10);
        let now = world.jobs;
        let throttle = |world: &mut World, until, now| {
            let claimer = Claimer { queue: 7, limits: world.limits, lanes: &[LANE], charges: &[], ending: None, now };
            assert!(world.memory.frontier().throttle_group(INSTANCE, LANE, &claimer, 1, until).is_some());
        };
        throttle(&mut world, now + 50, now);
        assert_eq!(world.take(40), [2; 40]);
        if ends_by_call {
            throttle(&mut world, 0, now);
        } else {
            world.memory.frontier().open_gates(now + 50);
        }
        let of_group = world.take(20).into_iter().filter(|&group| group == 1).count();
        assert!((9..=11).contains(&of_group), "{of_group} of 20, ends_by_call: {ends_by_call}");
    }
}

/// Groups run one job at a time, and their jobs lie mixed. Workers stand still for a while, again and again, so that
/// other groups get ahead. Nevertheless a batch consists of a few runs of jobs that lie beside each other.
#[test]
fn batches_of_mixed_groups_lie_together() {
    const WORKERS: usize = 4;
    const GROUPS: i64 = 1_000;
    const BATCH: usize = 100;
    let (ready, running, groups) = (1_024, 1_024, 2_000);
    let sizes =
        Sizes { lanes: 1, ready, running, sessions: WORKERS, gates: 1, groups, ahead: 1_000, ..Sizes::default() };
    let mut world = World::of(sizes, Limits { group: 1, ..Limits::default() });
    (0..50 * GROUPS).for_each(|nth| world.add(nth % GROUPS + 1, 0));
    let mut claimed = vec![Vec::new(); WORKERS];
    let mut stands_still = [0; WORKERS];
    let mut random = 1_u32;
    let (mut runs, mut batches) = (0, 0);
    while world.jobs < 150 * GROUPS {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let worker = (random >> 30) as usize;
        if stands_still[worker] > 0 {
            stands_still[worker] -= 1;
            continue;
        }
        world.complete(&claimed[worker]);
        (0..BATCH).for_each(|_| world.add(world.jobs % GROUPS + 1, 0));
        claimed[worker] = world.claim(worker as u32, BATCH);
        assert_eq!(claimed[worker].len(), BATCH);
        runs += claimed[worker].windows(2).filter(|two| two[0].id + 16 != two[1].id).count();
        batches += 1;
        stands_still[worker] = if (random >> 16).is_multiple_of(64) { 40 } else { 0 };
    }
    assert!(runs < 20 * batches, "{runs} runs in {batches} batches");
}

proptest! {
    #![proptest_config(crate::cases(64))]

    /// Groups with a backlog get the numbers of jobs that their weights say, give or take one job, however many
    /// attempts are read ahead.
    #[test]
    fn shares_are_exact(weights in prop::collection::vec(0.2f64..20.0, 1..12), ahead in 0usize..4) {
        const ROUNDS: usize = 60;
        let mut world = World::new(100, ahead);
        world.charges = weights.iter().zip(1..).map(|(&weight, group)| (group, charge_of(weight))).collect();
        let most = weights.iter().map(|weight| (weight * ROUNDS as f64) as usize + 40);
        most.zip(1..).for_each(|(count, group)| world.add_many(group, count));
        let all: f64 = weights.iter().sum();
        let mut got = vec![0.0; weights.len()];
        for group in world.take((all * ROUNDS as f64 * 0.9) as usize) {
            got[group as usize - 1] += 1.0;
            let share = |nth: usize| got[nth] / weights[nth];
            for (a, b) in (0..got.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
                // The first charge may be off by a half.
                let bound = 1.5 / weights[a] + 1.5 / weights[b];
                prop_assert!((share(a) - share(b)).abs() <= bound + 1e-6, "{weights:?} {got:?}");
            }
        }
    }

    /// The job of a group that asks for less than its share is the next job or the one after it, however many jobs
    /// others have waiting.
    #[test]
    fn a_quiet_group_is_next_or_next_but_one(
        loud in 1usize..6,
        ahead in 0usize..3,
        gaps in prop::collection::vec(0usize..40, 1..20),
    ) {
        let mut world = World::new(100, ahead);
        (1..=loud as i64).for_each(|group| world.add_many(group, 400));
        for gap in gaps {
            world.take(loud + gap);
            world.add(99, 0);
            let next = world.take(2);
            prop_assert!(next.contains(&99), "{next:?}");
        }
    }

    /// Groups come and go, and there are too few slots. Every job is found, in the order of priority.
    #[test]
    fn every_job_of_groups_that_come_and_go_is_found(
        slots in 1usize..9,
        ahead in 0usize..3,
        steps in prop::collection::vec((1i64..12, -1i32..2, 0usize..3), crate::length(300)),
    ) {
        let mut world = World::new(slots, ahead);
        let (mut added, mut got) = (0, 0);
        for (group, priority, takes) in steps {
            world.add(group, priority);
            added += 1;
            got += world.take(takes).len();
        }
        got += world.take(added).len();
        prop_assert_eq!(got, added);
    }
}

#[test]
fn a_group_that_comes_back_has_no_credit() {
    let mut world = World::new(100, 4);
    world.add_many(1, 2_000);
    assert_eq!(world.take(1_000), [1; 1_000]);
    world.add_many(2, 1_000);
    for _ in 0..100 {
        let (one, two) = world.take(20).iter().fold((0, 0), |(one, two), group| (one + group % 2, two + group / 2));
        assert!((9..=11).contains(&one) && (9..=11).contains(&two), "{one} {two}");
    }
}

#[test]
fn a_smaller_priority_comes_first() {
    let mut world = World::new(100, 2);
    for group in 1..=3 {
        (0..20).for_each(|n| world.add(group, n % 2));
    }
    world.take(10);
    world.add(4, -1);
    world.add(5, 1);
    assert_eq!(world.next(), Some(4));
    let rest = world.take(100);
    assert_eq!(rest.len(), 51);
    assert!(!rest[..20].contains(&5) && rest[20..23].contains(&5), "{rest:?}");
}

/// A batch is collected from all groups, and each waiting job of a group counts.
#[test]
fn jobs_of_one_group_fill_a_batch() {
    let mut world = World::new(100, 8);
    world.add_many(1, 3);
    world.add_many(2, 4);
    let known = |world: &mut World, enough| {
        let frontier = world.memory.frontier();
        let lane = frontier.backlog.lanes.find(INSTANCE, LANE).unwrap();
        frontier.backlog.known(lane, enough)
    };
    assert_eq!(known(&mut world, 100), 7);
    // Memory does not know how many jobs there are beyond those that were read ahead.
    world.add_many(3, 100);
    assert!(known(&mut world, 50) >= 50);
    assert_eq!(world.take(200).len(), 107);
    assert_eq!(known(&mut world, 100), 0);
}
