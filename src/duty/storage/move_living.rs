//! Moves the living attempts out of a closed segment into the open half of old, with their ids, claims and notes.
//!
//! Not here: which segment is moved out of (`duty::storage`), and how a session follows a mark (`log::attempt`).
//!
//! Invariant: a waiting attempt leaves a claim of kind `m` behind, a running one an outcome of kind `m`. So the key
//! that decides between two workers, or two ends, decides between them and the move as well, and no session that acts
//! on an attempt needs to be kept out. A session that meets the mark follows it. An attempt that an open transaction
//! is claiming or ending is left for later; if none is left, the segment is drained.

use std::cell::Cell;
use std::rc::Rc;

use pg_queue_core::frontier::Place;
use pg_queue_core::id::SEGMENTS;

use crate::catalog::{Catalog, queue};
use crate::duty::serve_cancels;
use crate::duty::storage::states::{self, PAUSE, SegmentStates};
use crate::error::Result;
use crate::job::{after, rerun};
use crate::log::attempt::{self, Attempt, New};
use crate::log::edge::Edges;
use crate::log::reader::Reader;
use crate::log::segment::{self, Target};
use crate::log::tables::Tables;
use crate::log::walk::{Seen, Trace};
use crate::log::{claim, note, outcome};
use crate::pg::fault::fault;
use crate::pg::row::{Row, Tid};
use crate::pg::scan::Snapshot;
use crate::pg::{process, time};
use crate::shmem::segments::State;
use crate::transaction::{self, SegmentStep, hooks};

/// Attempts looked at in one transaction.
const LOOK: usize = 5_000;
/// Attempts moved in one transaction, so that a session that waits for one of them waits for milliseconds.
const MOVE: usize = 500;
/// Bytes of payloads moved in one transaction.
const BYTES: usize = 1 << 20;
/// The longest pause, in microseconds, while open transactions are in the way.
const LONGEST: i64 = 2_000_000;

