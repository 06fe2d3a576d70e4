//! Copies the ended attempts of a segment to history, as long as the queues' retention keeps them, and counts them for
//! the statistics. The step that moves what lives there (`move_living`) copies the beginning of the segment, up to the
//! first attempt that it must leave for later. The rest is copied when the segment is drained. What lies before the
//! last copied attempt does not change any more. So the segment is read batch by batch in the order of the ids. The log
//! of segments records the last id that was read.
//!
//! Not responsible for the tables of history (`log::history`), nor for the rows of the statistics (`log::rollup`,
//! `log::lane_counts`).
//!
//! Invariant: copied attempts count for readers only when the whole segment is copied. Until then the segment's
//! attempts count. So the successor of an attempt, even of one that is not kept, stays on record at least until then:
//! see `log::retried::forget`. An attempt that history cannot take does not stop the copy: see `Part`.

use std::cell::RefCell;
use std::collections::HashMap;

use pg_queue_core::day::Day;
use pg_queue_core::rollup::{Life, Rollup};
use pgrx::pg_sys;

use crate::catalog::queue::{self, Queue};
use crate::duty::care::Care;
use crate::duty::storage::states::{BLOCKED_PAUSE_US, SegmentStates, StepResult};
use crate::error::{Error, Result};
use crate::job::options::OwnFlow;
use crate::log::attempt::AttemptOf;
use crate::log::history::{self, Child};
use crate::log::outcome::{self, Kind, Outcome};
use crate::log::reader::Reader;
use crate::log::segment;
use crate::log::tables::Tables;
use crate::log::walk::Trace;
use crate::log::{claim, group_start, lane_counts, note, rollup};
use crate::pg::datum::stored_size;
use crate::pg::fault::fault;
use crate::pg::row::Columns;
use crate::pg::scan::Snapshot;
use crate::pg::{jsonb, lock, process, syscache, time};
use crate::shmem::segments::State;

/// The attempts that are looked at in one transaction, with searches at their cost.
const MAX_COST: usize = 2_000;
/// The cost of a search for the newest attempt of a job, in looks at an attempt.
const SEARCH_COST: usize = 10;
/// The cost of a trial of an attempt, after an error.
const TRIAL_COST: usize = 10;
/// At most this many bytes, as stored, are copied in one transaction.
const MAX_BYTES: usize = 4 << 20;

/// The statistics of a segment by minutes, as far as this process has read the segment.
struct Minutes {
    generation: i64,
    read_to: i64,
    rollup: Rollup,
}

impl Minutes {
    /// Returns the minutes that this process has already read. If another process has read up to `read_to`, the rows up
    /// to there are read again.
    fn resume(tables: &Tables, generation: i64, read_to: i64) -> Self {
        let known = MINUTES.take().filter(|known| known.generation == generation && known.read_to == read_to);
        known.unwrap_or_else(|| {
            let mut minutes = Self { generation, read_to, rollup: Rollup::default() };
            if read_to > 0 {
                let mut walk = tables.walk(0, Snapshot::Now);
                while let Some(walk) = &mut walk {
                    let Some(trace) = walk.next().filter(|trace| trace.attempt.id() <= read_to) else { break };
                    rollup::life(&trace).iter().for_each(|life| minutes.rollup.add(life));
                    process::check_for_interrupts();
                }
            }
            minutes
        })
    }
}

thread_local! {
    static MINUTES: RefCell<Option<Minutes>> = const { RefCell::new(None) };
    /// The table of each day, as this process last read them.
    static CHILDREN: RefCell<Vec<Child>> = const { RefCell::new(Vec::new()) };
}

/// True if this ended attempt is the last of its job.
fn is_last(outcome: &Outcome) -> bool {
    outcome.next_id.is_none()
}

/// The rows for history of one batch.
#[derive(Default)]
struct Batch {
    days: Vec<history::Writer>,
    /// The bytes of their large values, as stored.
    bytes: usize,
}

/// The part of an attempt that goes to history. If history cannot take the whole, it gets less.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// Everything but the job's steps.
    WithoutSteps,
    /// Only what the extension itself has written: no payload, headers, progress, result, errors and steps.
    WithoutContents,
    Nothing,
}

