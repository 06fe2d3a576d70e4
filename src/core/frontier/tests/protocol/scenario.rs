//! The input of an exploration: the scripts of the clients, the mistake that is put in, and the promises.

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
    /// Nothing is handed out while an attempt that ranks before it is free.
    InOrder,
    /// When all sessions are done, each job can be ended: it can be claimed, or its lease ends.
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

/// A mistake that is put into the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    // ---- transactions ----
    /// A refill reads the logs, and only then raises the flag.
    ReadBeforeFlag,
    /// A refill sets the position to the rank to which it has read, and ignores spills since its beginning.
    SpillForgotten,
    /// Memory learns of a job before its row is visible.
    ToldBeforeVisible,
    /// A claim that met the row of an open transaction does not look again when its own transaction ends.
    VainClaimForgotten,
    // ---- the move ----
    /// A refill takes the open mark of a move for a claim.
    OpenMarkIsClaim,
    /// The move skips an attempt that an open transaction is claiming or ending, as if that transaction had ended.
    OpenClaimTakenForSettled,
    /// The move begins while a producer may still add rows.
    MovedBesideProducer,
    /// The frontier does not learn of an attempt that has moved.
    MovedNotTold,
    /// The rollback of a move does not make the frontier read again.
    UndoneMoveNotTold,
    /// Requests that came while an attempt was taken are forgotten with the entry.
    PushHeldBackForgotten,
    /// The place of a row is read before the lock.
    ResolvedBeforeLock,
    /// After a crash, a session reads a claim back and does not check whether the attempt has moved meanwhile.
    RecoveredWithStalePlace,
    /// After a crash, a session reads a claim back and reports it to memory without a lock that keeps its segment from
    /// being emptied.
    RecoveredWithoutLock,
    /// The move reads the notes before it marks the attempt.
    NotesReadBeforeMark,
    /// A session that writes a note does not look for the mark afterwards.
    NoLookForMarkAfterNote,
    /// A session that has taken an attempt from a place that it has left forgets the attempt, although it waits in
    /// another place.
    MovedEntryForgotten,
    /// A session that asks to cancel looks for the mark of a running attempt only.
    MarkOfWaitingNotSeen,
    /// The move does not look for a request about an attempt that waits.
    NoteOfWaitingLeftBehind,
    /// The move skips a request about an ended attempt whose job continues.
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
    /// A session that reads a claim back finds the attempt ended, and forgets the entry by which another session is
    /// A request that cannot be served now is forgotten.
    EndingEntryForgotten,
    /// A note about a running attempt counts as told to the worker, although it may be older than the claim.
    NoteTakenForTold,
    /// A request leaves memory before the transaction that serves it has committed.
    RemovedBeforeCommit,
    /// The notes are not searched after a crash.
    NoScanAfterCrash,
    /// A request for which there is no room is forgotten.
    OverflowForgotten,
}

/// The scripts of the sessions. A worker runs beside them.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The number of jobs that wait at the beginning: 1, 2, …
    pub waiting: u8,
    /// True if the first session has claimed the first of these jobs.
    pub is_claimed: bool,
    /// The transactions of each session.
    pub scripts: &'static [&'static [&'static [Verb]]],
    /// True if the worker turns the ring: closes the first segment, moves the living attempts out of it, and empties
    /// it.
    pub moves: bool,
    /// How many transactions may be rolled back, at any step, how many crashes there may be, and how many leases may
    /// end.
    pub aborts: u8,
    pub crashes: u8,
    pub expiries: u8,
    pub is_order_checked: bool,
}

impl Scenario {
    /// A scenario in which nothing happens.
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
