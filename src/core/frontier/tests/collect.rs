//! Tests the promises of calls that linger. Sessions that linger for different times, or not at all, wait for one lane,
//! while jobs come, are taken, come back and are cancelled, and time passes.
//!
//! After each step, when no session that was woken has yet to look:
//!
//! 1. No session that does not linger sleeps beside a job that may start.
//! 2. If sessions sleep beside jobs that may start, one of them collects: it wants more jobs than there are, lingers
//!    no longer than the others, and wakes at the latest when it has lingered since such a moment began.
//! 3. A batch wakes one session at its first job and once more when it is full or due. Jobs between wake none.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::memory::{self, Memory};
use super::model::{job, read};
use crate::frontier::*;

const SESSIONS: usize = 5;
const PLACES: usize = 12;
const LANE: i32 = 1;
const READER: u32 = SESSIONS as u32;

/// A session in `queue.claim`.
#[derive(Clone, Copy, Debug)]
struct Call {
    want: usize,
    linger: i64,
    deadline: i64,
    /// The time until which it sleeps. `None`: it has not looked yet.
    until: Option<i64>,
    /// True if it sleeps while another session collects. It then takes nothing when its wait ends.
    is_behind: bool,
}

struct World {
    memory: Memory,
    root: DeadlineRoot,
    now: i64,
    next_job: i64,
    calls: [Option<Call>; SESSIONS],
    running: VecDeque<i64>,
    /// The time since which there have been both jobs that may start and a waiting session, and the number of jobs
    /// taken by then.
    since: Option<(i64, usize)>,
    taken: usize,
    wakes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Call {
        session: usize,
        want: usize,
        linger: i64,
        wait: i64,
    },
    Push(usize),
    Pass(i64),
    /// The call ends with an error, or its client is gone.
    Quit(usize),
    End,
    Return,
    Cancel,
    /// Memory is invalidated.
    Invalidate,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let call = (0..SESSIONS, 1..=4_usize, prop_oneof![Just(0), Just(10), Just(10), Just(50)], 1..200_i64)
        .prop_map(|(session, want, linger, wait)| Act::Call { session, want, linger, wait });
    let act = prop_oneof![
        4 => call,
        5 => (1..=3_usize).prop_map(Act::Push),
        5 => (1..20_i64).prop_map(Act::Pass),
        1 => (0..SESSIONS).prop_map(Act::Quit),
        3 => Just(Act::End),
        1 => Just(Act::Return),
        1 => Just(Act::Cancel),
        1 => Just(Act::Invalidate),
    ];
    prop::collection::vec(act, 1..80)
}

impl World {
    fn new() -> Self {
        let sizes =
            memory::Sizes { ready: 400, running: PLACES, lanes: 1, sessions: SESSIONS + 1, ..Default::default() };
        let mut world = Self {
            memory: Memory::new(sizes),
            root: None,
            now: 1_000,
            next_job: 1,
            calls: [None; SESSIONS],
            running: VecDeque::new(),
            since: None,
            taken: 0,
            wakes: 0,
        };
        let mut out = [Ready::default()];
        assert_eq!(world.frontier().take(1, LANE, READER, 0, None, &mut out), Take::Refill);
        world.read();
        world
    }

