//! Rates that count the costs of jobs, with several sessions, rollbacks and corrections.
//!
//! 1. A job starts beside others only if what they cost within any period and what it costs are within the limit.
//! 2. While a job waits that did not fit, nothing that ranks behind it is taken and starts.
//! 3. Everything starts in the end, whatever it costs.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::memory::{Memory, Sizes};
use crate::frontier::*;

const INSTANCE: u32 = 1;
const LANE: i32 = 1;
const SESSIONS: usize = 3;
const PERIOD: i64 = 1_000;

#[derive(Clone, Debug)]
enum Op {
    /// Group, priority, cost.
    Add(i64, i32, u32),
    Claim(usize, usize),
    Price(usize),
    Commit(usize, bool),
    /// The place of a running attempt, and the cost that its worker reports.
    Used(usize, u32),
    Time(i64),
}

/// A start that counts for the rates: the time at which it was no longer open, and its cost.
#[derive(Clone, Debug)]
struct Start {
    group: i64,
    id: i64,
    until: Option<i64>,
    cost: u32,
}

#[derive(Clone, Debug, Default)]
struct Client {
    /// Attempts that it has taken, each with the step at which it took them.
    taken: Vec<(Ready, usize)>,
    started: Vec<Ready>,
}

struct World {
    memory: Memory,
    root: DeadlineRoot,
    limits: Limits,
    waiting: BTreeMap<Rank, Ready>,
    costs: BTreeMap<i64, u32>,
    clients: Vec<Client>,
    running: Vec<(Ready, i64)>,
    starts: Vec<Start>,
    /// The jobs that did not fit, each with the last step at which it did not.
    refused: BTreeMap<Rank, usize>,
    now: i64,
    steps: usize,
}

impl World {
    fn new(rate: u32, group_rate: u32) -> Self {
        let sizes = Sizes { lanes: 1, ready: 6, running: 300, sessions: SESSIONS, gates: 1, ..Sizes::default() };
        let sizes = Sizes { groups: 200, ahead: 4, rates: 100, starts: 400, ..sizes };
        Self {
            memory: Memory::new(sizes),
            root: None,
            limits: Limits { rate, group_rate, period: PERIOD, costs: 1, ..Limits::default() },
            waiting: BTreeMap::new(),
            costs: BTreeMap::new(),
            clients: vec![Client::default(); SESSIONS],
            running: Vec::new(),
            starts: Vec::new(),
            refused: BTreeMap::new(),
            now: 10_000,
            steps: 0,
        }
    }

