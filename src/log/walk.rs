//! Reads a segment's three logs side by side: every attempt with its claim and its outcome, in the order of the ids, so
//! that each row is read once. Each scan reads some rows ahead. So in a segment in which sessions still claim and end
//! attempts, the walk may return an outcome without its claim.

use crate::log::attempt::{Attempt, AttemptOf};
use crate::log::segment::Home;
use crate::log::tables::Tables;
use crate::pg::fault::fault;
use crate::pg::row::{Columns, Row};
use crate::pg::scan::{Current, Key, Scan, Snapshot};

impl Tables {
    /// Returns the times of claims and of ends since `since`, each with the attempt's id. Reads the last `rows` rows of
    /// each log.
    pub fn newest(&self, rows: usize, since: i64) -> [Vec<(i64, i64)>; 2] {
        [self.claims(), self.outcomes()].map(|log| {
            // In both logs the time comes after the id.
            let newest = log.table().backwards().take(rows).map(|row| (row.i64(1), row.i64(0)));
            newest.filter(|(at, _)| *at >= since).collect()
        })
    }

    /// Walks through the attempts whose ids are larger than `after`. `None`: the segment is empty.
    pub fn walk(&self, after: i64, snapshot: Snapshot) -> Option<Walk<'_>> {
        let keys = [Key::gt_i64(1, after)];
        // Only committed attempts are read, even if the snapshot is dirty. Claims and outcomes of open transactions
        // must be known then.
        let attempts = if snapshot == Snapshot::Dirty { Snapshot::Now } else { snapshot };
        (!self.is_empty()).then(|| {
            let attempts = self.attempt.scan(self.by_id(), &keys, attempts);
            let claims = Side::new(self.claims().scan(&keys, snapshot));
            fault!("walk.claims_read");
            Walk { home: self.home, attempts, claims, outcomes: Side::new(self.outcomes().scan(&keys, snapshot)) }
        })
    }
}

/// The row of another log about an attempt.
#[derive(Clone, Copy)]
pub enum Seen<R> {
    /// Nothing.
    Absent,
    /// An open transaction's row.
    InProgress,
    /// A row.
    There(R),
}

impl<R> Seen<R> {
    /// The row, if there is one.
    pub fn row(&self) -> Option<&R> {
        match self {
            Self::There(row) => Some(row),
            Self::Absent | Self::InProgress => None,
        }
    }

    fn map<T>(&self, read: impl FnOnce(&R) -> T) -> Seen<T> {
        match self {
            Self::Absent => Seen::Absent,
            Self::InProgress => Seen::InProgress,
            Self::There(row) => Seen::There(read(row)),
        }
    }
}

/// An attempt and what the other logs have about it.
pub struct Trace<R> {
    pub attempt: AttemptOf<R>,
    pub claim: Seen<R>,
    pub outcome: Seen<R>,
}

/// See `Tables::walk`.
pub struct Walk<'a> {
    home: Home,
    attempts: Scan<'a>,
    claims: Side<'a>,
    outcomes: Side<'a>,
}

impl Walk<'_> {
    /// Moves to the next attempt. `None`: the end. Nothing is copied.
    pub fn next(&mut self) -> Option<Trace<Current<'_>>> {
        self.attempts.next()?;
        let attempt = AttemptOf::new(self.attempts.current(), self.home);
        let id = attempt.id();
        Some(Trace { claim: self.claims.at(id), outcome: self.outcomes.at(id), attempt })
    }

    /// Returns once more what `next` has returned last.
    pub fn here(&self) -> Trace<Current<'_>> {
        let attempt = AttemptOf::new(self.attempts.current(), self.home);
        Trace { attempt, claim: self.claims.here(), outcome: self.outcomes.here() }
    }

    /// Returns a copy of the attempt that `next` found, and of what the other logs have about it.
    pub fn copy(&self) -> Trace<Row> {
        let attempt = Attempt::new(self.attempts.row(), self.home);
        Trace { attempt, claim: self.claims.copy(), outcome: self.outcomes.copy() }
    }
}

/// A log that is read beside the attempts. Its rows begin with the attempt's id.
struct Side<'a> {
    scan: Scan<'a>,
    /// The attempt of the row at which the scan is.
    head: Option<i64>,
    /// What `at` has returned last.
    last: Seen<()>,
}

impl<'a> Side<'a> {
    fn new(scan: Scan<'a>) -> Self {
        let mut side = Self { scan, head: None, last: Seen::Absent };
        side.step();
        side
    }

    fn step(&mut self) {
        self.head = self.scan.next().map(|_| self.scan.current().i64(0));
    }

    /// Goes to the row of this attempt, if there is one.
    fn at(&mut self, id: i64) -> Seen<Current<'_>> {
        while self.head.is_some_and(|head| head < id) {
            self.step();
        }
        self.last = Seen::Absent;
        // There is at most one such row, apart from rows of transactions that are open.
        while self.head == Some(id) {
            if !self.scan.is_in_progress() {
                self.last = Seen::There(());
                break;
            }
            self.last = Seen::InProgress;
            self.step();
        }
        self.here()
    }

    /// Returns once more what `at` has returned last.
    fn here(&self) -> Seen<Current<'_>> {
        self.last.map(|()| self.scan.current())
    }

    /// Returns a copy of what `at` has returned last.
    fn copy(&self) -> Seen<Row> {
        self.last.map(|()| self.scan.row())
    }
}