    fn frontier(&mut self) -> Frontier<'_> {
        if self.memory.head.needs_now() {
            self.memory.head.now = self.now;
        }
        self.memory.frontier()
    }

    /// Refills the lane. The logs have the jobs that `ready` has.
    fn read(&mut self) {
        let mut found = Vec::new();
        self.frontier().each_ready(1, LANE, |entry| found.push(entry));
        assert!(self.frontier().refill_begin(1, LANE, READER).is_some());
        self.frontier().refill_push(1, LANE, READER, &mut found, Rank::MAX);
        self.frontier().refill_end(1, LANE, READER);
        let woken = [self.frontier().refill_wake(1, LANE), self.frontier().pass_on(1, LANE)];
        woken.into_iter().for_each(|session| self.woken(session));
    }

    /// Returns how many jobs may start.
    fn startable(&mut self) -> usize {
        let ready = self.memory.frontier().lane_state(1, LANE).map_or(0, |(ready, _)| ready);
        if self.places() == 0 { 0 } else { ready }
    }

    fn places(&mut self) -> usize {
        self.memory.frontier().running.places(1, LANE) as usize
    }

    fn woken(&mut self, session: Option<u32>) {
        self.wakes += usize::from(session.is_some());
    }

    /// Lets all sessions look that were woken or whose time has come.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            let is_due = |(s, call): (usize, &Option<Call>)| {
                let call = (*call)?;
                call.until.is_none_or(|until| until <= self.now || self.is_woken(s)).then_some(s)
            };
            let Some(session) = self.calls.iter().enumerate().find_map(is_due) else { return };
            self.look(session);
        }
        panic!("sessions wake each other for ever");
    }

    fn is_woken(&self, session: usize) -> bool {
        self.memory.clone().frontier().sessions.is_woken(session as u32)
    }

    /// Does what `queue.claim` does until it sleeps or returns.
    fn look(&mut self, session: usize) {
        let s = session as u32;
        let mut call = self.calls[session].expect("a call");
        if call.until.is_some() && call.is_behind && !self.is_woken(session) {
            return self.leave(session);
        }
        loop {
            if call.linger > 0 && self.now < call.deadline {
                let now = self.now;
                match self.frontier().collect(s, 1, LANE, call.want as u32, call.linger, now) {
                    Collect::Sleep { due, next } => {
                        self.woken(next);
                        call.is_behind = due.is_none();
                        call.until = Some(due.map_or(call.deadline, |due| due.min(call.deadline)));
                        self.calls[session] = Some(call);
                        return;
                    }
                    Collect::Read => {
                        self.read();
                        continue;
                    }
                    Collect::Take => {}
                }
            }
            let mut out = [Ready::default(); 4];
            let taken = self.frontier().take(1, LANE, s, 0, None, &mut out[..call.want]);
            let next = self.frontier().stop_waiting(s);
            self.woken(next);
            match taken {
                Take::Some { taken, .. } => {
                    self.running.extend(out[..taken].iter().map(|entry| entry.id));
                    self.taken += taken;
                    self.calls[session] = None;
                    return;
                }
                Take::Refill => {
                    self.read();
                    continue;
                }
                Take::Empty | Take::NoPlace => {}
                other => panic!("{other:?}"),
            }
            if self.now >= call.deadline {
                self.calls[session] = None;
                return;
            }
            match self.frontier().wait(s, 1, &[(LANE, false)], call.linger) {
                Wait::Look => {}
                Wait::NoLane => panic!("there is a lane"),
                Wait::Sleep => {
                    (call.until, call.is_behind) = (Some(call.deadline), true);
                    self.calls[session] = Some(call);
                    return;
                }
            }
        }
    }

    fn leave(&mut self, session: usize) {
        let next = self.frontier().stop_waiting(session as u32);
        self.woken(next);
        self.calls[session] = None;
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Call { session, want, linger, wait } => {
                if self.calls[session].is_none() {
                    let deadline = self.now + wait;
                    self.calls[session] = Some(Call { want, linger, deadline, until: None, is_behind: false });
                }
            }
            Act::Push(count) => (0..count).for_each(|_| {
                let entry = job(self.next_job);
                self.next_job += 1;
                let woken = self.frontier().push(1, LANE, entry);
                self.woken(woken);
            }),
            Act::Pass(time) => self.now += time,
            Act::Quit(session) => self.leave(session),
            Act::End => {
                if let Some(id) = self.running.pop_front() {
                    let mut root = self.root;
                    let woken = self.frontier().discard(&mut root, 1, id);
                    self.root = root;
                    self.woken(woken);
                }
            }
            Act::Return => {
                if let Some(id) = self.running.pop_back() {
                    let mut root = self.root;
                    let now = self.now;
                    let woken = self.frontier().give_back(&mut root, 1, id, now);
                    self.root = root;
                    self.woken(woken);
                }
            }
            Act::Cancel => {
                let mut first = None;
                self.frontier().each_ready(1, LANE, |entry| first = first.or(Some(entry)));
                if let Some(entry) = first {
                    self.frontier().withdraw(1, LANE, entry);
                }
            }
            Act::Invalidate => {
                self.frontier().invalidate(1);
                let woken = self.frontier().pass_on(1, LANE);
                self.woken(woken);
            }
        }
        self.settle();
    }

    fn check(&mut self) {
        let (startable, places) = (self.startable(), self.places());
        let asleep = || self.calls.iter().flatten();
        if startable == 0 || asleep().next().is_none() {
            self.since = None;
            return;
        }
        let (since, _) = *self.since.insert(match self.since {
            Some(since) if since.1 == self.taken => since,
            _ => (self.now, self.taken),
        });
        assert!(asleep().all(|call| call.linger > 0), "one sleeps beside {startable} jobs: {:?}", self.calls);
        let collector = self.memory.lanes[0].collected.collector.expect("one collects").at();
        let call = self.calls[collector].expect("it sleeps");
        assert!(startable < call.want.min(places), "{startable} jobs are enough for {call:?}");
        assert!(!call.is_behind && call.until.is_some_and(|until| until <= since + call.linger), "{since} {call:?}");
        assert!(asleep().all(|other| call.linger <= other.linger), "{call:?} lets others wait: {:?}", self.calls);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn jobs_are_collected_and_wait_for_no_call_that_lingers(acts in acts()) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
            world.check();
        }
    }
}

