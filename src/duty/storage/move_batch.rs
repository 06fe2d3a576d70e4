//! Chooses which attempts of a segment one transaction moves.
//!
//! Not responsible for the move (`move_marks`), nor for how much of the segment a pass looks at (`move_living`).
//!
//! Invariant: a chosen attempt was living when its rows were read. The mark of the move decides whether it still is.

use crate::catalog::queue;
use crate::duty::serve_cancels;
use crate::error::Result;
use crate::job::rerun;
use crate::log::attempt::Attempt;
use crate::log::reader::Reader;
use crate::log::segment;
use crate::log::walk::{Seen, Trace};
use crate::log::{claim, note, outcome};
use crate::pg::row::{Columns, Row};
use crate::shmem::segments::State;

/// At most this many attempts are moved in one transaction, so that a session that waits for one waits for
/// milliseconds.
const MAX_MOVED: usize = 500;
/// At most this many bytes of payloads are moved in one transaction.
const MAX_BYTES: usize = 1 << 20;

/// What becomes of an attempt in this pass.
pub enum Fate {
    /// It has ended or moved before, or nobody wants it.
    Stays,
    /// The batch moves it.
    Moves,
    /// It must be looked at again later, mostly because an open transaction decides its fate.
    Open,
}

/// The attempts that one transaction moves.
pub struct Batch {
    /// The segment that they leave.
    pub segment: u8,
    /// The segment to which they go.
    pub target: u8,
    /// The stored bytes of their payloads.
    bytes: usize,
    pub waiting: Vec<Attempt>,
    /// Each with the row of its claim.
    pub running: Vec<(Attempt, Row)>,
    /// Ended attempts to whose payload other attempts refer.
    pub payloads: Vec<Attempt>,
}

impl Batch {
    pub fn new(segment: u8, target: u8) -> Self {
        Self { segment, target, bytes: 0, waiting: Vec::new(), running: Vec::new(), payloads: Vec::new() }
    }

    /// Returns a batch for each attempt.
    pub fn singly(self) -> Vec<Self> {
        let empty = || Self::new(self.segment, self.target);
        let waiting = self.waiting.into_iter().map(|attempt| Self { waiting: vec![attempt], ..empty() });
        let running = self.running.into_iter().map(|claimed| Self { running: vec![claimed], ..empty() });
        let payloads = self.payloads.into_iter().map(|attempt| Self { payloads: vec![attempt], ..empty() });
        waiting.chain(running).chain(payloads).collect()
    }

    /// Returns the id of the first attempt. `None`: the batch is empty.
    pub fn first(&self) -> Option<i64> {
        let running = self.running.iter().map(|(attempt, _)| attempt);
        self.waiting.iter().chain(running).chain(&self.payloads).map(|attempt| attempt.id()).min()
    }

    /// True if it has no attempt.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if it has as much as one transaction moves.
    pub fn is_full(&self) -> bool {
        self.len() >= MAX_MOVED || self.bytes >= MAX_BYTES
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.running.len() + self.payloads.len()
    }

