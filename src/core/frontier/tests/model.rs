//! Tests the promises of the frontier. A few sessions do random things, each cut wherever a real server may switch to
//! another session. The frontier and a naive model of the logs run side by side. After every step the model says
//! whether each promise still holds.
//!
//! 1. Coverage: an attempt that may be taken, and whose commit callback has run, is in `ready`, in `running`, or behind
//!    the lane's horizon, or the lane has no slot. If it is behind the horizon during a refill, it is behind a spill,
//!    or the refill has yet to read it or to hand it over.
//! 2. Nothing is handed out twice. A stale entry may be: its claim is in the log, so the session that takes it drops
//!    it.
//! 3. Order: nothing remains that ranks before what is handed out, except attempts that no callback has reported, while
//!    memory is invalidated again and again.
//! 4. Progress: a session that follows the answers soon gets a job, or a true reason why not. After `Empty` there is no
//!    job.
//! 5. No lost wake-up: if a session sleeps although there is a job, another session was woken and has not yet looked,
//!    or is refilling the lane. Sessions are woken in the order in which they came. If there is no place for the job,
//!    it is noted that a session sleeps for that, until one is woken.
//! 6. Deadlines: the next one is the earliest of the running attempts. An attempt that is taken or ending has none.
//! 7. Memory: `running` holds what it should and nothing else; indexes, free list and rings are intact.
//! 8. Shares: the counts of each lane and instance are exact, and no claim gets more than the share. The rest is for
//!    attempts that were claimed before the start, and those that are only ended.
//!
//! Below the model there is a named test for each fault that the model, or reading with it in mind, has found. Other
//! tests are for cases that are too rare by chance.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use proptest::prelude::*;

use super::memory::{self, Memory};
use crate::frontier::slot::{LaneSlot, RunningSlot};
use crate::frontier::*;
use crate::{id, share};

/// The sizes of everything in the model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub ready: usize,
    pub running: usize,
    pub lanes: usize,
    pub sessions: usize,
    pub places: usize,
    pub busy_lanes: usize,
}

impl Sizes {
    fn memory(self) -> Memory {
        let Self { ready, running, lanes, sessions, .. } = self;
        Memory::new(memory::Sizes { ready, running, lanes, sessions, ..memory::Sizes::default() })
    }
}

// ---- the model -----------------------------------------------------------------------------------

const PLACES: usize = 2;
const LANES: usize = 3;
/// The span after which leases end whose connection broke, in microseconds.
const SPAN: i64 = 1000;

/// A lane: the instance's number and the lane's.
type LaneKey = (u32, i32);

/// What a log says about one of an attempt's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    Absent,
    Open,
    Committed,
}

/// An attempt and what the logs say about it. The model numbers attempts by their places in its list.
#[derive(Debug)]
struct Attempt {
    lane: LaneKey,
    entry: Ready,
    row: Row,
    claim: Row,
    outcome: Row,
    /// True if its claim was inserted without the frontier. If that claim is rolled back, the frontier is invalidated.
    purged: bool,
    /// The step at which its row became visible.
    since: u64,
    /// True if the frontier knows of it, or was invalidated after it came.
    told: bool,
    /// True if the frontier was only invalidated, and no refill without an invalidation has ended since. The frontier
    /// may then skip the attempt.
    surprising: bool,
    /// True if its lane or instance was dropped.
    dropped: bool,
}

impl Attempt {
    fn is_visible(&self) -> bool {
        self.row == Row::Committed && !self.dropped
    }

    fn is_unclaimed(&self) -> bool {
        self.is_visible() && self.claim != Row::Committed
    }

    /// Notes that the frontier learns of the attempt.
    fn tell(&mut self) {
        self.told |= self.is_visible() && !self.purged;
    }

    /// Notes that the frontier is invalidated because of the attempt.
    fn surprise(&mut self) {
        self.surprising |= !self.told && self.is_visible() && !self.purged;
        self.tell();
    }

    /// Notes that the transaction that has taken the attempt rolls back.
    fn unclaim(&mut self) {
        if self.claim == Row::Open && !self.purged {
            self.claim = Row::Absent;
        }
    }
}

/// An entry that should be in `running`.
#[derive(Debug)]
struct Held {
    state: State,
    owner: u32,
    session: Option<u32>,
    deadline: i64,
    longest: i64,
    /// The span after which the lease ends when the connection ends. 0: immediately. `None`: the lease goes on.
    span: Option<i64>,
    /// True if its connection broke, so that its lease ends after the span.
    broken: bool,
    claimed: bool,
    cancel: bool,
    /// True if the entry was found in the log. The attempt may then be in `ready` as well.
    recovered: bool,
}

impl Held {
    fn taken(owner: u32) -> Self {
        Self {
            state: State::Taken,
            owner,
            session: Some(owner),
            deadline: 0,
            longest: 0,
            span: None,
            broken: false,
            claimed: false,
            cancel: false,
            recovered: false,
        }
    }

    fn awaits_cancel(&self) -> bool {
        self.state == State::Running && !self.claimed
    }
}

/// The work that remains after a commit or an abort has become visible. Each piece is one hold of the lock.
#[derive(Clone, Debug)]
enum Callback {
    Push(Vec<usize>),
    Claimed(usize),
    GiveBack(usize),
    Ended(usize),
    UndoEnd(usize),
    Invalidate(LaneKey, Vec<usize>),
}

/// A session that looks for jobs, or sleeps until a job comes.
#[derive(Debug)]
struct Look {
    instance: u32,
    lanes: Vec<i32>,
    at: usize,
    want: usize,
    asleep: Option<Sleep>,
}

/// What a sleeping session waits for: a job in any lane of the look, or only the end of a refill of its current lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    ForJobs,
    ForRefill,
}

/// A session that refills a lane.
#[derive(Debug)]
struct Refill {
    lane: LaneKey,
    /// The step at which the snapshot was taken. A row is judged at this step, or at the step at which it is read.
    snapshot: Option<u64>,
    judges_late: bool,
    /// The position to which it has read.
    after: (Rank, i64),
    /// Attempts that were read, were not claimed, and are not yet handed over.
    found: Vec<Ready>,
    over: bool,
    /// True if the frontier has forgotten the lane meanwhile.
    orphaned: bool,
}

#[derive(Debug)]
struct End {
    attempt: usize,
    retry: Option<usize>,
}

/// What an open transaction has done.
#[derive(Debug, Default)]
struct Transaction {
    born: Vec<usize>,
    taken: Vec<usize>,
    /// The taken attempts whose claim was already in the log. They are dropped.
    stale: Vec<usize>,
    ended: Vec<End>,
    purged: Vec<usize>,
}

impl Transaction {
    fn is_empty(&self) -> bool {
        self.born.is_empty() && self.taken.is_empty() && self.ended.is_empty() && self.purged.is_empty()
    }
}

/// A session: its transaction, and what it is doing.
#[derive(Debug, Default)]
struct Client {
    place: usize,
    open: Transaction,
    callbacks: Vec<Callback>,
    look: Option<Look>,
    refill: Option<Refill>,
}

/// One step. Each number is taken modulo the number of choices.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// This session acts.
    By(u8, Act),
    /// Something happens to this database.
    At(u8, Event),
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// Continues what the session is doing, in one of several ways.
    Step(u8),
    /// Inserts a job: lane and priority.
    Insert(u8, u8),
    /// Looks for jobs: lanes, and the number of jobs wanted.
    Look(u8, u8),
    /// Looks, and follows the answers while no other session runs, until it gets a job or a reason why not.
    Settle(u8, u8),
    /// Refills a lane.
    Refill(u8),
    /// Ends a look or a refill in the middle, as an error or a cancel does.
    Quit,
    /// Ends a running attempt. Its retry, if there is one, has this priority.
    End(u8, Option<u8>),
    /// Takes a waiting attempt, and gives the job this priority. `None`: only takes it.
    TakeOne(u8, Option<u8>),
    /// Purges a lane.
    Purge(u8),
    /// Rolls back to a savepoint before the last end.
    UndoEnd,
    /// Rolls back to a savepoint before the last take.
    UndoTake,
    /// Commits. The number gives the order of the callbacks.
    Commit(u8),
    Abort,
    /// Disconnects. The next connection is to this place, and this connection may break.
    Disconnect(u8, bool),
    /// Extends an attempt to this lease.
    Extend(u8, u8),
    Expire,
    /// Requests to cancel an attempt.
    RequestCancel(u8),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Pauses a lane.
    Pause(u8),
    /// Resumes a lane.
    Resume(u8),
    /// Inserts a row that no callback reports: lane and priority.
    ForeignInsert(u8, u8),
    /// Claims an attempt without a callback that reports it.
    ForeignClaim(u8),
    /// Invalidates the frontier. With `true`, it also forgets the entries of `ready`.
    Invalidate(bool),
    /// Recovers a claimed attempt.
    Recover(u8),
    /// Drops a lane.
    DropLane(u8),
    DropInstance,
    Crash,
}

struct World {
    sizes: Sizes,
    memory: Memory,
    roots: [DeadlineRoot; PLACES],
    step: u64,
    now: i64,
    instances: [u32; PLACES],
    lanes: [[i32; LANES]; PLACES],
    counts: [i64; PLACES],
    paused: BTreeSet<LaneKey>,
    log: Vec<Attempt>,
    by_id: HashMap<(u32, i64), usize>,
    held: BTreeMap<usize, Held>,
    clients: Vec<Client>,
    /// The sessions that sleep for a lane, in the order in which they came.
    sleepers: BTreeMap<LaneKey, VecDeque<u32>>,
    woken: Vec<bool>,
    for_refill: Vec<bool>,
    /// The number of refills since a session last got a job.
    vain_refills: usize,
}

impl World {
    pub fn new(sizes: Sizes) -> Self {
        let clients = (0..sizes.sessions).map(|n| Client { place: n % sizes.places, ..Client::default() });
        Self {
            sizes,
            memory: sizes.memory(),
            roots: [None; PLACES],
            step: 0,
            now: 1,
            instances: [1, 2],
            lanes: [[1, 2, 3]; PLACES],
            counts: [0; PLACES],
            paused: BTreeSet::new(),
            log: Vec::new(),
            by_id: HashMap::new(),
            held: BTreeMap::new(),
            clients: clients.collect(),
            sleepers: BTreeMap::new(),
            woken: vec![false; sizes.sessions],
            for_refill: vec![false; sizes.sessions],
            vain_refills: 0,
        }
    }

    // ---- what the model expects

    fn client(&mut self, s: u32) -> &mut Client {
        &mut self.clients[s as usize]
    }

    fn place(&self, s: u32) -> usize {
        self.clients[s as usize].place
    }

    fn lane(&self, place: usize, lane: u8) -> LaneKey {
        (self.instances[place], self.lanes[place][self.nth_lane(lane)])
    }

