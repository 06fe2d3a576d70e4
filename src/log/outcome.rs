//! The `outcome` log: one row says how an attempt ended.

use pgrx::pg_sys::Datum;

use crate::instance::Catalog;
use crate::log::table::{Key, NewRow, Probe, Relation, Snapshot};
use crate::sys;

/// Columns, counted from 0.
mod column {
    pub const ID: usize = 0;
    pub const ENDED_AT: usize = 1;
    pub const OUTCOME: usize = 2;
    pub const NEXT_ID: usize = 3;
    pub const RESULT: usize = 4;
    pub const ERROR: usize = 5;
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
        }
    }

    fn of(char: u8) -> Self {
        match char {
            b'c' => Self::Completed,
            b'f' => Self::Failed,
            b'd' => Self::Dead,
            b't' => Self::TimedOut,
            b'r' => Self::Released,
            b'a' => Self::Advanced,
            b'x' => Self::Cancelled,
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
}

/// An outcome as it was read.
pub struct Outcome {
    pub ended_at: i64,
    pub kind: Kind,
    pub next_id: Option<i64>,
}

/// One segment's outcomes, open to write.
pub struct Writer {
    table: Relation,
    pkey: Relation,
}

impl Writer {
    /// Opens the segment's outcomes.
    pub fn open(catalog: &Catalog, segment: u8) -> Self {
        let oids = &catalog.segments[segment as usize];
        Self { table: Relation::write(oids.outcome), pkey: Relation::write_index(oids.outcome_pkey) }
    }

    /// Whether the attempt has ended, or is being ended.
    pub fn probe(&self, id: i64) -> Probe {
        self.table.probe(&self.pkey, id)
    }

    /// Inserts outcomes of attempts that this transaction holds and that `probe` found unended.
    pub fn insert(&self, outcomes: &[New]) {
        let now = sys::now_us();
        let mut rows: Vec<NewRow> = outcomes
            .iter()
            .map(|new| {
                let mut row = NewRow::new(column::COUNT);
                row.set(column::ID, Some(new.id.into()))
                    .set(column::ENDED_AT, Some(now.into()))
                    .set(column::OUTCOME, Some(Datum::from(new.kind.char() as i8)))
                    .set(column::NEXT_ID, new.next_id.map(Datum::from))
                    .set(column::RESULT, new.result)
                    .set(column::ERROR, new.error);
                row
            })
            .collect();
        let tids = match &mut rows[..] {
            [] => return,
            [one] => vec![self.table.insert(one)],
            many => self.table.insert_many(many),
        };
        for (new, tid) in outcomes.iter().zip(tids) {
            self.pkey.insert_entry(&self.table, &[Some(new.id.into())], tid, true);
        }
    }
}

/// The committed outcome of an attempt that lies in this segment.
pub fn find(catalog: &Catalog, segment: u8, id: i64) -> Option<Outcome> {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.outcome);
    let pkey = Relation::read_index(oids.outcome_pkey);
    let mut scan = table.scan(&pkey, &[Key::eq_i64(1, id)], Snapshot::Now);
    scan.next()?;
    let row = scan.row();
    Some(Outcome {
        ended_at: row.i64(column::ENDED_AT),
        kind: Kind::of(row.char(column::OUTCOME)),
        next_id: row.get(column::NEXT_ID).map(|d| d.value() as i64),
    })
}