#[test]
fn a_batch_wakes_its_collector_twice() {
    let mut world = World::new();
    for session in 0..3 {
        world.act(Act::Call { session, want: 4, linger: 50, wait: 1_000 });
    }
    for nth in 1..=4 {
        world.act(Act::Push(1));
        assert_eq!(world.wakes, if nth < 4 { 1 } else { 2 }, "{nth}");
    }
    assert_eq!(world.taken, 4);
    (0..4).for_each(|_| world.act(Act::End));
    // A smaller batch is taken when its first job has been ready for the time that a call lingers.
    world.act(Act::Pass(100));
    world.act(Act::Push(1));
    world.act(Act::Pass(30));
    world.act(Act::Push(1));
    world.act(Act::Pass(19));
    assert_eq!(world.taken, 4);
    world.act(Act::Pass(1));
    assert_eq!(world.taken, 6);
}

/// Jobs beyond a full batch belong to the next one. That begins when its own first job comes.
#[test]
fn the_next_batch_has_its_own_time() {
    let mut world = World::new();
    world.act(Act::Call { session: 0, want: 2, linger: 50, wait: 1_000 });
    world.act(Act::Push(1));
    world.act(Act::Pass(40));
    world.act(Act::Push(2));
    assert_eq!((world.taken, world.wakes), (2, 2));
    world.act(Act::Call { session: 1, want: 2, linger: 50, wait: 1_000 });
    world.act(Act::Pass(49));
    assert_eq!(world.taken, 2);
    world.act(Act::Pass(1));
    assert_eq!(world.taken, 3);
}

/// If a batch is taken in two holds of the lock, the time of the next batch stays.
#[test]
fn jobs_that_come_while_a_batch_is_taken_begin_the_next_one() {
    let mut world = World::new();
    world.act(Act::Call { session: 0, want: 1, linger: 50, wait: 1_000 });
    world.act(Act::Push(1));
    for _ in 0..3 {
        // Two of four jobs are taken, one job comes, and the other two are taken.
        assert_eq!(world.frontier().collect(0, 1, LANE, 4, 50, 0), Collect::Take);
        world.act(Act::Push(4));
        world.act(Act::Pass(40));
        for hold in 0..2 {
            let mut out = [Ready::default(); 2];
            assert!(matches!(world.frontier().take(1, LANE, 0, 0, None, &mut out), Take::Some { taken: 2, .. }));
            world.running.extend(out.map(|entry| entry.id));
            if hold == 0 {
                world.act(Act::Push(1));
            }
        }
        let now = world.now;
        let found = world.memory.frontier().collect(0, 1, LANE, 4, 50, now);
        assert_eq!(found, Collect::Sleep { due: Some(now + 50), next: None });
        assert_eq!(world.frontier().stop_waiting(0), None);
        while !world.running.is_empty() {
            world.act(Act::End);
        }
        let mut out = [Ready::default()];
        assert!(matches!(world.frontier().take(1, LANE, 0, 0, None, &mut out), Take::Some { taken: 1, .. }));
        world.running.extend(out.map(|entry| entry.id));
    }
}

/// A job also begins a batch if it comes while memory may not know all jobs.
#[test]
fn a_batch_of_a_lane_that_must_be_read_has_its_own_time() {
    let sizes = memory::Sizes { ready: 4, running: 40, lanes: 1, sessions: 6, ..Default::default() };
    let mut memory = Memory::new(sizes);
    let job = job(1);
    assert_eq!(memory.frontier().collect(0, 1, LANE, 2, 50, 100), Collect::Read);
    read(&mut memory.frontier(), LANE, &[]);
    assert_eq!(memory.frontier().collect(0, 1, LANE, 2, 50, 100), Collect::Take);
    memory.frontier().invalidate(1);
    memory.head.now = 1_000;
    assert_eq!(memory.frontier().push(1, LANE, job), None);
    assert_eq!(memory.frontier().collect(0, 1, LANE, 2, 50, 1_020), Collect::Read);
    read(&mut memory.frontier(), LANE, &[job]);
    let answer = memory.frontier().collect(0, 1, LANE, 2, 50, 1_020);
    assert_eq!(answer, Collect::Sleep { due: Some(1_050), next: None });
}

