//! The protocol of held jobs, explored to the end: enqueueing a successor, the end of its predecessor, and the duty
//! that releases, with rollbacks and a crash between any two steps.
//!
//! `docs/internals/after.md` has the protocol, which this model has decided. As in [`super::protocol`], each mistake
//! that the protocol avoids is a [`Fault`], and a test shows that the exploration finds it.
//!
//! Invariant: actions are judged in the state in which they become visible. Omissions are judged in every state in
//! which no session has anything left to do.

mod duty;
mod memory;
mod rows;
mod scenarios;
mod sessions;
mod world;

use stateright::{Model, Property};

use self::rows::Upon;
use self::sessions::Verb;
use self::world::{Phase, World};

/// What is promised to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// A job is released, and claimed, only when its condition has been met by committed ends.
    NotEarly,
    /// A job is skipped only when the table of `upon` says so.
    SkippedRightly,
    /// No attempt is claimed twice or ends twice.
    EndsOnce,
    /// When no session has anything left to do, no job is held whose condition is met or cannot be met. A released job
    /// can be claimed.
    NotStranded,
}

impl Promise {
    const ALL: [(Self, &'static str); 4] = [
        (Self::NotEarly, "a job runs after its predecessors"),
        (Self::SkippedRightly, "a job is skipped where it has to be"),
        (Self::EndsOnce, "an attempt is claimed once and ends once"),
        (Self::NotStranded, "no job is stranded"),
    ];
}

/// A mistake that is put into the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    // ---- the session that enqueues ----
    /// The callback makes the predecessor known, and leaves it to the predecessor's end to hand it over.
    ProducerSilent,
    /// The callback hands the predecessor over only if a look in the call saw that it had ended.
    LookInsteadOfHandOver,
    /// The callback hands the predecessor over only if its end was reported since the announcement.
    ToldInsteadOfLook,
    /// The look in the call comes before the announcement.
    LookedBeforeAnnounced,
    /// The predecessor is made known and handed over before the rows are visible.
    ProducerToldBeforeVisible,
    // ---- the session that ends ----
    //
    // The transaction checks whether its end was the last one missing, and hands the job over only then.
    CountedInTransaction,
    /// The filter is read before the commit.
    FilterAskedBeforeCommit,
    /// The ended job is handed over before the outcome is visible.
    EnderToldBeforeVisible,
    /// The end of a skipped job is not reported.
    SkipNotTold,
    /// A session that has released its job's successors does not check whether more have come.
    SparedBlindly,
    /// The session does not report its end to the sessions that have announced its job.
    SparedNotTold,
    /// The session reads the count of successors after it has looked.
    CountedAfterLook,
    /// The session does not hand its job over although successors stay held.
    SparedThoughHeld,
    /// The session releases successors of a dead job, too, which may be retried before the commit.
    ReleasedOnDeath,
    /// The session releases a successor without a look at what another session has open about it.
    ReleasedWithoutKey,
    // ---- the duty ----
    //
    // The duty uses a snapshot that is older than the moment when it took the job.
    OldSnapshot,
    /// Of several predecessors, the one that was handed over decides.
    EachEdgeAlone,
    /// The first outcome of a job counts, although the job was retried.
    FirstOutcomeCounts,
    /// A rollback does not put back the jobs that were taken from the list.
    TakenForgottenByRollback,
    /// The jobs that the duty has left for its next transactions are forgotten when its process ends.
    LeftForgottenByExit,
    /// A job that is being looked at is not added to the list again.
    NotAddedWhileServed,
    /// A skip that meets the key of an open transaction is not retried.
    VainSkipForgotten,
    /// A skip does not take the key of the claim.
    SkippedWithoutKey,
    /// A released job is not reported to the frontier.
    ReleaseNotPushed,
    /// A dead job counts as completed.
    DeathIsMet,
    // ---- the time at which a held job is released at the latest ----
    /// A move to another segment leaves the time behind.
    TimeLostByMove,
    /// The callback of the enqueue does not hand over the job itself, whose time may have come.
    TimeNotHandedOver,
    /// The look at everything skips jobs whose time may have come.
    TimeNotLookedAt,
    // ---- memory ----
    //
    // A served job leaves the filter.
    ServedLeavesFilter,
    /// A full list drops new jobs.
    OverflowForgotten,
    /// A crash leaves no order to look at everything.
    NoLookAfterCrash,
    /// While the filter is rebuilt after a crash, it counts as empty.
    UnknownTakenForEmpty,
    /// A second look at everything restarts the filter that another process is building.
    TwoLooksAtOnce,
    /// The order to look at everything is removed after the look.
    OrderTakenBackLate,
    /// The look at everything is not reported to the sessions that have announced jobs.
    LookNotTold,
    /// Jobs that become known during the look at everything go into the filter that the look replaces.
    RebuildMissesNew,
    /// The rollback of a cancel pushes a held job as if it had waited.
    PushedByRollback,
}

