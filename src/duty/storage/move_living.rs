//! Moves the living attempts out of a closed segment into the open half of old, one bounded pass per transaction.
//!
//! Responsible for the passes: where each begins and ends, and what is left for later. Not responsible for choosing the
//! segment (`duty::storage`), for choosing attempts (`move_batch`), nor for the move of an attempt (`move_marks`).
//!
//! Invariant: an attempt that an open transaction is claiming or ending is left for later. If none is left, the segment
//! is drained.

use std::cell::Cell;
use std::ops::ControlFlow;

use pg_queue_core::id::SEGMENTS;

use crate::duty::care::{Care, PUT_OFF_US};
use crate::duty::storage::copy::Copying;
use crate::duty::storage::move_batch::{self, Batch, Fate};
use crate::duty::storage::move_marks;
use crate::duty::storage::states::{BLOCKED_PAUSE_US, SegmentStates, StepResult};
use crate::error::Result;
use crate::log::segment;
use crate::log::tables::Tables;
use crate::log::walk::Trace;
use crate::pg::fault::fault;
use crate::pg::row::Row;
use crate::pg::scan::Snapshot;
use crate::pg::{process, time};
use crate::shmem::segments::State;
use crate::transaction::hooks;

/// At most this many attempts are looked at in one transaction.
const MAX_LOOKS: usize = 5_000;
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
            let leaves_nothing = move_batch::leaves_nothing(&trace);
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
        self.looked >= MAX_LOOKS || self.batch.is_full() || self.copying.as_ref().is_some_and(Copying::is_full)
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
            let left = care.serve(|| not_moved(first.unwrap_or_default()), || move_marks::move_all(&batch))?;
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