/// `ready` may be too small for a batch. Then a call takes the jobs that fit, and does not read the logs forever.
#[test]
fn a_batch_is_no_larger_than_memory() {
    for jobs in [4, 5, 20] {
        let sizes = memory::Sizes { ready: 4, running: 40, lanes: 1, sessions: 6, ..Default::default() };
        let mut memory = Memory::new(sizes);
        let mut frontier = memory.frontier();
        let found: Vec<Ready> = (0..jobs).map(job).collect();
        assert_eq!(frontier.collect(0, 1, LANE, 10, 50, 100), Collect::Read);
        read(&mut frontier, LANE, &found);
        assert_eq!(frontier.collect(0, 1, LANE, 10, 50, 100), Collect::Take, "{jobs} jobs");
    }
}

/// The calls want different numbers of jobs. The first job still waits no longer than a call lingers.
#[test]
fn a_larger_batch_begins_with_its_oldest_job() {
    let mut world = World::new();
    world.act(Act::Call { session: 0, want: 2, linger: 50, wait: 1_000 });
    world.act(Act::Push(2));
    assert_eq!(world.taken, 2);
    (0..2).for_each(|_| world.act(Act::End));
    for _ in 0..3 {
        world.act(Act::Pass(10));
        world.act(Act::Push(1));
    }
    world.act(Act::Call { session: 0, want: 4, linger: 50, wait: 1_000 });
    world.act(Act::Pass(29));
    assert_eq!(world.taken, 2);
    world.act(Act::Pass(1));
    assert_eq!(world.taken, 5);
}

/// A session that collects after a gate has woken it leaves the gate to other lanes.
#[test]
fn a_gate_that_wakes_a_collector_wakes_another_lane() {
    let sizes = memory::Sizes { ready: 4, running: 40, lanes: 2, sessions: 6, gates: 1, ..Default::default() };
    let mut memory = Memory::new(sizes);
    let mut frontier = memory.frontier();
    let limits = Limits { rate: 3, period: 100, ..Limits::default() };
    let claimer = Claimer { queue: 1, limits, lanes: &[1, 2], charges: &[], ending: None, now: 1_000 };
    let mut root = None;
    for lane in [2, 1] {
        let mut out = [Ready::default(); 2];
        assert_eq!(frontier.take(1, lane, 3, 0, Some(&claimer), &mut out), Take::Refill);
        read(&mut frontier, lane, &[]);
        (0..2).for_each(|n| assert_eq!(frontier.push(1, lane, job(10 * i64::from(lane) + n)), None));
        let Take::Some { taken, .. } = frontier.take(1, lane, 3, 0, Some(&claimer), &mut out) else { panic!("a job") };
        for entry in &out[..taken] {
            assert!(frontier.claimed(&mut root, 1, entry.id, 500, 1_500, Disconnect::KEEPS).is_some());
        }
    }
    // Three jobs have started. The fourth is left, and sleeping sessions may not start it.
    assert_eq!(frontier.take(1, 1, 3, 0, Some(&claimer), &mut [Ready::default()]), Take::Closed);
    assert_eq!(frontier.wait(0, 1, &[(1, false)], 50), Wait::Sleep);
    assert_eq!(frontier.wait(1, 1, &[(2, false)], 0), Wait::Sleep);
    assert_eq!(frontier.push(1, 2, job(30)), None);
    assert_eq!(frontier.open_gates(1_100), Some(0));
    let answer = frontier.collect(0, 1, 1, 2, 50, 1_100);
    assert_eq!(answer, Collect::Sleep { due: Some(1_150), next: Some(1) });
}

/// A cancelled job does not fill a batch, and the next batch does not begin before this one is full.
#[test]
fn a_cancelled_job_does_not_end_a_batch() {
    let mut world = World::new();
    world.act(Act::Push(1));
    world.act(Act::Call { session: 0, want: 3, linger: 50, wait: 12 });
    for _ in 0..2 {
        world.act(Act::Push(1));
        let newest = job(world.next_job - 1);
        world.frontier().withdraw(1, LANE, newest);
    }
    world.act(Act::Pass(1));
    world.act(Act::Push(1));
    let newest = job(world.next_job - 1);
    world.frontier().withdraw(1, LANE, newest);
    world.act(Act::Call { session: 1, want: 2, linger: 10, wait: 50 });
    world.check();
    world.act(Act::Pass(9));
    assert_eq!(world.taken, 1);
}