    fn nth_lane(&self, lane: u8) -> usize {
        lane as usize % self.sizes.busy_lanes
    }

    fn is_alive(&self, lane: LaneKey) -> bool {
        (0..PLACES).any(|p| self.instances[p] == lane.0 && self.lanes[p].contains(&lane.1))
    }

    fn attempts(&self, place: usize) -> Vec<usize> {
        (0..self.log.len())
            .filter(|&a| self.log[a].lane.0 == self.instances[place] && self.log[a].is_visible())
            .collect()
    }

    fn held_of(&self, place: usize) -> Vec<usize> {
        self.held.keys().copied().filter(|&a| self.log[a].lane.0 == self.instances[place]).collect()
    }

    /// Returns the jobs that a claim from this lane must find, in order.
    fn jobs(&self, lane: LaneKey) -> Vec<(Rank, usize)> {
        let is_job =
            |(a, it): &(usize, &Attempt)| it.lane == lane && it.told && it.is_unclaimed() && !self.held.contains_key(a);
        let mut jobs: Vec<_> = self.log.iter().enumerate().filter(is_job).map(|(a, it)| (it.entry.rank, a)).collect();
        jobs.sort_unstable();
        jobs
    }

    fn refiller(&self, lane: LaneKey) -> Option<(u32, &Refill)> {
        self.clients.iter().enumerate().find_map(|(s, client)| {
            let refill = client.refill.as_ref().filter(|r| r.lane == lane && !r.orphaned)?;
            Some((s as u32, refill))
        })
    }

    fn has_sleepers(&self, lane: LaneKey) -> bool {
        self.sleepers.get(&lane).is_some_and(|q| !q.is_empty())
    }

    fn slot(&mut self, lane: LaneKey) -> Option<Lane> {
        let slot = self.memory.frontier().backlog.lanes.find(lane.0, lane.1)?;
        Some(self.memory.lanes[slot.at()])
    }

    /// Returns how many more attempts of this lane may be claimed.
    fn places_of(&self, lane: LaneKey) -> usize {
        let of_instance = self.held.keys().filter(|&&a| self.log[a].lane.0 == lane.0).count();
        let of_lane = self.held.keys().filter(|&&a| self.log[a].lane == lane).count();
        places(self.sizes.running, self.held.len(), of_instance, of_lane)
    }

    /// Returns how many slots session `s` may not take because other sessions use them. Its own `lanes` do not count.
    fn pinned_by_others(&self, s: u32, lanes: &[LaneKey]) -> usize {
        let mut pinned: BTreeSet<LaneKey> =
            self.clients.iter().filter_map(|c| c.refill.as_ref()).filter(|r| !r.orphaned).map(|r| r.lane).collect();
        pinned.extend(self.sleepers.iter().filter(|(_, q)| q.iter().any(|&other| other != s)).map(|(lane, _)| *lane));
        pinned.iter().filter(|lane| !lanes.contains(lane)).count()
    }

    /// True if sessions wait for so many lanes of an instance that one more is refused, now or once sessions also wait
    /// for all of `lanes` but one.
    fn waits_for_enough(&self, instance: u32, lanes: &[LaneKey]) -> bool {
        let waited = self.sleepers.iter().filter(|(_, queue)| !queue.is_empty()).map(|(lane, _)| *lane);
        let waited: BTreeSet<LaneKey> = waited.chain(lanes[..lanes.len() - 1].iter().copied()).collect();
        let own = waited.iter().filter(|lane| lane.0 == instance).count();
        own >= share::ALPHA as usize * self.sizes.lanes.saturating_sub(waited.len())
    }

    // ---- sleeping and waking

    fn get_up(&mut self, s: u32) {
        self.sleepers.values_mut().for_each(|queue| queue.retain(|&other| other != s));
    }

    fn first_sleeper(&self, lane: LaneKey) -> Option<u32> {
        self.sleepers.get(&lane)?.front().copied()
    }

    /// Notes that the frontier has woken this session.
    fn woken(&mut self, s: u32) {
        assert!(self.sleepers.values().any(|queue| queue.contains(&s)), "{s} was woken and did not sleep");
        self.get_up(s);
        self.woken[s as usize] = true;
    }

    /// Notes a session that the frontier has woken. Asserts that it is the first sleeper of some lane.
    fn woken_first(&mut self, s: Option<u32>) {
        if let Some(s) = s {
            assert!(self.sleepers.values().any(|queue| queue.front() == Some(&s)), "{s} was woken out of turn");
            self.woken(s);
        }
    }

    fn wake_all(&mut self, lane: LaneKey) {
        while let Some(expected) = self.first_sleeper(lane) {
            assert_eq!(self.memory.frontier().wake_any(lane.0, lane.1), Some(expected));
            self.woken(expected);
        }
        assert_eq!(self.memory.frontier().wake_any(lane.0, lane.1), None);
    }

    fn wake_instance(&mut self, instance: u32) {
        while let Some(s) = self.memory.frontier().wake_any_lane(instance) {
            self.woken_first(Some(s));
        }
        assert!(self.sleepers.iter().all(|(lane, queue)| lane.0 != instance || queue.is_empty()));
    }

    /// Returns the session that a push of this attempt must wake.
    fn expects_push(&mut self, a: usize) -> Option<u32> {
        let lane = self.log[a].lane;
        let is_held = self.held.contains_key(&a);
        if is_held || self.paused.contains(&lane) || self.places_of(lane) == 0 {
            None
        } else {
            self.first_sleeper(lane)
        }
    }

    fn pass_on(&mut self, lane: LaneKey) {
        let next = self.memory.frontier().pass_on(lane.0, lane.1);
        assert!(next.is_none() || next == self.first_sleeper(lane));
        self.woken_first(next);
    }

    /// Takes the session out of the lists. If it was woken, the frontier wakes another session instead.
    fn stop_waiting(&mut self, s: u32) {
        self.get_up(s);
        let next = self.memory.frontier().stop_waiting(s);
        self.woken[s as usize] = false;
        self.woken_first(next);
        assert!(!self.memory.frontier().sessions.is_woken(s));
    }

    /// Ends a look: the session wants no more jobs, or an error or a time-out ends it.
    fn leave(&mut self, s: u32) {
        self.stop_waiting(s);
        self.client(s).look = None;
    }

    // ---- transactions

    fn append(&mut self, place: usize, lane: LaneKey, priority: i32, job: Option<i64>, row: Row) -> usize {
        self.counts[place] += 1;
        let count = self.counts[place];
        let segment = (count % 10) as u8;
        let job_id = job.unwrap_or(id::job(0, count));
        let id = id::attempt(0, count, segment);
        let a = self.log.len();
        self.log.push(Attempt {
            lane,
            entry: Ready {
                rank: Rank { priority, job_id },
                id,
                place: Place { block: a as u32, offset: 1, segment, is_indexed: false },
                group: 0,
            },
            row,
            claim: Row::Absent,
            outcome: Row::Absent,
            purged: false,
            since: self.step,
            told: false,
            surprising: false,
            dropped: false,
        });
        self.by_id.insert((lane.0, id), a);
        a
    }

    /// Claims an attempt that was taken. If its claim is already in the log, drops it.
    fn insert_claims(&mut self, s: u32) {
        self.drop_stale(s);
        self.probe(s);
        self.drop_stale(s);
    }

    fn probe(&mut self, s: u32) {
        for a in self.client(s).open.taken.clone() {
            let it = &mut self.log[a];
            match it.claim {
                Row::Absent => it.claim = Row::Open,
                Row::Open if !it.purged => assert_eq!(self.held[&a].owner, s),
                _ => self.client(s).open.stale.push(a),
            }
        }
    }

    fn drop_stale(&mut self, s: u32) {
        let place = self.place(s);
        for a in std::mem::take(&mut self.client(s).open.stale) {
            let (lane, id) = (self.log[a].lane, self.log[a].entry.id);
            let wanted_again = self.memory.frontier().entry(lane.0, id).unwrap().push_held != 0;
            self.held.remove(&a);
            self.client(s).open.taken.retain(|&other| other != a);
            let expected = if wanted_again { self.expects_push(a) } else { None };
            let woken = self.memory.frontier().discard_stale(&mut self.roots[place], lane.0, id);
            // Otherwise the frontier may wake any session that had no place.
            assert!(expected.is_none() || woken == expected);
            self.woken_first(woken);
        }
    }

    fn end(&mut self, s: u32, a: usize, retry: Option<i32>) {
        let place = self.place(s);
        let (lane, entry) = (self.log[a].lane, self.log[a].entry);
        let held = self.held.get(&a);
        let is_mine = held.is_some_and(|h| match h.state {
            State::Running => h.claimed,
            State::Taken => h.owner == s,
            _ => false,
        });
        let is_inserted = self.log[a].claim == Row::Open && !self.log[a].purged;
        if is_mine && held.is_some_and(|h| h.state == State::Taken) && !is_inserted {
            return;
        }
        let knows = held.is_some_and(|h| !h.awaits_cancel());
        match self.memory.frontier().running.end(&mut self.roots[place], lane.0, entry.id, s, i64::MAX, |_| true) {
            Hold::Yours(_) => assert!(is_mine),
            Hold::Taken(_) | Hold::Busy(_) | Hold::Mine => return assert!(knows && !is_mine),
            Hold::Unknown => return assert!(!knows),
            Hold::Denied(_) | Hold::Later => unreachable!("every session may end every attempt"),
        }
        let held = self.held.get_mut(&a).unwrap();
        (held.state, held.owner) = (State::Ending, s);
        self.log[a].outcome = Row::Open;
        let retry = retry.map(|priority| self.append(place, lane, priority, Some(entry.rank.job_id), Row::Open));
        self.client(s).open.born.extend(retry);
        self.client(s).open.ended.push(End { attempt: a, retry });
    }

    /// Takes one given attempt. False if it is not available or proves claimed.
    fn take_one(&mut self, s: u32, a: usize) -> bool {
        let place = self.place(s);
        let (lane, entry) = (self.log[a].lane, self.log[a].entry);
        let expected = match self.held.get(&a) {
            Some(held) if held.awaits_cancel() => TakeOne::Taken,
            Some(_) => TakeOne::Busy,
            None if self.held.len() == self.sizes.running => TakeOne::Full,
            None => TakeOne::Taken,
        };
        let owner = Owner { session: s, pid: 0 };
        let took = self.memory.frontier().take_one(&mut self.roots[place], lane.0, lane.1, owner, entry, true);
        assert_eq!(took, expected);
        if took != TakeOne::Taken {
            return false;
        }
        match self.held.get_mut(&a) {
            Some(held) => (held.state, held.owner, held.session) = (State::Taken, s, Some(s)),
            None => drop(self.held.insert(a, Held::taken(s))),
        }
        self.client(s).open.taken.push(a);
        self.insert_claims(s);
        self.held.contains_key(&a)
    }

