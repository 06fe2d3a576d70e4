//! The state on which the protocols act: the rows of the logs, the memory, the sessions, and what was promised to
//! users.
//!
//! Responsible for the state and for what Postgres does to it: which rows a session sees, unique keys, commits in two
//! steps (the rows appear, then the callback runs), rollbacks in two steps, crashes. Not responsible for what pg_queue
//! does: `verbs`, `ends`, `requests` and `duties`.

use super::data::{
    At, COMMITTED, Client, INSTANCE, Kind, LANE, Log, OLD, Pc, Phase, Probe, Row, SEGMENTS, Segment, State, Told,
};
use super::memory::Memory;
use super::scenario::{Fault, Promise, Scenario};
use crate::frontier::{Rank, Ready};
use crate::id;

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct World {
    pub rows: Vec<Row>,
    pub segments: [Segment; SEGMENTS],
    pub memory: Memory,
    /// The clients. The background worker comes last.
    pub clients: Vec<Client>,
    pub told: Told,
    /// The number of ids handed out.
    count: u8,
    pub aborts_left: u8,
    pub crashes_left: u8,
    pub expiries_left: u8,
}

impl World {
    /// Makes the state in which a scenario begins: some jobs wait in the segment that will be reclaimed.
    pub fn new(scenario: &Scenario, fault: Option<Fault>) -> Self {
        let segment = |state| Segment { generation: 0, state, producers: 0, users: 0 };
        let mut world = Self {
            rows: Vec::new(),
            segments: [segment(State::Open), segment(State::Free), segment(State::Open)],
            memory: Memory::new(true, fault),
            clients: (0..=scenario.scripts.len()).map(|_| Client::new()).collect(),
            told: Told::default(),
            count: 0,
            aborts_left: scenario.aborts,
            crashes_left: scenario.crashes,
            expiries_left: scenario.expiries,
        };
        for job in 1..=scenario.waiting {
            let at = At { segment: 0, id: world.fresh_id(0), job };
            world.rows.push(Row { at, kind: Kind::Attempt, by: COMMITTED });
            world.told.enqueued |= 1 << job;
            world.told.settled |= 1 << job;
        }
        if scenario.is_claimed {
            let at = world.rows[0].at;
            world.rows.push(Row { at, kind: Kind::Claim, by: COMMITTED });
            world.told.claimed.push(at.id);
            world.clients[0].held.push(at);
            world.remember(at, false);
            // The session that claimed the job has read the lane to the end.
            world.memory.with(|frontier, _| {
                frontier.refill_begin(INSTANCE, LANE, 0);
                let mut waiting: Vec<Ready> =
                    world.rows[1..].iter().filter(|row| row.kind == Kind::Attempt).map(|row| row.at.ready()).collect();
                frontier.refill_push(INSTANCE, LANE, 0, &mut waiting, Rank::MAX);
                frontier.refill_end(INSTANCE, LANE, 0);
            });
        }
        world
    }

    pub fn worker(&self) -> usize {
        self.clients.len() - 1
    }

    pub fn fresh_id(&mut self, segment: u8) -> i64 {
        self.count += 1;
        id::attempt(0, i64::from(self.count), segment)
    }

    pub fn young(&self) -> u8 {
        u8::from(self.segments[0].state != State::Open)
    }

    pub fn break_promise(&mut self, promise: Promise) {
        self.told.broken |= 1 << promise as u8;
    }

    // ---- rows ----

    fn sees(row: &Row, session: usize) -> bool {
        (row.by == COMMITTED || row.by as usize == session) && !row.kind.is_vain()
    }

