//! Moves the living out of a closed segment into the open half of old, with their ids, claims and notes.
//!
//! A waiting attempt leaves a claim of kind `m` behind, a running one an outcome of kind `m`: so the key that
//! decides between two workers, or two ends, decides between them and the move as well, and nobody who acts on
//! an attempt needs to be kept out. Whoever meets the mark goes after it. What an open transaction is claiming
//! or ending is left for later; when nothing is left the segment is drained.

use std::cell::Cell;
use std::rc::Rc;

use pg_queue_core::frontier::Place;
use pg_queue_core::id::SEGMENTS;

use super::{PAUSE, Picture, Step};
use crate::error::Result;
use crate::instance::Catalog;
use crate::log::attempt::{self, Attempt, New, Reader};
use crate::log::table::{Row, Snapshot, Tid};
use crate::log::walk::{Seen, Tables, Trace};
use crate::log::{claim, note, outcome};
use crate::segment::{self, State, Target};
use crate::transaction::{self, Step as AtCommit};
use crate::{queue, rerun, sys};

/// Attempts looked at in one transaction.
const LOOK: usize = 5_000;
/// Attempts moved in one transaction, so that who waits for one of them waits for milliseconds.
const MOVE: usize = 500;
/// Bytes of payloads moved in one transaction.
const BYTES: usize = 1 << 20;
/// The longest pause while open transactions are in the way.
const LONGEST: i64 = 2_000_000;

/// How far this process has come with a segment. Another one begins anew, which does no harm.
#[derive(Clone, Copy)]
struct Progress {
    generation: i64,
    /// Looked at up to this id.
    looked_to: i64,
    /// The first that was left for later.
    left_from: Option<i64>,
    pause: i64,
    /// Not before this monotonic time is there anything to be done.
    retry_at: i64,
}

thread_local! {
    static PROGRESS: Cell<[Option<Progress>; SEGMENTS]> = const { Cell::new([None; SEGMENTS]) };
}

fn progress(segment: u8) -> Option<Progress> {
    PROGRESS.get()[segment as usize]
}

fn set_progress(segment: u8, progress: Option<Progress>) {
    let mut all = PROGRESS.get();
    all[segment as usize] = progress;
    PROGRESS.set(all);
}

/// A transaction that moved something was rolled back: what was looked at must be looked at again.
pub fn undone() {
    PROGRESS.set([None; SEGMENTS]);
}

/// One batch.
pub fn step(catalog: &Rc<Catalog>, segment: u8, picture: &Picture) -> Result<Step> {
    let generation = picture.words[segment as usize].generation();
    let start = Progress { generation, looked_to: 0, left_from: None, pause: PAUSE / 2, retry_at: 0 };
    let mut progress = progress(segment).filter(|known| known.generation == generation).unwrap_or(start);
    let left = progress.retry_at - sys::monotonic_us();
    if left > 0 {
        return Ok(Step::Later(left));
    }
    // Set again when this batch is done.
    set_progress(segment, None);
    let mut batch =
        Batch { catalog, segment, target: picture.old, bytes: 0, waiting: vec![], running: vec![], payloads: vec![] };
    let tables = Tables::open(catalog, segment);
    let mut looked = 0;
    let mut is_end = true;
    for trace in tables.walk(progress.looked_to, Snapshot::Dirty) {
        progress.looked_to = trace.attempt.id();
        looked += 1;
        let id = trace.attempt.id();
        if !batch.take(trace)? {
            progress.left_from.get_or_insert(id);
        }
        if looked >= LOOK || batch.len() >= MOVE || batch.bytes >= BYTES {
            is_end = false;
            break;
        }
        if looked % 256 == 0 {
            sys::check_for_interrupts();
        }
    }
    if let Some(id) = batch.go()? {
        progress.left_from = Some(progress.left_from.map_or(id, |known| known.min(id)));
    }
    if !is_end {
        set_progress(segment, Some(progress));
        return Ok(Step::Did(looked as i64));
    }
    match progress.left_from {
        None => {
            segment::record(catalog, segment, generation, State::Drained, None);
            Ok(Step::Did(1))
        }
        Some(left) => {
            let pause = (progress.pause * 2).min(LONGEST);
            let retry_at = sys::monotonic_us().saturating_add(pause);
            set_progress(segment, Some(Progress { looked_to: left - 1, left_from: None, pause, retry_at, ..progress }));
            Ok(Step::Later(pause))
        }
    }
}

