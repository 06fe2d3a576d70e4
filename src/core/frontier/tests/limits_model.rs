//! Tests limits and groups as `model` tests everything else. A few sessions do random things, cut wherever a real
//! server may switch. After every step a naive model says whether each promise holds.
//!
//! 1. Never more jobs run than `running` says, and never more of a group than `group` says. Within a period never more
//!    start than the rate says, also of a group. Attempts that the claim's own session is ending do not count for what
//!    runs.
//! 2. In strict order no job starts beside, or before, a job of its group that has failed. Nor does one start before an
//!    earlier job of its group that could start when the session looked. If the retrying groups are known, each group
//!    with a failed job that waits is among them.
//! 3. After `Empty`, no job could start.
//! 4. No session sleeps although a job could start, unless another session was woken or reads the lane.
//! 5. Nothing is lost: when everything has ended, everything was found.
//! 6. Counts and lists are right after every step.
//! 7. No job starts while one of a smaller priority could start instead, and could when the session looked. An
//!    exception is a job that the session serving its group is about to start. A start that expires during a turn
//!    counts until the turn's end.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::memory::{Memory, Sizes};
use crate::frontier::group::Standing;
use crate::frontier::slot::{GateSlot, GroupSlot, LaneSlot};
use crate::frontier::slots::Slots;
use crate::frontier::*;
use crate::id;

const INSTANCE: u32 = 1;
const QUEUE: i32 = 7;
/// The lanes of the queue, which has stages.
const LANES: [i32; 2] = [1, 2];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    Absent,
    Open(u32),
    Committed,
}

#[derive(Clone, Debug)]
struct Job {
    lane: i32,
    entry: Ready,
    row: Row,
    /// The claim of a worker or of the system.
    claim: Row,
    is_system: bool,
    outcome: Row,
    is_due: bool,
    has_failed: bool,
    /// True if the frontier knows of the attempt.
    told: bool,
    /// The step at which the frontier learned of it.
    told_at: usize,
    /// True if the attempt is in the group's index.
    is_indexed: bool,
}

impl Job {
    fn waits(&self) -> bool {
        self.row == Row::Committed && self.claim == Row::Absent
    }

    fn runs(&self) -> bool {
        !self.is_system && self.claim != Row::Absent && self.outcome == Row::Absent
    }
}

/// What a session could have started when its claim began.
#[derive(Clone, Debug, PartialEq)]
struct Choices {
    jobs: Vec<usize>,
    /// How often memory for groups had been short before. After a shortage only the groups that are still known are in
    /// order.
    shortages: u64,
}

/// What a session is doing.
#[derive(Clone, Debug, PartialEq)]
enum Doing {
    Nothing,
    Refill {
        lane: i32,
        after: Rank,
        found: Option<Vec<Ready>>,
        is_asked: bool,
    },
    /// The session writes these attempts into their groups' index.
    Index {
        lane: i32,
        found: Vec<Ready>,
        is_done: bool,
    },
    Serve {
        lane: i32,
        turn: Turn,
        want: usize,
        found: Option<FoundInTurn>,
        /// The step and the time at which the turn began.
        since: usize,
        began_at: i64,
        /// The jobs that the session could have started then.
        choices: Choices,
    },
    /// The session reads which groups are retrying: lanes, groups and attempts.
    Retries {
        found: Option<Vec<(i32, i64, i64)>>,
    },
    Sleep {
        lane: i32,
        for_refill: bool,
    },
}

/// What a session has found in a group's turn: attempts, the rank to which it has read, and whether the group is held
/// or free.
#[derive(Clone, Debug, PartialEq)]
struct FoundInTurn {
    ready: Vec<Ready>,
    read_to: Rank,
    is_held: bool,
    is_free: bool,
}

/// A mistake with the retrying groups that the caller of the frontier could make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    /// A commit adds the group after it has freed the group's place.
    AddsLate,
    /// A claim that is rolled back has removed the group.
    RemovesAtTaking,
    /// A claim does not know the attempts of its own transaction.
    ForgetsOwn,
    /// After a start the groups count as known although they were not read.
    ReadsNothing,
    /// The groups are read with a snapshot from before the reading began.
    ReadsTooEarly,
    /// A commit that no callback reports is not made known.
    MissesUnreported,
}

#[derive(Clone, Debug)]
struct Client {
    doing: Doing,
    born: Vec<usize>,
    taken: Vec<usize>,
    ended: Vec<usize>,
    /// The attempts that its transaction has ended, as the frontier has them.
    ending: Ending,
}

struct World {
    memory: Memory,
    root: DeadlineRoot,
    limits: Limits,
    jobs: Vec<Job>,
    clients: Vec<Client>,
    now: i64,
    steps: usize,
    /// How often memory for groups was short after a call.
    shortages: u64,
    /// For each start, when it began and when it was no longer open.
    starts: BTreeMap<usize, Vec<(i64, Option<i64>)>>,
    fault: Fault,
    /// The attempts that are still to be added, with the fault `AddsLate`.
    late: Vec<usize>,
    /// For each throttled lane (group 0) or group: the time until which it is throttled, and whether memory must know
    /// that.
    throttled: BTreeMap<(i32, i64), (i64, bool)>,
}

const SESSIONS: usize = 4;
/// The room for starts with which their pool is never short.
const MANY_STARTS: usize = 200;

impl World {
    fn new(sizes: Sizes, limits: Limits) -> Self {
        Self {
            memory: Memory::new(Sizes { sessions: SESSIONS, gates: 2, groups: sizes.groups + sizes.rates, ..sizes }),
            root: None,
            limits,
            jobs: Vec::new(),
            clients: vec![
                Client {
                    doing: Doing::Nothing,
                    born: Vec::new(),
                    taken: Vec::new(),
                    ended: Vec::new(),
                    ending: Ending::default()
                };
                SESSIONS
            ],
            now: 1_000,
            steps: 0,
            shortages: 0,
            starts: BTreeMap::new(),
            fault: Fault::None,
            late: Vec::new(),
            throttled: BTreeMap::new(),
        }
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut Frontier<'_>, &mut DeadlineRoot) -> R) -> R {
        self.memory.head.now = self.now;
        let mut frontier = self.memory.frontier();
        let result = f(&mut frontier, &mut self.root);
        let is_short = self.is_short();
        self.shortages += u64::from(is_short);
        if is_short || self.memory.lanes.len() < LANES.len() {
            self.throttled.values_mut().for_each(|(_, is_known)| *is_known = false);
        }
        result
    }

    /// True if there is no room for all groups, or was none recently.
    fn is_short(&self) -> bool {
        self.memory.lanes.iter().any(|lane| lane.groups.is_short())
            || self.memory.groups.iter().all(|group| group.gate.is_some())
    }

    fn by_id(&self, id: i64) -> usize {
        self.jobs.iter().position(|job| job.entry.id == id).unwrap()
    }

    // ---- what the model expects

    /// Returns how many of these attempts run, without those that session `s` is ending.
    fn count(&self, which: impl Fn(&Job) -> bool) -> u32 {
        self.jobs.iter().filter(|job| job.runs() && which(job)).count() as u32
    }

    fn started(&self) -> u32 {
        self.started_of(|_| true, 0)
    }

    /// Returns how many of these jobs have started within the last period and `before` it.
    fn started_of(&self, which: impl Fn(&Job) -> bool, before: i64) -> u32 {
        let from = self.now - self.limits.period - before;
        let counts = |(_, until): &&(i64, Option<i64>)| until.is_none_or(|at| at > from);
        let these = self.starts.iter().filter(|&(&at, _)| which(&self.jobs[at]));
        these.flat_map(|(_, starts)| starts).filter(counts).count() as u32
    }

    /// True if a group may start something by its rate. If memory for starts is short, starts that others follow may
    /// count longer.
    fn rate_lets_start(&self, job: &Job) -> bool {
        let same = |other: &Job| other.lane == job.lane && other.entry.group == job.entry.group;
        let most = if self.memory.starts.len() >= MANY_STARTS { self.limits.group_rate } else { 1 };
        job.entry.group == 0 || self.started_of(same, 0) < most
    }