/// How far this process has come with a segment. Another process begins anew, which does no harm.
#[derive(Clone, Copy)]
struct Progress {
    generation: i64,
    /// The attempts up to this id were looked at.
    looked_to: i64,
    /// The id of the first attempt that was left for later.
    left_from: Option<i64>,
    pause: i64,
    /// The monotonic time before which there is nothing to do.
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

/// Forgets how far all segments were looked at: a transaction that moved attempts was rolled back.
fn undone() {
    PROGRESS.set([None; SEGMENTS]);
}

/// Moves one batch.
pub fn step(catalog: &Rc<Catalog>, segment: u8, states: &SegmentStates) -> Result<states::StepResult> {
    hooks::on_rollback(undone);
    let generation = states.words[segment as usize].generation();
    let start = Progress { generation, looked_to: 0, left_from: None, pause: PAUSE / 2, retry_at: 0 };
    let mut progress = progress(segment).filter(|known| known.generation == generation).unwrap_or(start);
    let left = progress.retry_at - time::monotonic_us();
    if left > 0 {
        return Ok(states::StepResult::Later(left));
    }
    if ![segment, states.old].into_iter().all(|segment| segment::try_lock_to_write(catalog, segment)) {
        return Ok(states::StepResult::Later(PAUSE));
    }
    // It is set again when this batch is done.
    set_progress(segment, None);
    let mut batch =
        Batch { catalog, segment, target: states.old, bytes: 0, waiting: vec![], running: vec![], payloads: vec![] };
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
            process::check_for_interrupts();
        }
    }
    if let Some(id) = batch.go()? {
        progress.left_from = Some(progress.left_from.map_or(id, |known| known.min(id)));
    }
    if !is_end {
        set_progress(segment, Some(progress));
        return Ok(states::StepResult::Did(looked as i64));
    }
    match progress.left_from {
        None => {
            segment::record(catalog, segment, generation, State::Drained, None);
            Ok(states::StepResult::Did(1))
        }
        Some(left) => {
            let pause = (progress.pause * 2).min(LONGEST);
            let retry_at = time::monotonic_us().saturating_add(pause);
            set_progress(segment, Some(Progress { looked_to: left - 1, left_from: None, pause, retry_at, ..progress }));
            Ok(states::StepResult::Later(pause))
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
    /// Ended attempts whose payload other attempts refer to.
    payloads: Vec<Attempt>,
}

impl Batch<'_> {
    fn len(&self) -> usize {
        self.waiting.len() + self.running.len() + self.payloads.len()
    }

    /// Looks at an attempt and adds it to the batch if it is to be moved. False: it must be looked at again later,
    /// mostly because an open transaction decides its fate.
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
            // Its notes request another run that is still to be made; they stay where they are.
            (_, Seen::There(outcome)) if is_owed(self.catalog, &attempt, &outcome)? => return Ok(false),
            // Its job is to be cancelled, and goes on as yet: the request would go with the segment.
            (_, Seen::There(outcome)) if is_cancel_owed(self.catalog, &attempt, &outcome)? => return Ok(false),
            (_, Seen::There(_)) => {
                if attempt.has_large_payload() && is_referred_to(self.catalog, &attempt) {
                    self.bytes += attempt.payload_size();
                    self.payloads.push(attempt);
                }
            }
            (Seen::There(claim), Seen::Absent) => match claim::read(&claim).kind {
                // The outcomes were read before the attempt was ended: the next pass looks at what it leaves behind.
                claim::Kind::System if outcome::find(self.catalog, self.segment, attempt.id()).is_some() => {
                    return Ok(false);
                }
                // It was moved before. A claim by the system whose outcome was rolled back cannot be here: both are
                // of one transaction.
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
                    // Its claim was rolled back after another run was requested.
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

    /// Moves the attempts of the batch. Returns the first id that must be left for later.
    fn go(self) -> Result<Option<i64>> {
        let mut left: Option<i64> = None;
        let mut leave = |id: i64| left = Some(left.map_or(id, |known| known.min(id)));
        if self.len() == 0 {
            return Ok(None);
        }
        fault!("move.chosen");
        let target = Target::of(self.catalog, self.target);
        let mut reader = Reader::new(self.catalog);

        // A session that claims one of them meanwhile may give up and drop the entry that it has taken: after a
        // rollback the frontier must look again.
        let mut lanes: Vec<i32> = self.waiting.iter().map(Attempt::lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        transaction::record_all(self.catalog.number, lanes.into_iter().map(|lane| transaction::Step::Unseen { lane }));
        // One by one, each after a look whether it is still free: a mark in vain would be a dead row.
        let claims = (!self.waiting.is_empty()).then(|| claim::Writer::open(self.catalog, self.segment));
        let mark = |id: i64| claims.as_ref().and_then(|claims| claims.mark_moved(id));
        let mut moved = Vec::with_capacity(self.waiting.len());
        let edges = Edges::open(self.catalog, self.segment);
        let mut edge_rows = Vec::new();
        for attempt in &self.waiting {
            let Some(mark) = mark(attempt.id()) else {
                leave(attempt.id());
                continue;
            };
            // The look is after the mark: a session that writes such a note looks for the mark after it has written.
            // See `rerun::ask`, `hold::write_note` and `hold::note_held`.
            let of_held = match &edges {
                Some(edges) if after::is_held(self.catalog, attempt.lane())? => edges.rows_settled(attempt.id()),
                _ => Some(Vec::new()),
            };
            let is_free = !has_rerun(self.catalog, attempt) && !serve_cancels::is_requested(self.catalog, attempt);
            if let Some(rows) = of_held.filter(|_| is_free) {
                moved.push(with_payload(&mut reader, attempt));
                edge_rows.extend(rows);
            } else {
                claims.as_ref().into_iter().for_each(|claims| claims.take_back(mark));
                leave(attempt.id());
            }
        }
        fault!("move.marked");
        attempt::append_moved(self.catalog, &target, &moved);
        note::copy(self.catalog, self.target, &edge_rows);
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
                // The look is after the mark: a session that writes a note looks for the mark after it has written. See
                // `hold::write_note`.
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

        fault!("move.written");
        let (number, segment) = (self.catalog.number, self.segment);
        transaction::record_all(number, places.iter().map(|&(id, place)| SegmentStep::Relocated { id, place }));
        let quiet = places.len() as i64;
        transaction::record(number, SegmentStep::Counted { segment: self.target, attempts: quiet, ended: 0 });
        transaction::record(number, SegmentStep::Counted { segment, attempts: 0, ended: count as i64 + quiet });
        Ok(left)
    }

    /// Whether an earlier pass, which was cut off, has kept this payload already.
    fn is_kept(&self, reader: &mut Reader<'_>, attempt: &Attempt) -> bool {
        reader.has_row(self.target, attempt.id())
    }
}

/// Returns a copy of the row. If its payload lies in another row, the copy gets the payload: it may outlive that row.
fn with_payload(reader: &mut Reader<'_>, attempt: &Attempt) -> New {
    let own = attempt.copy();
    if own.payload_of.is_none() {
        return own;
    }
    let payload = reader.payload(attempt, |payload| payload.map(crate::pg::jsonb::copy));
    New { payload_of: None, payload, ..own }
}

/// Whether the payload of an ended attempt is still needed: by a living attempt that refers to it, or by the attempt
/// that ended last and is not in history yet. In doubt it returns true.
fn is_referred_to(catalog: &Catalog, ended: &Attempt) -> bool {
    let (newest, is_growing) = Reader::new(catalog).newest(ended.job_id());
    let Some(newest) = newest.filter(|_| !is_growing) else { return is_growing };
    if newest.payload_of() != Some(ended.id()) {
        return false;
    }
    let segment = newest.home.segment;
    match outcome::find(catalog, segment, newest.id()) {
        // If it lies in the same segment, it is copied together with this one; else it may have been copied already.
        Some(outcome) if outcome.kind != outcome::Kind::Moved && outcome.next_id.is_none() => {
            segment != ended.home.segment && segment::word(catalog, segment).state() < State::Copied
        }
        // It lives; or, since it was found, it has moved or another attempt has followed it.
        _ => true,
    }
}

/// Whether another run was requested after an attempt that waits.
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

/// Whether the job of an attempt that has ended here is still to be cancelled, or may be.
fn is_cancel_owed(catalog: &Catalog, attempt: &Attempt, outcome: &Row) -> Result<bool> {
    let outcome = outcome::read(outcome);
    Ok(outcome.kind != outcome::Kind::Moved
        && outcome.next_id.is_some()
        && serve_cancels::may_be_owed(catalog, attempt)
        && is_wanted(catalog, attempt)?)
}

/// Whether the attempt's queue exists. The attempts of a dropped queue are not moved.
fn is_wanted(catalog: &Catalog, attempt: &Attempt) -> Result<bool> {
    Ok(queue::by_lane(catalog, attempt.lane())?.is_some())
}