    fn extend(&mut self, place: usize, a: usize, lease: i64) {
        let (lane, id, deadline) = (self.log[a].lane, self.log[a].entry.id, self.now + lease);
        let held = self.held.get_mut(&a).filter(|held| !held.awaits_cancel() && held.state != State::Ending);
        let extended = self.memory.frontier().running.extend(&mut self.roots[place], lane.0, id, lease, deadline);
        assert_eq!(extended.map(|entry| entry.deadline), held.is_some().then_some(deadline));
        if let Some(held) = held {
            (held.deadline, held.longest) = (deadline, held.longest.max(lease));
            if std::mem::take(&mut held.broken) {
                held.span = None;
            }
        }
    }

    fn request_cancel(&mut self, place: usize, a: usize) {
        let (lane, entry) = (self.log[a].lane, self.log[a].entry);
        let is_known = self.memory.frontier().running.request_cancel(lane.0, entry.id);
        assert_eq!(is_known, self.held.contains_key(&a));
        if let Some(held) = self.held.get_mut(&a) {
            held.cancel = true;
            return;
        }
        let fits = self.held.len() < self.sizes.running;
        assert_eq!(self.memory.frontier().expire_now(&mut self.roots[place], lane.0, lane.1, entry), fits);
        if fits {
            let expired =
                Held { state: State::Running, session: None, deadline: i64::MIN, cancel: true, ..Held::taken(0) };
            self.held.insert(a, expired);
        }
    }

    fn undo_end(&mut self, s: u32) {
        let place = self.place(s);
        let Some(End { attempt: a, retry }) = self.client(s).open.ended.pop() else { return };
        if let Some(retry) = retry {
            self.log[retry].row = Row::Absent;
            self.client(s).open.born.retain(|&other| other != retry);
        }
        self.log[a].outcome = Row::Absent;
        self.memory.frontier().running.undo_end(&mut self.roots[place], self.log[a].lane.0, self.log[a].entry.id);
        let held = self.held.get_mut(&a).unwrap();
        held.state = if held.claimed { State::Running } else { State::Taken };
    }

    fn undo_take(&mut self, s: u32) {
        let Some(a) = self.client(s).open.taken.pop() else { return };
        self.client(s).open.stale.retain(|&other| other != a);
        // The savepoint before the take is also before later ends of the attempt, so these are undone first.
        while self.client(s).open.ended.iter().any(|end| end.attempt == a) {
            self.undo_end(s);
        }
        self.log[a].unclaim();
        self.call_back(s, Callback::GiveBack(a));
    }

    fn purge(&mut self, s: u32, lane: LaneKey) {
        for a in 0..self.log.len() {
            let it = &mut self.log[a];
            if it.lane == lane && it.is_visible() && it.claim == Row::Absent && !self.held.contains_key(&a) {
                (it.claim, it.outcome, it.purged, it.told) = (Row::Open, Row::Open, true, false);
                self.client(s).open.purged.push(a);
            }
        }
    }

    fn commit(&mut self, s: u32, shuffle: u8) {
        self.insert_claims(s);
        let Transaction { born, taken, ended, purged, .. } = std::mem::take(&mut self.client(s).open);
        for &a in &born {
            (self.log[a].row, self.log[a].since) = (Row::Committed, self.step);
        }
        taken.iter().chain(&purged).for_each(|&a| self.log[a].claim = Row::Committed);
        ended.iter().map(|end| &end.attempt).chain(&purged).for_each(|&a| self.log[a].outcome = Row::Committed);
        // Claims come before ends. Pushes, one by one or together, come before, between or after them.
        let pushes = born.chunks(if shuffle.is_multiple_of(2) { 1 } else { born.len().max(1) });
        let mut parts = vec![
            taken.into_iter().map(Callback::Claimed).collect::<Vec<_>>(),
            ended.into_iter().map(|end| Callback::Ended(end.attempt)).collect(),
        ];
        parts.insert(shuffle as usize % 3, pushes.map(|chunk| Callback::Push(chunk.to_vec())).collect());
        self.client(s).callbacks = parts.concat();
    }

    fn abort(&mut self, s: u32) {
        let Transaction { born, taken, ended, purged, .. } = std::mem::take(&mut self.client(s).open);
        born.iter().for_each(|&a| self.log[a].row = Row::Absent);
        taken.iter().for_each(|&a| self.log[a].unclaim());
        ended.iter().for_each(|end| self.log[end.attempt].outcome = Row::Absent);
        for &a in &purged {
            let it = &mut self.log[a];
            (it.claim, it.outcome, it.purged) = (Row::Absent, Row::Absent, false);
        }
        // The last step is undone first.
        let undo_end = ended.iter().rev().map(|end| Callback::UndoEnd(end.attempt));
        let give_back = taken.iter().rev().map(|&a| Callback::GiveBack(a));
        let of_one_lane = purged.chunk_by(|&a, &b| self.log[a].lane == self.log[b].lane);
        let invalidate = of_one_lane.map(|chunk| Callback::Invalidate(self.log[chunk[0]].lane, chunk.to_vec()));
        self.client(s).callbacks = undo_end.chain(give_back).chain(invalidate).collect();
    }