/// All of an attempt, for no error.
const WHOLE: (Part, String) = (Part::Whole, String::new());

impl Part {
    /// Returns the next smaller part, and what it leaves out.
    fn less(self) -> (Self, &'static str) {
        match self {
            Self::Whole => (Self::WithoutSteps, "without its steps"),
            Self::WithoutSteps => (Self::WithoutContents, "without its contents"),
            Self::WithoutContents | Self::Nothing => (Self::Nothing, "not at all"),
        }
    }

    /// Takes from a row what it leaves out. In place of the steps, if the job has any, and the payload it writes why.
    fn cut(self, row: &mut history::column::Row, has_steps: bool, why: &str) {
        if self == Self::Whole {
            return;
        }
        let mark = jsonb::of(&serde_json::json!({ "left out": why }));
        row.steps = mark.filter(|_| has_steps);
        if self == Self::WithoutContents {
            row.payload = row.payload.and(mark);
            (row.headers, row.progress, row.result, row.error, row.last_error) = (None, None, None, None, None);
        }
    }
}

/// Why a row was not added to a batch.
enum Refused {
    /// There is no table for the day.
    NoTable,
    /// Another session has locked the table.
    Locked,
}

impl Batch {
    /// Returns the writer of a day. Does not wait for a lock.
    fn day(&mut self, day: Day) -> std::result::Result<&mut history::Writer, Refused> {
        let found = self.days.iter().position(|writer| writer.day() == day);
        let n = match found {
            Some(n) => n,
            None => {
                let child = child(day).ok_or(Refused::NoTable)?;
                if !lock::try_lock(child.table, pg_sys::RowExclusiveLock) {
                    return Err(Refused::Locked);
                }
                self.days.push(history::Writer::open(child));
                self.days.len() - 1
            }
        };
        Ok(&mut self.days[n])
    }

    /// Adds an ended attempt, or a part of it. `notes`: those of its segment. `why`: the error for which the rest is
    /// left out.
    fn add<R: Columns>(
        &mut self,
        day: Day,
        (trace, outcome): (&Trace<R>, &R),
        notes: &note::Reader,
        reader: &mut Reader,
        (part, why): (Part, &str),
    ) -> std::result::Result<(), Refused> {
        let attempt = &trace.attempt;
        let is_last = is_last(&outcome::read(outcome));
        let claim = trace.claim.row().filter(|row| claim::read(*row).kind != claim::Kind::System);
        // Only the last attempt of a job keeps the payload, which another attempt's row may have.
        let holder = attempt.payload_of().filter(|_| is_last).and_then(|holder| reader.payload_in(holder));
        let own = || if is_last { attempt.payload() } else { None };
        let payload = holder.as_ref().map_or_else(own, |holder| holder.payload());
        let noted = notes.summary(attempt.id());
        let progress = noted.progress().or_else(|| attempt.progress());
        let steps = if is_last && part == Part::Whole { noted.steps(attempt.steps()) } else { None };
        let mut row = history::kept(attempt, claim, outcome, payload, progress, steps);
        part.cut(&mut row, is_last && noted.has_steps(attempt.steps()), why);
        if noted.is_sealed {
            row.own_flow = row.own_flow.and_then(OwnFlow::sealed);
        }
        self.day(day)?.add(&row);
        self.bytes += size(&row);
        Ok(())
    }

    fn insert(self) {
        self.days.into_iter().for_each(history::Writer::insert);
    }
}

/// Returns the table of a day. `None`: there is none.
fn child(day: Day) -> Option<Child> {
    let find = |children: &[Child]| children.iter().copied().find(|child| child.day == day);
    let known = CHILDREN.with_borrow(|children| find(children));
    known.filter(|child| syscache::table_name(child.table).is_some()).or_else(|| {
        CHILDREN.set(history::children());
        CHILDREN.with_borrow(|children| find(children))
    })
}

