//! The world: the rows, what a session sees of them, commit and rollback in two steps, the crash, and the promises.

use super::memory::Memory;
use super::rows::{Fact, How, Seen, Verdict, verdict};
use super::{After, Fault, Promise};

/// The transaction of a committed row.
const COMMITTED: u8 = u8::MAX;

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    fact: Fact,
    by: u8,
}

/// The result of a look for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Absent,
    Committed,
    InProgress,
}

/// A change that a transaction makes to memory at its end.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Step {
    /// A committed job has this predecessor.
    Awaits(u8),
    /// The job has ended, with all its attempts.
    Ended(u8),
    /// The same after a look at the successors. The number is the count of known jobs with successors before the look.
    Spared(u8, u8),
    /// The job waits and is not held.
    Pushed(u8),
    /// The job was taken from the frontier to be claimed.
    Taken(u8),
    /// The job's key was held by an open transaction.
    Missed(u8),
    /// The key of a job was taken without telling the frontier.
    Unseen(u8),
    /// The duty has taken a job from the list, or the order to look at everything.
    Served(Option<u8>),
    /// The duty must look at the job again.
    Again(u8),
}

#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Idle,
    Open,
    /// The rows are visible. The callback has not run.
    Committed,
    /// The rows are dead. The callback has not run.
    Aborted,
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
pub struct Session {
    pub phase: Phase,
    /// The position in its script: the current transaction, and the step in it.
    pub transaction: u8,
    pub pc: u8,
    pub steps: Vec<Step>,
    /// The snapshot of the duty.
    pub seen: Option<Seen>,
    /// Ended jobs that the duty must still serve, each with the successor at which to continue. A look at everything
    /// has found them, or they have more successors than one transaction serves. The job that this transaction serves
    /// may be among them.
    pub left: Vec<(u8, u8)>,
    pub from: u8,
    /// True if all predecessors of its jobs were found living when they were announced.
    pub lives: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct World {
    rows: Vec<Row>,
    pub memory: Memory,
    /// The sessions. Those that do the duty come last.
    pub sessions: Vec<Session>,
    /// Jobs, as bits, that the table told to release or to skip in some committed state since they exist.
    to_release: u8,
    to_skip: u8,
    /// The promises that were broken, as bits.
    pub broken: u8,
    pub aborts_left: u8,
    pub crashes_left: u8,
    /// True if the time of all jobs has come.
    pub is_due: bool,
}

impl World {
    pub fn new(model: &After) -> Self {
        let scenario = &model.scenario;
        let mut world = Self {
            rows: Vec::new(),
            memory: Memory::settled(model),
            sessions: vec![Session::default(); scenario.scripts.len() + scenario.duties],
            to_release: 0,
            to_skip: 0,
            broken: 0,
            aborts_left: scenario.aborts,
            crashes_left: scenario.crashes,
            is_due: false,
        };
        for job in 0..scenario.jobs.len() as u8 {
            let is_held = scenario.held & (1 << job) != 0;
            let is_running = scenario.running & (1 << job) != 0;
            if is_held || is_running {
                world.rows.push(Row { fact: Fact::Attempt(job, 0), by: COMMITTED });
            }
            if is_running {
                world.rows.push(Row { fact: Fact::Claim(job, 0), by: COMMITTED });
            }
            if is_held && scenario.jobs[usize::from(job)].until {
                world.rows.push(Row { fact: Fact::Timed(job, 0), by: COMMITTED });
            }
            if is_held {
                model.predecessors(job).for_each(|before| world.memory.add(model, before));
            }
        }
        world
    }

    pub fn break_promise(&mut self, promise: Promise) {
        self.broken |= 1 << promise as u8;
    }

    /// Returns the rows that a snapshot of the session sees now: committed rows and its own.
    pub fn seen(&self, session: usize) -> Seen {
        let is_seen = |row: &&Row| row.by == COMMITTED || usize::from(row.by) == session;
        Seen(self.rows.iter().filter(is_seen).map(|row| row.fact).collect())
    }

    /// Returns the committed rows.
    pub fn committed(&self) -> Seen {
        self.seen(usize::from(COMMITTED))
    }

    pub fn insert(&mut self, session: usize, fact: Fact) {
        self.rows.push(Row { fact, by: session as u8 });
        self.rows.sort_unstable();
    }

    /// Looks for the claim of an attempt by its key.
    pub fn probe_claim(&self, session: usize, job: u8, number: u8) -> Probe {
        self.probe(session, Fact::Claim(job, number))
    }