    /// Makes several pushes in one hold of the lock. They wake one sleeper of each lane, which wakes the next.
    fn push(&mut self, attempts: &[usize]) {
        let mut awake = BTreeSet::new();
        for &a in attempts {
            self.log[a].tell();
            let (lane, entry) = (self.log[a].lane, self.log[a].entry);
            if awake.contains(&lane) {
                self.memory.frontier().push_quietly(lane.0, lane.1, entry);
                continue;
            }
            let expected = self.expects_push(a);
            let mut frontier = self.memory.frontier();
            let unwanted = !frontier.wants(lane.0, lane.1, entry);
            let kept = |frontier: &Frontier<'_>| {
                let lanes = &frontier.backlog.lanes;
                lanes.slots().map(|slot| (lanes[slot].len, lanes[slot].position, lanes[slot].spill)).collect::<Vec<_>>()
            };
            let before = kept(&frontier);
            assert_eq!(frontier.push(lane.0, lane.1, entry), expected);
            assert!(!unwanted || kept(&frontier) == before, "what is not wanted is not kept");
            self.woken_first(expected);
            awake.extend(expected.map(|_| lane));
        }
    }

    fn call_back(&mut self, s: u32, callback: Callback) {
        let place = self.place(s);
        let a = match callback {
            Callback::Push(attempts) => return self.push(&attempts),
            Callback::Invalidate(lane, attempts) => {
                self.memory.frontier().invalidate(lane.0);
                attempts.into_iter().for_each(|a| self.log[a].surprise());
                return self.pass_on(lane);
            }
            Callback::Claimed(a) | Callback::GiveBack(a) | Callback::Ended(a) | Callback::UndoEnd(a) => a,
        };
        let (lane, id) = (self.log[a].lane, self.log[a].entry.id);
        let root = &mut self.roots[place];
        match callback {
            Callback::Push(_) | Callback::Invalidate(..) => unreachable!(),
            Callback::Claimed(_) => {
                let span = [None, Some(0), Some(SPAN)][a % 3];
                let deadline = self.now + span.unwrap_or(0) + 5 + a as i64 % 7;
                let disconnect = span.map(Disconnect::after).unwrap_or_default();
                self.memory.frontier().claimed(root, lane.0, id, 5, deadline, disconnect);
                let held = self.held.get_mut(&a).unwrap();
                (held.claimed, held.span) = (true, span);
                (held.deadline, held.longest) = (held.deadline.max(deadline), held.longest.max(5));
                if held.state == State::Taken {
                    held.state = State::Running;
                }
            }
            Callback::GiveBack(_) => {
                let held = self.held.get_mut(&a).unwrap();
                let expected = if held.cancel {
                    (held.state, held.deadline) = (State::Running, i64::MIN);
                    None
                } else {
                    self.held.remove(&a);
                    // The session that took the attempt has seen it, so the frontier now knows of it.
                    self.log[a].tell();
                    self.expects_push(a)
                };
                let root = &mut self.roots[place];
                let woken = self.memory.frontier().give_back(root, lane.0, id, 0);
                assert!(expected.is_none() || woken == expected);
                self.woken_first(woken);
            }
            Callback::Ended(_) => {
                let woken = self.memory.frontier().ended(root, lane.0, id).and_then(|(_, woken)| woken);
                self.held.remove(&a).unwrap();
                self.woken_first(woken);
            }
            Callback::UndoEnd(_) => {
                self.memory.frontier().running.undo_end(root, lane.0, id);
                let held = self.held.get_mut(&a).unwrap();
                held.state = if held.claimed { State::Running } else { State::Taken };
            }
        }
    }

    // ---- looking for jobs

    fn take(&mut self, s: u32, lane: LaneKey, want: usize) -> Take {
        let jobs = self.jobs(lane);
        let had_slot = self.slot(lane).is_some();
        let places = self.places_of(lane);
        let mut out = vec![Ready::default(); want];
        let answer = self.memory.frontier().take(lane.0, lane.1, s, 0, None, &mut out);
        let flag = self.refiller(lane).is_some();
        match answer {
            Take::Some { taken, .. } => out.truncate(taken),
            _ => out.clear(),
        }
        assert!(out.is_sorted_by(|one, two| one.rank < two.rank), "out of order");
        assert!(out.len() <= places, "more than its share");
        for entry in &out {
            let a = self.by_id[&(lane.0, entry.id)];
            assert_eq!((self.log[a].lane, self.log[a].entry), (lane, *entry));
            assert!(self.held.insert(a, Held::taken(s)).is_none(), "handed out twice");
            self.client(s).open.taken.push(a);
        }
        let is_before = |job: &&(Rank, usize)| out.last().is_some_and(|last| job.0 <= last.rank);
        for (rank, a) in jobs.iter().filter(is_before).filter(|job| !self.log[job.1].surprising) {
            assert!(out.iter().any(|entry| entry.id == self.log[*a].entry.id), "{rank:?} was passed over");
        }
        match answer {
            Take::Some { taken, .. } => assert!(taken > 0),
            Take::Empty => assert!(jobs.is_empty() && !flag, "there are jobs: {jobs:?}"),
            Take::Refill => assert!(!flag),
            Take::Refilling => assert!(flag),
            Take::NoPlace => assert_eq!(self.places_of(lane), 0),
            Take::Closed | Take::NoGate | Take::Turn(_) | Take::Index | Take::Full => {
                panic!("no queue is limited here")
            }
            Take::NoLane => assert!(!had_slot && self.pinned_by_others(u32::MAX, &[]) == self.sizes.lanes),
        }
        answer
    }

    fn look(&mut self, s: u32, lanes: u8, want: u8) {
        let place = self.place(s);
        let mut wanted = self.lanes[place][..self.sizes.busy_lanes].to_vec();
        wanted.rotate_left(self.nth_lane(lanes));
        wanted.truncate(1 + lanes as usize / 6 % 3);
        let (instance, want) = (self.instances[place], 1 + want as usize % 3);
        self.client(s).look = Some(Look { instance, lanes: wanted, at: 0, want, asleep: None });
    }

    fn step_look(&mut self, s: u32, how: u8) {
        let Some(mut look) = self.client(s).look.take() else { return };
        let instance = look.instance;
        look.lanes.retain(|&lane| self.is_alive((instance, lane)));
        if let Some(sleep) = look.asleep {
            // A latch is set for other reasons too, so sometimes a sleeper looks without having been woken.
            if !self.woken[s as usize] && !how.is_multiple_of(8) {
                self.client(s).look = Some(look);
                return;
            }
            look.asleep = None;
            match sleep {
                Sleep::ForJobs => look.at = 0,
                Sleep::ForRefill => self.stop_waiting(s),
            }
        }
        if look.lanes.is_empty() {
            return self.leave(s);
        }
        if let Some(&lane) = look.lanes.get(look.at) {
            let key = (instance, lane);
            if self.paused.contains(&key) {
                look.at += 1;
            } else {
                match self.take(s, key, look.want) {
                    Take::Some { refill, .. } => {
                        self.vain_refills = 0;
                        self.leave(s);
                        if refill && how.is_multiple_of(2) {
                            self.begin_refill(s, key, how);
                        }
                        return;
                    }
                    Take::Refill => {
                        self.begin_refill(s, key, how);
                        self.vain_refills += 1;
                    }
                    Take::Refilling if how.is_multiple_of(2) => {
                        // The session looks at its other lanes later, so other sessions may look there first.
                        self.stop_waiting(s);
                        if self.wait(s, instance, &[lane]) == Wait::Sleep {
                            look.asleep = Some(Sleep::ForRefill);
                        }
                    }
                    Take::Refilling | Take::Empty | Take::NoPlace => look.at += 1,
                    _ => return self.leave(s),
                }
            }
        } else if !self.client(s).open.is_empty() {
            // A session with an open transaction does not sleep.
            return self.leave(s);
        } else {
            self.stop_waiting(s);
            match self.wait(s, instance, &look.lanes) {
                Wait::Sleep => look.asleep = Some(Sleep::ForJobs),
                Wait::Look => look.at = 0,
                Wait::NoLane => return self.leave(s),
            }
        }
        self.client(s).look = Some(look);
    }

    fn wait(&mut self, s: u32, instance: u32, lanes: &[i32]) -> Wait {
        let keys: Vec<LaneKey> = lanes.iter().map(|&lane| (instance, lane)).collect();
        let wanted: Vec<_> = keys.iter().map(|key| (key.1, self.paused.contains(key))).collect();
        let answer = self.memory.frontier().wait(s, instance, &wanted, 0);
        self.get_up(s);
        match answer {
            Wait::Sleep => {
                for &key in &keys {
                    let horizon = self.slot(key).unwrap().horizon();
                    let first = self.jobs(key).first().copied().filter(|job| job.0 <= horizon);
                    let first = first.filter(|_| self.places_of(key) > 0);
                    assert!(first.is_none() || self.paused.contains(&key), "it may sleep beside {first:?}");
                    self.sleepers.entry(key).or_default().push_back(s);
                }
                self.woken[s as usize] = false;
                let is_open = |key| !self.paused.contains(key) && self.places_of(*key) > 0;
                let is_refilled = |key| is_open(key) && self.refiller(*key).is_some();
                self.for_refill[s as usize] = keys.iter().any(is_refilled);
            }
            Wait::Look => {}
            Wait::NoLane => {
                let is_full = self.pinned_by_others(s, &keys) + keys.len() > self.sizes.lanes;
                assert!(is_full || self.waits_for_enough(instance, &keys));
            }
        }
        answer
    }

    fn go_on(&mut self, s: u32, how: u8) {
        if self.client(s).refill.is_some() {
            self.step_refill(s, how);
        } else {
            self.step_look(s, how);
        }
    }

    fn settle(&mut self, s: u32) {
        let most = 2 * LANES + self.held.values().filter(|held| held.recovered).count();
        self.vain_refills = 0;
        for round in 0..5_000 {
            let client = self.client(s);
            let is_done = client.refill.is_none() && client.look.is_none();
            if is_done || (self.client(s).refill.is_none() && self.is_asleep(s)) {
                return;
            }
            self.go_on(s, round as u8);
            assert!(self.vain_refills <= most, "refills for ever");
            self.check();
        }
        panic!("looks for ever");
    }

    // ---- refilling

    fn begin_refill(&mut self, s: u32, lane: LaneKey, how: u8) {
        let was_free = self.refiller(lane).is_none();
        let from = self.memory.frontier().refill_begin(lane.0, lane.1, s);
        let Some(from) = from else { return };
        assert!(was_free, "two refill one lane");
        self.client(s).refill = Some(Refill {
            lane,
            snapshot: None,
            judges_late: how.is_multiple_of(2),
            after: (from, i64::MAX),
            found: Vec::new(),
            over: false,
            orphaned: false,
        });
    }

    /// True if the reader has yet to read this row.
    fn will_read(&self, refill: &Refill, a: usize) -> bool {
        let it = &self.log[a];
        let is_seen = refill.judges_late || refill.snapshot.is_none_or(|taken| it.since <= taken);
        !refill.over
            && it.lane == refill.lane
            && it.is_visible()
            && is_seen
            && (it.entry.rank, it.entry.id) > refill.after
    }

    fn step_refill(&mut self, s: u32, how: u8) {
        let Some(mut refill) = self.client(s).refill.take() else { return };
        if refill.over {
            self.client(s).refill = Some(refill);
            return self.end_refill(s);
        }
        if refill.snapshot.is_none() {
            refill.snapshot = Some(self.step);
        } else {
            let unread = (0..self.log.len()).filter(|&a| self.will_read(&refill, a));
            let next = unread.min_by_key(|&a| (self.log[a].entry.rank, self.log[a].entry.id));
            match next {
                Some(a) if !how.is_multiple_of(3) => {
                    let it = &self.log[a];
                    refill.after = (it.entry.rank, it.entry.id);
                    if it.claim != Row::Committed {
                        refill.found.push(it.entry);
                    }
                }
                _ => {
                    let read_to = next.map_or(Rank::MAX, |a| self.log[a].entry.rank.before());
                    let mut found = std::mem::take(&mut refill.found);
                    let goes_on =
                        self.memory.frontier().refill_push(refill.lane.0, refill.lane.1, s, &mut found, read_to);
                    assert!(!(goes_on && refill.orphaned));
                    refill.over = !goes_on || next.is_none();
                }
            }
        }
        self.client(s).refill = Some(refill);
    }

    /// Ends a refill, in whatever state it is.
    fn end_refill(&mut self, s: u32) {
        let Some(refill) = self.client(s).refill.take() else { return };
        let lane = refill.lane;
        let is_invalidated = self.slot(lane).is_none_or(|slot| slot.invalidated != 0);
        assert_eq!(self.memory.frontier().refill_end(lane.0, lane.1, s), !refill.orphaned);
        if !is_invalidated && !refill.orphaned {
            self.log.iter_mut().filter(|it| it.lane == lane).for_each(|it| it.surprising = false);
        }
        self.wake_after_refill(lane);
    }

    fn wake_after_refill(&mut self, lane: LaneKey) {
        while let Some(s) = self.memory.frontier().refill_wake(lane.0, lane.1) {
            let waits_for_it = |other: &&u32| self.for_refill[**other as usize];
            assert_eq!(self.sleepers[&lane].iter().find(waits_for_it), Some(&s));
            self.woken(s);
        }
        self.pass_on(lane);
    }

    // ---- steps

    fn run(&mut self, op: Op) {
        self.step += 1;
        self.now += 1;
        match op {
            Op::By(by, act) => {
                let may_sleep = matches!(act, Act::Step(..) | Act::Quit | Act::Disconnect(..));
                let sessions = (0..self.sizes.sessions as u32).filter(|&s| may_sleep || !self.is_asleep(s));
                if let Some(s) = pick(sessions.collect(), by) {
                    self.act(s, act);
                }
            }
            Op::At(place, event) => self.befall(place as usize % self.sizes.places, event),
        }
    }

    fn is_asleep(&self, s: u32) -> bool {
        let look = self.clients[s as usize].look.as_ref();
        !self.woken[s as usize] && look.is_some_and(|look| look.asleep.is_some())
    }

    fn act(&mut self, s: u32, act: Act) {
        let client = self.client(s);
        let place = client.place;
        let is_busy = client.look.is_some() || client.refill.is_some();
        if !client.callbacks.is_empty() && !matches!(act, Act::Disconnect(..)) {
            let callback = self.client(s).callbacks.remove(0);
            return self.call_back(s, callback);
        }
        match act {
            Act::Disconnect(place, broken) => self.disconnect(s, place as usize % self.sizes.places, broken),
            Act::Quit => self.quit(s),
            Act::Abort => {
                self.quit(s);
                self.abort(s);
            }
            Act::Settle(..) if is_busy => self.settle(s),
            Act::Step(how) if is_busy => self.go_on(s, how),
            _ if is_busy => self.go_on(s, self.step as u8),
            Act::Step(..) if self.client(s).open.stale.is_empty() => self.probe(s),
            Act::Step(..) => self.drop_stale(s),
            Act::Insert(lane, priority) => {
                let a = self.append(place, self.lane(place, lane), i32::from(priority % 3), None, Row::Open);
                self.client(s).open.born.push(a);
            }
            Act::Look(lanes, want) => self.look(s, lanes, want),
            Act::Settle(lanes, want) => {
                self.look(s, lanes, want);
                self.settle(s);
            }
            Act::Refill(lane) => self.begin_refill(s, self.lane(place, lane), lane),
            Act::End(nth, retry) => {
                let Some(a) = pick(self.held_of(place), nth) else { return };
                let same = self.log[a].entry.rank.priority;
                self.end(s, a, retry.map(|r| if r.is_multiple_of(2) { same } else { i32::from(r % 3) }));
            }
            Act::TakeOne(nth, priority) => {
                let Some(a) = pick(self.attempts(place), nth) else { return };
                if self.take_one(s, a) && priority.is_some() {
                    self.end(s, a, priority.map(|p| i32::from(p % 3)));
                }
            }
            Act::Purge(lane) => self.purge(s, self.lane(place, lane)),
            Act::UndoEnd => self.undo_end(s),
            Act::UndoTake => self.undo_take(s),
            Act::Commit(shuffle) => self.commit(s, shuffle),
            Act::Extend(nth, lease) => {
                let Some(a) = pick(self.attempts(place), nth) else { return };
                self.extend(place, a, i64::from(lease));
            }
            Act::RequestCancel(nth) => {
                let among = if nth.is_multiple_of(4) { self.attempts(place) } else { self.held_of(place) };
                let Some(a) = pick(among, nth) else { return };
                self.request_cancel(place, a);
            }
            Act::Expire => {
                let Some(entry) = self.memory.frontier().running.expired(self.roots[place], self.now) else { return };
                let a = self.by_id[&(entry.instance, entry.id)];
                assert!(self.held[&a].deadline <= self.now);
                let retry = (!entry.awaits_cancel()).then_some(entry.rank.priority);
                if !entry.awaits_cancel() || self.take_one(s, a) {
                    self.end(s, a, retry);
                    assert_eq!((self.held[&a].state, self.held[&a].owner), (State::Ending, s));
                }
            }
        }
    }

    fn befall(&mut self, place: usize, event: Event) {
        let instance = self.instances[place];
        match event {
            Event::Pause(lane) => {
                let key = self.lane(place, lane);
                self.paused.insert(key);
                self.memory.frontier().set_paused(key.0, key.1, true);
            }
            Event::Resume(lane) => {
                let key = self.lane(place, lane);
                self.paused.remove(&key);
                self.memory.frontier().set_paused(key.0, key.1, false);
                self.wake_all(key);
            }
            Event::ForeignInsert(lane, priority) => {
                self.append(place, self.lane(place, lane), i32::from(priority % 3), None, Row::Committed);
            }
            Event::ForeignClaim(nth) => {
                let mut free = self.attempts(place);
                free.retain(|a| self.log[*a].claim == Row::Absent && !self.held.contains_key(a));
                if let Some(a) = pick(free, nth) {
                    self.log[a].claim = Row::Committed;
                }
            }
            Event::Invalidate(forgetting) => {
                if forgetting {
                    self.memory.frontier().forget_ready(instance);
                } else {
                    self.memory.frontier().invalidate(instance);
                }
                self.log.iter_mut().filter(|it| it.lane.0 == instance).for_each(Attempt::surprise);
                self.wake_instance(instance);
            }
            Event::Recover(nth) => {
                let mut claimed = self.attempts(place);
                claimed.retain(|&a| (self.log[a].claim, self.log[a].outcome) == (Row::Committed, Row::Absent));
                if let Some(a) = pick(claimed, nth) {
                    self.recover(place, a);
                }
            }
            Event::DropLane(lane) if !self.is_locked(place) => {
                let key = self.lane(place, lane);
                self.wake_all(key);
                let woken = self.memory.frontier().drop_lane(&mut self.roots[place], key.0, key.1);
                self.woken_first(woken);
                self.drop_attempts(|lane| lane == key);
                let nth = self.nth_lane(lane);
                self.lanes[place][nth] = self.lanes.iter().flatten().max().unwrap() + 1;
            }
            Event::DropInstance if !self.is_locked(place) => {
                let wakes_first = self.step.is_multiple_of(2);
                if wakes_first {
                    self.wake_instance(instance);
                }
                let woken = self.memory.frontier().drop_instance(&mut self.roots[place], instance);
                self.woken_first(woken);
                assert_eq!(self.roots[place], None);
                self.drop_attempts(|lane| lane.0 == instance);
                for s in 0..self.clients.len() {
                    let lane = self.clients[s].refill.as_ref().map(|refill| refill.lane);
                    let is_lost = lane.is_some_and(|lane| self.slot(lane).is_none());
                    self.clients[s].refill.iter_mut().for_each(|refill| refill.orphaned |= is_lost);
                }
                if !wakes_first {
                    self.wake_instance(instance);
                }
                self.instances[place] = self.instances.iter().max().unwrap() + 1;
            }
            Event::DropLane(..) | Event::DropInstance => {}
            Event::Crash => {
                for s in 0..self.sizes.sessions as u32 {
                    self.abort(s);
                    let place = self.place(s);
                    *self.client(s) = Client { place, ..Client::default() };
                }
                self.memory = self.sizes.memory();
                self.roots = [None; PLACES];
                self.held.clear();
                self.sleepers.clear();
                self.woken.fill(false);
                self.log.iter_mut().for_each(Attempt::tell);
            }
        }
    }

    /// True if a transaction holds locks for which a drop would wait.
    fn is_locked(&self, place: usize) -> bool {
        self.clients.iter().any(|c| c.place == place && !(c.open.is_empty() && c.callbacks.is_empty()))
    }

    fn drop_attempts(&mut self, which: impl Fn(LaneKey) -> bool) {
        self.log.iter_mut().filter(|it| which(it.lane)).for_each(|it| it.dropped = true);
        self.held.retain(|&a, _| !which(self.log[a].lane));
        self.paused.retain(|&lane| !which(lane));
    }

    fn recover(&mut self, place: usize, a: usize) {
        let (lane, entry) = (self.log[a].lane, self.log[a].entry);
        let deadline = self.now + a as i64 % 5;
        let is_known = self.held.contains_key(&a);
        // Recovered attempts are let in even beyond the lane's share.
        let fits = is_known || self.held.len() < self.sizes.running;
        let recovered = Running {
            id: entry.id,
            instance: lane.0,
            lane: lane.1,
            rank: entry.rank,
            place: entry.place,
            deadline,
            longest: 5,
            state: State::Running,
            ..Running::default()
        };
        assert_eq!(self.memory.frontier().recover(&mut self.roots[place], recovered), fits);
        if fits && !is_known {
            let held = Held {
                state: State::Running,
                session: None,
                deadline,
                longest: 5,
                claimed: true,
                recovered: true,
                ..Held::taken(0)
            };
            self.held.insert(a, held);
        }
    }

    /// Ends the connection, at any point. Another connection takes over its number.
    fn disconnect(&mut self, s: u32, to: usize, has_broken: bool) {
        self.run_callbacks(s);
        self.abort(s);
        self.run_callbacks(s);
        let refill = self.client(s).refill.take().filter(|refill| !refill.orphaned);
        let abandoned = self.memory.frontier().refill_abandon(s);
        assert_eq!(abandoned, refill.map(|refill| refill.lane));
        if let Some(lane) = abandoned {
            self.wake_after_refill(lane);
        }
        self.leave(s);
        let place = self.place(s);
        let (now, mut earliest) = (self.now, None);
        for a in self.held_of(place) {
            let held = self.held.get_mut(&a).unwrap();
            if held.session == Some(s) {
                held.session = None;
                let deadline = match held.span {
                    Some(0) => i64::MIN,
                    Some(span) if has_broken => now + span,
                    _ => continue,
                };
                if deadline < held.deadline {
                    (held.deadline, held.broken) = (deadline, deadline > i64::MIN);
                    if held.state == State::Running {
                        earliest = Some(earliest.unwrap_or(deadline).min(deadline));
                    }
                }
            }
        }
        let root = &mut self.roots[place];
        let ended = self.memory.frontier().running.session_ended(root, self.instances[place], s, now, has_broken);
        assert_eq!(ended, earliest);
        self.client(s).place = to;
    }

    fn run_callbacks(&mut self, s: u32) {
        for callback in std::mem::take(&mut self.client(s).callbacks) {
            self.call_back(s, callback);
        }
    }

    /// Ends what the session is doing.
    fn quit(&mut self, s: u32) {
        self.end_refill(s);
        if self.client(s).look.is_some() {
            self.leave(s);
        }
    }

    /// Lets all sessions finish, then takes all jobs. None may be lost, and the order must hold to the end.
    fn drain(&mut self) {
        for s in 0..self.sizes.sessions as u32 {
            self.disconnect(s, 0, false);
        }
        for place in 0..self.sizes.places {
            self.end_all(place);
        }
        for place in 0..self.sizes.places {
            for lane in 0..self.sizes.busy_lanes as u8 {
                let key = self.lane(place, lane);
                self.befall(place, Event::Resume(lane));
                let jobs = self.jobs(key);
                let surprising: Vec<usize> =
                    (0..self.log.len()).filter(|&a| self.log[a].surprising || !self.log[a].told).collect();
                let mut got = Vec::new();
                let is_expected = |(_, a): &&(Rank, usize)| !surprising.contains(a);
                loop {
                    self.end_all(place);
                    self.act(0, Act::Settle(lane, 1));
                    if self.clients[0].look.is_some() {
                        break;
                    }
                    self.insert_claims(0);
                    got.extend(self.clients[0].open.taken.iter().map(|&a| (self.log[a].entry.rank, a)));
                    self.commit(0, 0);
                    self.run_callbacks(0);
                    self.check();
                }
                assert!(got.iter().filter(is_expected).is_sorted());
                assert!(jobs.iter().all(|job| got.contains(job)), "lost: {jobs:?}, found: {got:?}");
            }
        }
    }

    fn end_all(&mut self, place: usize) {
        self.disconnect(0, place, true);
        for a in self.held_of(place) {
            if !self.held[&a].awaits_cancel() || self.take_one(0, a) {
                self.end(0, a, None);
            }
        }
        self.commit(0, 0);
        self.run_callbacks(0);
        assert!(self.held_of(place).is_empty());
    }

    // ---- the promises

    fn check(&mut self) {
        self.check_lanes();
        self.check_running();
        self.check_coverage();
        self.check_sleepers();
    }

    fn check_lanes(&mut self) {
        let lanes = (0..self.sizes.lanes as u32).map(LaneSlot::new);
        let used: Vec<LaneSlot> = lanes.filter(|&slot| self.memory.lanes[slot.at()].is_used()).collect();
        assert_eq!(self.memory.head.lanes.used as usize, used.len());
        let waited: Vec<LaneKey> =
            self.sleepers.iter().filter(|(_, queue)| !queue.is_empty()).map(|(lane, _)| *lane).collect();
        let waiting: BTreeSet<u32> = waited.iter().map(|lane| lane.0).collect();
        assert_eq!(self.memory.head.lanes.waited as usize, waited.len());
        for &instance in &waiting {
            let own = waited.iter().filter(|lane| lane.0 == instance).count();
            assert_eq!(share::held(&self.memory.lane_index, instance) as usize, own);
        }
        let buckets = self.memory.lane_index.iter().filter(|b| !b.is_empty()).count();
        assert_eq!(buckets, used.len() + waiting.len());
        for slot in used {
            let lane = self.memory.lanes[slot.at()];
            let key = (lane.instance, lane.id);
            let mut frontier = self.memory.frontier();
            assert_eq!(frontier.backlog.lanes.find(key.0, key.1), Some(slot));
            let ring = frontier.backlog.lanes.ring(slot);
            let ready: Vec<Ready> = (0..ring.len()).map(|nth| ring.get(nth)).collect();
            assert!(ready.is_sorted_by(|one, two| one.rank < two.rank));
            for entry in ready {
                let a = self.by_id[&(key.0, entry.id)];
                assert_eq!((self.log[a].lane, self.log[a].entry), (key, entry));
                assert_ne!(self.log[a].row, Row::Open, "seen before its commit");
                assert!(self.held.get(&a).is_none_or(|held| held.recovered), "both ready and taken");
            }
            assert_eq!(lane.refiller.map(|session| session.number()), self.refiller(key).map(|(s, _)| s));
            assert_eq!(lane.waiters_first.is_some(), self.has_sleepers(key));
            assert!(!self.has_sleepers(key) || (lane.paused != 0) == self.paused.contains(&key));
        }
        for (&lane, queue) in &self.sleepers {
            assert!(queue.is_empty() || self.memory.frontier().backlog.lanes.find(lane.0, lane.1).is_some());
        }
    }

    fn check_running(&mut self) {
        let mut seen = 0;
        for place in 0..PLACES {
            let instance = self.instances[place];
            let frontier = self.memory.frontier();
            let mut from = 0;
            while let Some((next, entry)) = frontier.running.next_running(instance, from) {
                from = next;
                seen += 1;
                let a = self.by_id[&(instance, entry.id)];
                let held = &self.held[&a];
                assert_eq!(frontier.running.find(instance, entry.id), Some(RunningSlot::new(next - 1)));
                assert_eq!(
                    (entry.lane, entry.rank, entry.place),
                    (self.log[a].lane.1, self.log[a].entry.rank, self.log[a].entry.place)
                );
                assert_eq!((entry.state, entry.session.checked_sub(1)), (held.state, held.session));
                assert!(held.state == State::Running || entry.owner == held.owner);
                assert_eq!((entry.deadline, entry.longest), (held.deadline, held.longest));
                assert_eq!(
                    (entry.disconnect.expires(), entry.disconnect.is_broken(), entry.claimed != 0, entry.cancel != 0),
                    (held.span == Some(0), held.broken, held.claimed, held.cancel)
                );
            }
            let runs = |a: &usize| self.held[a].state == State::Running;
            let next = self.held_of(place).iter().filter(|a| runs(a)).map(|a| self.held[a].deadline).min();
            let frontier = self.memory.frontier();
            assert_eq!(frontier.running.next_deadline(self.roots[place]), next);
            let expired = frontier.running.expired(self.roots[place], self.now).map(|entry| entry.deadline);
            assert_eq!(expired, next.filter(|&deadline| deadline <= self.now));
        }
        let head = self.memory.head.running;
        assert_eq!((seen, head.used as usize), (self.held.len(), self.held.len()));
        let parties: BTreeSet<LaneKey> = self.held.keys().map(|&a| self.log[a].lane).collect();
        let instances: BTreeSet<u32> = parties.iter().map(|lane| lane.0).collect();
        assert_eq!(head.parties as usize, parties.len() + instances.len());
        let buckets = self.memory.running_index.iter().filter(|b| !b.is_empty()).count();
        assert_eq!(buckets, seen + head.parties as usize);
        for lane in parties {
            let of_instance = self.held.keys().filter(|&&a| self.log[a].lane.0 == lane.0).count();
            let of_lane = self.held.keys().filter(|&&a| self.log[a].lane == lane).count();
            let counted = self.memory.frontier().running.held(lane.0, lane.1);
            assert_eq!(counted, (of_lane as u32, of_instance as u32), "places of {lane:?}");
            let places = self.places_of(lane);
            assert_eq!(self.memory.frontier().running.places(lane.0, lane.1), places as u32);
        }
        let free = head.slots.listed(&self.memory.running);
        assert!(free.iter().all(|slot| self.memory.running[slot.at()].state == State::Free));
        assert_eq!(free.len() + seen, head.slots.ever_used() as usize, "the free list");
    }

    fn check_coverage(&mut self) {
        for a in 0..self.log.len() {
            let it = &self.log[a];
            if !it.told || !it.is_unclaimed() || self.held.contains_key(&a) {
                continue;
            }
            let (key, entry) = (it.lane, it.entry);
            let mut frontier = self.memory.frontier();
            let Some(slot) = frontier.backlog.lanes.find(key.0, key.1) else { continue };
            let ring = frontier.backlog.lanes.ring(slot);
            if ring.search(entry.rank).is_ok_and(|nth| ring.get(nth).id == entry.id) {
                continue;
            }
            let lane = self.memory.lanes[slot.at()];
            assert!(entry.rank > lane.horizon(), "lost: {entry:?} in {lane:?}");
            if let Some((_, refill)) = self.refiller(key) {
                let will_come = self.will_read(refill, a) || refill.found.contains(&entry) || refill.over;
                let is_spilled = entry.rank > lane.spill || lane.invalidated != 0;
                assert!(is_spilled || will_come, "the refill will miss {entry:?} in {lane:?}");
            }
        }
    }

    fn check_sleepers(&mut self) {
        for s in 0..self.sizes.sessions as u32 {
            assert_eq!(self.memory.frontier().sessions.is_woken(s), self.woken[s as usize]);
        }
        for (&lane, queue) in &self.sleepers {
            let for_refill = queue.iter().filter(|&&s| self.for_refill[s as usize]);
            for &s in for_refill {
                let waits_for = self.sleepers.iter().filter(|(_, queue)| queue.contains(&s));
                assert!(
                    waits_for.into_iter().any(|(lane, _)| self.refiller(*lane).is_some()),
                    "{s} sleeps for no refill"
                );
            }
            if queue.is_empty() || self.paused.contains(&lane) || self.jobs(lane).is_empty() {
                continue;
            }
            let is_noted =
                self.memory.head.sessions.is_short != 0 && (self.places_of(lane) == 0 || self.woken.contains(&true));
            let looks = |(s, client): (usize, &Client)| {
                let look = client.look.as_ref();
                self.woken[s] && look.is_some_and(|look| look.instance == lane.0 && look.lanes.contains(&lane.1))
            };
            let is_looking = self.clients.iter().enumerate().any(looks);
            let will_look = is_looking || self.refiller(lane).is_some() || is_noted;
            assert!(will_look, "{queue:?} sleep beside {:?}", self.jobs(lane));
        }
    }
}

