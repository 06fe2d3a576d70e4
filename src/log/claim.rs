//! The `claim` log: one row says that an attempt was taken, by a worker or by the system.

use pgrx::pg_sys::Datum;

use crate::call::{text, text_datum};
use crate::instance::Catalog;
use crate::log::table::{Entry, Key, NewRows, Probe, Relation, Row, Scan, Snapshot, Tid};
use crate::segment::Home;
use crate::sys;

/// Columns that are read, counted from 0: id, claimed_at, lease_us, pid, kind, worker.
mod column {
    pub const ID: usize = 0;
    pub const CLAIMED_AT: usize = 1;
    pub const LEASE_US: usize = 2;
    pub const PID: usize = 3;
    pub const KIND: usize = 4;
    pub const WORKER: usize = 5;
    pub const COUNT: usize = 6;
}

/// Who took the attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A worker.
    Worker,
    /// A worker, for as long as its connection lasts.
    Bound,
    /// The system, to end it unrun.
    System,
    /// Nobody: the attempt waits elsewhere now.
    Moved,
}

impl Kind {
    /// As it is stored.
    pub fn char(self) -> u8 {
        match self {
            Self::Worker => b'w',
            Self::Bound => b'b',
            Self::System => b's',
            Self::Moved => b'm',
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
}

/// One segment's claims, open to write.
pub struct Writer {
    table: Relation,
    pkey: Relation,
}

impl Writer {
    /// Opens the segment's claims.
    pub fn open(catalog: &Catalog, segment: u8) -> Self {
        let oids = &catalog.segments[segment as usize];
        let (table, pkey) = Relation::write_both(oids.claim, oids.claim_pkey);
        Self { table, pkey }
    }

    /// Opens the claims for an attempt found there; `None` when that place is not what it was.
    pub fn open_home(catalog: &Catalog, home: Home) -> Option<Self> {
        let writer = Self::open(catalog, home.segment);
        if home.is_valid(catalog) {
            return Some(writer);
        }
        writer.table.unlock();
        writer.pkey.unlock();
        None
    }

    /// Whether the attempt is claimed, or being claimed.
    pub fn probe(&self, id: i64) -> Probe {
        self.table.probe(&self.pkey, id, (column::KIND, Kind::Moved.char()))
    }

    /// Marks a waiting attempt as moved. `None`: it is claimed, or being claimed.
    pub fn mark_moved(&self, id: i64) -> Option<Tid> {
        // A look before: a mark in vain would be a dead row.
        if self.probe(id) != Probe::Absent {
            return None;
        }
        self.insert_one(row((id, 0), sys::now_us(), Kind::Moved, None), id)
    }

    /// Takes a mark back that this transaction has made.
    pub fn take_back(&self, mark: Tid) {
        self.table.take_back(mark);
    }

    /// Copies claims as they are.
    pub fn copy(&self, claims: &[&Row]) {
        let mut rows = NewRows::new(column::COUNT, claims.len());
        for row in claims {
            rows.add::<{ column::COUNT }>(std::array::from_fn(|n| row.get(n)));
        }
        let tids = self.table.insert(&mut rows);
        self.pkey.insert_entries(&self.table, &tids, false, |n| claims[n].get(column::ID).map(|id| [id]));
    }

    /// Inserts claims (id, lease in microseconds) of attempts that the frontier has given to this transaction, at this
    /// time. Returns the positions of those that are claimed already, or being claimed by an open transaction; they
    /// get no row.
    #[must_use]
    pub fn insert(&self, claims: &[(i64, i64)], now: i64, kind: Kind, worker: Option<&str>) -> Vec<usize> {
        let worker: Option<Datum> = worker.map(text_datum);
        if let [claim] = claims {
            let is_new = self.insert_one(row(*claim, now, kind, worker), claim.0).is_some();
            return if is_new { Vec::new() } else { vec![0] };
        }
        let mut rows = NewRows::new(column::COUNT, claims.len());
        claims.iter().for_each(|&claim| rows.add(row(claim, now, kind, worker)));
        let tids = self.table.insert(&mut rows);
        let lost = self.pkey.insert_entries(&self.table, &tids, true, |n| Some([Datum::from(claims[n].0)]));
        lost.iter().for_each(|&n| self.table.take_back(tids[n]));
        lost
    }

    fn insert_one(&self, row: [Option<Datum>; column::COUNT], id: i64) -> Option<Tid> {
        self.table.insert_row(row, &mut [Entry { index: &self.pkey, is_unique: true, key: &mut [id.into()] }])
    }
}

fn row((id, lease): (i64, i64), now: i64, kind: Kind, worker: Option<Datum>) -> [Option<Datum>; column::COUNT] {
    [
        Some(id.into()),
        Some(now.into()),
        Some(lease.into()),
        Some(sys::pid().into()),
        Some(Datum::from(kind.char() as i8)),
        worker,
    ]
}

/// Whether the attempt is claimed, or being claimed, or moved; without opening anything to write.
pub fn probe(catalog: &Catalog, segment: u8, id: i64) -> Probe {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.claim);
    let pkey = Relation::read_index(oids.claim_pkey);
    table.probe(&pkey, id, (column::KIND, Kind::Moved.char()))
}

/// The committed claim of an attempt that lies in this segment.
pub fn find(catalog: &Catalog, segment: u8, id: i64) -> Option<Claim> {
    find_row(catalog, segment, id).map(|row| read(&row))
}

/// Its row.
pub fn find_row(catalog: &Catalog, segment: u8, id: i64) -> Option<Row> {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.claim);
    let pkey = Relation::read_index(oids.claim_pkey);
    let mut scan = table.scan(&pkey, &[Key::eq_i64(1, id)], Snapshot::Now);
    scan.next()?;
    Some(scan.row())
}

/// The name that the worker gave.
pub fn worker(row: &Row) -> Option<String> {
    row.get(column::WORKER).map(text)
}

/// Whether the attempt has moved away from this segment while it waited.
pub fn has_moved(catalog: &Catalog, segment: u8, id: i64) -> bool {
    find(catalog, segment, id).is_some_and(|claim| claim.kind == Kind::Moved)
}

/// Who claims the attempt, be it in a transaction that is open: `None` while there is no row.
pub fn kind_even_open(catalog: &Catalog, segment: u8, id: i64) -> Option<Kind> {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.claim);
    let pkey = Relation::read_index(oids.claim_pkey);
    let mut scan = table.scan(&pkey, &[Key::eq_i64(1, id)], Snapshot::Dirty);
    scan.next()?;
    Some(read(&scan.row()).kind)
}

/// Whether the row that a dirty scan of the claims has found is the mark of a move that is under way.
pub fn is_moving(scan: &mut Scan<'_>) -> bool {
    scan.is_in_progress() && scan.columns(column::KIND + 1).0[column::KIND].value() as u8 == b'm'
}

/// A row of the claims.
pub fn read(row: &Row) -> Claim {
    Claim {
        id: row.i64(column::ID),
        claimed_at: row.i64(column::CLAIMED_AT),
        lease: row.i64(column::LEASE_US),
        pid: row.i32(column::PID),
        kind: match row.char(column::KIND) {
            b'b' => Kind::Bound,
            b's' => Kind::System,
            b'm' => Kind::Moved,
            _ => Kind::Worker,
        },
    }
}