    fn has_open(&self, which: impl Fn(&Job) -> bool) -> bool {
        let these = self.starts.iter().filter(|&(&at, _)| which(&self.jobs[at]));
        self.limits.group_rate > 0 && these.flat_map(|(_, starts)| starts).any(|(_, until)| until.is_none())
    }

    /// True if there is room for the starts of one more group.
    fn has_rates(&self) -> bool {
        let mut groups: Vec<(i32, i64)> = Vec::new();
        for job in self.starts.keys().map(|&at| &self.jobs[at]).filter(|job| job.entry.group != 0) {
            let of_group = (job.lane, job.entry.group);
            let same = |other: &Job| (other.lane, other.entry.group) == of_group;
            if !groups.contains(&of_group) && self.started_of(same, 0) > 0 {
                groups.push(of_group);
            }
        }
        let free = self.memory.rates.len().saturating_sub(groups.len());
        self.limits.group_rate == 0 || crate::share::room(crate::share::ALPHA, free, groups.len() as u32) > 0
    }

    /// Returns the failed jobs of a job's group that must run first. Their own session sees them before its commit.
    fn holders(&self, job: &Job, by: Option<u32>) -> impl Iterator<Item = &Job> {
        let (lane, group) = (job.lane, job.entry.group);
        self.jobs.iter().filter(move |other| {
            other.lane == lane
                && other.entry.group == group
                && other.has_failed
                && (other.row == Row::Committed || by.is_some_and(|s| other.row == Row::Open(s)))
                && (other.claim == Row::Absent || other.is_system && other.claim != Row::Committed)
        })
    }

    /// Returns how many more attempts of this lane may be taken, one by one.
    fn places(&self, lane: i32) -> usize {
        let of_lane =
            self.memory.running.iter().filter(|entry| entry.state != State::Free && entry.lane == lane).count();
        super::model::places(
            self.memory.running.len(),
            self.memory.head.running.used as usize,
            self.memory.head.running.used as usize,
            of_lane,
        )
    }

    /// True if the job is throttled, or may be, by a throttle that memory `must_know`, or may know.
    fn is_throttled(&self, job: &Job, must_know: bool) -> bool {
        [0, job.entry.group].iter().any(|&group| {
            let found = self.throttled.get(&(job.lane, group));
            found.is_some_and(|&(until, is_known)| until > self.now && (is_known || !must_know))
        })
    }

    fn throttle(&mut self, lane: i32, group: i64, time: i64) {
        let (limits, now) = (self.limits, self.now);
        let until = now + time;
        let claimer = Claimer { queue: QUEUE, limits, lanes: &LANES, charges: &[], ending: None, now };
        let done = if group == 0 || !limits.has_groups() {
            self.with(|f, _| f.throttle(INSTANCE, lane, until, now)).map(|done| (0, done))
        } else {
            self.with(|f, _| f.throttle_group(INSTANCE, lane, &claimer, group, until)).map(|done| (group, done))
        };
        if let Some((group, (counts, woken))) = done {
            assert!(counts == 0 || counts >= until);
            let is_known = !self.is_short() && self.memory.lanes.len() >= LANES.len();
            self.throttled.insert((lane, group), (counts, is_known));
            self.woken(woken);
        }
    }

    /// True if a session without a transaction, or the given session, could start this job if the rate did not count.
    fn could_start(&self, job: &Job, by: Option<u32>) -> bool {
        if !(job.waits() && job.told && job.is_due) || self.is_throttled(job, false) {
            return false;
        }
        let is_over = |job: &Job| job.outcome == Row::Committed || by.is_some_and(|s| job.outcome == Row::Open(s));
        let holds = |job: &Job| !job.is_system && job.claim != Row::Absent && !is_over(job);
        let running = self.jobs.iter().filter(|job| holds(job));
        let same = running.clone().filter(|other| other.lane == job.lane && other.entry.group == job.entry.group);
        let (all, same) = (running.count() as u32, same.count() as u32);
        let has_room = self.limits.running == 0 || all < self.limits.running;
        let group_has_room = self.limits.group == 0 || job.entry.group == 0 || same < self.limits.group;
        let may_pass = !self.limits.is_strict
            || job.entry.group == 0
            || self.holders(job, by).all(|holder| holder.entry.id == job.entry.id);
        let rate_has_room = self.limits.group_rate == 0 || self.rate_lets_start(job);
        has_room && group_has_room && rate_has_room && may_pass && self.places(job.lane) > 0
    }

    fn startable(&self, lane: i32) -> Vec<Rank> {
        let rate_is_open = (self.limits.rate == 0 || self.started() < self.limits.rate) && self.has_rates();
        let could = |job: &&Job| job.lane == lane && rate_is_open && self.could_start(job, None);
        self.jobs.iter().filter(could).map(|job| job.entry.rank).collect()
    }

    /// Returns the jobs that this session could start, without those that another session is about to start.
    fn choices(&self, s: u32, lane: i32) -> Choices {
        let could = |&at: &usize| {
            let job = &self.jobs[at];
            job.lane == lane && self.could_start(job, Some(s)) && !self.is_about_to_start(job)
        };
        let shortages = if self.is_short() { u64::MAX } else { self.shortages };
        Choices { jobs: (0..self.jobs.len()).filter(could).collect(), shortages }
    }

    /// True if a session serves the job's group and may take all that its limits allow.
    fn is_about_to_start(&self, job: &Job) -> bool {
        let holds = |other: &&Job| !other.is_system && other.claim != Row::Absent && other.outcome != Row::Committed;
        let same = |other: &&Job| other.lane == job.lane && other.entry.group == job.entry.group;
        let running = self.jobs.iter().filter(holds).filter(same).count() as u32;
        let left = |limit: u32, used: u32| if limit == 0 { u32::MAX } else { limit.saturating_sub(used) };
        self.clients.iter().any(|client| match client.doing {
            Doing::Serve { lane, turn, want, since, began_at, .. } => {
                // A start that has expired since leaves room. Memory learns of it when the turn ends.
                let started = self.started_of(|other| same(&other), self.now - began_at);
                let left = left(self.limits.group, running).min(left(self.limits.group_rate, started));
                lane == job.lane && turn.group == job.entry.group && job.told_at <= since && left as usize <= want
            }
            _ => false,
        })
    }

    fn is_read(&self, lane: i32) -> bool {
        self.clients.iter().any(|client| match &client.doing {
            Doing::Refill { lane: l, .. } | Doing::Serve { lane: l, .. } | Doing::Index { lane: l, .. } => *l == lane,
            _ => false,
        })
    }

    // ---- what sessions do

    fn woken(&mut self, session: Option<u32>) {
        if let Some(s) = session {
            assert!(matches!(self.clients[s as usize].doing, Doing::Sleep { .. }), "{s} was woken and did not sleep");
        }
    }

    fn insert(&mut self, s: u32, lane: usize, priority: i32, group: i64, is_due: bool, of: Option<usize>) {
        let count = self.jobs.len() as i64 + 1;
        let id = id::attempt(0, count, 0);
        let job_id = of.map_or(id::job(0, count), |job| self.jobs[job].entry.rank.job_id);
        let place = Place { block: count as u32, ..Place::default() };
        // After a move, an attempt gets its entry immediately, and most do with fair shares.
        let is_eager = group != 0 && of.is_none() && (count % 5 == 0 || self.limits.is_fair && count % 5 > 1);
        self.jobs.push(Job {
            lane: LANES[lane],
            entry: Ready { rank: Rank { priority, job_id }, id, place: Place { is_indexed: is_eager, ..place }, group },
            row: Row::Open(s),
            claim: Row::Absent,
            is_system: false,
            outcome: Row::Absent,
            is_due,
            has_failed: of.is_some(),
            told: false,
            told_at: 0,
            is_indexed: is_eager,
        });
        self.clients[s as usize].born.push(self.jobs.len() - 1);
    }