    fn claimer(&self) -> Claimer<'static> {
        Claimer { queue: 7, limits: self.limits, lanes: &[LANE], charges: &[], ending: None, now: self.now }
    }

    fn add(&mut self, group: i64, priority: i32, cost: u32) {
        let job_id = self.costs.len() as i64 + 1;
        let rank = Rank { priority, job_id };
        let place = Place { is_indexed: true, ..Place::default() };
        let entry = Ready { rank, id: job_id * 16, place, group };
        self.costs.insert(entry.id, cost);
        self.waiting.insert(rank, entry);
        self.memory.frontier().push(INSTANCE, LANE, entry);
    }

    /// Takes attempts for a session. Returns their number.
    fn claim(&mut self, session: usize, want: usize) -> usize {
        let claimer = self.claimer();
        let owner = Owner { session: session as u32, pid: 1 };
        assert_eq!(self.memory.frontier().open_gates(self.now), None);
        for _ in 0..100 {
            let mut out = vec![Ready::default(); want];
            let mut frontier = self.memory.frontier();
            let taken = match frontier.take_to(INSTANCE, LANE, owner, Some(&claimer), Rank::MAX, &mut out) {
                Take::Some { taken, .. } => taken,
                Take::Turn(turn) => {
                    let behind =
                        self.waiting.range(..).filter(|(rank, entry)| **rank > turn.after && entry.group == turn.group);
                    let mut found: Vec<Ready> = behind.map(|(_, &entry)| entry).collect();
                    let wanted = turn.wanted.min(want) + turn.ahead;
                    let read_to = found.get(wanted).map_or(Rank::MAX, |next| next.rank.before());
                    found.truncate(wanted);
                    let served = Served { turn, found: &found, read_to, is_held: false, is_free: false };
                    let taken = frontier.turn_end(INSTANCE, LANE, owner, &claimer, &served, &mut out);
                    if taken == 0 {
                        continue;
                    }
                    taken
                }
                Take::Refill => {
                    let after = frontier.refill_begin(INSTANCE, LANE, owner.session).unwrap();
                    let mut found: Vec<Ready> = self.waiting.range(..).map(|(_, &entry)| entry).collect();
                    found.retain(|entry| entry.rank > after);
                    frontier.refill_push(INSTANCE, LANE, owner.session, &mut found, Rank::MAX);
                    frontier.refill_end(INSTANCE, LANE, owner.session);
                    continue;
                }
                Take::Empty | Take::Closed => return 0,
                other => panic!("{other:?}"),
            };
            for entry in &out[..taken] {
                assert!(self.waiting.remove(&entry.rank).is_some(), "{entry:?} does not wait");
                self.clients[session].taken.push((*entry, self.steps));
            }
            return taken;
        }
        panic!("a claim without end");
    }

    /// Returns the cost of the starts that count now, of one group or of all.
    fn counts(&self, group: Option<i64>) -> u32 {
        let from = self.now - PERIOD;
        let counts = |start: &&Start| {
            start.until.is_none_or(|until| until > from) && group.is_none_or(|group| start.group == group)
        };
        self.starts.iter().filter(counts).map(|start| start.cost).sum()
    }

    fn price(&mut self, session: usize) {
        let mut taken = std::mem::take(&mut self.clients[session].taken);
        taken.sort_by_key(|(entry, _)| entry.rank);
        let priced =
            |(entry, _): &(Ready, usize)| Priced { id: entry.id, cost: self.costs[&entry.id], may_start: true };
        let mut all: Vec<Priced> = taken.iter().map(priced).collect();
        let claimer = self.claimer();
        price(&mut self.memory.frontier(), INSTANCE, &claimer, &mut all);
        for ((entry, since), Priced { cost, may_start, .. }) in taken.into_iter().zip(all) {
            if !may_start {
                self.refused.insert(entry.rank, self.steps);
                self.waiting.insert(entry.rank, entry);
                let mut frontier = self.memory.frontier();
                frontier.push_quietly(INSTANCE, LANE, entry);
                frontier.discard_stale(&mut self.root, INSTANCE, entry.id);
                continue;
            }
            let mut limits = vec![(self.limits.rate, self.counts(None))];
            if entry.group != 0 {
                limits.push((self.limits.group_rate, self.counts(Some(entry.group))));
            }
            for (limit, others) in limits.into_iter().filter(|(limit, _)| *limit > 0) {
                assert!(others == 0 || others + cost <= limit, "{entry:?} costs {cost} beside {others} of {limit}");
            }
            self.refused.remove(&entry.rank);
            // With a rate for groups, they take turns, and a refused job of one group does not hold up the others.
            let passes =
                |(rank, step): (&Rank, &usize)| *rank < entry.rank && self.waiting.contains_key(rank) && *step < since;
            let has_passed = self.limits.group_rate == 0 && self.refused.iter().any(passes);
            assert!(!has_passed, "{entry:?} passes one of {:?}", self.refused);
            self.starts.push(Start { group: entry.group, id: entry.id, until: None, cost });
            self.clients[session].started.push(entry);
        }
    }

    fn commit(&mut self, session: usize, is_kept: bool) {
        self.price(session);
        let now = self.now;
        for entry in std::mem::take(&mut self.clients[session].started) {
            self.starts.iter_mut().filter(|start| start.id == entry.id).for_each(|start| {
                start.until = start.until.or(Some(now));
            });
            let mut frontier = self.memory.frontier();
            if is_kept {
                frontier.claimed(&mut self.root, INSTANCE, entry.id, 500, now + 500, Disconnect::KEEPS);
                self.running.push((entry, now));
            } else {
                frontier.give_back(&mut self.root, INSTANCE, entry.id, now);
                self.waiting.insert(entry.rank, entry);
            }
        }
    }

    fn used(&mut self, nth: usize, cost: u32) {
        let Some(nth) = nth.checked_rem(self.running.len()) else { return };
        let (entry, _) = self.running[nth];
        let now = self.now;
        assert!(used(&mut self.memory.frontier(), INSTANCE, entry.id, cost, now).is_some());
        // A reported cost above the cost of the start is not taken back.
        let known: u32 = self.reported(entry.id).map(|start| start.cost).sum();
        let mut less = known.saturating_sub(cost);
        if let Some(start) = self.reported(entry.id).next() {
            less = less.min(start.cost);
            start.cost -= less;
        }
        if cost > known {
            self.starts.push(Start { group: entry.group, id: entry.id, until: Some(now), cost: cost - known });
        }
    }

    /// Returns what counts for the last start of an attempt, and what was reported after it.
    fn reported(&mut self, id: i64) -> impl Iterator<Item = &mut Start> {
        let since = self.running.iter().find(|(entry, _)| entry.id == id).map(|(_, at)| *at);
        self.starts.iter_mut().filter(move |start| start.id == id && start.until >= since)
    }

    fn run(&mut self, op: Op) {
        self.steps += 1;
        match op {
            Op::Add(group, priority, cost) => self.add(group, priority, cost),
            Op::Claim(session, want) => _ = self.claim(session, want),
            Op::Price(session) => self.price(session),
            Op::Commit(session, is_kept) => self.commit(session, is_kept),
            Op::Used(nth, cost) => self.used(nth, cost),
            Op::Time(time) => self.now += time,
        }
        self.memory.frontier().backlog.check_rates();
    }

    /// Starts all jobs.
    fn drain(&mut self) {
        (0..SESSIONS).for_each(|session| self.commit(session, true));
        for _ in 0..4 * self.costs.len() + 4 {
            if self.waiting.is_empty() {
                return;
            }
            self.steps += 1;
            self.now += PERIOD + PERIOD / 8 + 1;
            for _ in 0..self.costs.len() {
                if self.claim(0, 2) == 0 {
                    break;
                }
                self.commit(0, true);
                self.steps += 1;
            }
        }
        panic!("these never start: {:?}", self.waiting);
    }
}

