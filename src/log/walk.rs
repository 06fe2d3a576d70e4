//! Reads a segment's three logs side by side: every attempt with its claim and its outcome, in the order of the ids, so
//! that each row is read once.

use crate::log::attempt::{Attempt, LAST_ERROR};
use crate::log::segment::Home;
use crate::log::tables::Tables;
use crate::pg::row::Row;
use crate::pg::scan::{Key, Scan, Snapshot};

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

    /// Walks through the attempts whose ids are larger than `after`.
    pub fn walk(&self, after: i64, snapshot: Snapshot) -> impl Iterator<Item = Trace> {
        let keys = [Key::gt_i64(1, after)];
        // Only committed attempts are read, even if the snapshot is dirty. Claims and outcomes of open transactions
        // must be known then.
        let attempts = if snapshot == Snapshot::Dirty { Snapshot::Now } else { snapshot };
        let walk = (!self.is_empty()).then(|| Walk {
            home: self.home,
            attempts: self.attempt.scan(self.by_id(), &keys, attempts),
            claims: Side::new(self.claims().scan(&keys, snapshot)),
            outcomes: Side::new(self.outcomes().scan(&keys, snapshot)),
        });
        walk.into_iter().flatten()
    }
}

/// The columns of an attempt that are needed to count it.
pub struct AttemptSummary {
    pub id: i64,
    pub job_id: i64,
    pub enqueued_at: i64,
    pub lane: i32,
    pub priority: i32,
    pub run_at: Option<i64>,
    /// True if it follows a failure.
    pub has_error: bool,
    /// The claim's kind, as stored.
    pub claim: Option<u8>,
    /// The outcome, as stored, and whether there is a next attempt.
    pub outcome: Option<(u8, bool)>,
}

impl Tables {
    /// Calls `each` with all attempts that the calling statement sees. Nothing is copied.
    pub fn summaries(&self, mut each: impl FnMut(&AttemptSummary)) {
        if self.is_empty() {
            return;
        }
        let mut attempts = self.attempt.scan(self.by_id(), &[], Snapshot::Statement);
        let mut claims = Side::new(self.claims().scan(&[], Snapshot::Statement));
        let mut outcomes = Side::new(self.outcomes().scan(&[], Snapshot::Statement));
        while attempts.next().is_some() {
            let (values, nulls) = attempts.columns(8);
            let int = |n: usize| values[n].value() as i64;
            let mut summary = AttemptSummary {
                id: int(0),
                job_id: int(1),
                enqueued_at: int(2),
                lane: int(3) as i32,
                priority: int(4) as i32,
                run_at: (!nulls[7]).then(|| int(7)),
                has_error: false,
                claim: None,
                outcome: None,
            };
            if summary.run_at.is_some() {
                summary.has_error = !attempts.columns(LAST_ERROR + 1).1[LAST_ERROR];
            }
            if claims.is_at(summary.id) {
                summary.claim = Some(claims.scan.columns(5).0[4].value() as u8);
            }
            if outcomes.is_at(summary.id) {
                let (values, nulls) = outcomes.scan.columns(4);
                summary.outcome = Some((values[2].value() as u8, !nulls[3]));
            }
            each(&summary);
        }
    }
}

/// The row of another log about an attempt.
#[allow(clippy::large_enum_variant, reason = "there are three at a time, and a box would cost more")]
pub enum Seen {
    /// Nothing.
    Absent,
    /// An open transaction's row.
    InProgress,
    /// A row.
    There(Row),
}

impl Seen {
    /// The row, if there is one.
    pub fn row(&self) -> Option<&Row> {
        match self {
            Self::There(row) => Some(row),
            Self::Absent | Self::InProgress => None,
        }
    }
}

/// An attempt and what the other logs have about it.
pub struct Trace {
    pub attempt: Attempt,
    pub claim: Seen,
    pub outcome: Seen,
}

/// See `Tables::walk`.
struct Walk<'a> {
    home: Home,
    attempts: Scan<'a>,
    claims: Side<'a>,
    outcomes: Side<'a>,
}

impl Iterator for Walk<'_> {
    type Item = Trace;

    fn next(&mut self) -> Option<Trace> {
        self.attempts.next()?;
        let attempt = Attempt::new(self.attempts.row(), self.home);
        let id = attempt.id();
        Some(Trace { claim: self.claims.at(id), outcome: self.outcomes.at(id), attempt })
    }
}

/// A log that is read beside the attempts. Its rows begin with the attempt's id.
struct Side<'a> {
    scan: Scan<'a>,
    head: Option<i64>,
}

impl<'a> Side<'a> {
    fn new(scan: Scan<'a>) -> Self {
        let mut side = Self { scan, head: None };
        side.step();
        side
    }

    fn step(&mut self) {
        self.head = self.scan.next().map(|_| self.scan.columns(1).0[0].value() as i64);
    }

    /// Goes to the row of this attempt, if there is one.
    fn is_at(&mut self, id: i64) -> bool {
        while self.head.is_some_and(|head| head < id) {
            self.step();
        }
        self.head == Some(id)
    }

    fn at(&mut self, id: i64) -> Seen {
        self.is_at(id);
        // There is at most one such row, apart from rows that were rolled back.
        let mut seen = Seen::Absent;
        while self.head == Some(id) {
            if !self.scan.is_in_progress() {
                seen = Seen::There(self.scan.row());
            } else if matches!(seen, Seen::Absent) {
                seen = Seen::InProgress;
            }
            self.step();
        }
        seen
    }
}
