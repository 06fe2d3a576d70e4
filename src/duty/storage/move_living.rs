//! Moves the living attempts out of a closed segment into the open half of old, with their ids, claims and notes.
//!
//! Not responsible for choosing the segment (`duty::storage`), nor for how a session follows a mark (`log::attempt`).
//!
//! Invariant: a waiting attempt leaves a claim of kind `m` behind, a running one an outcome of kind `m`. So the key
//! that decides between two workers, or two ends, also decides between them and the move. No session that acts on an
//! attempt needs to be kept out. A session that meets the mark follows it. An attempt that an open transaction is
//! claiming or ending is left for later. If none is left, the segment is drained.

use std::cell::Cell;
use std::ops::ControlFlow;

use pg_queue_core::frontier::Place;
use pg_queue_core::id::SEGMENTS;

use crate::catalog::queue;
use crate::duty::care::{Care, PUT_OFF_US};
use crate::duty::serve_cancels;
use crate::duty::storage::copy::Copying;
use crate::duty::storage::states::{BLOCKED_PAUSE_US, SegmentStates, StepResult};
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
use crate::pg::row::{Columns, Row, Tid};
use crate::pg::scan::Snapshot;
use crate::pg::{memory, process, time};
use crate::shmem::segments::State;
use crate::transaction::{self, SegmentStep, hooks};

/// At most this many attempts are looked at in one transaction.
const MAX_LOOKS: usize = 5_000;
/// At most this many attempts are moved in one transaction, so that a session that waits for one waits for
/// milliseconds.
const MAX_MOVED: usize = 500;
/// At most this many bytes of payloads are moved in one transaction.
const MAX_BYTES: usize = 1 << 20;
/// The longest pause while open transactions block the move, in microseconds.
const MAX_PAUSE_US: i64 = 2_000_000;

/// How far this process has moved a segment. Another process starts again, which does no harm.
#[derive(Clone, Copy)]
struct Progress {
    generation: i64,
    /// Attempts up to this id were looked at.
    looked_to: i64,
    /// The id of the first attempt that was left for later.
    left_from: Option<i64>,
    /// True if an attempt has failed.
    has_failed: bool,
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

/// Begins all segments anew, because a transaction that moved attempts was rolled back. What was put off stays so.
fn undone() {
    let anew = |known: Progress| Progress { looked_to: i64::MIN, left_from: None, has_failed: false, ..known };
    PROGRESS.set(PROGRESS.get().map(|progress| progress.map(anew)));
}

/// Moves one batch.
pub fn step(segment: u8, states: &SegmentStates, care: &Care) -> Result<StepResult> {
    hooks::on_rollback(undone);
    let generation = states.words[segment as usize].generation();
    let copied_to = states.filling(segment).copied_to;
    let pause = BLOCKED_PAUSE_US / 2;
    let start = Progress { generation, looked_to: copied_to, left_from: None, has_failed: false, pause, retry_at: 0 };
    let mut progress = progress(segment).filter(|known| known.generation == generation).unwrap_or(start);
    progress.looked_to = progress.looked_to.max(copied_to);
    let left = progress.retry_at - time::monotonic_us();
    if left > 0 {
        return Ok(StepResult::Later(left));
    }
    if ![segment, states.old].into_iter().all(segment::try_lock_to_write) {
        return Ok(StepResult::Later(BLOCKED_PAUSE_US));
    }
    // The progress is set again when this batch is done.
    set_progress(segment, None);
    let tables = Tables::open(segment);
    // Nothing was left for later before this batch.
    let is_beginning = progress.looked_to == copied_to && progress.left_from.is_none();
    let batch = Batch::new(segment, states.old);
    let copying = is_beginning.then(|| Copying::begin(&tables, copied_to, care));
    let mut pass = Pass { care, progress, copied_to, looked: 0, batch, copying };
    match pass.look(&tables)? {
        ControlFlow::Continue(is_end) => pass.write(is_end),
        ControlFlow::Break(instead) => Ok(instead),
    }
}

/// One transaction's pass over a part of a segment.
struct Pass<'a> {
    care: &'a Care,
    progress: Progress,
    copied_to: i64,
    looked: usize,
    batch: Batch,
    /// The copy to history of what has ended. `None` behind the first attempt that was left for later.
    copying: Option<Copying<'a>>,
}

