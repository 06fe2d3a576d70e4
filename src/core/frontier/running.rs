//! The entries of taken attempts. A transaction that is claiming, a worker, or a transaction that is ending has taken
//! them.
//!
//! Invariant: an attempt has at most one entry, and no claim takes an attempt that has one.

use super::disconnect::Disconnect;
use super::rank::{Place, Rank};
use super::ready::Ready;
use super::slot::{GateSlot, RunningSlot, of};
use super::slots::{Entry, Listed};

/// The root of one instance's deadlines. The caller keeps it in the instance's slot.
pub type DeadlineRoot = Option<RunningSlot>;

/// The session whose open transaction takes attempts, and its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The number of the session.
    pub session: u32,
    /// Its process.
    pub pid: i32,
}

/// What is happening to a taken attempt.
///
/// ```text
/// (absent) --take--> Taken --claim commits--> Running --end--> Ending --commits--> (absent)
///             ^        |                         ^               |
///             +-abort--+                         +----abort------+
/// ```
///
/// If the transaction that has claimed an attempt also ends it, the attempt goes from Taken to Ending. It is marked as
/// `claimed` only after the commit.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The slot is in the free list.
    #[default]
    Free,
    /// An open transaction has it and inserts its claim.
    Taken,
    /// Its claim is committed and a worker runs it.
    Running,
    /// An open transaction inserts its outcome.
    Ending,
}

/// An entry of `running`. All zero is a free slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Running {
    /// The attempt's id.
    pub id: i64,
    /// The instance (database and extension) it belongs to.
    pub instance: u32,
    /// Its lane.
    pub lane: i32,
    /// Its rank. It goes back to `ready` with the same rank.
    pub rank: Rank,
    /// Where its row lies.
    pub place: Place,
    /// The hash of its group. 0: it has none.
    pub group: i64,
    /// The lease of its claim, in microseconds. A heartbeat without an argument renews this lease.
    pub lease: i64,
    /// The longest lease that it was given. A longer one must be noted in the log.
    pub longest: i64,
    /// When the lease ends, in monotonic microseconds. It counts only while `state` is `Running`.
    pub deadline: i64,
    /// When it was claimed, in the caller's unit of time. 0: not known.
    pub started_at: i64,
    /// The session whose open transaction has it (`Taken`, `Ending`).
    pub owner: u32,
    /// The number of the session that claimed it, plus one. 0: the session is unknown, or its connection has ended.
    pub session: u32,
    /// The process id of the claimer, for messages and views.
    pub pid: i32,
    /// What the end of the claimer's connection does to the attempt.
    pub disconnect: Disconnect,
    /// What is happening to the attempt.
    pub state: State,
    /// 1: the claim is committed.
    pub claimed: u8,
    /// 1: a request to cancel it is committed.
    pub cancel: u8,
    /// 1: a request for another run of the job is committed.
    pub rerun: u8,
    /// The requests that came while a transaction was ending this attempt and may not know of them: [`MISSED_RERUN`],
    /// [`MISSED_CANCEL`].
    pub missed: u8,
    /// 1: its time to start came while a transaction had it. If that transaction rolls back, it expires.
    pub late: u8,
    /// 1: the system has taken it to end it, not to run it.
    pub system: u8,
    /// 1: it was not due when it was taken.
    pub(super) early: u8,
    /// Whether it counts as an open start of its queue, of its group, or of both ([`super::rates`]). The time of an
    /// open start is not settled yet.
    pub(super) token: u8,
    /// What its start counts for the rates of its queue and its group.
    pub cost: u32,
    /// What its worker has reported beyond that.
    pub more: u32,
    /// The monotonic time at which its start is counted. 0: not known.
    pub(super) counted_at: i64,
    /// 1: its group counts it.
    pub(super) grouped: u8,
    /// The gate that counts it.
    pub(super) gate: Option<GateSlot>,
    /// 1: a push of it was held back while it was taken.
    pub(super) push_held: u8,
    /// 1: it is in the heap of deadlines, by the links below.
    pub(super) timed: u8,
    pub(super) child: Option<RunningSlot>,
    pub(super) next: Option<RunningSlot>,
    pub(super) prev: Option<RunningSlot>,
}

impl Entry for Running {
    type Of = of::Running;
}

impl Listed for Running {
    #[inline]
    fn next_free(&self) -> Option<RunningSlot> {
        self.next
    }

    #[inline]
    fn set_next_free(&mut self, next: Option<RunningSlot>) {
        self.next = next;
    }
}

/// In `Running::missed`: a request for another run of the job.
pub const MISSED_RERUN: u8 = 1;
/// In `Running::missed`: a request to cancel it.
pub const MISSED_CANCEL: u8 = 2;

impl Running {
    /// True if it is neither claimed nor being claimed and is only to be cancelled. It is kept in `running` so that no
    /// claim takes it.
    pub fn awaits_cancel(&self) -> bool {
        self.state == State::Running && self.claimed == 0
    }
}

impl Running {
    /// Returns the entry of an attempt that the open transaction of `owner` takes.
    pub(super) fn taken(instance: u32, lane: i32, owner: Owner, entry: Ready) -> Self {
        let Ready { rank, id, place, group } = entry;
        let (owner, session, pid) = (owner.session, owner.session + 1, owner.pid);
        Self { id, instance, lane, rank, place, group, owner, session, pid, state: State::Taken, ..Self::default() }
    }

    /// Returns the entry of a claimed attempt that is in no list and that no gate counts.
    pub(super) fn unlinked(self) -> Self {
        Self { claimed: 1, timed: 0, child: None, next: None, prev: None, gate: None, grouped: 0, token: 0, ..self }
    }

    /// Returns the entry with which it goes back to `ready`.
    pub fn ready(&self) -> Ready {
        Ready { rank: self.rank, id: self.id, place: self.place, group: self.group }
    }

    /// Notes a request as missed if a transaction is ending the attempt now.
    pub(super) fn note_missed(&mut self, what: u8) {
        if self.state == State::Ending {
            self.missed |= what;
        }
    }

    /// Returns an entry for this attempt with no other field set.
    pub fn of(id: i64) -> Self {
        Self { id, ..Self::default() }
    }
}
