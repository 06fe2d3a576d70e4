//! The protocols of transactions, of the move and of late requests, explored to the end: every way in which the steps
//! of a few sessions and the background worker can come one after the other, with rollbacks and a crash.
//!
//! Each test explores one small scenario. The frontier in it is the real one; rows, locks, callbacks and the steps of
//! each verb are transcribed from `src`, and each step names its function. `docs/internals/model.md` says what is
//! abstracted away.
//!
//! For each mistake that was made in these protocols, or that they were made to avoid, there is a [`Fault`] that puts
//! it back, and a test that the exploration finds it: so it is known that the model can see such mistakes.
//!
//! Invariant: a promise is checked in every state, and what was not served is looked for in every state in which all
//! sessions are done ([`drain`]).

mod drain;
mod duties;
mod ends;
mod memory;
mod requests;
mod scenarios;
mod steps;
mod verbs;
mod world;

use stateright::{Model, Property};

use self::duties::Duty;
use self::verbs::Verb;
use self::world::{Phase, World};

/// What is promised to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// No two claims of an attempt are committed.
    ClaimedOnce,
    /// No job ends twice.
    EndsOnce,
    /// A committed job lives in one place, or has ended.
    LivesOnce,
    /// Nothing is handed out while something that ranks before it is free.
    InOrder,
    /// When all sessions are done, each job can be brought to its end: it can be claimed, or its lease ends.
    Served,
    /// A job that a committed call has asked to cancel is not handed out again, and its worker is told.
    Cancelled,
}

impl Promise {
    const ALL: [(Self, &'static str); 6] = [
        (Self::ClaimedOnce, "an attempt is claimed once"),
        (Self::EndsOnce, "a job ends once"),
        (Self::LivesOnce, "a committed job lives in one place"),
        (Self::InOrder, "jobs are handed out in order"),
        (Self::Served, "every job is served"),
        (Self::Cancelled, "a request to cancel is served"),
    ];
}

/// A mistake that is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    // ---- transactions ----
    /// A refill reads the logs, and only then raises the flag.
    ReadBeforeFlag,
    /// A refill sets the position to where it has read, whatever was spilled meanwhile.
    SpillForgotten,
    /// Memory is told of a job before its row can be seen.
    ToldBeforeVisible,
    /// A claim that met the row of an open transaction does not look again when its own transaction ends.
    VainClaimForgotten,
    // ---- the move ----
    /// A refill takes the open mark of a move for a claim.
    OpenMarkIsClaim,
    /// The move passes over an attempt that an open transaction is claiming or ending, as if that were over.
    OpenClaimTakenForSettled,
    /// The move begins while a producer may still add rows.
    MovedBesideProducer,
    /// The frontier is not told of an attempt that has moved.
    MovedNotTold,
    /// The rollback of a move does not make the frontier read again.
    UndoneMoveNotTold,
    /// What came while an attempt was taken is forgotten with the entry.
    PushHeldBackForgotten,
    /// The place of a row is asked for before the lock.
    ResolvedBeforeLock,
    /// A claim read back after a crash does not look whether the attempt has moved meanwhile.
    RecoveredWithStalePlace,
    /// A claim read back after a crash is told to memory without a lock that keeps its segment from being emptied.
    RecoveredWithoutLock,
    /// The move reads the notes before it marks the attempt.
    NotesReadBeforeMark,
    /// A session that writes a note does not look for the mark afterwards.
    NoLookForMarkAfterNote,
    /// A session that has taken an attempt where it is not any more forgets it, although it waits elsewhere.
    MovedEntryForgotten,
    /// A session that asks to cancel looks for the mark of a running attempt only.
    MarkOfWaitingNotSeen,
    /// The move does not look for a request about an attempt that waits.
    NoteOfWaitingLeftBehind,
    /// The move passes over a request about an attempt that has ended, whose job goes on.
    NoteOfEndedLeftBehind,
    /// A request may be written about an attempt that has ended.
    NoteAboutEnded,
    // ---- late requests ----
    /// A request to cancel that finds no running attempt at its commit is forgotten.
    CancelAfterEndForgotten,
    /// A request that comes while the attempt is being ended is not handed over.
    LateCancelForgotten,
    /// A request about a claim that is rolled back is forgotten.
    CancelOfRolledBackClaimForgotten,
    /// A session that reads a claim back finds it ended, and forgets the entry by which another is ending it.
    EndingEntryForgotten,
    /// A note about a running attempt counts as told, although it may be older than the claim.
    NoteTakenForTold,
    /// A request leaves memory before the transaction that serves it has committed.
    RemovedBeforeCommit,
    /// After a crash the notes are not looked through.
    NoScanAfterCrash,
    /// A request for which there is no room is forgotten.
    OverflowForgotten,
}