/// Returns how many more attempts a lane may take, one by one, if `taken` of `size` places are taken: `of_instance` by
/// its instance and `of_lane` by the lane itself.
pub(super) fn places(size: usize, taken: usize, of_instance: usize, of_lane: usize) -> usize {
    let alpha = share::ALPHA as usize;
    let one_by_one = |free: usize, held: usize| (0..free).find(|n| held + n >= alpha * (free - n)).unwrap_or(free);
    one_by_one(one_by_one(size - taken, of_instance), of_lane)
}

/// Returns one of the elements, if there are any.
fn pick<T: Copy>(from: Vec<T>, nth: u8) -> Option<T> {
    from.get(nth as usize % from.len().max(1)).copied()
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let tiny = (1usize..=5, 2usize..=8, 1usize..=3, 3usize..=5);
    let larger = (8usize..=16, 16usize..=24, 4usize..=8, 3usize..=6);
    let places = prop_oneof![2 => Just(1), 1 => Just(PLACES)];
    let busy_lanes = prop_oneof![2 => Just(1), 1 => Just(2), 1 => Just(LANES)];
    (prop_oneof![3 => tiny, 1 => larger], places, busy_lanes).prop_map(|(slots, places, busy_lanes)| {
        let (ready, running, lanes, sessions) = slots;
        Sizes { ready, running, lanes, sessions, places, busy_lanes }
    })
}