impl Pass<'_> {
    /// Looks at attempts until the batch is full. Returns true at the end of the segment. `Break`: the result of the
    /// step, which writes nothing.
    fn look(&mut self, tables: &Tables) -> Result<ControlFlow<StepResult, bool>> {
        let mut walk = tables.walk(self.progress.looked_to, Snapshot::Dirty);
        while let Some(walk) = &mut walk {
            let Some(trace) = walk.next() else { break };
            let id = trace.attempt.id();
            self.progress.looked_to = id;
            self.looked += 1;
            let leaves_nothing = leaves_nothing(&trace);
            match if leaves_nothing { Fate::Stays } else { self.choose(walk.copy())? } {
                Fate::Stays => {
                    if let Some(copying) = &mut self.copying
                        && let Some(instead) = copying.add(&walk.here())?
                    {
                        self.give_up_copying();
                        // If a session has locked the table, the rest is copied later.
                        if matches!(instead, StepResult::Did(_)) {
                            return Ok(ControlFlow::Break(instead));
                        }
                    }
                }
                Fate::Moves => {}
                Fate::Open => {
                    self.progress.left_from.get_or_insert(id);
                    self.give_up_copying();
                }
            }
            if self.is_full() {
                return Ok(ControlFlow::Continue(false));
            }
            if self.looked.is_multiple_of(256) {
                process::check_for_interrupts();
            }
        }
        Ok(ControlFlow::Continue(true))
    }

    /// Looks at an attempt, and adds it to the batch if it must be moved.
    fn choose(&mut self, trace: Trace<Row>) -> Result<Fate> {
        let id = trace.attempt.id();
        let batch = &mut self.batch;
        let fate = self.care.serve(|| not_moved(id), || batch.add(trace))?;
        self.progress.has_failed |= fate.is_none();
        Ok(fate.unwrap_or(Fate::Open))
    }

    fn is_full(&self) -> bool {
        self.looked >= MAX_LOOKS
            || self.batch.len() >= MAX_MOVED
            || self.batch.bytes >= MAX_BYTES
            || self.copying.as_ref().is_some_and(Copying::is_full)
    }

    fn give_up_copying(&mut self) {
        self.copying.take().into_iter().for_each(Copying::give_up);
    }

    /// Moves and copies the attempts that were chosen, and records how far the segment is.
    fn write(self, is_end: bool) -> Result<StepResult> {
        let Self { care, mut progress, mut copied_to, looked, batch, copying } = self;
        let (segment, generation) = (batch.segment, progress.generation);
        for batch in if care.is_careful() { batch.singly() } else { vec![batch] } {
            let first = batch.first();
            let left = care.serve(|| not_moved(first.unwrap_or_default()), || batch.move_all())?;
            progress.has_failed |= left.is_none();
            if let Some(id) = left.unwrap_or(first) {
                progress.left_from = Some(progress.left_from.map_or(id, |known| known.min(id)));
            }
        }
        let mut looks = looked as i64;
        if let Some(copying) = copying {
            if progress.left_from.is_none() && copying.has_all_notes() {
                fault!("move.copied");
                copying.write(progress.looked_to);
                copied_to = progress.looked_to;
                // They need not be looked at again.
                looks *= 2;
                if !is_end {
                    segment::record(segment, generation, State::Moving, Some(copied_to));
                }
            } else {
                copying.give_up();
            }
        }
        if !is_end {
            set_progress(segment, Some(progress));
            return Ok(StepResult::DidPart(looks));
        }
        let Some(left) = progress.left_from else {
            segment::record(segment, generation, State::Drained, Some(copied_to).filter(|&id| id > 0));
            return Ok(StepResult::Did(1));
        };
        let pause = (progress.pause * 2).min(MAX_PAUSE_US);
        let wait = if progress.has_failed { PUT_OFF_US } else { pause };
        let retry_at = time::monotonic_us().saturating_add(wait);
        let looked_to = left - 1;
        let next = Progress { looked_to, left_from: None, has_failed: false, pause, retry_at, ..progress };
        set_progress(segment, Some(next));
        Ok(StepResult::Later(wait))
    }
}

fn not_moved(id: i64) -> String {
    format!("attempt {id} could not be moved to another segment")
}

/// What becomes of an attempt in this pass.
enum Fate {
    /// It has ended or moved before, or nobody wants it.
    Stays,
    /// The batch moves it.
    Moves,
    /// It must be looked at again later, mostly because an open transaction decides its fate.
    Open,
}

struct Batch {
    segment: u8,
    target: u8,
    bytes: usize,
    waiting: Vec<Attempt>,
    running: Vec<(Attempt, Row)>,
    /// Ended attempts to whose payload other attempts refer.
    payloads: Vec<Attempt>,
}

impl Batch {
    fn new(segment: u8, target: u8) -> Self {
        Self { segment, target, bytes: 0, waiting: Vec::new(), running: Vec::new(), payloads: Vec::new() }
    }

    /// Returns a batch for each attempt.
    fn singly(self) -> Vec<Self> {
        let empty = || Self::new(self.segment, self.target);
        let waiting = self.waiting.into_iter().map(|attempt| Self { waiting: vec![attempt], ..empty() });
        let running = self.running.into_iter().map(|claimed| Self { running: vec![claimed], ..empty() });
        let payloads = self.payloads.into_iter().map(|attempt| Self { payloads: vec![attempt], ..empty() });
        waiting.chain(running).chain(payloads).collect()
    }

    /// Returns the id of the first attempt. `None`: the batch is empty.
    fn first(&self) -> Option<i64> {
        let running = self.running.iter().map(|(attempt, _)| attempt);
        self.waiting.iter().chain(running).chain(&self.payloads).map(|attempt| attempt.id()).min()
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.running.len() + self.payloads.len()
    }