/// What some sessions do, beside a worker.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Jobs that wait at the beginning: 1, 2, …
    pub waiting: u8,
    /// Whether the first session has claimed the first of them.
    pub is_claimed: bool,
    /// For each session its transactions.
    pub scripts: &'static [&'static [&'static [Verb]]],
    /// Whether the worker turns the ring: closes the first segment, moves the living out of it, empties it.
    pub moves: bool,
    /// So many transactions may be rolled back, at any step; so many crashes, and leases that end.
    pub aborts: u8,
    pub crashes: u8,
    pub expiries: u8,
    pub is_order_checked: bool,
}

impl Scenario {
    /// Nothing happens.
    pub const QUIET: Self = Self {
        waiting: 0,
        is_claimed: false,
        scripts: &[],
        moves: false,
        aborts: 0,
        crashes: 0,
        expiries: 0,
        is_order_checked: true,
    };
}

/// A scenario, with a fault or without.
#[derive(Clone, Debug)]
pub struct Protocol {
    pub scenario: Scenario,
    pub fault: Option<Fault>,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Step(usize),
    /// A session does not wait for a move any longer.
    GiveUp(usize),
    /// A session's transaction is rolled back, or its process is ended.
    Abort(usize),
    Begin(Duty),
    Crash,
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.scenario, self.fault)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // A broken promise is not mended by what follows.
        if world.told.broken != 0 {
            return;
        }
        for session in 0..world.clients.len() {
            let phase = world.clients[session].phase;
            if world.is_busy(&self.scenario, session) {
                actions.push(Action::Step(session));
            }
            if phase == Phase::Open {
                actions.push(Action::GiveUp(session));
                if world.aborts_left > 0 {
                    actions.push(Action::Abort(session));
                }
            }
        }
        if world.clients[world.worker()].phase == Phase::Idle {
            actions.extend(world.duties(&self.scenario, self.fault).into_iter().map(Action::Begin));
        }
        if world.crashes_left > 0 {
            actions.push(Action::Crash);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Step(session) => {
                if !world.step(&self.scenario, self.fault, session) {
                    return None;
                }
            }
            Action::GiveUp(session) => {
                if !world.give_up(&self.scenario, self.fault, session) {
                    return None;
                }
            }
            Action::Abort(session) => {
                world.aborts_left -= 1;
                world.roll_back(session);
            }
            Action::Begin(duty) => world.begin_duty(duty),
            Action::Crash => world.crash(self.fault),
        }
        let is_quiet = (0..world.clients.len()).all(|session| !world.is_busy(&self.scenario, session));
        if is_quiet
            && world.told.broken == 0
            && let Err(promise) = drain::drain(&self.scenario, self.fault, &world)
        {
            world.break_promise(promise);
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn keeps<const N: usize>(_: &Protocol, world: &World) -> bool {
            world.told.broken & (1 << N) == 0
        }
        let conditions = [keeps::<0>, keeps::<1>, keeps::<2>, keeps::<3>, keeps::<4>, keeps::<5>];
        let named = Promise::ALL.into_iter().zip(conditions);
        named
            .map(|((promise, name), condition)| {
                debug_assert_eq!(Promise::ALL[promise as usize].1, name);
                Property::always(name, condition)
            })
            .collect()
    }
}
