//! The parts of the model: rows, places, steps, and the progress of a client.

use crate::frontier::{Place, Rank, Ready};

pub const INSTANCE: u32 = 1;

pub const LANE: i32 = 1;

/// The segment that is reclaimed, the young one that is opened instead, and old.
pub const SEGMENTS: usize = 3;

pub const OLD: u8 = 2;

/// The writer of a committed row.
pub const COMMITTED: u8 = u8::MAX;

/// An attempt, with the segment in which one of its rows is.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    pub segment: u8,
    pub id: i64,
    pub job: u8,
}

impl At {
    pub fn rank(self) -> Rank {
        Rank { priority: 0, job_id: i64::from(self.job) }
    }

    pub fn place(self) -> Place {
        Place { segment: self.segment, ..Place::default() }
    }

    pub fn ready(self) -> Ready {
        Ready { rank: self.rank(), id: self.id, place: self.place(), group: 0 }
    }

    pub fn of(ready: &Ready) -> Self {
        Self { segment: ready.place.segment, id: ready.id, job: ready.rank.job_id as u8 }
    }
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Kind {
    Attempt,
    /// The claim of a worker.
    Claim,
    /// A claim by the system, to end the attempt unrun.
    System,
    /// The mark of a waiting attempt that has moved: in the log of claims.
    MovedWaiting,
    /// A claim that met another claim and was taken back. It blocks other claims until its transaction ends. Then it is
    /// dead.
    Vain,
    Completed,
    /// Failed or timed out. Has the attempt that continues the job.
    Failed(Option<i64>),
    Cancelled,
    /// The mark of a running attempt that has moved: in the log of outcomes.
    MovedRunning,
    /// Like `Vain`, in the log of outcomes.
    VainOutcome,
    /// A note that the attempt must be cancelled.
    CancelNote,
}

impl Kind {
    pub(super) fn log(self) -> u8 {
        match self {
            Self::Attempt => 0,
            Self::Claim | Self::System | Self::MovedWaiting | Self::Vain => 1,
            Self::Completed | Self::Failed(_) | Self::Cancelled | Self::MovedRunning | Self::VainOutcome => 2,
            Self::CancelNote => 3,
        }
    }

    pub(super) fn is_vain(self) -> bool {
        matches!(self, Self::Vain | Self::VainOutcome)
    }

    pub fn is_mark(self) -> bool {
        matches!(self, Self::MovedWaiting | Self::MovedRunning)
    }
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Row {
    pub at: At,
    pub kind: Kind,
    pub(super) by: u8,
}

/// The two logs whose keys decide.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Log {
    Claims = 1,
    Outcomes = 2,
}

/// Like `pg::scan::Probe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Absent,
    Committed,
    InProgress,
    Moved,
    Moving,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum State {
    Open,
    Closed,
    Drained,
    Free,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct Segment {
    pub generation: u8,
    pub state: State,
    /// Bits of sessions: those with a lock on the attempts to add some, and those with a lock on any of the tables.
    pub producers: u8,
    pub users: u8,
}

/// The state of a session's transaction.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Phase {
    Idle,
    Open,
    /// The rows are visible. The callback has not run.
    Committed,
    /// The rows are dead. The callback has not run.
    Aborted,
}

/// Like `transaction::Step`.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Step {
    /// `true`: the attempt was in another segment before.
    Enqueued(At, bool),
    Taken(i64),
    Ended(i64),
    Missed(At),
    Ending(i64),
    Relocated(At),
    CancelRequested(At),
    Unseen,
    /// `Step::Segment`: the segment is drained.
    Drained,
}

/// What a session does by its script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Enqueue(u8),
    /// Claims at most one job.
    Claim,
    /// Ends the attempts that the session has claimed.
    Complete,
    Fail,
    Cancel(u8),
    Purge,
}

/// What a session does next within its transaction.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub enum Pc {
    /// Begins a transaction or a verb.
    Next,
    Commit,
    /// An error was raised: the transaction rolls back.
    Error,
    Enqueue(u8),
    // `job::claim`
    Take,
    Fetch(At),
    InsertClaim(At),
    Follow(At),
    // `job::refill`
    Refill(Refill),
    // `job::hold`, `job::complete`, `job::fail`
    Hold(At, End, bool),
    Outcome(Held, End),
    Resolve(Held, End),
    FollowEnd(Held, End),
    NotEnded(Held, End),
    Notes(Held),
    Successor(Held),
    Last(Held, Kind),
    // `job::recover`
    RecoverRead(i64, Then),
    RecoverAdd {
        at: At,
        generation: u8,
        is_cancelled: bool,
        then: Then,
    },
    RecoverCheck {
        at: At,
        generation: u8,
        then: Then,
    },
    RecoverNext((u8, i64)),
    // `api::cancel`, `job::take`, `job::cancel`
    Find(u8),
    CheckClaimed(At, u8),
    TakeOne(At, u8, Why),
    ClaimSystem(At, u8, Why),
    WaitForMove(At, Why),
    EndUnrun(At, Why),
    Note {
        at: At,
        generation: u8,
        about: At,
        why: Why,
    },
    NoteCheck {
        at: At,
        about: At,
        why: Why,
    },
    PurgeNext(u8, i64),
    // `duty::serve_cancels`, `duty::expire`
    ScanTake,
    ScanRead,
    ServeLook(i64),
    ServeForget(i64),
    Doomed(At),
    // `duty::storage::move_living`
    MoveWalk(Batch),
    MoveMark(Batch),
    MoveLook(Batch, At),
    MoveNotes(Batch, At),
    MoveCopy(Batch),
}