    fn claim(&mut self, s: u32, lane: i32, want: usize) {
        self.look(s, lane, want, false);
    }

    fn claimer<'a>(&self, ending: Option<&'a Ending>) -> Claimer<'a> {
        Claimer { queue: QUEUE, limits: self.limits, lanes: &LANES, charges: &[], ending, now: self.now }
    }

    /// Claims from a lane. `in_vain`: the session has just tried that, and had to wait for a session that reads.
    fn look(&mut self, s: u32, lane: i32, want: usize, in_vain: bool) {
        let ending = std::mem::take(&mut self.clients[s as usize].ending);
        // If the clock is late, the claim does the clock's work.
        self.pass_time(0);
        let claimer = self.claimer(Some(&ending));
        let startable = self.startable(lane);
        let was_read = self.is_read(lane);
        let (choices, since) = (self.choices(s, lane), self.steps);
        let mut out = vec![Ready::default(); want];
        if self.fault != Fault::ForgetsOwn {
            let own = self.clients[s as usize].born.clone();
            own.into_iter().for_each(|at| self.retry_waits(at));
        }
        let answer = self.with(|f, _| f.take(INSTANCE, lane, s, 0, Some(&claimer), &mut out));
        self.clients[s as usize].ending = ending;
        let mut is_over = true;
        match answer {
            Take::Some { taken, .. } => self.took(s, lane, &out[..taken], &choices),
            Take::Turn(turn) => {
                self.end_wait(s);
                self.clients[s as usize].doing =
                    Doing::Serve { lane, turn, want, found: None, since, began_at: self.now, choices };
                return;
            }
            Take::Refill => {
                self.end_wait(s);
                return self.refill(s, lane);
            }
            Take::Index => {
                self.end_wait(s);
                let mut found = vec![Ready::default(); want];
                let count = self.with(|f, _| f.index_begin(INSTANCE, lane, s, &mut found));
                found.truncate(count);
                if count > 0 {
                    self.clients[s as usize].doing = Doing::Index { lane, found, is_done: false };
                }
                return;
            }
            Take::Empty => {
                // The attempts that the session itself is ending may keep other sessions from starting jobs as well.
                assert!(startable.is_empty() || was_read, "{s} finds nothing beside {startable:?}");
                is_over = false;
            }
            Take::NoPlace => {
                assert_eq!(self.places(lane), 0);
                is_over = false;
            }
            Take::Refilling | Take::Closed => is_over = false,
            Take::Full | Take::NoLane | Take::NoGate => {}
        }
        if answer == Take::Closed {
            assert!(startable.is_empty(), "closed beside {startable:?}");
        }
        let client = &self.clients[s as usize];
        let may_sleep = client.born.is_empty() && client.taken.is_empty() && client.ended.is_empty();
        self.end_wait(s);
        if !is_over && may_sleep {
            let for_refill = self.is_read(lane);
            if self.with(|f, _| f.wait(s, INSTANCE, &[(lane, false)], 0)) == Wait::Sleep {
                self.clients[s as usize].doing = Doing::Sleep { lane, for_refill };
            } else {
                assert!(!in_vain || self.is_short(), "{s} would look again and again until the reading has ended");
                if answer == Take::Refilling && !self.is_short() {
                    self.look(s, lane, want, true);
                }
            }
        }
    }

    /// Takes the session out of the list of waiting sessions, if it is there.
    fn end_wait(&mut self, s: u32) {
        let next = self.with(|f, _| f.stop_waiting(s));
        self.woken(next);
        if matches!(self.clients[s as usize].doing, Doing::Sleep { .. }) {
            self.clients[s as usize].doing = Doing::Nothing;
        }
    }

    /// Checks the jobs that a session has taken against those that it could have started.
    fn took(&mut self, s: u32, lane: i32, taken: &[Ready], choices: &Choices) {
        // An attempt that proves stale kept others from starting.
        let is_stale = |entry: &Ready| self.jobs[self.by_id(entry.id)].claim != Row::Absent;
        let is_exact = !taken.iter().any(is_stale) && choices.shortages == self.shortages;
        for entry in taken {
            let at = self.by_id(entry.id);
            let is_before = |job: &&Job| {
                let could_start = self.could_start(job, Some(s)) && !self.is_about_to_start(job);
                job.entry.rank.priority < entry.rank.priority && could_start
            };
            if is_exact && let Some(other) = choices.jobs.iter().map(|&at| &self.jobs[at]).find(is_before) {
                panic!("{s} starts {entry:?} before {other:?}");
            }
            let is_earlier = |job: &&Job| {
                let same = job.entry.group == entry.group && entry.group != 0 && self.limits.is_strict;
                same && job.entry.rank < entry.rank && self.could_start(job, Some(s))
            };
            if is_exact && let Some(other) = choices.jobs.iter().map(|&at| &self.jobs[at]).find(is_earlier) {
                panic!("{s} starts {entry:?} before {other:?} of its group");
            }
            let holders: Vec<i64> = self.holders(&self.jobs[at], Some(s)).map(|job| job.entry.id).collect();
            let job = &self.jobs[at];
            let place = Place { is_indexed: entry.place.is_indexed, ..job.entry.place };
            assert_eq!((job.lane, Ready { place, ..job.entry }), (lane, *entry));
            assert!(job.is_indexed || !place.is_indexed);
            assert!(job.row == Row::Committed && job.is_due);
            assert!(!self.is_throttled(&self.jobs[at], true), "{s} starts {entry:?}, which is throttled");
            let job = &mut self.jobs[at];
            if self.limits.is_strict && entry.group != 0 {
                assert!(holders.iter().all(|&id| id == entry.id), "started beside one that has failed");
            }
            if job.claim != Row::Absent {
                // The attempt is stale: it was claimed and has ended since it was read.
                assert_eq!((job.claim, job.outcome), (Row::Committed, Row::Committed));
                let woken = self.with(|f, root| f.discard_stale(root, INSTANCE, entry.id));
                self.woken(woken);
                continue;
            }
            job.claim = Row::Open(s);
            self.starts.entry(at).or_default().push((self.now, None));
            self.clients[s as usize].taken.push(at);
        }
        let limits = self.limits;
        if limits.running > 0 {
            assert!(self.count(|_| true) <= limits.running, "too many run");
        }
        for entry in taken.iter().filter(|entry| entry.group != 0 && limits.group > 0) {
            let of_group = self.count(|job| job.lane == lane && job.entry.group == entry.group);
            assert!(of_group <= limits.group, "too many of a group run");
        }
        if limits.rate > 0 {
            assert!(self.started() <= limits.rate, "too many have started");
        }
        for entry in taken.iter().filter(|entry| entry.group != 0 && limits.group_rate > 0) {
            let of_group = self.started_of(|job| job.lane == lane && job.entry.group == entry.group, 0);
            assert!(of_group <= limits.group_rate, "too many of a group have started");
        }
    }

    fn refill(&mut self, s: u32, lane: i32) {
        if let Some(after) = self.with(|f, _| f.refill_begin(INSTANCE, lane, s)) {
            self.clients[s as usize].doing = Doing::Refill { lane, after, found: None, is_asked: false };
        }
    }

    /// Waiting attempts in order, as the logs have them now. Open claims count as claims.
    fn read(&self, lane: i32, group: Option<i64>, after: Rank) -> Vec<Ready> {
        let is_it = |job: &&Job| {
            job.lane == lane
                && job.waits()
                && job.is_due
                && job.entry.rank > after
                && group.is_none_or(|group| job.entry.group == group && job.is_indexed)
        };
        let read = |job: &Job| {
            let place = Place { is_indexed: group.is_some(), ..job.entry.place };
            Ready { place, ..job.entry }
        };
        let mut found: Vec<Ready> = self.jobs.iter().filter(is_it).map(read).collect();
        found.sort_unstable_by_key(|entry| (entry.rank, entry.id));
        found
    }

    /// Writes the marked attempts into their groups' index, where nothing occurs twice.
    fn write_index(&mut self, marked: &[Ready]) {
        for entry in marked.iter().filter(|entry| entry.place.is_indexed) {
            let at = self.by_id(entry.id);
            self.jobs[at].is_indexed = true;
        }
    }

    /// Builds the groups' index anew, from the logs.
    fn lose_index(&mut self) {
        for job in &mut self.jobs {
            job.is_indexed = false;
            job.entry.place.is_indexed = false;
        }
        // The build and a session that writes or reads the index wait for each other. So the session starts again.
        for client in &mut self.clients {
            match &mut client.doing {
                Doing::Index { is_done, .. } => *is_done = false,
                Doing::Refill { found: Some(found), .. } => found.iter_mut().for_each(|e| e.place.is_indexed = false),
                Doing::Serve { turn, found, .. } => {
                    *found = found.take().map(|_| FoundInTurn {
                        ready: Vec::new(),
                        read_to: turn.after,
                        is_held: false,
                        is_free: false,
                    });
                }
                _ => {}
            }
        }
        self.with(|f, _| f.unpark_all(INSTANCE));
        while let Some(s) = self.with(|f, _| f.wake_any_lane(INSTANCE)) {
            self.woken(Some(s));
        }
    }

    fn wake_after_reading(&mut self, lane: i32) {
        while let Some(s) = self.with(|f, _| f.refill_wake(INSTANCE, lane)) {
            self.woken(Some(s));
        }
        let next = self.with(|f, _| f.pass_on(INSTANCE, lane));
        self.woken(next);
    }

    /// Continues what a session is doing.
    fn step(&mut self, s: u32, fails: bool) {
        match self.clients[s as usize].doing.clone() {
            Doing::Nothing => {}
            Doing::Sleep { lane, .. } => {
                if self.with(|f, _| f.sessions.is_woken(s)) || fails {
                    self.claim(s, lane, 1);
                }
            }
            Doing::Refill { lane, after, found: None, is_asked } => {
                let found = Some(self.read(lane, None, after));
                self.clients[s as usize].doing = Doing::Refill { lane, after, found, is_asked };
            }
            Doing::Refill { lane, after, found: Some(mut found), is_asked: false } => {
                // The frontier is asked here. The entries are written in a later step, and anything may happen in
                // between.
                for entry in &mut found {
                    entry.place.is_indexed = self.with(|f, _| f.needs_index(INSTANCE, lane, entry));
                }
                self.clients[s as usize].doing = Doing::Refill { lane, after, found: Some(found), is_asked: true };
            }
            Doing::Refill { lane, found: Some(mut found), .. } => {
                self.clients[s as usize].doing = Doing::Nothing;
                if !fails {
                    self.write_index(&found);
                    self.with(|f, _| f.refill_push(INSTANCE, lane, s, &mut found, Rank::MAX));
                }
                self.with(|f, _| f.refill_end(INSTANCE, lane, s));
                self.wake_after_reading(lane);
            }
            Doing::Index { lane, mut found, is_done: false } if !fails => {
                for entry in &mut found {
                    entry.place.is_indexed = true;
                }
                self.write_index(&found);
                for entry in &mut found {
                    entry.place.is_indexed = false;
                }
                self.clients[s as usize].doing = Doing::Index { lane, found, is_done: true };
            }
            Doing::Index { lane, found, .. } => {
                self.clients[s as usize].doing = Doing::Nothing;
                if !fails {
                    self.with(|f, _| f.indexed(INSTANCE, lane, &found));
                }
                self.with(|f, _| f.refill_end(INSTANCE, lane, s));
                self.wake_after_reading(lane);
            }
            Doing::Serve { lane, turn, want, found: None, since, began_at, choices } => {
                let is_held = |job: &&Job| {
                    job.lane == lane && job.entry.group == turn.group && job.has_failed && job.outcome != Row::Committed
                };
                let holder = self.jobs.iter().filter(is_held).find(|job| match (job.row, job.claim) {
                    (Row::Open(other), _) => other == s,
                    (Row::Committed, Row::Absent) => true,
                    (Row::Committed, Row::Open(_)) => true,
                    _ => false,
                });
                let (ready, read_to, is_held) = match holder.filter(|_| turn.must_look) {
                    Some(job) if job.waits() && job.is_due => (vec![job.entry], turn.after, false),
                    Some(_) => (Vec::new(), turn.after, true),
                    None => {
                        // A session may read fewer attempts ahead than it should.
                        let want = want.min(turn.wanted) + turn.ahead.min(self.steps % 4);
                        let mut found = self.read(lane, Some(turn.group), turn.after);
                        let read_to = found.get(want).map_or(Rank::MAX, |next| next.rank.before());
                        found.truncate(want);
                        (found, read_to, false)
                    }
                };
                let is_free = turn.must_look && holder.is_none();
                let found = FoundInTurn { ready, read_to, is_held, is_free };
                self.clients[s as usize].doing =
                    Doing::Serve { lane, turn, want, found: Some(found), since, began_at, choices };
            }
            Doing::Serve { lane, turn, want, found: Some(found), choices, .. } => {
                self.clients[s as usize].doing = Doing::Nothing;
                let ending = std::mem::take(&mut self.clients[s as usize].ending);
                let claimer = self.claimer(Some(&ending));
                let served = if fails {
                    Served { turn, found: &[], read_to: turn.after, is_held: false, is_free: false }
                } else {
                    let FoundInTurn { ref ready, read_to, is_held, is_free } = found;
                    Served { turn, found: ready, read_to, is_held, is_free }
                };
                let mut out = vec![Ready::default(); want];
                let owner = Owner { session: s, pid: 0 };
                let taken = self.with(|f, _| f.turn_end(INSTANCE, lane, owner, &claimer, &served, &mut out));
                self.clients[s as usize].ending = ending;
                self.wake_after_reading(lane);
                self.took(s, lane, &out[..taken], &choices);
            }
            Doing::Retries { found: None } => {
                self.clients[s as usize].doing = Doing::Retries { found: Some(self.retrying_now()) };
            }
            Doing::Retries { found: Some(found) } => {
                self.clients[s as usize].doing = Doing::Nothing;
                if self.fault == Fault::ReadsTooEarly && !self.retries_begin(s) {
                    return;
                }
                for (lane, group, id) in found {
                    self.with(|f, _| f.retry_waits(INSTANCE, lane, group, id));
                }
                let now = self.now;
                self.with(|f, _| f.backlog.gates.retries_end(INSTANCE, QUEUE, s, !fails, now));
            }
        }
    }

    /// Returns the failed attempts that wait, or would wait after a rollback, as the logs have them now.
    fn retrying_now(&self) -> Vec<(i32, i64, i64)> {
        let may_wait = |job: &&Job| {
            job.has_failed && job.entry.group != 0 && job.row == Row::Committed && job.claim != Row::Committed
        };
        self.jobs.iter().filter(may_wait).map(|job| (job.lane, job.entry.group, job.entry.id)).collect()
    }

    fn retry_waits(&mut self, at: usize) {
        let Job { lane, entry, has_failed, .. } = self.jobs[at];
        if has_failed {
            self.with(|f, _| f.retry_waits(INSTANCE, lane, entry.group, entry.id));
        }
    }

    /// Begins to read which groups are retrying.
    fn read_retries(&mut self, s: u32) {
        if self.fault == Fault::ReadsTooEarly {
            self.clients[s as usize].doing = Doing::Retries { found: Some(self.retrying_now()) };
        } else if self.retries_begin(s) {
            let found = (self.fault == Fault::ReadsNothing).then(Vec::new);
            self.clients[s as usize].doing = Doing::Retries { found };
        }
    }

    fn retries_begin(&mut self, s: u32) -> bool {
        let claimer = self.claimer(None);
        self.with(|f, _| f.retries_begin(INSTANCE, &claimer, s))
    }

    fn end(&mut self, s: u32, nth: usize, fails: bool) {
        let mine = |job: &Job| {
            let is_claimed = job.claim == Row::Committed || job.claim == Row::Open(s);
            !job.is_system && is_claimed && job.outcome == Row::Absent && job.row == Row::Committed
        };
        let candidates: Vec<usize> = (0..self.jobs.len()).filter(|&j| mine(&self.jobs[j])).collect();
        let Some(&at) = candidates.get(nth % candidates.len().max(1)) else { return };
        let id = self.jobs[at].entry.id;
        if !matches!(self.with(|f, root| f.running.end(root, INSTANCE, id, s, i64::MAX, |_| true)), Hold::Yours(_)) {
            return;
        }
        self.jobs[at].outcome = Row::Open(s);
        self.clients[s as usize].ended.push(at);
        self.clients[s as usize].ending.add(id);
        if fails {
            let job = self.jobs[at].clone();
            let lane = LANES.iter().position(|&lane| lane == job.lane).unwrap();
            self.insert(s, lane, job.entry.rank.priority, job.entry.group, nth.is_multiple_of(2), Some(at));
        }
    }

    /// Ends a waiting attempt unrun.
    fn cancel(&mut self, s: u32, nth: usize) {
        let candidates: Vec<usize> = (0..self.jobs.len()).filter(|&j| self.jobs[j].waits()).collect();
        let Some(&at) = candidates.get(nth % candidates.len().max(1)) else { return };
        let (lane, entry, is_due) = (self.jobs[at].lane, self.jobs[at].entry, self.jobs[at].is_due);
        if self.with(|f, root| f.take_one(root, INSTANCE, lane, Owner { session: s, pid: 0 }, entry, is_due))
            == TakeOne::Taken
        {
            let job = &mut self.jobs[at];
            (job.claim, job.outcome, job.is_system) = (Row::Open(s), Row::Open(s), true);
            self.clients[s as usize].taken.push(at);
        }
    }

    fn commit(&mut self, s: u32, pushes_first: bool) {
        let client = &mut self.clients[s as usize];
        let (born, taken, ended) =
            (std::mem::take(&mut client.born), std::mem::take(&mut client.taken), std::mem::take(&mut client.ended));
        client.ending = Ending::default();
        born.iter().for_each(|&j| self.jobs[j].row = Row::Committed);
        taken.iter().for_each(|&j| self.jobs[j].claim = Row::Committed);
        let is_system: Vec<usize> = taken.iter().copied().filter(|&j| self.jobs[j].is_system).collect();
        ended.iter().chain(&is_system).for_each(|&j| self.jobs[j].outcome = Row::Committed);
        match self.fault {
            Fault::AddsLate => self.late.extend(&born),
            _ => born.iter().for_each(|&j| self.retry_waits(j)),
        }
        for round in 0..2 {
            if (round == 0) == pushes_first {
                for &j in born.iter().filter(|&&j| self.jobs[j].is_due).collect::<Vec<_>>() {
                    self.push(j);
                }
            } else {
                for &j in &taken {
                    if !self.jobs[j].is_system {
                        let (id, now) = (self.jobs[j].entry.id, self.now);
                        self.with(|f, root| {
                            f.claimed(root, INSTANCE, id, 1_000_000, now + 1_000_000, Disconnect::KEEPS);
                        });
                        self.settle(j);
                    }
                }
                for &j in ended.iter().chain(&is_system) {
                    let id = self.jobs[j].entry.id;
                    let woken = self.with(|f, root| f.ended(root, INSTANCE, id)).and_then(|(_, woken)| woken);
                    self.woken(woken);
                }
            }
        }
    }

    fn settle(&mut self, job: usize) {
        let now = self.now;
        self.starts.get_mut(&job).unwrap().iter_mut().for_each(|start| start.1 = start.1.or(Some(now)));
    }

    fn push(&mut self, job: usize) {
        (self.jobs[job].told, self.jobs[job].told_at) = (true, self.steps);
        let (lane, entry) = (self.jobs[job].lane, self.jobs[job].entry);
        let woken = self.with(|f, _| f.push(INSTANCE, lane, entry));
        self.woken(woken);
    }

    fn abort(&mut self, s: u32) {
        let client = &mut self.clients[s as usize];
        let (born, taken, ended) =
            (std::mem::take(&mut client.born), std::mem::take(&mut client.taken), std::mem::take(&mut client.ended));
        client.ending = Ending::default();
        born.iter().for_each(|&j| self.jobs[j].row = Row::Absent);
        for &j in &born {
            let Job { lane, entry, has_failed, .. } = self.jobs[j];
            if !has_failed {
                continue;
            }
            self.with(|f, _| f.retry_undone(INSTANCE, lane, entry.group, entry.id));
        }
        ended.iter().for_each(|&j| self.jobs[j].outcome = Row::Absent);
        taken.iter().for_each(|&j| self.jobs[j].claim = Row::Absent);
        for &j in ended.iter().rev() {
            let id = self.jobs[j].entry.id;
            self.with(|f, root| f.running.undo_end(root, INSTANCE, id));
        }
        for &j in taken.iter().rev() {
            let (id, now) = (self.jobs[j].entry.id, self.now);
            if self.fault == Fault::RemovesAtTaking {
                let Job { lane, entry, .. } = self.jobs[j];
                self.with(|f, _| f.retry_undone(INSTANCE, lane, entry.group, id));
            }
            if std::mem::replace(&mut self.jobs[j].is_system, false) {
                self.jobs[j].outcome = Row::Absent;
            } else {
                self.settle(j);
            }
            if self.jobs[j].is_due {
                (self.jobs[j].told, self.jobs[j].told_at) = (true, self.steps);
            }
            let woken = self.with(|f, root| f.give_back(root, INSTANCE, id, now));
            self.woken(woken);
        }
    }

    fn disconnect(&mut self, s: u32) {
        self.abort(s);
        if let Some((_, lane)) = self.with(|f, _| f.refill_abandon(s)) {
            self.wake_after_reading(lane);
        }
        while let Some((_, lane)) = self.with(|f, _| f.turn_abandon(s)) {
            self.wake_after_reading(lane);
        }
        self.with(|f, _| f.backlog.gates.retries_abandon(s));
        self.clients[s as usize].doing = match self.clients[s as usize].doing.clone() {
            Doing::Sleep { lane, for_refill } => Doing::Sleep { lane, for_refill },
            _ => Doing::Nothing,
        };
        self.end_wait(s);
    }

    fn pass_time(&mut self, time: i64) {
        self.now += time;
        let now = self.now;
        while let Some(s) = self.with(|f, _| f.open_gates(now)) {
            self.woken(Some(s));
        }
    }

    fn run(&mut self, op: Op) {
        self.steps += 1;
        std::mem::take(&mut self.late).into_iter().for_each(|j| self.retry_waits(j));
        match op {
            Op::Insert(s, lane, priority, group, is_due) if self.is_free(s) => {
                self.insert(s, lane, i32::from(priority), group, is_due, None);
            }
            Op::Claim(s, lane, want) if self.is_free(s) => self.claim(s, LANES[lane], want),
            Op::Refill(s, lane) if self.is_free(s) => self.refill(s, LANES[lane]),
            Op::Retries(s) if self.is_free(s) => self.read_retries(s),
            Op::Step(s, fails) => self.step(s, fails),
            Op::End(s, nth, fails) if self.is_free(s) => self.end(s, nth, fails),
            Op::Cancel(s, nth) if self.is_free(s) => self.cancel(s, nth),
            Op::Commit(s, pushes_first) if self.is_free(s) => self.commit(s, pushes_first),
            Op::Abort(s) if self.is_free(s) => self.abort(s),
            Op::Disconnect(s) => self.disconnect(s),
            Op::Due(nth) => {
                let is_it = |j: &usize| self.jobs[*j].row == Row::Committed && !self.jobs[*j].is_due;
                let candidates: Vec<usize> = (0..self.jobs.len()).filter(is_it).collect();
                if let Some(&at) = candidates.get(nth % candidates.len().max(1)) {
                    self.jobs[at].is_due = true;
                    // An open claim may be rolled back.
                    if self.jobs[at].claim != Row::Committed {
                        self.push(at);
                    }
                }
            }
            Op::Time(time) => self.pass_time(time),
            Op::LoseIndex => self.lose_index(),
            Op::Alter => {
                self.limits.running = if self.limits.running == 0 { 50 } else { self.limits.running + 1 };
                // The gate is built anew, and the groups with it.
                self.throttled.values_mut().for_each(|(_, is_known)| *is_known = false);
                while let Some(s) = self.with(|f, _| f.wake_any_lane(INSTANCE)) {
                    self.woken(Some(s));
                }
            }
            Op::Throttle(lane, group, time) => self.throttle(LANES[lane], group, time),
            Op::Unreported(lane, group) if !self.may_have_failed(LANES[lane], group) => {
                self.insert(0, lane, 1, group, true, None);
                let at = self.clients[0].born.pop().unwrap();
                let job = &mut self.jobs[at];
                // A refill that is under way may miss the attempt, so the attempt does not count as told.
                (job.row, job.has_failed) = (Row::Committed, true);
                if self.fault != Fault::MissesUnreported {
                    self.invalidate();
                }
            }
            Op::Invalidate => self.invalidate(),
            _ => {}
        }
        self.check();
    }

    /// True if a job of the group has failed or may fail, or if a session serves the group. The model gives a group
    /// only one such job at a time. A turn may end as if it had come before a commit that no callback reports.
    fn may_have_failed(&self, lane: i32, group: i64) -> bool {
        let serves = |client: &Client| matches!(client.doing, Doing::Serve { turn, .. } if turn.group == group);
        if self.clients.iter().any(serves) {
            return true;
        }
        self.jobs.iter().filter(|job| (job.lane, job.entry.group) == (lane, group)).any(|job| {
            job.row != Row::Absent && job.outcome != Row::Committed && (job.has_failed || job.claim != Row::Absent)
        })
    }

    /// Makes the frontier read everything again.
    fn invalidate(&mut self) {
        self.with(|f, _| f.invalidate(INSTANCE));
        while let Some(s) = self.with(|f, _| f.wake_any_lane(INSTANCE)) {
            self.woken(Some(s));
        }
    }

    /// True if the session does nothing and does not sleep.
    fn is_free(&self, s: u32) -> bool {
        self.clients[s as usize].doing == Doing::Nothing
    }

    // ---- what must hold

    fn check(&mut self) {
        self.check_counts();
        self.check_retrying();
        self.check_ahead();
        for s in 0..SESSIONS as u32 {
            let Doing::Sleep { lane, .. } = self.clients[s as usize].doing else { continue };
            let startable = self.startable(lane);
            let has_woken = (0..SESSIONS as u32).any(|other| {
                matches!(self.clients[other as usize].doing, Doing::Sleep { .. })
                    && self.with(|f, _| f.sessions.is_woken(other))
            });
            let opens = self.memory.head.gates.opens_at != 0 || self.memory.head.lanes.opens_at != 0;
            assert!(
                startable.is_empty() || has_woken || self.is_read(lane) || opens,
                "{s} sleeps beside {startable:?}"
            );
        }
    }

    /// Asserts that the attempts read ahead for each group are in order, and that all attempts known to wait in their
    /// range are among them.
    fn check_ahead(&mut self) {
        for number in 0..self.memory.groups.len() {
            let (slot, group) = (GroupSlot::new(number as u32), self.memory.groups[number]);
            let Some((entries, read_to)) = self.with(|f, _| f.backlog.groups.whole_ahead(slot)) else { continue };
            assert_eq!(group.served_by(), None);
            let ranks: Vec<Rank> = entries.iter().map(|entry| entry.rank).collect();
            assert!(ranks.is_sorted() && group.position < ranks[0] && *ranks.last().unwrap() <= read_to, "{group:?}");
            let mut known = Vec::new();
            if let Some(lane) = index::find(&self.memory.lane_index, INSTANCE, i64::from(group.lane)) {
                let frontier = &mut self.memory.frontier();
                let lane = LaneSlot::new(lane);
                let horizon = frontier.backlog.lanes[lane].horizon();
                let ring = frontier.backlog.lanes.ring(lane);
                let in_ready: Vec<i64> = (0..ring.len()).map(|nth| ring.get(nth).id).collect();
                let waits = |job: &&Job| job.waits() && job.told && job.is_due && job.entry.rank <= horizon;
                let is_parked = |job: &&Job| {
                    let Ready { rank, id, group: hash, .. } = job.entry;
                    (job.lane, hash) == (group.lane, group.hash)
                        && group.position < rank
                        && rank <= read_to
                        && !in_ready.contains(&id)
                        && index::find(&self.memory.running_index, INSTANCE, id).is_none()
                };
                known.extend(self.jobs.iter().filter(waits).filter(is_parked).map(|job| job.entry.id));
            }
            let missing = known.iter().find(|id| entries.iter().all(|entry| entry.id != **id));
            assert_eq!(missing, None, "read ahead: {entries:?} to {read_to:?}");
        }
        self.with(|f, _| f.backlog.groups.check_ahead());
    }

    /// Asserts that no retrying group is missing, if they count as known.
    fn check_retrying(&mut self) {
        let waiting = self.retrying_now();
        let gate = self.memory.gates.iter().position(|gate| gate.instance != 0);
        if let Some(gate) = gate.filter(|_| self.limits.is_strict) {
            for (lane, group, id) in waiting {
                let is_there = self.with(|f, _| f.backlog.gates.is_retrying(GateSlot::new(gate as u32), lane, group));
                assert!(is_there, "{id} waits, and its group is not known to be retrying");
            }
        }
        self.with(|f, _| f.backlog.gates.check_retrying());
    }

    fn check_counts(&mut self) {
        let is_tree_of = |standing: Standing, is_turns: bool| match standing {
            Standing::Turn => is_turns,
            Standing::Served { is_in_way, .. } => is_in_way && !is_turns,
            _ => false,
        };
        let is_listed = |standing: Standing| {
            matches!(standing, Standing::Turn | Standing::Idle | Standing::Resting) || is_tree_of(standing, false)
        };
        let running: Vec<Running> =
            self.memory.running.iter().filter(|entry| entry.state != State::Free).copied().collect();
        for (slot, gate) in self.memory.gates.iter().enumerate().filter(|(_, gate)| gate.instance != 0) {
            let counted = running.iter().filter(|entry| entry.gate == Some(GateSlot::new(slot as u32))).count();
            assert_eq!(gate.running as usize, counted);
            assert_eq!(counted, running.iter().filter(|entry| entry.system == 0).count());
            assert_eq!(gate.groups as usize, self.memory.groups.iter().filter(|group| group.gate.is_some()).count());
        }
        let mut listed = 0;
        for (slot, group) in self.memory.groups.iter().enumerate().filter(|(_, group)| group.gate.is_some()) {
            let of_group =
                |entry: &&Running| entry.grouped != 0 && (entry.lane, entry.group) == (group.lane, group.hash);
            assert_eq!(group.running as usize, running.iter().filter(of_group).count(), "{group:?}");
            let waits = group.position < Rank::MAX && group.standing != Standing::Held;
            let has_place = self.limits.group == 0 || group.running < self.limits.group;
            let rests = group.standing == Standing::Resting;
            let has_lane = index::find(&self.memory.lane_index, INSTANCE, i64::from(group.lane)).is_some();
            if group.closed_until > self.now {
                let is_held = group.standing == Standing::Held;
                assert!(rests || is_held || group.is_served() || !has_lane, "{slot}: {group:?}");
            } else if !group.is_served() && has_lane {
                // Starts that no longer count are noticed only when the group's turn comes.
                let same = |job: &Job| (job.lane, job.entry.group) == (group.lane, group.hash);
                let has_started = self.limits.group_rate > 0 && self.started_of(same, self.limits.period) > 0;
                let is_opening =
                    !rests && group.standing != Standing::Turn && waits && has_place && self.has_open(same);
                let got = group.standing == Standing::Turn || rests || is_opening;
                assert_eq!(got, waits && has_place, "{slot}: {group:?}");
                assert!(!rests || has_started);
                let is_idle = !(waits && has_place) && group.running == 0 && group.standing != Standing::Held;
                assert_eq!(group.standing == Standing::Idle, is_idle, "{slot}: {group:?}");
            }
            listed += usize::from(is_listed(group.standing));
        }
        let head = self.memory.head;
        let mut groups = self.memory.groups.clone();
        let groups = Slots::new(&mut groups);
        let resting = head.groups.resting.slots(&groups);
        assert!(resting.is_sorted_by_key(|&slot| groups[slot].order));
        assert!(resting.iter().all(|&slot| groups[slot].standing == Standing::Resting));
        let mut seen = resting.len();
        for lane in self.memory.lanes.iter().filter(|lane| lane.is_used()) {
            for (tree, is_turns) in lane.groups.trees() {
                let slots = tree.slots(&groups);
                assert!(slots.is_sorted_by_key(|&slot| (groups[slot].urgency, groups[slot].pass)));
                assert!(slots.iter().all(|&slot| is_tree_of(groups[slot].standing, is_turns)));
                seen += slots.len();
            }
            let list = lane.groups.idle_ends();
            let (mut at, mut before) = (list.0, None);
            while let Some(slot) = at {
                let group = &groups[slot];
                assert_eq!((group.lane, group.prev, group.standing), (lane.id, before, Standing::Idle));
                (before, at) = (at, group.next);
                seen += 1;
                assert!(seen <= listed, "a list in a circle");
            }
            assert_eq!(list.1, before);
        }
        assert_eq!(seen, listed);
        self.with(|f, _| f.backlog.check_rates());
        assert_eq!(
            self.memory.head.groups.used as usize,
            self.memory.groups.iter().filter(|group| group.gate.is_some()).count()
        );
    }

    /// Ends all attempts, and asserts that all jobs were found.
    fn drain(&mut self) {
        for s in 0..SESSIONS as u32 {
            self.disconnect(s);
        }
        for at in 0..self.jobs.len() {
            if self.jobs[at].row == Row::Committed && !self.jobs[at].is_due {
                self.jobs[at].is_due = true;
                if self.jobs[at].waits() {
                    self.push(at);
                }
            }
        }
        let mut vain = 0;
        while vain < 40 {
            let waiting = self.jobs.iter().filter(|job| job.waits()).count();
            for lane in LANES {
                self.pass_time(self.limits.period + 1);
                // A claim continues after a refill, and after a turn that found nothing.
                for _ in 0..40 {
                    self.claim(0, lane, 2);
                    while self.clients[0].doing != Doing::Nothing {
                        match self.clients[0].doing {
                            Doing::Sleep { .. } => self.end_wait(0),
                            _ => self.step(0, false),
                        }
                    }
                    if !self.clients[0].taken.is_empty() {
                        break;
                    }
                }
                self.commit(0, true);
                while self.jobs.iter().any(|job| job.runs()) {
                    self.end(0, 0, false);
                    self.commit(0, true);
                }
                self.check();
            }
            vain = if self.jobs.iter().filter(|job| job.waits()).count() < waiting { 0 } else { vain + 1 };
            if waiting == 0 {
                return;
            }
        }
        panic!("lost: {:?}", self.jobs.iter().filter(|job| job.waits()).collect::<Vec<_>>());
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Insert(u32, usize, u8, i64, bool),
    Claim(u32, usize, usize),
    Refill(u32, usize),
    /// The session reads which groups are retrying.
    Retries(u32),
    /// The session continues, or fails in the middle, or looks without having been woken.
    Step(u32, bool),
    End(u32, usize, bool),
    Cancel(u32, usize),
    Commit(u32, bool),
    Abort(u32),
    Disconnect(u32),
    Due(usize),
    Time(i64),
    /// Throttles a lane (group 0) or a group for this time. 0 ends the throttle.
    Throttle(usize, i64, i64),
    /// Raises the limit of running jobs, so that the gate is built anew.
    Alter,
    Invalidate,
    /// A commit that no callback reports adds an attempt that must run before all others of its group.
    Unreported(usize, i64),
    LoseIndex,
}