    /// Looks for a row, including rows of open transactions.
    pub fn probe(&self, session: usize, fact: Fact) -> Probe {
        let met = self.rows.iter().find(|row| row.fact == fact);
        met.map_or(Probe::Absent, |row| {
            if row.by == COMMITTED || usize::from(row.by) == session { Probe::Committed } else { Probe::InProgress }
        })
    }

    /// True if an open transaction has an outcome for the attempt.
    pub fn is_ending(&self, job: u8, number: u8) -> bool {
        let is_it = |fact: Fact| matches!(fact, Fact::Outcome(j, n, _) if (j, n) == (job, number));
        self.rows.iter().any(|row| row.by != COMMITTED && is_it(row.fact))
    }

    /// Does the first half of a commit: the rows become visible, and are checked against the promises.
    fn appear(&mut self, model: &After, session: usize) {
        let own: Vec<Fact> =
            self.rows.iter().filter(|row| usize::from(row.by) == session).map(|row| row.fact).collect();
        self.rows.iter_mut().filter(|row| usize::from(row.by) == session).for_each(|row| row.by = COMMITTED);
        self.rows.sort_unstable();
        let seen = self.committed();
        for job in 0..model.scenario.jobs.len() as u8 {
            if seen.has(Fact::Attempt(job, 0)) {
                match model.verdict(&seen, job, Seen::end) {
                    Verdict::Release => self.to_release |= 1 << job,
                    Verdict::Skip => self.to_skip |= 1 << job,
                    Verdict::Hold => {}
                }
            }
        }
        for fact in own {
            let count = |is_it: &dyn Fn(Fact) -> bool| seen.0.iter().filter(|fact| is_it(**fact)).count();
            match fact {
                Fact::Met(_) if count(&|f| f == fact) > 1 => self.break_promise(Promise::EndsOnce),
                Fact::Met(job)
                    if self.to_release & (1 << job) == 0
                        && !(self.is_due && model.scenario.jobs[usize::from(job)].until) =>
                {
                    self.break_promise(Promise::NotEarly);
                }
                Fact::Outcome(job, _, How::Skipped) if self.to_skip & (1 << job) == 0 => {
                    self.break_promise(Promise::SkippedRightly);
                }
                Fact::Outcome(job, number, _)
                    if count(&|f| matches!(f, Fact::Outcome(j, n, _) if (j, n) == (job, number))) > 1 =>
                {
                    self.break_promise(Promise::EndsOnce);
                }
                Fact::Claim(..) if count(&|f| f == fact) > 1 => self.break_promise(Promise::EndsOnce),
                // A cancel has an outcome beside its claim. A worker's claim has none.
                Fact::Claim(job, 0)
                    if model.scenario.jobs[usize::from(job)].after != 0
                        && seen.outcome(job, 0).is_none()
                        && !seen.has(Fact::Met(job)) =>
                {
                    self.break_promise(Promise::NotEarly);
                }
                _ => {}
            }
        }
    }

    /// True if the duty is between two transactions of one piece of work.
    pub fn is_between(&self, session: usize) -> bool {
        self.sessions[session].phase == Phase::Idle && !self.sessions[session].left.is_empty()
    }

    /// Does the first half of a rollback: the rows die. If the duty is rolled back, its process ends, and the next
    /// process begins with a look at everything.
    pub fn abort(&mut self, model: &After, session: usize) {
        let had_left = !std::mem::take(&mut self.sessions[session].left).is_empty();
        self.memory.everything |= had_left && !model.is(Fault::LeftForgottenByExit);
        if self.sessions[session].phase == Phase::Open {
            self.rows.retain(|row| usize::from(row.by) != session);
            self.sessions[session].phase = Phase::Aborted;
        }
    }

    /// Crashes and starts the server: open transactions are gone, committed rows stay, memory is empty.
    pub fn crash(&mut self, model: &After) {
        self.crashes_left -= 1;
        self.rows.retain(|row| row.by == COMMITTED);
        self.memory = Memory::empty(model);
        for session in 0..self.sessions.len() {
            self.sessions[session].left.clear();
            if self.sessions[session].phase != Phase::Idle {
                self.close(model, session);
            }
        }
    }