    /// Returns the rows that a session sees now: committed rows, and its own (`Snapshot::Now`).
    pub fn seen(&self, session: usize) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| Self::sees(row, session))
    }

    /// Returns the rows that another session's open transaction has written (`Snapshot::Dirty`).
    pub fn open_rows(&self, session: usize) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.by != COMMITTED && row.by as usize != session)
    }

    /// True if this session's open transaction has written the row.
    pub fn is_own(row: &Row, session: usize) -> bool {
        row.by as usize == session
    }

    /// Returns the row with this key that a session sees.
    pub fn find(&self, session: usize, log: Log, at: At) -> Option<Kind> {
        let is_it = |row: &&Row| row.kind.log() == log as u8 && (row.at.segment, row.at.id) == (at.segment, at.id);
        self.seen(session).find(is_it).map(|row| row.kind)
    }

    /// `Relation::probe`.
    pub fn probe(&self, session: usize, log: Log, at: At) -> Probe {
        let met = self.rows.iter().find(|row| {
            let is_own_vain = Self::is_own(row, session) && row.kind.is_vain();
            row.kind.log() == log as u8 && (row.at.segment, row.at.id) == (at.segment, at.id) && !is_own_vain
        });
        match met {
            None => Probe::Absent,
            Some(row) => match (row.kind.is_mark(), row.by == COMMITTED || Self::is_own(row, session)) {
                (false, true) => Probe::Committed,
                (false, false) => Probe::InProgress,
                (true, true) => Probe::Moved,
                (true, false) => Probe::Moving,
            },
        }
    }

    pub fn insert(&mut self, session: usize, at: At, kind: Kind) {
        self.rows.push(Row { at, kind, by: session as u8 });
        // Rows of one key stay in the order in which they came.
        self.rows.sort_by_key(|row| (row.kind.log(), row.at.segment, row.at.id));
    }

    /// Inserts a row under the key of its log, without waiting. False: the key is taken, or is being taken. Then a dead
    /// row remains, and other sessions meet it until the transaction ends.
    #[must_use]
    pub fn insert_unique(&mut self, session: usize, log: Log, at: At, kind: Kind) -> bool {
        let is_free = self.probe(session, log, at) == Probe::Absent;
        let vain = if log == Log::Claims { Kind::Vain } else { Kind::VainOutcome };
        self.insert(session, at, if is_free { kind } else { vain });
        is_free
    }

    /// Takes back a row that the session has just inserted.
    pub fn take_back(&mut self, session: usize, at: At, kind: Kind) {
        let vain = if kind.log() == Log::Claims as u8 { Kind::Vain } else { Kind::VainOutcome };
        let made = self.rows.iter_mut().find(|row| (row.at, row.kind) == (at, kind) && row.by as usize == session);
        made.into_iter().for_each(|row| row.kind = vain);
    }

    /// True if the session sees that an attempt has moved away from this place.
    pub fn has_moved(&self, session: usize, at: At) -> bool {
        [Log::Claims, Log::Outcomes].into_iter().any(|log| self.find(session, log, at).is_some_and(Kind::is_mark))
    }

    /// `Reader::at`: the row with this id in a segment.
    pub fn row_at(&self, session: usize, segment: u8, id: i64) -> Option<At> {
        let is_it = |row: &&Row| row.kind == Kind::Attempt && (row.at.segment, row.at.id) == (segment, id);
        self.seen(session).find(is_it).map(|row| row.at)
    }

    /// `Reader::by_id`: the attempt, wherever it is.
    pub fn by_id(&self, session: usize, id: i64) -> Option<At> {
        let found = [(id & 15) as u8, OLD].into_iter().filter_map(|segment| self.row_at(session, segment, id));
        found.into_iter().find(|&at| !self.has_moved(session, at))
    }

    /// `Reader::fetch`: by the place, or else by the id.
    pub fn fetch(&self, session: usize, at: At) -> Option<At> {
        self.row_at(session, at.segment, at.id).or_else(|| self.by_id(session, at.id))
    }

    /// `Reader::fetch_now`.
    pub fn fetch_now(&self, session: usize, at: At) -> Option<At> {
        let found = self.fetch(session, at)?;
        if self.has_moved(session, found) { self.by_id(session, at.id) } else { Some(found) }
    }

    /// Returns the attempts that live, as a session sees them: neither ended nor moved.
    pub fn living(&self, session: usize) -> Vec<At> {
        let attempts = self.seen(session).filter(|row| row.kind == Kind::Attempt).map(|row| row.at);
        let lives = |at: &At| self.find(session, Log::Outcomes, *at).is_none() && !self.has_moved(session, *at);
        attempts.filter(lives).collect()
    }

    // ---- locks ----

    /// Takes a lock on a table of a segment, until the transaction ends.
    pub fn lock(&mut self, session: usize, segment: u8) {
        self.segments[segment as usize].users |= 1 << session;
    }

    /// `Writer::open_home`: takes the lock, then checks whether the segment has the same filling. If not, releases the
    /// lock, unless the session had it before.
    pub fn open_home(&mut self, session: usize, (segment, generation): (u8, u8), fault: Option<Fault>) -> bool {
        let had = self.segments[segment as usize].users;
        self.lock(session, segment);
        let is_valid = self.segments[segment as usize].generation == generation;
        if !is_valid && fault != Some(Fault::ResolvedBeforeLock) {
            self.segments[segment as usize].users = had;
            return false;
        }
        true
    }

    pub fn generation(&self, segment: u8) -> u8 {
        self.segments[segment as usize].generation
    }

    // ---- ends of transactions ----

    /// Does the first half of a commit: the transaction's rows become visible. Notes what users may rely on now.
    pub fn appear(&mut self, session: usize) {
        let own: Vec<Row> = self.rows.iter().copied().filter(|row| Self::is_own(row, session)).collect();
        for row in &own {
            let bit = 1 << row.at.job;
            match row.kind {
                Kind::Attempt => self.told.enqueued |= bit,
                Kind::Completed | Kind::Failed(None) | Kind::Cancelled => {
                    if self.told.ended & bit != 0 {
                        self.break_promise(Promise::EndsOnce);
                    }
                    self.told.ended |= bit;
                }
                _ => {}
            }
        }
        let clients = std::mem::take(&mut self.clients[session].claimed);
        for at in clients {
            if self.told.claimed.contains(&at.id) {
                self.break_promise(Promise::ClaimedOnce);
            }
            self.told.claimed.push(at.id);
            self.told.claimed.sort_unstable();
            if session != self.worker() {
                self.clients[session].held.push(at);
            }
        }
        self.told.asked |= std::mem::take(&mut self.clients[session].asked);
        self.rows.retain(|row| !(Self::is_own(row, session) && row.kind.is_vain()));
        self.rows.iter_mut().filter(|row| Self::is_own(row, session)).for_each(|row| row.by = COMMITTED);
        self.clients[session].phase = Phase::Committed;
        self.check_all();
    }

    /// Checks that a committed job lives in one place or has ended.
    fn check_job(&mut self, job: u8) {
        let living = self.living(usize::from(COMMITTED)).iter().filter(|at| at.job == job).count();
        let has_ended = self.told.ended & (1 << job) != 0;
        if living != usize::from(!has_ended) {
            self.break_promise(Promise::LivesOnce);
        }
    }

    pub fn check_all(&mut self) {
        let enqueued = self.told.enqueued;
        (1..8).filter(|job| enqueued & (1 << job) != 0).for_each(|job| self.check_job(job));
    }

    /// Does the first half of a rollback: the transaction's rows die.
    pub fn vanish(&mut self, session: usize) {
        self.rows.retain(|row| !Self::is_own(row, session));
        let client = &mut self.clients[session];
        client.phase = Phase::Aborted;
        client.claimed.clear();
        client.asked = 0;
    }

    /// Releases the locks, after the callback.
    pub fn release(&mut self, session: usize) {
        let worker = self.worker();
        for segment in &mut self.segments {
            segment.producers &= !(1 << session);
            segment.users &= !(1 << session);
        }
        let client = &mut self.clients[session];
        client.steps.clear();
        client.phase = Phase::Idle;
        client.pc = Pc::Next;
        client.verb = 0;
        client.given_up = 0;
        client.to_refill = false;
        client.told_early = false;
        if session != worker {
            client.transaction += 1;
        }
    }

    /// Crashes and starts the server: open transactions are gone, committed rows stay, memory is empty. Workers come
    /// back and try to end what they have claimed.
    pub fn crash(&mut self, fault: Option<Fault>) {
        self.crashes_left -= 1;
        self.rows.retain(|row| row.by == COMMITTED);
        self.memory = Memory::new(false, fault);
        for session in 0..self.clients.len() {
            if self.clients[session].phase != Phase::Idle {
                self.clients[session].claimed.clear();
                self.clients[session].asked = 0;
                self.release(session);
            }
        }
        // No callback remains to run, because the rows can be read.
        self.told.settled = self.told.enqueued;
    }
}