fn op() -> impl Strategy<Value = Op> {
    let cost = || prop_oneof![2 => Just(1u32), 4 => 0u32..13, 1 => 13u32..30];
    let session = || 0..SESSIONS;
    prop_oneof![
        6 => (0i64..4, 0i32..2, cost()).prop_map(|(group, priority, cost)| Op::Add(group, priority, cost)),
        8 => (session(), 1usize..5).prop_map(|(session, want)| Op::Claim(session, want)),
        5 => session().prop_map(Op::Price),
        8 => (session(), prop::bool::weighted(0.8)).prop_map(|(session, is_kept)| Op::Commit(session, is_kept)),
        2 => (0usize..9, cost()).prop_map(|(nth, cost)| Op::Used(nth, cost)),
        4 => (0i64..600).prop_map(Op::Time),
    ]
}

proptest! {
    #![proptest_config(crate::cases(2000))]

    #[test]
    fn rates_count_what_jobs_cost(
        (rate, group_rate) in prop_oneof![
            Just((12u32, 0u32)), Just((0, 12)), (5u32..30, 5u32..20), (1u32..4, 0u32..3)
        ],
        ops in prop::collection::vec(op(), crate::length(200)),
    ) {
        let mut world = World::new(rate, group_rate);
        ops.into_iter().for_each(|op| world.run(op));
        world.drain();
    }
}

