//! The `outcome` log: one row says how an attempt ended.

use pgrx::pg_sys::{Datum, Oid};

use crate::instance::Catalog;
use crate::log::census::is_dead;
use crate::log::table::{Entry, Key, NewRows, Probe, Relation, Row, Snapshot, Tid};
use crate::segment::Home;
use crate::sys;

/// Columns that are read, counted from 0: id, ended_at, outcome, next_id, result, error.
mod column {
    pub const ENDED_AT: usize = 1;
    pub const OUTCOME: usize = 2;
    pub const NEXT_ID: usize = 3;
    pub const COUNT: usize = 6;
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Completed,
    /// The worker reported an error; there is a next attempt.
    Failed,
    /// The worker reported an error, and that was the last attempt.
    Dead,
    /// The lease ended; with a next attempt, or dead.
    TimedOut,
    /// Given back uncounted.
    Released,
    /// Gone on to the next stage.
    Advanced,
    Cancelled,
    /// Replaced by an attempt with another priority, time or payload.
    Superseded,
    /// No end: the attempt runs on elsewhere.
    Moved,
}

impl Kind {
    /// As it is stored.
    pub fn char(self) -> u8 {
        match self {
            Self::Completed => b'c',
            Self::Failed => b'f',
            Self::Dead => b'd',
            Self::TimedOut => b't',
            Self::Released => b'r',
            Self::Advanced => b'a',
            Self::Cancelled => b'x',
            Self::Superseded => b's',
            Self::Moved => b'm',
        }
    }

    /// As it was stored.
    pub fn of(char: u8) -> Self {
        match char {
            b'c' => Self::Completed,
            b'f' => Self::Failed,
            b'd' => Self::Dead,
            b't' => Self::TimedOut,
            b'r' => Self::Released,
            b'a' => Self::Advanced,
            b'x' => Self::Cancelled,
            b'm' => Self::Moved,
            _ => Self::Superseded,
        }
    }

    /// In words that follow "this attempt was".
    pub fn words(self) -> &'static str {
        match self {
            Self::Completed => "already completed",
            Self::Failed | Self::Dead => "already failed",
            Self::TimedOut => "timed out",
            Self::Released => "released",
            Self::Advanced => "advanced",
            Self::Cancelled => "cancelled",
            Self::Superseded => "superseded",
            Self::Moved => "moved",
        }
    }
}

/// An outcome to be inserted.
#[derive(Clone, Copy)]
pub struct New {
    pub id: i64,
    pub kind: Kind,
    /// The attempt that goes on with the job.
    pub next_id: Option<i64>,
    pub result: Option<Datum>,
    pub error: Option<Datum>,
}

impl New {
    /// An outcome without more to say.
    pub fn of(id: i64, kind: Kind) -> Self {
        Self { id, kind, next_id: None, result: None, error: None }
    }

    /// In the order of the columns.
    fn row(&self, ended_at: i64) -> [Option<Datum>; column::COUNT] {
        [
            Some(self.id.into()),
            Some(ended_at.into()),
            Some(Datum::from(self.kind.char() as i8)),
            self.next_id.map(Datum::from),
            self.result,
            self.error,
        ]
    }
}

/// An outcome as it was read.
#[derive(Clone, Copy)]
pub struct Outcome {
    pub ended_at: i64,
    pub kind: Kind,
    pub next_id: Option<i64>,
}

/// One segment's outcomes, open to write.
pub struct Writer {
    table: Relation,
    pkey: Relation,
    dead: Oid,
}

impl Writer {
    /// Opens the segment's outcomes.
    pub fn open(catalog: &Catalog, segment: u8) -> Self {
        let oids = &catalog.segments[segment as usize];
        let (table, pkey) = Relation::write_both(oids.outcome, oids.outcome_pkey);
        Self { table, pkey, dead: oids.outcome_dead }
    }

    /// Opens the outcomes for an attempt found there; `None` when that place is not what it was.
    pub fn open_home(catalog: &Catalog, home: Home) -> Option<Self> {
        let writer = Self::open(catalog, home.segment);
        if home.is_valid(catalog) {
            return Some(writer);
        }
        writer.table.unlock();
        writer.pkey.unlock();
        None
    }

    /// Whether the attempt has ended, or is being ended.
    pub fn probe(&self, id: i64) -> Probe {
        self.table.probe(&self.pkey, id, (column::OUTCOME, Kind::Moved.char()))
    }

    /// Marks a running attempt as moved. `None`: it has ended, or is being ended.
    pub fn mark_moved(&self, id: i64) -> Option<Tid> {
        // A look before: a mark in vain would be a dead row.
        if self.probe(id) != Probe::Absent {
            return None;
        }
        self.insert_one(&New::of(id, Kind::Moved), sys::now_us())
    }

    fn insert_one(&self, new: &New, now: i64) -> Option<Tid> {
        let key = Entry { index: &self.pkey, is_unique: true, key: &mut [new.id.into()] };
        self.table.insert_row(new.row(now), &mut [key])
    }

    /// Takes a mark back that this transaction has made.
    pub fn take_back(&self, mark: Tid) {
        self.table.take_back(mark);
    }

    /// Inserts outcomes of attempts that this transaction holds. Returns the positions of those that have ended
    /// already, or are being ended by an open transaction; they get no row.
    #[must_use]
    pub fn insert(&self, outcomes: &[New]) -> Vec<usize> {
        let now = sys::now_us();
        if let [new] = outcomes
            && !is_dead(new)
        {
            return if self.insert_one(new, now).is_some() { Vec::new() } else { vec![0] };
        }
        let mut rows = NewRows::new(column::COUNT, outcomes.len());
        outcomes.iter().for_each(|new| rows.add(new.row(now)));
        let tids = self.table.insert(&mut rows);
        let lost = self.pkey.insert_entries(&self.table, &tids, true, |n| Some([Datum::from(outcomes[n].id)]));
        if outcomes.iter().any(is_dead) {
            Relation::write_index(self.dead).insert_entries(&self.table, &tids, false, |n| {
                (is_dead(&outcomes[n]) && !lost.contains(&n)).then(|| [Datum::from(outcomes[n].id)])
            });
        }
        lost.iter().for_each(|&n| self.table.take_back(tids[n]));
        lost
    }
}

/// A row of the outcomes.
pub fn read(row: &Row) -> Outcome {
    Outcome {
        ended_at: row.i64(column::ENDED_AT),
        kind: Kind::of(row.char(column::OUTCOME)),
        next_id: row.get(column::NEXT_ID).map(|d| d.value() as i64),
    }
}

/// Whether the attempt has moved away from this segment while it ran.
pub fn has_moved(catalog: &Catalog, segment: u8, id: i64) -> bool {
    find(catalog, segment, id).is_some_and(|outcome| outcome.kind == Kind::Moved)
}

/// Whether the attempt has ended, or is being ended, or moved; without opening anything to write.
pub fn probe(catalog: &Catalog, segment: u8, id: i64) -> Probe {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.outcome);
    let pkey = Relation::read_index(oids.outcome_pkey);
    table.probe(&pkey, id, (column::OUTCOME, Kind::Moved.char()))
}

/// The committed outcome of an attempt that lies in this segment.
pub fn find(catalog: &Catalog, segment: u8, id: i64) -> Option<Outcome> {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.outcome);
    let pkey = Relation::read_index(oids.outcome_pkey);
    let mut scan = table.scan(&pkey, &[Key::eq_i64(1, id)], Snapshot::Now);
    scan.next()?;
    Some(read(&scan.row()))
}