fn act() -> impl Strategy<Value = Act> {
    let n = any::<u8>;
    let maybe = || prop::option::weighted(0.8, any::<u8>());
    prop_oneof![
        250 => n().prop_map(Act::Step),
        150 => (n(), n()).prop_map(|(lane, priority)| Act::Insert(lane, priority)),
        160 => (n(), n()).prop_map(|(lanes, want)| Act::Look(lanes, want)),
        10 => (n(), n()).prop_map(|(lanes, want)| Act::Settle(lanes, want)),
        20 => n().prop_map(Act::Refill),
        40 => Just(Act::Quit),
        100 => (n(), maybe()).prop_map(|(nth, retry)| Act::End(nth, retry)),
        20 => (n(), maybe()).prop_map(|(nth, priority)| Act::TakeOne(nth, priority)),
        12 => n().prop_map(Act::Purge),
        10 => Just(Act::UndoEnd),
        10 => Just(Act::UndoTake),
        150 => n().prop_map(Act::Commit),
        30 => Just(Act::Abort),
        8 => (n(), any::<bool>()).prop_map(|(place, broken)| Act::Disconnect(place, broken)),
        10 => (n(), n()).prop_map(|(nth, lease)| Act::Extend(nth, lease)),
        20 => Just(Act::Expire),
        10 => n().prop_map(Act::RequestCancel),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let n = any::<u8>;
    prop_oneof![
        3 => n().prop_map(Event::Pause),
        5 => n().prop_map(Event::Resume),
        5 => (n(), n()).prop_map(|(lane, priority)| Event::ForeignInsert(lane, priority)),
        5 => n().prop_map(Event::ForeignClaim),
        3 => any::<bool>().prop_map(Event::Invalidate),
        5 => n().prop_map(Event::Recover),
        1 => n().prop_map(Event::DropLane),
        1 => Just(Event::DropInstance),
        1 => Just(Event::Crash),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        35 => (any::<u8>(), act()).prop_map(|(by, act)| Op::By(by, act)),
        1 => (any::<u8>(), event()).prop_map(|(place, event)| Op::At(place, event)),
    ]
}

proptest! {
    #![proptest_config(crate::cases(250))]

    #[test]
    fn every_promise_holds_after_every_step(sizes in sizes(), ops in prop::collection::vec(op(), crate::length(400))) {
        let mut world = World::new(sizes);
        for op in ops {
            world.run(op);
            world.check();
        }
        world.drain();
    }
}

// ---- faults that were found ------------------------------------------------------------------------

fn memory(ready: usize, lanes: usize) -> Memory {
    Memory::new(memory::Sizes { ready, running: 4, lanes, sessions: 6, ..memory::Sizes::default() })
}

/// Returns the first attempt of the `n`th job.
pub(super) fn job(n: i64) -> Ready {
    let job_id = id::job(0, n);
    Ready { rank: Rank { priority: 0, job_id }, id: id::first_attempt(job_id, 0), place: Place::default(), group: 0 }
}

/// Lets session 5 read a lane to its end.
pub(super) fn read(frontier: &mut Frontier<'_>, lane: i32, found: &[Ready]) {
    assert!(frontier.refill_begin(1, lane, 5).is_some());
    frontier.refill_push(1, lane, 5, &mut found.to_vec(), Rank::MAX);
    assert!(frontier.refill_end(1, lane, 5));
}

fn take_one(frontier: &mut Frontier<'_>, lane: i32, owner: u32) -> Take {
    frontier.take(1, lane, owner, 0, None, &mut [Ready::default()])
}

const ONE: Take = Take::Some { taken: 1, refill: false };

#[test]
fn waiting_for_more_lanes_than_there_are_slots_is_refused() {
    let mut memory = memory(2, 1);
    let mut frontier = memory.frontier();
    for is_paused in [false, true] {
        for lane in [1, 2] {
            assert_eq!(take_one(&mut frontier, lane, 0), Take::Refill);
            read(&mut frontier, lane, &[]);
            assert_eq!(take_one(&mut frontier, lane, 0), Take::Empty);
        }
        // The second lane must not take the first lane's slot, and the session must not be told to look again and
        // again.
        assert_eq!(frontier.wait(0, 1, &[(1, is_paused), (2, is_paused)], 0), Wait::NoLane);
        assert_eq!(frontier.wake_any_lane(1), None);
    }
}

#[test]
fn a_session_that_must_look_again_is_in_no_waiting_list() {
    let mut memory = memory(2, 1);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[]);
    assert_eq!(frontier.wait(0, 1, &[(1, false)], 0), Wait::Sleep);
    frontier.invalidate(1);
    assert_eq!(frontier.wait(0, 1, &[(1, false)], 0), Wait::Look);
    assert_eq!(frontier.push(1, 1, job(1)), None);
}

