//! The common part of the logs of claims and of outcomes: one row for an attempt, with the attempt's id as key.
//!
//! Responsible for opening them, for finding and inserting rows, and for the mark of a move. Not responsible for the
//! other columns (`claim`, `outcome`).
//!
//! Invariant: of the rows of one attempt at most one is committed. The key decides which.

use pgrx::pg_sys::{Datum, Oid};

use crate::catalog::{self, Segment};
use crate::log::segment::Home;
use crate::pg::row::{NewRows, Row, Tid};
use crate::pg::scan::{Key, Probe, Scan, Snapshot};
use crate::pg::table::{Entry, Relation};

/// The letter by which both logs mark that an attempt has moved to another segment.
pub const MOVED: u8 = b'm';

/// One of the two logs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Log {
    Claim,
    Outcome,
}

impl Log {
    /// Its table and its key.
    fn oids(self, segment: Segment) -> (Oid, Oid) {
        match self {
            Self::Claim => (segment.claim, segment.claim_pkey),
            Self::Outcome => (segment.outcome, segment.outcome_pkey),
        }
    }

    /// Returns the column that may have the mark.
    fn column(self) -> usize {
        match self {
            Self::Claim => 4,
            Self::Outcome => 2,
        }
    }
}

/// A segment's claims, or its outcomes, open to read or to write.
pub struct Keyed {
    log: Log,
    table: Relation,
    pkey: Relation,
}

impl Keyed {
    /// Opens a segment's log to read.
    pub fn read(segment: Segment, log: Log) -> Self {
        let (table, pkey) = log.oids(segment);
        Self { log, table: Relation::read(table), pkey: Relation::read_index(pkey) }
    }

    /// As `read`, by the segment's number.
    pub fn of(segment: u8, log: Log) -> Self {
        Self::read(catalog::segment(segment), log)
    }

    /// Opens a segment's log to write.
    pub fn write(segment: u8, log: Log) -> Self {
        let (table, pkey) = log.oids(catalog::segment(segment));
        let (table, pkey) = Relation::write_both(table, pkey);
        Self { log, table, pkey }
    }

    /// Opens the log for an attempt of this home. `None`: the segment has another generation now.
    pub fn write_home(home: Home, log: Log) -> Option<Self> {
        let opened = Self::write(home.segment, log);
        if home.is_valid() {
            return Some(opened);
        }
        opened.table.unlock();
        opened.pkey.unlock();
        None
    }

    /// Its table.
    pub fn table(&self) -> &Relation {
        &self.table
    }

    /// Scans the rows in the order of the ids.
    pub fn scan(&self, keys: &[Key], snapshot: Snapshot) -> Scan<'_> {
        self.table.scan(&self.pkey, keys, snapshot)
    }

    /// The row of an attempt.
    pub fn find(&self, id: i64, snapshot: Snapshot) -> Option<Row> {
        let mut scan = self.scan(&[Key::eq_i64(1, id)], snapshot);
        scan.next()?;
        Some(scan.row())
    }

    /// Returns whether there is a row of the attempt, committed or not.
    pub fn probe(&self, id: i64) -> Probe {
        self.table.probe(&self.pkey, id, (self.log.column(), MOVED))
    }

    /// Returns whether the attempt has moved away from this segment.
    pub fn has_moved(&self, id: i64) -> bool {
        self.find(id, Snapshot::Now).is_some_and(|row| row.char(self.log.column()) == MOVED)
    }

    /// Inserts the mark of a move. `None`: there is a row of the attempt, or one is being inserted.
    pub fn mark<const COLUMNS: usize>(&self, id: i64, row: [Option<Datum>; COLUMNS]) -> Option<Tid> {
        // The probe comes first, because a refused mark would leave a dead row.
        if self.probe(id) != Probe::Absent {
            return None;
        }
        self.insert_one(id, row)
    }

    /// Inserts a row. `None`: there is a row of the attempt, or one is being inserted. Nothing is inserted then.
    pub fn insert_one<const COLUMNS: usize>(&self, id: i64, row: [Option<Datum>; COLUMNS]) -> Option<Tid> {
        self.table.insert_row(row, &mut [Entry { index: &self.pkey, is_unique: true, key: &mut [id.into()] }])
    }

    /// Inserts rows. `id` returns the id of the row at a position. Returns their places, and the positions of rows
    /// whose key is taken, or being taken by an open transaction. These rows are removed again.
    pub fn insert_all(&self, rows: &mut NewRows, id: impl Fn(usize) -> i64) -> (Vec<Tid>, Vec<usize>) {
        let tids = self.table.insert(rows);
        let lost = self.pkey.insert_entries(&self.table, &tids, true, |n| Some([id(n).into()]));
        lost.iter().for_each(|&n| self.take_back(tids[n]));
        (tids, lost)
    }

    /// Copies rows unchanged. There must be no other rows of their attempts here.
    pub fn copy<const COLUMNS: usize>(&self, copied: &[&Row]) {
        let mut rows = NewRows::new(COLUMNS, copied.len());
        for row in copied {
            rows.add::<COLUMNS>(std::array::from_fn(|n| row.get(n)));
        }
        let tids = self.table.insert(&mut rows);
        self.pkey.insert_entries(&self.table, &tids, false, |n| copied[n].get(0).map(|id| [id]));
    }

    /// Removes a row that this transaction has inserted.
    pub fn take_back(&self, row: Tid) {
        self.table.take_back(row);
    }
}