    /// Looks at an attempt, and adds it to the batch if it must be moved, or its payload.
    fn add(&mut self, trace: Trace<Row>) -> Result<Fate> {
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

    /// Moves the attempts of the batch. Returns the first id that must be left for later.
    fn move_all(self) -> Result<Option<i64>> {
        let mut left: Option<i64> = None;
        let mut leave = |id: i64| left = Some(left.map_or(id, |known| known.min(id)));
        if self.len() == 0 {
            return Ok(None);
        }
        fault!("move.chosen");
        let target = Target::of(self.target);
        let mut reader = Reader::new();

        // A session that claims one of them meanwhile may give up and drop the entry that it has taken. So after a
        // rollback the frontier must look again.
        let mut lanes: Vec<i32> = self.waiting.iter().map(|attempt| attempt.lane()).collect();
        lanes.sort_unstable();
        lanes.dedup();
        transaction::record_all(lanes.into_iter().map(|lane| transaction::Step::Unseen { lane }));
        // Each attempt is checked on its own whether it is still free: an unneeded mark would be a dead row.
        let claims = (!self.waiting.is_empty()).then(|| claim::Writer::open(self.segment));
        let mark = |id: i64| claims.as_ref().and_then(|claims| claims.mark_moved(id));
        let mut moved = memory::list(self.waiting.len());
        let edges = Edges::open(self.segment);
        let mut edge_rows = Vec::new();
        for attempt in &self.waiting {
            let Some(mark) = mark(attempt.id()) else {
                leave(attempt.id());
                continue;
            };
            // This check comes after the mark: a session that writes such a note looks for the mark after it has
            // written. See `rerun::ask`, `hold::write_note` and `hold::note_held`.
            let of_held = match &edges {
                Some(edges) if after::is_held(attempt.lane())? => edges.rows_settled(attempt.id()),
                _ => Some(Vec::new()),
            };
            let is_free = !has_rerun(attempt) && !serve_cancels::is_requested(attempt);
            if let Some(rows) = of_held.filter(|_| is_free) {
                moved.push(with_payload(&mut reader, attempt));
                edge_rows.extend(rows);
            } else {
                claims.as_ref().into_iter().for_each(|claims| claims.take_back(mark));
                leave(attempt.id());
            }
        }
        fault!("move.marked");
        attempt::append_moved(&target, &moved);
        note::copy(self.target, &edge_rows);
        let count = moved.len();

        let mut running = Vec::new();
        let mut places: Vec<(i64, Place)> = Vec::new();
        if !self.running.is_empty() {
            let outcomes = outcome::Writer::open(self.segment);
            let mut claims = Vec::new();
            let mut notes = Vec::new();
            let mut noted = 0;
            for (attempt, claim) in &self.running {
                let id = attempt.id();
                if noted > MAX_BYTES {
                    leave(id);
                    continue;
                }
                let Some(mark) = outcomes.mark_moved(id) else {
                    leave(id);
                    continue;
                };
                // This check comes after the mark: a session that writes a note looks for the mark after it has
                // written. See `hold::write_note`.
                let Some(found) = note::all_settled(self.segment, id) else {
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
                let tids: Vec<Tid> = attempt::insert_quietly(&target, &running);
                claim::Writer::open(self.target).copy(&claims);
                note::copy(self.target, &notes);
                places.extend(running.iter().zip(tids).map(|(new, tid)| (new.id, tid.place(self.target))));
            }
        }
        let kept: Vec<New> =
            self.payloads.iter().filter(|a| !self.is_kept(&mut reader, a)).map(Attempt::payload_only).collect();
        attempt::insert_quietly(&target, &kept);

        fault!("move.written");
        let segment = self.segment;
        transaction::record_all(places.iter().map(|&(id, place)| SegmentStep::Relocated { id, place }));
        let quiet = places.len() as i64;
        transaction::record(SegmentStep::Counted { segment: self.target, attempts: quiet, ended: 0 });
        transaction::record(SegmentStep::Counted { segment, attempts: 0, ended: count as i64 + quiet });
        Ok(left)
    }

    /// True if an earlier pass that was interrupted has already kept this payload.
    fn is_kept(&self, reader: &mut Reader, attempt: &Attempt) -> bool {
        reader.has_row(self.target, attempt.id())
    }
}

/// Returns a copy of the row. If its payload lies in another row, the copy gets the payload, because it may outlive
/// that row.
fn with_payload(reader: &mut Reader, attempt: &Attempt) -> New {
    let own = attempt.copy();
    if own.payload_of.is_none() {
        return own;
    }
    let payload = reader.payload(attempt, |payload| payload.map(crate::pg::jsonb::copy));
    New { payload_of: None, payload, ..own }
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
fn leaves_nothing(trace: &Trace<impl Columns>) -> bool {
    let (attempt, outcome) = (&trace.attempt, trace.outcome.row().map(outcome::read));
    matches!(trace.claim, Seen::There(_))
        && outcome.is_some_and(|outcome| outcome.next_id.is_none())
        && !attempt.is_payload_only()
        && attempt.unique_key().is_none()
        && !attempt.has_large_payload()
}

/// True if another run was requested after a waiting attempt.
fn has_rerun(attempt: &Attempt) -> bool {
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