struct Batch<'a> {
    catalog: &'a Rc<Catalog>,
    segment: u8,
    target: u8,
    bytes: usize,
    waiting: Vec<Attempt>,
    running: Vec<(Attempt, Row)>,
    /// Ended attempts whose payload others refer to.
    payloads: Vec<Attempt>,
}

impl Batch<'_> {
    fn len(&self) -> usize {
        self.waiting.len() + self.running.len() + self.payloads.len()
    }

    /// Looks at an attempt. False: an open transaction is about to decide what becomes of it.
    fn take(&mut self, trace: Trace) -> Result<bool> {
        let Trace { attempt, claim, outcome } = trace;
        if attempt.is_payload_only() {
            if is_referred_to(self.catalog, &attempt) {
                self.bytes += attempt.payload_size();
                self.payloads.push(attempt);
            }
            return Ok(true);
        }
        match (claim, outcome) {
            (Seen::InProgress, _) | (_, Seen::InProgress) => return Ok(false),
            // Another run is to be made of its notes, which stay where they are.
            (_, Seen::There(outcome)) if is_owed(self.catalog, &attempt, &outcome)? => return Ok(false),
            (_, Seen::There(_)) => {
                if attempt.has_large_payload() && is_referred_to(self.catalog, &attempt) {
                    self.bytes += attempt.payload_size();
                    self.payloads.push(attempt);
                }
            }
            (Seen::There(claim), Seen::Absent) => match claim::read(&claim).kind {
                // The outcomes were read before it was ended: what it leaves behind is looked at with the next pass.
                claim::Kind::System if outcome::find(self.catalog, self.segment, attempt.id()).is_some() => {
                    return Ok(false);
                }
                // Moved before; or, by the system, with an outcome that was rolled back, which cannot be.
                claim::Kind::Moved | claim::Kind::System => {}
                claim::Kind::Worker | claim::Kind::Bound => {
                    if is_wanted(self.catalog, &attempt)? {
                        self.bytes += attempt.payload_size();
                        self.running.push((attempt, claim));
                    }
                }
            },
            (Seen::Absent, Seen::Absent) => {
                if is_wanted(self.catalog, &attempt)? {
                    // Its claim was rolled back after another run was asked for.
                    if has_rerun(self.catalog, &attempt) {
                        return Ok(false);
                    }
                    self.bytes += attempt.payload_size();
                    self.waiting.push(attempt);
                }
            }
        }
        Ok(true)
    }

    /// Moves what was taken. Returns the first id that must be left for later.
    fn go(self) -> Result<Option<i64>> {
        let mut left: Option<i64> = None;
        let mut leave = |id: i64| left = Some(left.map_or(id, |known| known.min(id)));
        if self.len() == 0 {
            return Ok(None);
        }
        let target = Target::of(self.catalog, self.target);
        let mut reader = Reader::new(self.catalog);

        // Who claims them meanwhile may run out of patience and drop what he has taken: after a rollback the frontier must
        // look again.
        let mut lanes: Vec<i32> = self.waiting.iter().map(Attempt::lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        transaction::remember_all(self.catalog.number, lanes.into_iter().map(|lane| AtCommit::Unseen { lane }));
        // One by one, each after a look: a mark in vain would be a dead row.
        let claims = (!self.waiting.is_empty()).then(|| claim::Writer::open(self.catalog, self.segment));
        let mark = |id: i64| claims.as_ref().and_then(|claims| claims.mark_moved(id));
        let mut moved = Vec::with_capacity(self.waiting.len());
        for attempt in &self.waiting {
            let Some(mark) = mark(attempt.id()) else {
                leave(attempt.id());
                continue;
            };
            // After the mark: who writes such a note looks for the mark after that. See rerun::ask.
            if has_rerun(self.catalog, attempt) {
                claims.as_ref().into_iter().for_each(|claims| claims.take_back(mark));
                leave(attempt.id());
            } else {
                moved.push(with_payload(&mut reader, attempt));
            }
        }
        attempt::append_moved(self.catalog, &target, &moved);
        let count = moved.len();

        let mut running = Vec::new();
        let mut places: Vec<(i64, Place)> = Vec::new();
        if !self.running.is_empty() {
            let outcomes = outcome::Writer::open(self.catalog, self.segment);
            let mut claims = Vec::new();
            let mut notes = Vec::new();
            let mut noted = 0;
            for (attempt, claim) in &self.running {
                let id = attempt.id();
                if noted > BYTES {
                    leave(id);
                    continue;
                }
                let Some(mark) = outcomes.mark_moved(id) else {
                    leave(id);
                    continue;
                };
                // After the mark: who writes a note looks for the mark after that. See hold::write_note.
                let Some(found) = note::all_settled(self.catalog, self.segment, id) else {
                    outcomes.take_back(mark);
                    leave(id);
                    continue;
                };
                running.push(with_payload(&mut reader, attempt));
                claims.push(claim);
                noted += found.iter().map(note::size).sum::<usize>();
                notes.extend(found);
            }
            if !running.is_empty() {
                let tids: Vec<Tid> = attempt::insert_quietly(self.catalog, &target, &running);
                claim::Writer::open(self.catalog, self.target).copy(&claims);
                note::copy(self.catalog, self.target, &notes);
                places.extend(running.iter().zip(tids).map(|(new, tid)| (new.id, tid.place(self.target))));
            }
        }
        let kept: Vec<New> =
            self.payloads.iter().filter(|a| !self.is_kept(&mut reader, a)).map(Attempt::payload_only).collect();
        attempt::insert_quietly(self.catalog, &target, &kept);

        let (number, segment) = (self.catalog.number, self.segment);
        transaction::remember_all(number, places.iter().map(|&(id, place)| AtCommit::Relocated { id, place }));
        let quiet = places.len() as i64;
        transaction::remember(number, AtCommit::Counted { segment: self.target, attempts: quiet, ended: 0 });
        transaction::remember(number, AtCommit::Counted { segment, attempts: 0, ended: count as i64 + quiet });
        Ok(left)
    }

    /// Whether an earlier pass, which was cut off, has kept this payload already.
    fn is_kept(&self, reader: &mut Reader<'_>, attempt: &Attempt) -> bool {
        reader.has_row(self.target, attempt.id())
    }
}

