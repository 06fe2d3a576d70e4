//! A segment's three logs read side by side: every attempt with its claim and its outcome, in the order of the
//! ids, so that each row is read once.

use crate::instance::Catalog;
use crate::log::attempt::{Attempt, LAST_ERROR};
use crate::log::table::{Key, Relation, Row, Scan, Snapshot};
use crate::segment::Home;

/// A segment's tables, open to read.
pub struct Tables {
    pub home: Home,
    attempt: Relation,
    attempt_pkey: Relation,
    claim: Relation,
    claim_pkey: Relation,
    outcome: Relation,
    outcome_pkey: Relation,
}

impl Tables {
    /// Opens them.
    pub fn open(catalog: &Catalog, segment: u8) -> Self {
        let oids = &catalog.segments[segment as usize];
        let attempt = Relation::read(oids.attempt);
        Self {
            home: Home::now(catalog, segment),
            attempt,
            attempt_pkey: Relation::read_index(oids.attempt_pkey),
            claim: Relation::read(oids.claim),
            claim_pkey: Relation::read_index(oids.claim_pkey),
            outcome: Relation::read(oids.outcome),
            outcome_pkey: Relation::read_index(oids.outcome_pkey),
        }
    }

    /// Whether there is nothing to walk through.
    pub fn is_empty(&self) -> bool {
        self.attempt.blocks() == 0
    }

    /// When attempts were claimed, and when others ended, since then: of so many rows of each log, from its end on. Each
    /// time with the attempt's id.
    pub fn newest(&self, rows: usize, since: i64) -> [Vec<(i64, i64)>; 2] {
        [&self.claim, &self.outcome].map(|log| {
            // In both the time comes after the id.
            let newest = log.backwards().take(rows).map(|row| (row.i64(1), row.i64(0)));
            newest.filter(|(at, _)| *at >= since).collect()
        })
    }

    /// Walks through the attempts whose ids are larger than `after`.
    pub fn walk(&self, after: i64, snapshot: Snapshot) -> Walk<'_> {
        let keys = [Key::gt_i64(1, after)];
        // An attempt counts when it is committed; of its claim and outcome one must know also when not.
        let attempts = if snapshot == Snapshot::Dirty { Snapshot::Now } else { snapshot };
        Walk {
            home: self.home,
            attempts: self.attempt.scan(&self.attempt_pkey, &keys, attempts),
            claims: Side::new(self.claim.scan(&self.claim_pkey, &keys, snapshot)),
            outcomes: Side::new(self.outcome.scan(&self.outcome_pkey, &keys, snapshot)),
        }
    }
}

/// As much of an attempt as it takes to count it.
pub struct Glance {
    pub id: i64,
    pub job_id: i64,
    pub enqueued_at: i64,
    pub lane: i32,
    pub priority: i32,
    pub run_at: Option<i64>,
    /// Whether it waits for its time after a failure.
    pub has_error: bool,
    /// The claim's kind, as stored.
    pub claim: Option<u8>,
    /// The outcome, as stored, and whether another attempt goes on.
    pub outcome: Option<(u8, bool)>,
}

impl Tables {
    /// Calls `each` with all attempts that the calling statement sees. Nothing is copied.
    pub fn glance(&self, mut each: impl FnMut(&Glance)) {
        let mut attempts = self.attempt.scan(&self.attempt_pkey, &[], Snapshot::Statement);
        let mut claims = Side::new(self.claim.scan(&self.claim_pkey, &[], Snapshot::Statement));
        let mut outcomes = Side::new(self.outcome.scan(&self.outcome_pkey, &[], Snapshot::Statement));
        while attempts.next().is_some() {
            let (values, nulls) = attempts.columns(8);
            let int = |n: usize| values[n].value() as i64;
            let mut glance = Glance {
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
            if glance.run_at.is_some() {
                glance.has_error = !attempts.columns(LAST_ERROR + 1).1[LAST_ERROR];
            }
            if claims.is_at(glance.id) {
                glance.claim = Some(claims.scan.columns(5).0[4].value() as u8);
            }
            if outcomes.is_at(glance.id) {
                let (values, nulls) = outcomes.scan.columns(4);
                glance.outcome = Some((values[2].value() as u8, !nulls[3]));
            }
            each(&glance);
        }
    }
}

/// What another log has about an attempt.
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
pub struct Walk<'a> {
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

/// A log read beside the attempts; its rows begin with the attempt's id.
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
        // One row at most is there, and beside it those that were taken back.
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