    /// Looks at an attempt, and adds it to the batch if it must be moved, or its payload.
    pub fn add(&mut self, trace: Trace<Row>) -> Result<Fate> {
        let Trace { attempt, claim, outcome } = trace;
        if attempt.is_payload_only() {
            if is_referred_to(&attempt) {
                self.bytes += attempt.payload_size();
                self.payloads.push(attempt);
            }
            return Ok(Fate::Stays);
        }
        match (claim, outcome) {
            (Seen::InProgress, _) | (_, Seen::InProgress) => return Ok(Fate::Open),
            // A session claimed and ended the attempt after the claims were read. The next pass reads its claim.
            (Seen::Absent, Seen::There(_)) => return Ok(Fate::Open),
            // Its notes request another run that is still to be made. They stay where they are.
            (_, Seen::There(outcome)) if is_owed(&attempt, &outcome)? => return Ok(Fate::Open),
            // A cancel of its job was requested, and the job still continues. The request would be lost with the
            // segment.
            (_, Seen::There(outcome)) if is_cancel_owed(&attempt, &outcome)? => return Ok(Fate::Open),
            (_, Seen::There(_)) => {
                if attempt.has_large_payload() && is_referred_to(&attempt) {
                    self.bytes += attempt.payload_size();
                    self.payloads.push(attempt);
                }
            }
            (Seen::There(claim), Seen::Absent) => match claim::read(&claim).kind {
                // The outcomes were read before the attempt was ended. The next pass looks at what it leaves behind.
                claim::Kind::System if outcome::find(self.segment, attempt.id()).is_some() => {
                    return Ok(Fate::Open);
                }
                // It was moved before. A claim by the system whose outcome was rolled back cannot be here, because one
                // transaction writes both.
                claim::Kind::Moved | claim::Kind::System => {}
                claim::Kind::Worker | claim::Kind::Bound => {
                    if is_wanted(&attempt)? {
                        self.bytes += attempt.payload_size();
                        self.running.push((attempt, claim));
                        return Ok(Fate::Moves);
                    }
                }
            },
            (Seen::Absent, Seen::Absent) => {
                if is_wanted(&attempt)? {
                    // Its claim was rolled back after another run was requested.
                    if has_rerun(&attempt) {
                        return Ok(Fate::Open);
                    }
                    self.bytes += attempt.payload_size();
                    self.waiting.push(attempt);
                    return Ok(Fate::Moves);
                }
            }
        }
        Ok(Fate::Stays)
    }
}

/// True if the payload of an ended attempt is still needed: by a living attempt that refers to it, or by the attempt
/// that ended last and is not in history yet. If unsure, returns true.
fn is_referred_to(ended: &Attempt) -> bool {
    let (newest, is_growing) = Reader::new().newest(ended.job_id());
    let Some(newest) = newest.filter(|_| !is_growing) else { return is_growing };
    if newest.payload_of() != Some(ended.id()) {
        return false;
    }
    let segment = newest.home.segment;
    match outcome::find(segment, newest.id()) {
        // If that attempt lies in the same segment, both are copied together. Otherwise it may have been copied
        // already.
        Some(outcome) if outcome.kind != outcome::Kind::Moved && outcome.next_id.is_none() => {
            segment != ended.home.segment && segment::word(segment).state() < State::Copied
        }
        // The attempt lives. Or since it was found, it has moved, or another attempt has followed it.
        _ => true,
    }
}

/// True for most attempts that have ended: no row refers to one, and none is owed.
pub fn leaves_nothing(trace: &Trace<impl Columns>) -> bool {
    let (attempt, outcome) = (&trace.attempt, trace.outcome.row().map(outcome::read));
    matches!(trace.claim, Seen::There(_))
        && outcome.is_some_and(|outcome| outcome.next_id.is_none())
        && !attempt.is_payload_only()
        && attempt.unique_key().is_none()
        && !attempt.has_large_payload()
}

/// True if another run was requested after a waiting attempt.
pub fn has_rerun(attempt: &Attempt) -> bool {
    attempt.unique_key().is_some() && note::newest_rerun_even_open(attempt.home.segment, attempt.id()).is_some()
}

/// True if another run after an attempt that ended here is still to be made, or may be.
fn is_owed(attempt: &Attempt, outcome: &Row) -> Result<bool> {
    Ok(attempt.unique_key().is_some()
        && outcome::read(outcome).kind != outcome::Kind::Moved
        && rerun::may_be_owed(attempt)
        && is_wanted(attempt)?)
}

/// True if the job of an attempt that ended here is still to be cancelled, or may be.
fn is_cancel_owed(attempt: &Attempt, outcome: &Row) -> Result<bool> {
    let outcome = outcome::read(outcome);
    Ok(outcome.kind != outcome::Kind::Moved
        && outcome.next_id.is_some()
        && serve_cancels::may_be_owed(attempt)
        && is_wanted(attempt)?)
}

/// True if the attempt's queue exists. Attempts of a dropped queue are not moved.
fn is_wanted(attempt: &Attempt) -> Result<bool> {
    Ok(queue::by_lane(attempt.lane())?.is_some())
}
