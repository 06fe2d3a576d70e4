//! The `outcome` log: one row says how an attempt ended.

use pgrx::pg_sys::{Datum, Oid};

use crate::catalog;
use crate::catalog::tables::outcome as column;
use crate::log::claim;
use crate::log::keyed::{Keyed, Log, MOVED};
use crate::log::segment::Home;
use crate::pg::datum;
use crate::pg::row::{Columns, NewRows, Tid};
use crate::pg::scan::{Probe, Snapshot};
use crate::pg::table::Relation;
use crate::pg::time;

/// Returns whether a job is dead with this outcome: the condition of the indexes of dead jobs.
pub fn is_dead(new: &New) -> bool {
    new.kind == Kind::Dead || new.kind == Kind::TimedOut && new.next_id.is_none()
}

/// Returns whether the marks say that an attempt has moved from the segment of its claim and outcome.
pub fn has_moved_claim(claim: Option<&claim::Claim>, outcome: Option<&Outcome>) -> bool {
    claim.is_some_and(|claim| claim.kind == claim::Kind::Moved)
        || outcome.is_some_and(|outcome| outcome.kind == Kind::Moved)
}

/// How an attempt has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Completed,
    /// The worker has reported an error, and there is a next attempt.
    Failed,
    /// The worker has reported an error, and the attempt was the last one.
    Dead,
    /// The lease has expired. There is a next attempt, or the job is dead.
    TimedOut,
    /// The job was given back, and the attempt does not count.
    Released,
    /// Its job waits for other jobs.
    Suspended,
    /// Its job has gone to another stage.
    Advanced,
    Cancelled,
    /// Replaced by an attempt with another priority, time or payload.
    Superseded,
    /// Ended unrun, because its condition can no longer be met.
    Skipped,
    /// Ended unrun, because no worker had claimed it in time.
    Expired,
    /// No end: the attempt runs on in another segment.
    Moved,
}

impl Kind {
    /// Returns the stored letter.
    pub fn char(self) -> u8 {
        match self {
            Self::Completed => b'c',
            Self::Failed => b'f',
            Self::Dead => b'd',
            Self::TimedOut => b't',
            Self::Released => b'r',
            Self::Suspended => b'w',
            Self::Advanced => b'a',
            Self::Cancelled => b'x',
            Self::Superseded => b's',
            Self::Skipped => b'k',
            Self::Expired => b'e',
            Self::Moved => MOVED,
        }
    }

    /// Returns the kind of a stored letter.
    pub fn of(char: u8) -> Self {
        match char {
            b'c' => Self::Completed,
            b'f' => Self::Failed,
            b'd' => Self::Dead,
            b't' => Self::TimedOut,
            b'r' => Self::Released,
            b'w' => Self::Suspended,
            b'a' => Self::Advanced,
            b'x' => Self::Cancelled,
            b'k' => Self::Skipped,
            b'e' => Self::Expired,
            MOVED => Self::Moved,
            _ => Self::Superseded,
        }
    }

    /// Returns its name in `queue.attempts`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Dead => "dead",
            Self::TimedOut => "timed_out",
            Self::Released => "released",
            Self::Suspended => "suspended",
            Self::Advanced => "advanced",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
            Self::Expired => "expired",
            Self::Superseded | Self::Moved => "superseded",
        }
    }

    /// Returns words that can follow "this attempt was".
    pub fn words(self) -> &'static str {
        match self {
            Self::Completed => "already completed",
            Self::Failed | Self::Dead => "already failed",
            Self::TimedOut => "timed out",
            Self::Released => "released",
            Self::Suspended => "suspended",
            Self::Advanced => "advanced",
            Self::Cancelled => "cancelled",
            Self::Superseded => "superseded",
            Self::Skipped => "skipped",
            Self::Expired => "expired",
            Self::Moved => "moved",
        }
    }
}

/// An outcome to insert.
#[derive(Clone, Copy)]
pub struct New {
    pub id: i64,
    pub kind: Kind,
    /// The next attempt of the job.
    pub next_id: Option<i64>,
    pub result: Option<Datum>,
    pub error: Option<Datum>,
}

impl New {
    /// Returns an outcome with nothing more.
    pub fn of(id: i64, kind: Kind) -> Self {
        Self { id, kind, next_id: None, result: None, error: None }
    }

    /// Returns the values in the order of the columns.
    fn row(&self, ended_at: i64) -> [Option<Datum>; column::COUNT] {
        let Self { id, kind, next_id, result, error } = *self;
        column::Row { id, ended_at, outcome: kind.char(), next_id, result, error }.values()
    }
}