#[test]
fn a_wake_up_is_passed_on_in_the_lane_it_was_for() {
    let mut memory = memory(4, 2);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[]);
    read(&mut frontier, 2, &[]);
    assert_eq!(frontier.wait(0, 1, &[(1, false), (2, false)], 0), Wait::Sleep);
    assert_eq!(frontier.wait(1, 1, &[(1, false)], 0), Wait::Sleep);
    assert_eq!(frontier.wait(2, 1, &[(1, false)], 0), Wait::Sleep);
    assert_eq!(frontier.wait(3, 1, &[(2, false)], 0), Wait::Sleep);
    assert_eq!(frontier.push(1, 2, job(1)), Some(0));
    assert_eq!(frontier.push(1, 1, job(2)), Some(1));
    // The first lane has a job and a sleeping session as well, but session 1 is on its way there.
    assert_eq!(frontier.stop_waiting(0), Some(3));
}

#[test]
fn a_session_woken_for_one_lane_that_got_a_job_from_another_passes_the_wake_up_on() {
    let mut memory = memory(4, 2);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[]);
    read(&mut frontier, 2, &[]);
    assert_eq!(frontier.wait(0, 1, &[(1, false), (2, false)], 0), Wait::Sleep);
    assert_eq!(frontier.wait(1, 1, &[(2, false)], 0), Wait::Sleep);
    assert_eq!(frontier.push(1, 2, job(1)), Some(0));
    assert_eq!(frontier.push(1, 1, job(2)), None);
    assert_eq!(take_one(&mut frontier, 1, 0), ONE);
    assert_eq!(frontier.stop_waiting(0), Some(1));
}

#[test]
fn a_refill_that_is_given_up_wakes_a_session_that_relied_on_it() {
    let mut memory = memory(2, 1);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[]);
    assert_eq!(frontier.wait(0, 1, &[(1, false)], 0), Wait::Sleep);
    assert_eq!(frontier.wait(1, 1, &[(1, false)], 0), Wait::Sleep);
    // A job comes that only the index has. Session 0 is woken, finds a refill in progress, and gives up.
    frontier.invalidate(1);
    assert_eq!(frontier.pass_on(1, 1), Some(0));
    assert!(frontier.refill_begin(1, 1, 2).is_some());
    assert_eq!(take_one(&mut frontier, 1, 0), Take::Refilling);
    assert_eq!(frontier.wait(0, 1, &[(1, false)], 0), Wait::Sleep);
    assert_eq!(frontier.stop_waiting(0), None);
    // Now the session that refills gives up as well. Memory has no job, and no session waits for a refill. Still, one
    // session must look.
    assert_eq!(frontier.refill_abandon(2), Some((1, 1)));
    assert_eq!(frontier.refill_wake(1, 1), None);
    assert_eq!(frontier.pass_on(1, 1), Some(1));
}

#[test]
fn a_session_that_waits_for_a_refill_is_woken_by_a_job_elsewhere() {
    let mut memory = memory(2, 2);
    let mut frontier = memory.frontier();
    read(&mut frontier, 2, &[]);
    assert!(frontier.refill_begin(1, 1, 5).is_some());
    assert_eq!(take_one(&mut frontier, 1, 0), Take::Refilling);
    assert_eq!(frontier.wait(0, 1, &[(1, false), (2, false)], 0), Wait::Sleep);
    assert_eq!(frontier.push(1, 2, job(1)), Some(0));
}

#[test]
fn a_refill_reads_on_while_the_entries_that_fill_ready_rank_behind() {
    let mut memory = memory(2, 1);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(8), job(9)]);
    frontier.invalidate(1);
    assert!(frontier.refill_begin(1, 1, 5).is_some());
    // The first rows are claimed. A chunk in which no attempt is found must not end the refill.
    assert!(frontier.refill_push(1, 1, 5, &mut [], job(4).rank.before()));
    assert!(frontier.refill_push(1, 1, 5, &mut [job(4)], job(5).rank.before()));
    assert!(!frontier.refill_push(1, 1, 5, &mut [job(5)], job(8).rank.before()));
    assert!(frontier.refill_end(1, 1, 5));
    assert_eq!(frontier.lane_state(1, 1), Some((2, job(8).rank.before())));
}

#[test]
fn a_refill_that_was_overtaken_and_found_nothing_goes_on_where_it_ended() {
    let mut memory = memory(2, 1);
    let mut frontier = memory.frontier();
    // Each refill reads two ended attempts and is overtaken. The third one finds a job.
    let rank = |n: i64| job(n).rank;
    for (after, to, mut found) in [(Rank::MIN, 3, vec![]), (rank(3), 6, vec![]), (rank(6), 9, vec![job(8)])] {
        assert_eq!(frontier.refill_begin(1, 1, 5), Some(after));
        frontier.invalidate(1);
        frontier.refill_push(1, 1, 5, &mut found, rank(to));
        assert!(frontier.refill_end(1, 1, 5));
    }
    assert!(matches!(take_one(&mut frontier, 1, 0), Take::Some { taken: 1, .. }));
    // Attempts before the position at which the refills continued are not forgotten.
    assert_eq!(frontier.lane_state(1, 1), Some((0, Rank::MIN)));
    assert_eq!(frontier.refill_begin(1, 1, 5), Some(Rank::MIN));
}

#[test]
fn jobs_found_by_a_refill_are_handed_out_although_memory_is_invalidated_immediately() {
    let mut memory = memory(2, 1);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(4)]);
    frontier.invalidate(1);
    assert!(matches!(take_one(&mut frontier, 1, 0), Take::Some { taken: 1, .. }));
    // After the next invalidation the lane is read again first.
    frontier.invalidate(1);
    assert_eq!(take_one(&mut frontier, 1, 0), Take::Refill);
}

#[test]
fn refills_get_past_ended_attempts_although_memory_is_invalidated_in_each_refill() {
    // In `ready` there may be entries behind the position that is read to, as after a claim that has taken one of
    // several.
    for waiting in [&[][..], &[job(8)], &[job(8), job(9)]] {
        let mut memory = memory(4, 1);
        let mut frontier = memory.frontier();
        read(&mut frontier, 1, waiting);
        for ended in 1..=5 {
            frontier.invalidate(1);
            let after = frontier.refill_begin(1, 1, 0);
            assert_eq!(after, Some(if ended == 1 { Rank::MIN } else { job(ended - 1).rank }), "{}", waiting.len());
            frontier.invalidate(1);
            frontier.refill_push(1, 1, 0, &mut [], job(ended).rank);
            frontier.refill_end(1, 1, 0);
        }
        frontier.refill_begin(1, 1, 0);
        frontier.refill_push(1, 1, 0, &mut [job(7)], Rank::MAX);
        frontier.refill_end(1, 1, 0);
        assert!(matches!(take_one(&mut frontier, 1, 0), Take::Some { taken: 1, .. }));
    }
}

#[test]
fn a_refiller_whose_lane_was_forgotten_cannot_end_the_refill_of_another() {
    let mut memory = memory(2, 1);
    let mut frontier = memory.frontier();
    assert!(frontier.refill_begin(1, 1, 0).is_some());
    frontier.drop_instance(&mut None, 1);
    assert!(frontier.refill_begin(1, 1, 1).is_some());
    assert!(!frontier.refill_push(1, 1, 0, &mut [], Rank::MAX));
    assert!(!frontier.refill_end(1, 1, 0));
    assert_eq!(frontier.refill_abandon(0), None);
    assert!(frontier.refill_end(1, 1, 1));
    assert_eq!(frontier.lane_state(1, 1), Some((0, Rank::MIN)));
}

#[test]
fn a_stale_attempt_gives_way_to_the_living_one_of_its_job() {
    let mut memory = memory(2, 1);
    let mut frontier = memory.frontier();
    let old = job(1);
    let new = Ready { id: id::attempt(0, 7, 0), ..old };
    read(&mut frontier, 1, &[old]);
    frontier.push(1, 1, new);
    frontier.push(1, 1, old);
    let mut out = [Ready::default(); 2];
    assert!(matches!(frontier.take(1, 1, 0, 0, None, &mut out), Take::Some { taken: 1, .. }));
    assert_eq!(out[0], new);
}

#[test]
fn an_attempt_read_or_pushed_while_its_taker_drops_it_is_not_lost() {
    let (mut memory, root) = (memory(2, 1), &mut None);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(1)]);
    assert_eq!(take_one(&mut frontier, 1, 0), ONE);
    // The session that has taken the attempt finds a claim in the log. Then that claim is rolled back, and a refill
    // skips the attempt.
    frontier.invalidate(1);
    read(&mut frontier, 1, &[job(1)]);
    frontier.discard_stale(root, 1, job(1).id);
    assert_eq!(take_one(&mut frontier, 1, 0), ONE);
    // The same with a push instead of the refill.
    frontier.push(1, 1, job(1));
    frontier.discard_stale(root, 1, job(1).id);
    assert_eq!(take_one(&mut frontier, 1, 0), ONE);
    // With neither, the attempt really is stale.
    frontier.discard_stale(root, 1, job(1).id);
    assert_eq!(take_one(&mut frontier, 1, 0), Take::Empty);
}

#[test]
fn jobs_of_a_paused_lane_wake_no_session() {
    let mut memory = memory(2, 1);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[]);
    assert_eq!(frontier.wait(0, 1, &[(1, true)], 0), Wait::Sleep);
    assert_eq!(frontier.push(1, 1, job(1)), None);
    assert_eq!(frontier.pass_on(1, 1), None);
    frontier.set_paused(1, 1, false);
    assert_eq!(frontier.wake_any(1, 1), Some(0));
}