    /// Closes the session's transaction.
    fn close(&mut self, model: &After, session: usize) {
        let is_duty = model.is_duty(session);
        self.memory.forget(session);
        let closed = &mut self.sessions[session];
        let left = std::mem::take(&mut closed.left);
        *closed = Session { transaction: closed.transaction + u8::from(!is_duty), left, ..Session::default() };
    }
}

impl After {
    /// Returns what the table says about a job. `end` returns how a predecessor has ended.
    pub fn verdict(&self, seen: &Seen, job: u8, end: fn(&Seen, u8) -> Option<How>) -> Verdict {
        let plan = self.scenario.jobs[usize::from(job)];
        let ends: Vec<_> = self.predecessors(job).map(|before| end(seen, before)).collect();
        if plan.after == 0 { Verdict::Hold } else { verdict(plan.upon, &ends) }
    }

    /// Checks the world when no session has anything left to do: held jobs must have to be held, and released jobs must
    /// be claimable.
    pub fn judge_end(&self, world: &World) -> Result<(), Promise> {
        let seen = world.committed();
        let is_served = |job: u8| {
            let plan = self.scenario.jobs[usize::from(job)];
            if seen.is_held(job) && plan.after != 0 {
                let is_over = plan.until && world.is_due;
                return !is_over && self.verdict(&seen, job, Seen::end) == Verdict::Hold;
            }
            !seen.is_claimable(job, plan) || world.memory.is_behind || world.memory.ready & (1 << job) != 0
        };
        let all = (0..self.scenario.jobs.len() as u8).all(is_served);
        if all { Ok(()) } else { Err(Promise::NotStranded) }
    }

    /// Does the next step of a commit, a callback or a rollback.
    pub fn settle(&self, world: &mut World, session: usize) {
        match world.sessions[session].phase {
            Phase::Idle => {}
            Phase::Open => {
                if self.is_told_early(world, session) {
                    self.call_back(world, session);
                } else {
                    world.appear(self, session);
                }
                world.sessions[session].phase = Phase::Committed;
            }
            Phase::Committed if self.is_told_early(world, session) => {
                world.appear(self, session);
                world.close(self, session);
            }
            Phase::Committed => {
                self.call_back(world, session);
                world.close(self, session);
            }
            Phase::Aborted => {
                self.undo(world, session);
                world.close(self, session);
            }
        }
    }

    /// True if memory is updated before the rows are visible. Only faults do this.
    fn is_told_early(&self, world: &World, session: usize) -> bool {
        world.sessions[session].steps.iter().any(|step| match step {
            Step::Awaits(_) => self.is(Fault::ProducerToldBeforeVisible),
            Step::Ended(_) | Step::Spared(..) => self.is(Fault::EnderToldBeforeVisible),
            _ => false,
        })
    }

    /// Runs the commit callback, under one hold of the lock.
    fn call_back(&self, world: &mut World, session: usize) {
        let steps = world.sessions[session].steps.clone();
        let memory = &mut world.memory;
        for step in steps {
            match step {
                Step::Awaits(job) => {
                    memory.add(self, job);
                    if self.is_handed_over(&world.sessions[session], memory.is_told(session, job)) {
                        memory.hand_over(self, job);
                    }
                }
                Step::Ended(job) => memory.ended(self, job),
                Step::Spared(job, adds) => memory.spared(self, job, adds),
                Step::Pushed(job) | Step::Missed(job) => memory.ready |= 1 << job,
                Step::Served(taken) => memory.served(self, taken),
                Step::Again(job) => memory.hand_over(self, job),
                Step::Taken(_) | Step::Unseen(_) => {}
            }
        }
    }

    /// True if the producer's callback hands over the predecessors of its job. It does not if all of them lived and no
    /// end was reported since.
    fn is_handed_over(&self, session: &Session, is_told: bool) -> bool {
        match self.fault {
            Some(Fault::ProducerSilent) => false,
            Some(Fault::LookInsteadOfHandOver) => !session.lives,
            Some(Fault::ToldInsteadOfLook) => is_told,
            _ => !session.lives || is_told,
        }
    }

    /// Runs the callback of a rollback, from the last step to the first.
    fn undo(&self, world: &mut World, session: usize) {
        let steps = world.sessions[session].steps.clone();
        let memory = &mut world.memory;
        for step in steps.into_iter().rev() {
            match step {
                Step::Taken(job) | Step::Missed(job) => memory.ready |= 1 << job,
                Step::Unseen(job) if self.is(Fault::PushedByRollback) => memory.ready |= 1 << job,
                Step::Unseen(_) => memory.is_behind = true,
                Step::Served(taken) => memory.put_back(self, taken),
                Step::Awaits(_) | Step::Ended(_) | Step::Spared(..) | Step::Pushed(_) | Step::Again(_) => {}
            }
        }
    }
}