/// The cost that a worker gives back is given back to its own start. Later starts do not become free earlier.
#[test]
fn a_correction_counts_from_the_start() {
    let mut world = World::new(20, 0);
    world.add(0, 0, 10);
    world.add(0, 0, 10);
    assert_eq!(world.claim(0, 1), 1);
    world.commit(0, true);
    world.now += 500;
    assert_eq!(world.claim(0, 1), 1);
    world.commit(0, true);
    // Two jobs have used the rate up. The first one gives 8 back.
    world.used(0, 2);
    world.add(0, 0, 8);
    world.add(0, 0, 10);
    assert_eq!(world.claim(0, 1), 1);
    world.commit(0, true);
    // 10 and 8 count, so 10 more do not fit before the second start has expired.
    world.now += 600;
    assert_eq!(world.claim(0, 1), 1);
    world.commit(0, true);
    assert_eq!(world.waiting.len(), 1);
    assert_eq!(world.claim(0, 1), 0);
    world.now += 401;
    assert_eq!(world.claim(0, 1), 1);
}

/// Jobs that start together have the same time. Each correction takes its part back, and all of the rate is free then.
#[test]
fn corrections_of_a_batch_free_the_whole_rate() {
    for (rate, group_rate) in [(100, 0), (0, 100), (100, 100)] {
        let mut world = World::new(rate, group_rate);
        (0..20).for_each(|_| world.add(1, 0, 10));
        while world.claim(0, 10) > 0 {
            world.price(0);
        }
        world.commit(0, true);
        assert_eq!(world.running.len(), 10);
        (0..10).for_each(|nth| world.used(nth, 0));
        while world.claim(0, 10) > 0 {
            world.price(0);
        }
        world.commit(0, true);
        assert_eq!(world.running.len(), 20, "{rate}, {group_rate}");
    }
}

/// A job that needs the whole rate starts as soon as all of it is free, however many sessions claim.
#[test]
fn many_sessions_do_not_keep_a_costly_job_waiting() {
    let mut world = World::new(12, 0);
    world.add(0, 0, 12);
    (0..20).for_each(|_| world.add(0, 1, 1));
    for _ in 0..2 {
        (0..SESSIONS).for_each(|session| _ = world.claim(session, 2));
        (0..SESSIONS).for_each(|session| world.commit(session, true));
    }
    assert_eq!(world.running.first().map(|(entry, _)| entry.rank.priority), Some(0));
    assert_eq!(world.running.len(), 1);
}

/// A job that did not fit, and is then taken and ended, holds up neither its queue nor its group.
#[test]
fn a_costly_job_that_has_ended_holds_up_no_other_job() {
    for (rates, group) in [((100, 0), 0), ((0, 100), 1)] {
        let mut world = World::new(rates.0, rates.1);
        [50, 80, 10].into_iter().for_each(|cost| world.add(group, 0, cost));
        while world.claim(0, 3) > 0 {
            world.commit(0, true);
        }
        assert_eq!(world.waiting.len(), 2);
        let dear = world.waiting.pop_first().unwrap().1;
        let owner = Owner { session: 1, pid: 1 };
        let mut frontier = world.memory.frontier();
        assert_eq!(frontier.take_one(&mut world.root, INSTANCE, LANE, owner, dear, true), TakeOne::Taken);
        frontier.ended(&mut world.root, INSTANCE, dear.id);
        // The attempts that were read ahead may still have it. The session that takes it finds that it has ended.
        let mut out = [Ready::default(); 3];
        let claimer = world.claimer();
        let mut frontier = world.memory.frontier();
        if let Take::Some { taken, .. } = frontier.take(INSTANCE, LANE, 0, 1, Some(&claimer), &mut out)
            && out[..taken].iter().any(|entry| entry.id == dear.id)
        {
            let stale = |entry: &Ready| Priced { id: entry.id, cost: world.costs[&entry.id], may_start: true };
            price(&mut frontier, INSTANCE, &claimer, &mut out[..taken].iter().map(stale).collect::<Vec<_>>());
            gone(&mut frontier, INSTANCE, dear.id);
            out[..taken].iter().filter(|entry| entry.id != dear.id).for_each(|entry| {
                frontier.push_quietly(INSTANCE, LANE, *entry);
            });
            out[..taken].iter().for_each(|entry| _ = frontier.discard_stale(&mut world.root, INSTANCE, entry.id));
            assert_eq!(world.claim(0, 3), 1, "{rates:?}");
        } else {
            assert_eq!(group, 0);
        }
    }
}