#[test]
fn a_bound_claim_falls_due_although_its_connection_ended_while_another_was_ending_it() {
    let (mut memory, root) = (memory(2, 1), &mut None);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(1)]);
    assert_eq!(take_one(&mut frontier, 1, 3), ONE);
    frontier.claimed(root, 1, job(1).id, 10, 1000, Disconnect::EXPIRES);
    assert!(matches!(frontier.running.end(root, 1, job(1).id, 4, i64::MAX, |_| true), Hold::Yours(_)));
    assert_eq!(frontier.running.session_ended(root, 1, 3, 0, false), None);
    frontier.running.undo_end(root, 1, job(1).id);
    assert_eq!(frontier.running.next_deadline(*root), Some(i64::MIN));
}

#[test]
fn the_lease_of_a_broken_connection_ends_after_the_span_unless_it_is_extended() {
    let (mut memory, root) = (memory(2, 1), &mut None);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(1), job(2)]);
    for id in [job(1).id, job(2).id] {
        assert_eq!(take_one(&mut frontier, 1, 3), ONE);
        frontier.claimed(root, 1, id, 9000, 9000, Disconnect::after(SPAN));
    }
    assert!(matches!(frontier.running.end(root, 1, job(1).id, 4, i64::MAX, |_| true), Hold::Yours(_)));
    assert_eq!(frontier.running.session_ended(root, 1, 3, 100, true), Some(100 + SPAN));
    frontier.running.extend(root, 1, job(2).id, 9000, 9100);
    frontier.running.undo_end(root, 1, job(1).id);
    assert_eq!(frontier.running.next_deadline(*root), Some(100 + SPAN));
    assert!(frontier.entry(1, job(1).id).unwrap().disconnect.is_broken());
    let kept = frontier.entry(1, job(2).id).unwrap();
    assert_eq!((kept.deadline, kept.disconnect), (9100, Disconnect::KEEPS));
}

#[test]
fn a_goodbye_leaves_the_lease_and_a_later_session_of_this_number_does_not_end_it() {
    let (mut memory, root) = (memory(2, 1), &mut None);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(1)]);
    assert_eq!(take_one(&mut frontier, 1, 3), ONE);
    frontier.claimed(root, 1, job(1).id, 9000, 9000, Disconnect::after(SPAN));
    for has_broken in [false, true] {
        assert_eq!(frontier.running.session_ended(root, 1, 3, 100, has_broken), None);
    }
    assert_eq!(frontier.running.next_deadline(*root), Some(9000));
}

#[test]
fn an_extension_before_the_commit_of_the_claim_holds() {
    let (mut memory, root) = (memory(2, 1), &mut None);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(1)]);
    assert_eq!(take_one(&mut frontier, 1, 0), ONE);
    frontier.running.extend(root, 1, job(1).id, 500, 5000);
    frontier.claimed(root, 1, job(1).id, 10, 1000, Disconnect::KEEPS);
    assert_eq!(frontier.running.next_deadline(*root), Some(5000));
}

#[test]
fn an_attempt_is_extended_or_ended_for_its_deadline_but_never_both() {
    let (mut memory, root) = (memory(2, 1), &mut None);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(1)]);
    assert_eq!(take_one(&mut frontier, 1, 0), ONE);
    frontier.claimed(root, 1, job(1).id, 10, 1000, Disconnect::KEEPS);
    let expired = frontier.running.expired(*root, 1000).unwrap();
    assert!(frontier.running.extend(root, 1, job(1).id, 0, 5000).is_some());
    assert!(matches!(frontier.running.end(root, 1, job(1).id, 7, expired.deadline, |_| true), Hold::Later));
    let expired = frontier.running.expired(*root, 5000).unwrap();
    let hold = frontier.running.end(root, 1, job(1).id, 7, expired.deadline, |_| true);
    assert!(matches!(hold, Hold::Yours(_)));
    assert!(frontier.running.extend(root, 1, job(1).id, 0, 9000).is_none());
    frontier.running.undo_end(root, 1, job(1).id);
    assert_eq!(frontier.running.next_deadline(*root), Some(5000));
}

#[test]
fn a_lease_that_was_noted_lasts_at_least_as_long_also_after_an_end_that_is_undone() {
    let (mut memory, root) = (memory(2, 1), &mut None);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(1)]);
    assert_eq!(take_one(&mut frontier, 1, 0), ONE);
    frontier.claimed(root, 1, job(1).id, 10, 1000, Disconnect::KEEPS);
    for (deadline, expected) in [(i64::MIN, 1000), (900, 1000), (5000, 5000)] {
        frontier.running.lengthen(root, 1, job(1).id, 20, deadline);
        assert_eq!(frontier.running.next_deadline(*root), Some(expected));
    }
    assert!(matches!(frontier.running.end(root, 1, job(1).id, 7, i64::MAX, |_| true), Hold::Yours(_)));
    frontier.running.lengthen(root, 1, job(1).id, 30, 9000);
    assert_eq!(frontier.running.next_deadline(*root), None);
    frontier.running.undo_end(root, 1, job(1).id);
    assert_eq!(frontier.running.next_deadline(*root), Some(9000));
    assert_eq!(frontier.entry(1, job(1).id).map(|entry| entry.longest), Some(30));
}

#[test]
fn an_attempt_that_awaits_cancel_can_be_taken_and_cancelled_but_not_ended_or_extended() {
    let (mut memory, root) = (memory(2, 1), &mut None);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(1)]);
    assert_eq!(take_one(&mut frontier, 1, 0), ONE);
    assert!(frontier.running.request_cancel(1, job(1).id));
    assert_eq!(frontier.give_back(root, 1, job(1).id, 0), None);
    // The attempt is not claimed. An outcome without a claim would let it run again.
    assert!(matches!(frontier.running.end(root, 1, job(1).id, 0, i64::MAX, |_| true), Hold::Unknown));
    assert!(frontier.running.extend(root, 1, job(1).id, 5, 5).is_none());
    // A cancel that fails leaves the entry unchanged.
    for _ in 0..2 {
        assert_eq!(frontier.running.next_deadline(*root), Some(i64::MIN));
        assert_eq!(frontier.take_one(root, 1, 1, Owner { session: 2, pid: 0 }, job(1), true), TakeOne::Taken);
        assert_eq!(frontier.running.next_deadline(*root), None);
        assert!(matches!(frontier.running.end(root, 1, job(1).id, 2, i64::MAX, |_| true), Hold::Yours(_)));
        frontier.running.undo_end(root, 1, job(1).id);
        frontier.give_back(root, 1, job(1).id, 0);
    }
}

#[test]
fn the_end_of_session_zero_does_not_end_leases_of_unknown_sessions() {
    let (mut memory, root) = (memory(2, 1), &mut None);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(1)]);
    assert_eq!(take_one(&mut frontier, 1, 3), ONE);
    frontier.claimed(root, 1, job(1).id, 10, 1000, Disconnect::EXPIRES);
    assert_eq!(frontier.running.session_ended(root, 1, 3, 0, false), Some(i64::MIN));
    frontier.running.extend(root, 1, job(1).id, 500, 5000);
    assert_eq!(frontier.running.session_ended(root, 1, 0, 0, true), None);
    assert_eq!(frontier.running.next_deadline(*root), Some(5000));
}

#[test]
fn a_request_is_missed_only_for_the_end_that_had_begun_before() {
    let (mut memory, root) = (memory(2, 1), &mut None);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(1)]);
    assert!(!frontier.running.request_rerun(1, job(1).id));
    assert_eq!(take_one(&mut frontier, 1, 0), ONE);
    frontier.claimed(root, 1, job(1).id, 10, 1000, Disconnect::KEEPS);
    let hold = frontier.running.end(root, 1, job(1).id, 0, i64::MAX, |_| true);
    assert!(matches!(hold, Hold::Yours(entry) if (entry.cancel, entry.rerun) == (0, 0)));
    assert!(frontier.running.request_cancel(1, job(1).id) && frontier.running.request_rerun(1, job(1).id));
    let missed = |frontier: &crate::frontier::Frontier<'_>| frontier.entry(1, job(1).id).map(|entry| entry.missed);
    assert_eq!(missed(&frontier), Some(crate::frontier::MISSED_CANCEL | crate::frontier::MISSED_RERUN));
    // The end is rolled back. The next end knows of the requests.
    frontier.running.undo_end(root, 1, job(1).id);
    let hold = frontier.running.end(root, 1, job(1).id, 0, i64::MAX, |_| true);
    assert!(matches!(hold, Hold::Yours(entry) if (entry.cancel, entry.rerun) == (1, 1)));
    assert_eq!(missed(&frontier), Some(0));
}

#[test]
fn an_uncommitted_attempt_is_withdrawn_and_the_attempt_before_it_comes_back() {
    let mut memory = memory(4, 1);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[job(1), job(2)]);
    // A transaction that has taken the job's attempt adds another one, and is rolled back.
    let newer = Ready { id: id::attempt(0, 900, 0), ..job(1) };
    frontier.push(1, 1, newer);
    frontier.withdraw(1, 1, newer);
    // A withdrawal changes nothing if the attempt is missing or another attempt has replaced it.
    frontier.withdraw(1, 1, newer);
    frontier.withdraw(1, 1, Ready { id: newer.id, ..job(2) });
    frontier.push(1, 1, job(1));
    let mut taken = [Ready::default(); 4];
    let answer = frontier.take(1, 1, 5, 0, None, &mut taken);
    assert!(matches!(answer, Take::Some { taken: 2, .. }), "{answer:?}");
    assert_eq!([taken[0].id, taken[1].id], [job(1).id, job(2).id]);
}

#[test]
fn a_sleeper_is_noted_until_it_is_woken_or_leaves() {
    let mut memory = memory(4, 2);
    let mut frontier = memory.frontier();
    read(&mut frontier, 1, &[]);
    read(&mut frontier, 2, &[]);
    for session in [1, 3] {
        assert_eq!(frontier.wait(session, 1, &[(1, false), (2, false)], 0), Wait::Sleep);
        frontier.sessions.note_sleeper(session, 40 + session as i32, 7);
    }
    let noted = |frontier: &Frontier<'_>, instance, from| {
        let (next, sleeper) = frontier.next_sleeper(instance, from)?;
        Some((next, sleeper.pid, sleeper.since, sleeper.lanes().to_vec()))
    };
    assert_eq!(noted(&frontier, 1, 0), Some((2, 41, 7, vec![1, 2])));
    assert_eq!(noted(&frontier, 1, 2), Some((4, 43, 7, vec![1, 2])));
    assert_eq!((noted(&frontier, 1, 4), noted(&frontier, 2, 0)), (None, None));
    assert_eq!(frontier.push(1, 1, job(1)), Some(1));
    assert_eq!(noted(&frontier, 1, 0).map(|of| of.0), Some(4), "the first one is woken");
    frontier.stop_waiting(3);
    assert_eq!(noted(&frontier, 1, 0), None);
}