fn size(row: &history::column::Row) -> usize {
    let history::column::Row { error, headers, last_error, payload, progress, result, steps, .. } = *row;
    [error, headers, last_error, payload, progress, result, steps].into_iter().flatten().map(stored_size).sum()
}

/// The copy of a stretch of a segment, within one transaction.
pub struct Copying<'a> {
    care: &'a Care,
    reader: Reader,
    notes: note::Reader,
    minutes: Minutes,
    lives: Vec<Life>,
    batch: Batch,
    fates: Fates,
}

impl<'a> Copying<'a> {
    /// Begins behind `copied_to`.
    pub fn begin(tables: &Tables, copied_to: i64, care: &'a Care) -> Self {
        let home = tables.home;
        Self {
            care,
            reader: Reader::new(),
            notes: note::Reader::open(home.segment, Snapshot::Now),
            minutes: Minutes::resume(tables, home.generation, copied_to),
            lives: Vec::new(),
            batch: Batch::default(),
            fates: Fates::default(),
        }
    }

    /// Adds the next attempt, which has ended or moved. If there is no table for its row, returns the result of the
    /// step: it has inserted nothing, and the stretch is read again.
    pub fn add<R: Columns>(&mut self, trace: &Trace<R>) -> Result<Option<StepResult>> {
        self.fates.cost += if self.care.is_careful() { TRIAL_COST } else { 1 };
        self.lives.extend(rollup::life(trace));
        let Some(ended) = ended(trace) else { return Ok(None) };
        let outcome = outcome::read(ended);
        let day = expiry(&mut self.reader, &trace.attempt, &outcome, &mut self.fates)?;
        let Some(day) = day else { return Ok(None) };
        let (part, why) = if self.care.is_careful() { self.try_parts(day, trace, ended) } else { WHOLE };
        if part == Part::Nothing {
            return Ok(None);
        }
        let (batch, notes, reader) = (&mut self.batch, &self.notes, &mut self.reader);
        let Err(refused) = batch.add(day, (trace, ended), notes, reader, (part, &why)) else {
            return Ok(None);
        };
        // A separate transaction creates the table before anything is inserted.
        Ok(Some(if matches!(refused, Refused::NoTable) && history::create_child(day)? {
            StepResult::Did(1)
        } else {
            StepResult::Later(BLOCKED_PAUSE_US)
        }))
    }

    /// Tries which part of an attempt history can take, after an error. Returns it with the error of a larger part.
    fn try_parts<R: Columns>(&self, day: Day, trace: &Trace<R>, ended: &R) -> (Part, String) {
        let (mut part, mut why) = WHOLE;
        while part != Part::Nothing {
            let tried = self.care.try_out(|| {
                let (mut batch, mut reader) = (Batch::default(), Reader::new());
                // If the day has no table, the caller makes one.
                _ = batch.add(day, (trace, ended), &self.notes, &mut reader, (part, &why));
                batch.insert();
                Ok(())
            });
            let Err(error) = tried else { break };
            let (less, how) = part.less();
            let (id, job_id) = (trace.attempt.id(), trace.attempt.job_id());
            let message = format!("attempt {id} of job {job_id} goes to history {how}: {}", error.message);
            Error { message, ..error.clone() }.warn();
            (part, why) = (less, error.message);
        }
        (part, why)
    }

    /// True if the transaction should copy no more.
    pub fn is_full(&self) -> bool {
        self.fates.cost >= MAX_COST || self.batch.bytes >= MAX_BYTES
    }

    /// False if sessions have written the segment's first notes since this began. Rows may lack theirs.
    pub fn has_all_notes(&self) -> bool {
        !self.notes.is_outdated()
    }

    /// Discards what was added.
    pub fn give_up(self) {
        MINUTES.set(Some(self.minutes));
    }

    /// Inserts the rows. `last`: the last attempt that was added.
    pub fn write(mut self, last: i64) {
        self.batch.insert();
        self.lives.iter().for_each(|life| self.minutes.rollup.add(life));
        self.minutes.read_to = last;
        MINUTES.set(Some(self.minutes));
    }
}