fn op() -> impl Strategy<Value = Op> {
    let s = || 0..SESSIONS as u32;
    let lane = || prop_oneof![3 => Just(0usize), 1 => Just(1usize)];
    prop_oneof![
        16 => (s(), lane(), 0u8..3, 0i64..4, prop::bool::weighted(0.9))
            .prop_map(|(s, lane, priority, group, due)| Op::Insert(s, lane, priority, group, due)),
        20 => (s(), lane(), 1usize..4).prop_map(|(s, lane, want)| Op::Claim(s, lane, want)),
        1 => (s(), lane()).prop_map(|(s, lane)| Op::Refill(s, lane)),
        3 => s().prop_map(Op::Retries),
        30 => (s(), prop::bool::weighted(0.05)).prop_map(|(s, fails)| Op::Step(s, fails)),
        12 => (s(), 0usize..9, prop::bool::weighted(0.3)).prop_map(|(s, nth, fails)| Op::End(s, nth, fails)),
        2 => (s(), 0usize..9).prop_map(|(s, nth)| Op::Cancel(s, nth)),
        24 => (s(), any::<bool>()).prop_map(|(s, first)| Op::Commit(s, first)),
        4 => s().prop_map(Op::Abort),
        1 => s().prop_map(Op::Disconnect),
        3 => (0usize..9).prop_map(Op::Due),
        6 => (0i64..400).prop_map(Op::Time),
        2 => (lane(), 0i64..4, prop_oneof![Just(0i64), 1i64..600])
            .prop_map(|(lane, group, time)| Op::Throttle(lane, group, time)),
        1 => Just(Op::Invalidate),
        1 => (lane(), 1i64..4).prop_map(|(lane, group)| Op::Unreported(lane, group)),
        1 => Just(Op::Alter),
        1 => Just(Op::LoseIndex),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    let running = prop_oneof![2 => Just(0u32), 1 => 1u32..4];
    let group = prop_oneof![1 => Just(0u32), 2 => 1u32..3];
    let rate = || prop_oneof![2 => Just(0u32), 1 => 1u32..4];
    let (is_strict, is_fair) = (prop::bool::weighted(0.3), prop::bool::weighted(0.4));
    (running, group, is_strict, is_fair, rate(), rate()).prop_map(
        |(running, group, is_strict, is_fair, rate, group_rate)| Limits {
            running,
            group: if is_strict { 1 } else { group },
            is_strict,
            is_fair,
            rate,
            group_rate,
            period: 1_000,
            costs: 0,
        },
    )
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let starts = prop_oneof![Just(MANY_STARTS), 0usize..4];
    (1usize..6, 3usize..12, 0usize..9, 1usize..4, 4usize..20, starts, 0usize..9, 0usize..5).prop_map(
        |(ready, running, more, lanes, rates, starts, retrying, ahead)| Sizes {
            ready,
            running,
            groups: running + more,
            lanes,
            rates,
            starts,
            retrying,
            ahead,
            ..Sizes::default()
        },
    )
}

proptest! {
    #![proptest_config(crate::cases(1000))]

    #[test]
    fn limits_hold_and_no_job_is_forgotten(
        sizes in sizes(), limits in limits(), ops in prop::collection::vec(op(), crate::length(300)),
    ) {
        let mut world = World::new(sizes, limits);
        for op in ops {
            world.run(op);
        }
        world.drain();
    }
}

/// Asserts that the model finds each mistake. The seeds are those of random inputs that show the mistake within 15
/// cases. Other seeds need up to some thousands.
#[test]
#[cfg_attr(miri, ignore = "most mistakes lie deeper than miri gets")]
fn mistakes_about_retrying_groups_are_found() {
    use prop::test_runner::{RngAlgorithm, TestRng, TestRunner};
    let faults = [
        (Fault::AddsLate, 0),
        (Fault::RemovesAtTaking, 142),
        (Fault::ForgetsOwn, 11),
        (Fault::ReadsNothing, 0),
        (Fault::ReadsTooEarly, 108),
        (Fault::MissesUnreported, 10),
    ];
    let strict = limits().prop_map(|limits| Limits {
        group: 1,
        is_strict: true,
        is_fair: false,
        rate: 0,
        group_rate: 0,
        ..limits
    });
    let roomy = sizes().prop_map(|sizes| Sizes { retrying: 100, starts: MANY_STARTS, ..sizes });
    let input = (roomy, strict, prop::collection::vec(op(), 300));
    let found = faults.map(|(fault, seed)| {
        let config = ProptestConfig { max_shrink_iters: 0, ..crate::cases(30_000) };
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]));
        let found = runner.run(&input, |(sizes, limits, ops)| {
            let mut world = World { fault, ..World::new(sizes, limits) };
            ops.into_iter().for_each(|op| world.run(op));
            Ok(())
        });
        (fault, found.is_err())
    });
    assert!(found.iter().all(|(_, is_found)| *is_found), "{found:?}");
}