/// The row as it is, with its payload should that lie in another row: this one may outlive it.
fn with_payload(reader: &mut Reader<'_>, attempt: &Attempt) -> New {
    let own = attempt.copy();
    if own.payload_of.is_none() {
        return own;
    }
    let payload = reader.payload(attempt, |payload| payload.map(crate::jsonb::copy));
    New { payload_of: None, payload, ..own }
}

/// Whether the payload of an ended attempt is still needed: by a living attempt that refers to it, or by the one
/// that ended last and is not in history yet. When in doubt it is.
fn is_referred_to(catalog: &Catalog, ended: &Attempt) -> bool {
    let (newest, is_growing) = Reader::new(catalog).newest(ended.job_id());
    let Some(newest) = newest.filter(|_| !is_growing) else { return is_growing };
    if newest.payload_of() != Some(ended.id()) {
        return false;
    }
    let segment = newest.home.segment;
    match outcome::find(catalog, segment, newest.id()) {
        // It is copied together with this one, or was copied already.
        Some(outcome) if outcome.kind != outcome::Kind::Moved && outcome.next_id.is_none() => {
            segment != ended.home.segment && segment::word(catalog, segment).state() < State::Copied
        }
        // It lives; or it has moved, or was followed by another, since it was found.
        _ => true,
    }
}

/// Whether another run was asked for after an attempt that waits.
fn has_rerun(catalog: &Catalog, attempt: &Attempt) -> bool {
    attempt.unique_key().is_some()
        && note::newest_rerun_even_open(catalog, attempt.home.segment, attempt.id()).is_some()
}

/// Whether another run after one that has ended here is still to be made, or may be.
fn is_owed(catalog: &Catalog, attempt: &Attempt, outcome: &Row) -> Result<bool> {
    Ok(attempt.unique_key().is_some()
        && outcome::read(outcome).kind != outcome::Kind::Moved
        && rerun::may_be_owed(catalog, attempt)
        && is_wanted(catalog, attempt)?)
}

/// Whether an attempt is anybody's: a dropped queue's is not.
fn is_wanted(catalog: &Catalog, attempt: &Attempt) -> Result<bool> {
    Ok(queue::by_lane(catalog, attempt.lane())?.is_some())
}
