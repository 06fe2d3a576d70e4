//! The `claim` log: one row says that an attempt was taken, by a worker or by the system.

use pgrx::pg_sys::Datum;

use crate::catalog::tables::claim as column;
use crate::log::keyed::{Keyed, Log, MOVED};
use crate::log::segment::Home;
use crate::pg::datum::{text, text_datum};
use crate::pg::row::{Columns, NewRows, Row, Tid};
use crate::pg::scan::{Probe, Scan, Snapshot};
use crate::pg::{session, time};

/// Who has taken the attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A worker.
    Worker,
    /// A worker, as long as its connection lasts.
    Bound,
    /// The system, to end it unrun.
    System,
    /// No claim: the attempt now waits in another segment.
    Moved,
}

impl Kind {
    /// Returns the stored letter.
    pub fn char(self) -> u8 {
        match self {
            Self::Worker => b'w',
            Self::Bound => b'b',
            Self::System => b's',
            Self::Moved => MOVED,
        }
    }
}

/// A claim as it was read.
pub struct Claim {
    pub id: i64,
    /// `timestamptz`.
    pub claimed_at: i64,
    pub lease: i64,
    pub pid: i32,
    pub kind: Kind,
    /// What it counts for the rates of its queue.
    pub cost: i32,
}

/// A claim to insert.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct New {
    pub id: i64,
    pub lease_us: i64,
    /// What it counts for the rates of its queue. `None`: 1.
    pub cost: Option<i32>,
}

impl New {
    /// Returns a claim that counts as 1.
    pub fn plain(id: i64, lease_us: i64) -> Self {
        Self { id, lease_us, cost: None }
    }
}

type Values = [Option<Datum>; column::COUNT];

/// One segment's claims, open to write.
pub struct Writer(Keyed);

impl Writer {
    /// Opens the segment's claims.
    pub fn open(segment: u8) -> Self {
        Self(Keyed::write(segment, Log::Claim))
    }

    /// Opens the claims for an attempt of this home. `None`: the segment has another generation now.
    pub fn open_home(home: Home) -> Option<Self> {
        Keyed::write_home(home, Log::Claim).map(Self)
    }

    /// Returns whether the attempt is claimed, or being claimed.
    pub fn probe(&self, id: i64) -> Probe {
        self.0.probe(id)
    }

    /// Marks a waiting attempt as moved. `None`: it is claimed, or being claimed.
    pub fn mark_moved(&self, id: i64) -> Option<Tid> {
        self.0.mark(id, row(New::plain(id, 0), time::now_us(), Kind::Moved, None))
    }

    /// Takes a mark back that this transaction has made.
    pub fn take_back(&self, mark: Tid) {
        self.0.take_back(mark);
    }

    /// Copies claims as they are.
    pub fn copy(&self, claims: &[&Row]) {
        self.0.copy::<{ column::COUNT }>(claims);
    }

    /// Inserts claims of attempts that the frontier has given to this transaction. Returns
    /// the positions of attempts that have a claim, or that an open transaction is claiming. They get no row.
    #[must_use]
    pub fn insert(&self, claims: &[New], now: i64, kind: Kind, worker: Option<&str>) -> Vec<usize> {
        let worker: Option<Datum> = worker.map(text_datum);
        if let [claim] = claims {
            let is_new = self.0.insert_one(claim.id, row(*claim, now, kind, worker)).is_some();
            return if is_new { Vec::new() } else { vec![0] };
        }
        let mut rows = NewRows::new(column::COUNT, claims.len());
        claims.iter().for_each(|&claim| rows.add(row(claim, now, kind, worker)));
        self.0.insert_all(&mut rows, |n| claims[n].id).1
    }
}

fn row(New { id, lease_us, cost }: New, claimed_at: i64, kind: Kind, worker: Option<Datum>) -> Values {
    column::Row { id, claimed_at, lease_us, pid: session::pid(), kind: kind.char(), worker, cost }.values()
}

/// A segment's claims, open to read.
fn opened(segment: u8) -> Keyed {
    Keyed::of(segment, Log::Claim)
}

/// Returns whether the attempt is claimed, being claimed, or moved. It opens the log only to read.
pub fn probe(segment: u8, id: i64) -> Probe {
    opened(segment).probe(id)
}

/// Returns the committed claim of an attempt in this segment.
pub fn find(segment: u8, id: i64) -> Option<Claim> {
    find_row(segment, id).map(|row| read(&row))
}

/// Returns the row of that claim.
pub fn find_row(segment: u8, id: i64) -> Option<Row> {
    opened(segment).find(id, Snapshot::Now)
}

/// Returns the name that the worker gave.
pub fn worker(row: &Row) -> Option<String> {
    row.get(column::WORKER).map(text)
}

/// Returns whether the attempt has moved away from this segment while it waited.
pub fn has_moved(segment: u8, id: i64) -> bool {
    opened(segment).has_moved(id)
}

/// Returns the kind of the attempt's claim, even of one in an open transaction. `None`: there is no row.
pub fn kind_even_open(segment: u8, id: i64) -> Option<Kind> {
    opened(segment).find(id, Snapshot::Dirty).map(|row| read(&row).kind)
}

/// Returns whether the row that a dirty scan has found is the mark of an unfinished move.
pub fn is_moving(scan: &mut Scan<'_>) -> bool {
    scan.is_in_progress() && scan.columns(column::KIND + 1).0[column::KIND].value() as u8 == MOVED
}

/// Returns the claim of a row.
pub fn read(row: &impl Columns) -> Claim {
    Claim {
        id: row.i64(column::ID),
        claimed_at: row.i64(column::CLAIMED_AT),
        lease: row.i64(column::LEASE_US),
        pid: row.i32(column::PID),
        kind: match row.char(column::KIND) {
            b'b' => Kind::Bound,
            b's' => Kind::System,
            MOVED => Kind::Moved,
            _ => Kind::Worker,
        },
        cost: row.get(column::COST).map_or(1, |cost| cost.value() as i32),
    }
}