/// Inputs that random runs have found, each with the fault that it showed.
#[test]
#[rustfmt::skip]
fn faults_found_by_random_runs_stay_fixed() {
    use Op::*;
    let inputs: [(Sizes, Limits, Vec<Op>); 5] = [
        (
            Sizes { ready: 2, running: 4, groups: 4, lanes: 2, ..Sizes::default() },
            Limits { group: 1, is_strict: true, period: 1000, ..Limits::default() },
            vec![
                Insert(0, 0, 0, 0, false), Step(0, false), Insert(0, 1, 0, 1, true), Claim(3, 1, 1),
                Insert(0, 0, 0, 3, false), Claim(1, 1, 1), Claim(0, 0, 1), Insert(2, 0, 0, 2, true), Step(0, false),
                Commit(2, false), Step(0, false), Claim(2, 0, 1), Step(0, false), Refill(0, 0),
                Insert(0, 1, 0, 2, true), Insert(0, 0, 1, 0, false), Insert(1, 0, 0, 0, false), Step(3, false),
                Insert(0, 0, 0, 1, false), Insert(0, 0, 0, 0, false), Step(2, false), Commit(0, false),
                Step(3, false), Insert(0, 0, 0, 0, false), Step(3, false), Step(2, false), Step(1, false),
                Insert(0, 0, 0, 0, false), Step(2, false), Insert(2, 0, 0, 1, true), LoseIndex, Commit(2, false),
                Insert(0, 0, 0, 0, false), Claim(3, 0, 1), Insert(0, 0, 0, 0, false), Insert(2, 0, 1, 1, false),
                Insert(0, 0, 0, 0, false), Due(0), Invalidate, End(2, 0, false), Commit(2, false),
            ],
        ),
        (
            Sizes { ready: 1, running: 3, groups: 3, lanes: 2, ..Sizes::default() },
            Limits { group: 1, is_strict: true, period: 1000, ..Limits::default() },
            vec![
                Insert(0, 0, 0, 0, false), Step(0, false), Insert(2, 0, 0, 0, true), Step(0, false),
                Insert(2, 0, 0, 0, true), Claim(1, 0, 1), Commit(2, false), Insert(0, 0, 0, 0, false),
                Insert(2, 0, 2, 1, true), Insert(0, 0, 0, 0, false), Cancel(2, 1), Step(1, false), Step(1, false),
                Disconnect(0), Step(1, false), Commit(0, false), Insert(0, 0, 2, 2, false), Claim(3, 0, 1),
                Claim(1, 0, 1), Step(1, false), Step(1, false), Step(1, false), Insert(0, 0, 0, 1, true),
                Commit(0, false), Refill(1, 0), Claim(0, 0, 1), Refill(0, 0), Insert(0, 0, 0, 0, false),
                End(3, 0, false), Claim(0, 0, 1), Insert(2, 0, 0, 2, true), Step(0, false), Step(0, false),
                Insert(0, 0, 0, 0, false), Commit(3, false), Commit(2, false), End(0, 0, false), Due(0),
                Claim(0, 0, 1), Step(0, false), Step(0, false),
            ],
        ),
        (
            Sizes { ready: 4, running: 6, groups: 6, lanes: 1, ..Sizes::default() },
            Limits { group: 1, is_strict: true, period: 1000, ..Limits::default() },
            vec![
                Claim(2, 0, 1), Insert(0, 0, 1, 0, true), Insert(0, 0, 0, 0, true), Step(2, false), Step(2, false),
                Insert(1, 0, 0, 2, true), Step(2, false), Claim(3, 0, 1), Commit(1, false), Insert(1, 0, 0, 3, true),
                Insert(0, 0, 2, 1, false), Step(3, false), Cancel(0, 0), Insert(0, 0, 0, 3, true),
                Insert(0, 0, 0, 2, false), Insert(0, 0, 0, 2, true), Step(3, false), Commit(1, false), Step(3, false),
                Claim(2, 0, 1), Insert(0, 0, 1, 2, false), Commit(0, false), Insert(0, 0, 2, 1, false),
                Insert(0, 0, 1, 3, true), Insert(0, 0, 0, 2, true), Commit(0, false), Claim(0, 0, 1), Step(2, false),
                Step(2, false), Refill(0, 0), Refill(0, 0), Commit(0, false), Refill(0, 0), Claim(2, 0, 1),
                Commit(0, false), Refill(0, 0), Insert(2, 0, 0, 0, false), Claim(0, 0, 1), Step(2, false),
                Commit(0, false), Step(2, false), Insert(0, 0, 1, 0, false), Cancel(2, 8), Insert(2, 0, 0, 0, true),
                Commit(2, false), End(0, 6, false), End(0, 0, false), Insert(0, 0, 0, 2, false), Commit(0, false),
                Commit(0, false), Claim(0, 0, 1), End(3, 5, false), Claim(3, 0, 1), Claim(0, 0, 1),
                Insert(0, 0, 0, 0, false), End(2, 0, false), Insert(0, 0, 0, 0, false), Commit(2, false),
                Step(3, false), Step(3, false),
            ],
        ),
        (
            Sizes { ready: 2, running: 3, groups: 3, lanes: 2, ..Sizes::default() },
            Limits { group: 1, period: 1000, ..Limits::default() },
            vec![
                Insert(3, 0, 1, 2, true), Claim(1, 0, 1), Claim(0, 0, 1), Insert(2, 0, 0, 2, true), Step(1, false),
                Step(1, false), Step(1, false), Commit(3, false), Step(0, false), Abort(0), Insert(0, 0, 0, 0, false),
                Refill(3, 0), Commit(2, false), Insert(0, 0, 0, 0, false), Refill(0, 0), Claim(2, 0, 2),
                Step(2, false), Step(2, false), Refill(2, 0), Claim(1, 0, 1), Cancel(0, 1), Step(1, false),
                Invalidate, Abort(0), Step(1, false),
            ],
        ),
        // The gate was built anew during a refill. Entries of `ready` then came before attempts that groups had given
        // back.
        (
            Sizes { ready: 2, running: 3, groups: 3, lanes: 1, rates: 4, starts: MANY_STARTS, ..Sizes::default() },
            Limits { group: 1, period: 1000, ..Limits::default() },
            vec![
                Insert(2, 0, 1, 0, true), Insert(0, 0, 0, 0, false), Claim(1, 0, 1), Step(1, false),
                Insert(2, 0, 0, 0, false), Insert(2, 0, 0, 1, true), Insert(2, 0, 0, 2, true), Step(1, false),
                Insert(0, 0, 0, 0, false), Commit(2, false), Step(1, false), Claim(3, 0, 2), Claim(3, 0, 1),
                Claim(2, 0, 1), Step(3, false), Step(3, false), Step(3, false), Abort(3), Step(2, false), Alter,
                Claim(0, 0, 2),
            ],
        ),
    ];
    for (sizes, limits, ops) in inputs {
        let mut world = World::new(sizes, limits);
        ops.into_iter().for_each(|op| world.run(op));
        world.drain();
    }
}