/// Copies one batch.
pub fn step(segment: u8, states: &SegmentStates, care: &Care) -> Result<StepResult> {
    fault!("copy.begun");
    let generation = states.words[segment as usize].generation();
    let copied_to = states.filling(segment).copied_to;
    if !segment::try_lock_to_write(segment) {
        return Ok(StepResult::Later(BLOCKED_PAUSE_US));
    }
    let tables = Tables::open(segment);
    let mut copying = Copying::begin(&tables, copied_to, care);
    let (mut looked, mut last) = (0, copied_to);
    let mut is_end = true;
    let mut walk = tables.walk(copied_to, Snapshot::Now);
    while let Some(walk) = &mut walk {
        let Some(trace) = walk.next() else { break };
        last = trace.attempt.id();
        looked += 1;
        if let Some(instead) = copying.add(&trace)? {
            copying.give_up();
            return Ok(instead);
        }
        if copying.is_full() {
            is_end = false;
            break;
        }
    }
    fault!("copy.read");
    copying.write(last);
    let state = if is_end { State::Copied } else { State::Drained };
    if is_end && let Some(minutes) = MINUTES.take() {
        rollup::write(&minutes.rollup, generation);
        group_start::write(segment)?;
        lane_counts::write_totals(&minutes.rollup, generation);
    }
    segment::record(segment, generation, state, Some(last));
    Ok(if is_end { StepResult::Did(looked.max(1)) } else { StepResult::DidPart(looked) })
}

/// Returns the outcome of an attempt that ended in this segment. `None`: it moved elsewhere before it ended, or the row
/// only holds a payload.
fn ended<R: Columns>(trace: &Trace<R>) -> Option<&R> {
    let outcome = trace.outcome.row()?;
    (outcome::read(outcome).kind != Kind::Moved && !trace.attempt.is_payload_only()).then_some(outcome)
}

/// The fates of jobs, looked up once per job and batch. A job may have thousands of failed attempts in a batch, and a
/// search for its newest attempt reads all of them.
#[derive(Default)]
struct Fates {
    /// True for jobs that are dead or may die.
    known: HashMap<i64, bool>,
    /// The cost of the batch so far, in looks at an attempt.
    cost: usize,
}

impl Fates {
    fn is_dead(&mut self, reader: &mut Reader, job_id: i64) -> bool {
        let Self { known, cost } = self;
        *known.entry(job_id).or_insert_with(|| {
            *cost += SEARCH_COST;
            let (newest, _) = reader.newest(job_id);
            let newest = match newest {
                Some(newest) => outcome::find(newest.home.segment, newest.id()),
                None => history::newest(job_id).map(|past| past.outcome()),
            };
            // A job that has not ended may die.
            !newest.is_some_and(|outcome| {
                matches!(outcome.kind, Kind::Completed | Kind::Cancelled | Kind::Skipped | Kind::Expired)
            })
        })
    }
}

/// Returns the day on which an ended attempt expires. `None`: nothing of it is kept.
fn expiry(
    reader: &mut Reader,
    attempt: &AttemptOf<impl Columns>,
    outcome: &Outcome,
    fates: &mut Fates,
) -> Result<Option<Day>> {
    let Some(queue) = queue::by_lane(attempt.lane())? else { return Ok(None) };
    let retention = retention(reader, &queue, attempt.job_id(), outcome, fates);
    if retention == 0 {
        return Ok(None);
    }
    let day = Day::of_expiry(outcome.ended_at, retention);
    Ok((day >= Day::of(time::now_us())).then_some(day))
}

/// Returns how long an ended attempt is kept, in microseconds. A failed attempt is kept as long as its job.
fn retention(reader: &mut Reader, queue: &Queue, job_id: i64, outcome: &Outcome, fates: &mut Fates) -> i64 {
    let is_dead = match outcome.kind {
        Kind::Dead => true,
        Kind::TimedOut if outcome.next_id.is_none() => true,
        Kind::Failed | Kind::TimedOut if queue.retention != queue.dead_retention => fates.is_dead(reader, job_id),
        _ => false,
    };
    if is_dead { queue.dead_retention } else { queue.retention }
}