/// A job of a scenario: its predecessors as bits, its condition, and whether it is released at a time at the latest.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub after: u8,
    pub upon: Upon,
    pub until: bool,
}

/// The scripts of the sessions. The duty runs beside them.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub jobs: &'static [Plan],
    /// The jobs that run at the beginning, as bits.
    pub running: u8,
    /// The jobs that exist and are held at the beginning, as bits.
    pub held: u8,
    /// The transactions of each session.
    pub scripts: &'static [&'static [Verb]],
    /// True if the frontier has not read the logs yet.
    pub is_behind: bool,
    /// The number of processes that do the duty.
    pub duties: usize,
    /// The number of jobs for which the duty's list has room.
    pub room: usize,
    /// The number of jobs that the duty serves in one transaction.
    pub batch: usize,
    /// True if the filter has one cell for all jobs.
    pub one_cell: bool,
    /// True if the ending transaction releases successors before its commit. It then hands its job over only if some
    /// successors stay held or new ones have come.
    pub ahead: bool,
    /// How many transactions may be rolled back, at any step, and how many crashes there may be.
    pub aborts: u8,
    pub crashes: u8,
}

impl Scenario {
    /// A scenario in which nothing happens.
    pub const QUIET: Self = Self {
        jobs: &[],
        running: 0,
        held: 0,
        scripts: &[],
        is_behind: false,
        duties: 1,
        room: 4,
        batch: 4,
        one_cell: false,
        ahead: false,
        aborts: 0,
        crashes: 0,
    };
}

/// A scenario, and the fault that is put in, if there is one.
#[derive(Clone, Debug)]
pub struct After {
    pub scenario: Scenario,
    pub fault: Option<Fault>,
}

/// The next thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Step(usize),
    /// The session's transaction is rolled back, or its process ends.
    Abort(usize),
    Crash,
}

impl After {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// True if a session does the duty. These sessions come last.
    fn is_duty(&self, session: usize) -> bool {
        session >= self.scenario.scripts.len()
    }

    /// Returns the successors of this job.
    fn dependents(&self, job: u8) -> impl Iterator<Item = u8> {
        let is_after = move |other: &u8| self.scenario.jobs[usize::from(*other)].after & (1 << job) != 0;
        (0..self.scenario.jobs.len() as u8).filter(is_after)
    }

    /// Returns the predecessors of this job.
    fn predecessors(&self, job: u8) -> impl Iterator<Item = u8> + use<> {
        let after = self.scenario.jobs[usize::from(job)].after;
        (0..8).filter(move |other| after & (1 << other) != 0)
    }

    /// Finishes the remaining work when the sessions have nothing left to do, and checks that nothing was left out.
    fn judge_quiet(&self, world: &World) -> Result<(), Promise> {
        let mut world = world.clone();
        for _ in 0..200 {
            // A session that waits for the end of another session's transaction tries again until that transaction has
            // ended.
            let sessions = || (0..world.sessions.len()).filter(|&session| self.can_step(&world, session));
            let is_open = |session: &usize| world.sessions[*session].phase != Phase::Idle;
            match sessions().find(is_open).or_else(|| sessions().next()) {
                Some(session) => self.step(&mut world, session),
                None => return self.judge_end(&world),
            }
            if world.broken != 0 {
                // The exploration reaches this state as well, and sees the broken promise there.
                return Ok(());
            }
        }
        Err(Promise::NotStranded)
    }
}

impl Model for After {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // No later action can repair a broken promise.
        if world.broken != 0 {
            return;
        }
        for session in 0..world.sessions.len() {
            if self.can_step(world, session) {
                actions.push(Action::Step(session));
            }
            let is_open = world.sessions[session].phase == Phase::Open && !self.moves_cursor(world, session);
            if world.aborts_left > 0 && (is_open || world.is_between(session)) {
                actions.push(Action::Abort(session));
            }
        }
        if world.crashes_left > 0 {
            actions.push(Action::Crash);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Step(session) => self.step(&mut world, session),
            Action::Abort(session) => {
                world.aborts_left -= 1;
                world.abort(self, session);
            }
            Action::Crash => world.crash(self),
        }
        let is_quiet = !(0..self.scenario.scripts.len()).any(|session| self.can_step(&world, session));
        if is_quiet
            && world.broken == 0
            && let Err(promise) = self.judge_quiet(&world)
        {
            world.break_promise(promise);
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn keeps<const N: usize>(_: &After, world: &World) -> bool {
            world.broken & (1 << N) == 0
        }
        let conditions = [keeps::<0>, keeps::<1>, keeps::<2>, keeps::<3>];
        let named = Promise::ALL.into_iter().zip(conditions);
        named.map(|((_, name), condition)| Property::always(name, condition)).collect()
    }
}