/// An outcome that was read.
#[derive(Clone, Copy)]
pub struct Outcome {
    pub ended_at: i64,
    pub kind: Kind,
    pub next_id: Option<i64>,
}

impl Outcome {
    /// Returns whether the job has died with this.
    pub fn is_death(&self) -> bool {
        match self.kind {
            Kind::Dead => true,
            Kind::TimedOut => self.next_id.is_none(),
            _ => false,
        }
    }
}

/// One segment's outcomes, open to write.
pub struct Writer {
    log: Keyed,
    dead: Oid,
}

impl Writer {
    fn of(segment: u8, log: Keyed) -> Self {
        Self { log, dead: catalog::segment(segment).outcome_dead }
    }

    /// Opens the segment's outcomes.
    pub fn open(segment: u8) -> Self {
        Self::of(segment, Keyed::write(segment, Log::Outcome))
    }

    /// Opens the outcomes for an attempt of this home. `None`: the segment has another generation now.
    pub fn open_home(home: Home) -> Option<Self> {
        Keyed::write_home(home, Log::Outcome).map(|log| Self::of(home.segment, log))
    }

    /// Returns whether the attempt has ended, or is being ended.
    pub fn probe(&self, id: i64) -> Probe {
        self.log.probe(id)
    }

    /// Marks a running attempt as moved. `None`: it has ended, or is being ended.
    pub fn mark_moved(&self, id: i64) -> Option<Tid> {
        self.log.mark(id, New::of(id, Kind::Moved).row(time::now_us()))
    }

    /// Takes a mark back that this transaction has made.
    pub fn take_back(&self, mark: Tid) {
        self.log.take_back(mark);
    }

    /// Inserts outcomes of attempts that this transaction holds. Returns the positions of attempts that have ended, or
    /// that an open transaction is ending. They get no row.
    #[must_use]
    pub fn insert(&self, outcomes: &[New]) -> Vec<usize> {
        let now = time::now_us();
        if let [new] = outcomes
            && !is_dead(new)
        {
            let is_new = self.log.insert_one(new.id, new.row(now)).is_some();
            return if is_new { Vec::new() } else { vec![0] };
        }
        let mut rows = NewRows::new(column::COUNT, outcomes.len());
        outcomes.iter().for_each(|new| rows.add(new.row(now)));
        let (tids, lost) = self.log.insert_all(&mut rows, |n| outcomes[n].id);
        if outcomes.iter().any(is_dead) {
            Relation::write_index(self.dead).insert_entries(self.log.table(), &tids, false, |n| {
                (is_dead(&outcomes[n]) && !lost.contains(&n)).then(|| [Datum::from(outcomes[n].id)])
            });
        }
        lost
    }
}

/// Returns the outcome of a row.
pub fn read(row: &impl Columns) -> Outcome {
    Outcome {
        ended_at: row.i64(column::ENDED_AT),
        kind: Kind::of(row.char(column::OUTCOME)),
        next_id: row.get(column::NEXT_ID).map(|d| d.value() as i64),
    }
}

/// A segment's outcomes, open to read.
fn opened(segment: u8) -> Keyed {
    Keyed::of(segment, Log::Outcome)
}

/// Returns whether the attempt has moved away from this segment while it ran.
pub fn has_moved(segment: u8, id: i64) -> bool {
    opened(segment).has_moved(id)
}

/// Returns whether the attempt has ended, is being ended, or has moved. It opens nothing to write.
pub fn probe(segment: u8, id: i64) -> Probe {
    opened(segment).probe(id)
}

/// Returns the whole result of an ended attempt in this segment. The outer `None`: the attempt is gone.
pub fn result(segment: u8, id: i64) -> Option<Option<Datum>> {
    // The toast table keeps its rows as long as the segment is open.
    let log = opened(segment);
    log.find(id, Snapshot::Now).map(|row| row.get(column::RESULT).map(datum::owned))
}

/// Returns the committed outcome of an attempt in this segment.
pub fn find(segment: u8, id: i64) -> Option<Outcome> {
    opened(segment).find(id, Snapshot::Now).map(|row| read(&row))
}

/// Returns the error of an attempt's outcome, if it has one.
pub fn error_of(segment: u8, id: i64) -> Option<String> {
    let outcomes = Keyed::read(catalog::segment(segment), Log::Outcome);
    outcomes.find(id, Snapshot::Now)?.get(column::COUNT - 1).map(crate::pg::datum::text)
}