/// What to do after a claim was read into memory.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Then {
    Hold(At, End),
    Note(At, u8),
    /// The duty continues behind this claim.
    Duty((u8, i64)),
}

/// A refill in progress.
#[derive(Clone, Debug, Hash, Default, PartialEq, Eq)]
pub struct Refill {
    pub(super) has_begun: bool,
    pub(super) after: u8,
    pub(super) opened: u8,
    pub(super) sources: Vec<Source>,
    pub(super) found: Vec<At>,
    pub(super) is_read: bool,
    pub(super) is_pushed: bool,
    /// The claim continues when the refill has ended.
    pub(super) is_for_claim: bool,
}

/// `log::waiting::Source`.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct Source {
    pub(super) segment: u8,
    pub(super) read: (u8, i64),
    pub(super) head: Option<At>,
}

/// A duty that the worker may begin.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Duty {
    /// Closes the segment, and opens another.
    Close,
    /// Does one batch of the move, which is a pass over the whole segment in the model.
    Move,
    Empty,
    ServeCancels,
    /// Cancels an attempt for which a cancel was requested while its claim was open, after the rollback of the claim.
    CancelUnclaimed(i64),
    /// Ends an attempt whose lease has expired.
    Expire(i64),
    Recover,
}

/// `move_batch::Batch`, and the position of its walk.
#[derive(Clone, Debug, Hash, Default, PartialEq, Eq)]
pub struct Batch {
    pub(super) looked_to: i64,
    pub(super) waiting: Vec<At>,
    pub(super) running: Vec<At>,
    pub(super) marked: Vec<At>,
    /// True if some attempts were left for later.
    pub(super) has_left: bool,
    /// With a fault: whether there are notes, as read before the next attempt is marked.
    pub(super) has_note: Option<bool>,
}

/// How an attempt is ended.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum End {
    Complete,
    /// By its worker, or by the background worker because its lease has expired. The steps are the same.
    Fail,
}

/// Like `job::held::Held`.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Held {
    pub at: At,
    pub(super) generation: u8,
    /// True if memory has answered that a cancel was requested.
    pub(super) is_cancelled: bool,
}

/// The purpose for which a waiting attempt is taken.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Why {
    Cancel,
    /// For `purge_lane`.
    Purge,
    /// For `serve_cancels`, which serves the request about this attempt.
    Serve(i64),
    /// For `expire::cancel_unclaimed`.
    Doomed,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct Client {
    pub phase: Phase,
    /// The position in its script: the current transaction, and the verb in it.
    pub transaction: u8,
    pub verb: u8,
    pub pc: Pc,
    pub steps: Vec<Step>,
    /// The attempts that its committed claims have given it, and those that this transaction has claimed.
    pub held: Vec<At>,
    pub claimed: Vec<At>,
    /// The jobs, as bits, that the transaction has reported to its user as asked to cancel. The report is valid with
    /// the commit.
    pub asked: u8,
    /// How often this transaction has stopped waiting for a move.
    pub given_up: u8,
    /// True if the claim must refill the lane at its end.
    pub to_refill: bool,
    /// True if, by a fault, the callback ran before the rows were visible.
    pub told_early: bool,
}

impl Client {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Idle,
            transaction: 0,
            verb: 0,
            pc: Pc::Next,
            steps: Vec::new(),
            held: Vec::new(),
            claimed: Vec::new(),
            asked: 0,
            given_up: 0,
            to_refill: false,
            told_early: false,
        }
    }
}

/// What users were told.
#[derive(Clone, Debug, Hash, Default, PartialEq, Eq)]
pub struct Told {
    /// Bits of jobs: those whose enqueue is committed, those of them whose callback has run, those that have ended, and
    /// those that a committed call asked to cancel.
    pub enqueued: u8,
    pub settled: u8,
    pub ended: u8,
    pub asked: u8,
    /// Attempts whose claim was committed.
    pub claimed: Vec<i64>,
    /// The promises that were broken, as bits.
    pub broken: u8,
}
