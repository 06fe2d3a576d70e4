//! What is explored: the scripts of the clients, the mistake that is made on purpose, and the promises.

use super::data::Verb;

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
    pub const ALL: [(Self, &'static str); 6] = [
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
