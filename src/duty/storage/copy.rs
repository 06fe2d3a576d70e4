//! Copies what has ended in a drained segment to history, as far as the queues want it kept, and counts it for
//! the statistics. Nothing changes there any more, so it is read batch by batch in the order of the ids; up to
//! which id is in the log of segments. What is copied counts for readers when all of it is there.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use pg_queue_core::day::Day;
use pg_queue_core::rollup::Rollup;
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

use super::{PAUSE, Picture, Step};
use crate::error::Result;
use crate::instance::Catalog;
use crate::log::attempt::{Attempt, Reader, stored_size};
use crate::log::history::{self, Child};
use crate::log::outcome::{self, Kind, Outcome};
use crate::log::table::Snapshot;
use crate::log::walk::{Tables, Trace};
use crate::log::{census, claim, note, rollup, successor};
use crate::queue::{self, Queue};
use crate::segment::{self, Home, State};
use crate::{spi, sys};

/// Attempts looked at in one transaction.
const BATCH: usize = 2_000;
/// To look for the newest attempt of a job costs as much as to look at so many.
const SEARCH: usize = 10;
/// Bytes, as stored, copied in one transaction.
const BYTES: usize = 4 << 20;

/// The minutes of a segment, as far as this process has read it.
struct Minutes {
    generation: i64,
    read_to: i64,
    rollup: Rollup,
}

impl Minutes {
    /// Those that were read before, or else, by another process, are read once more up to there.
    fn resume(tables: &Tables, generation: i64, read_to: i64) -> Self {
        let known = MINUTES.take().filter(|known| known.generation == generation && known.read_to == read_to);
        known.unwrap_or_else(|| {
            let mut minutes = Self { generation, read_to, rollup: Rollup::default() };
            if read_to > 0 && !tables.is_empty() {
                for trace in tables.walk(0, Snapshot::Now).take_while(|trace| trace.attempt.id() <= read_to) {
                    rollup::life(&trace).iter().for_each(|life| minutes.rollup.add(life));
                    sys::check_for_interrupts();
                }
            }
            minutes
        })
    }
}

thread_local! {
    static MINUTES: RefCell<Option<Minutes>> = const { RefCell::new(None) };
    /// The tables for each day, as of the generation that is being copied.
    static CHILDREN: RefCell<Vec<Child>> = const { RefCell::new(Vec::new()) };
}

/// An attempt of which something is kept.
struct Kept {
    trace: Trace,
    /// The row that has the payload, if another one has it.
    holder: Option<Attempt>,
    progress: Option<Datum>,
}

/// Whether nothing goes on with the job after this attempt, which has ended.
fn is_last(trace: &Trace) -> bool {
    trace.outcome.row().is_some_and(|row| outcome::read(row).next_id.is_none())
}

impl Kept {
    fn new(catalog: &Catalog, reader: &mut Reader<'_>, trace: Trace) -> Self {
        let holder =
            trace.attempt.payload_of().filter(|_| is_last(&trace)).and_then(|holder| reader.payload_in(holder));
        let notes = note::summary(catalog, trace.attempt.home.segment, trace.attempt.id());
        let progress = notes.progress().map(crate::jsonb::copy).or_else(|| trace.attempt.progress());
        Self { trace, holder, progress }
    }

    /// The payload, which only a job's last attempt keeps. Good as long as the reader has its tables open.
    fn payload(&self) -> Option<Datum> {
        if is_last(&self.trace) { self.holder.as_ref().unwrap_or(&self.trace.attempt).own_payload() } else { None }
    }

    fn values(&self, home: Home) -> Option<history::Values> {
        let outcome = self.trace.outcome.row()?;
        let claim = self.trace.claim.row().filter(|row| claim::read(row).kind != claim::Kind::System);
        Some(history::values(&self.trace.attempt, home, claim, outcome, self.payload(), self.progress))
    }
}

fn size(values: &history::Values) -> usize {
    use history::column::{ERROR, HEADERS, LAST_ERROR, PAYLOAD, PROGRESS, RESULT};
    [ERROR, HEADERS, LAST_ERROR, PAYLOAD, PROGRESS, RESULT].into_iter().filter_map(|n| values[n]).map(stored_size).sum()
}

/// One batch.
pub fn step(catalog: &Rc<Catalog>, segment: u8, picture: &Picture) -> Result<Step> {
    let generation = picture.words[segment as usize].generation();
    let copied_to = picture.filling(segment).copied_to;
    let tables = Tables::open(catalog, segment);
    let home = tables.home;
    let mut reader = Reader::new(catalog);
    let mut minutes = Minutes::resume(&tables, generation, copied_to);
    let mut lives = Vec::new();
    // What nothing is kept of needs no successor on record.
    let successors = successor::Reader::open(catalog, Snapshot::Now);
    let mut orphans: Vec<i64> = Vec::new();
    // Has the rows' memory until they are inserted.
    let mut kept = Vec::new();
    let mut rows: Vec<(Day, history::Values)> = Vec::new();
    let (mut looked, mut bytes, mut last) = (0, 0, copied_to);
    let mut fates = Fates::default();
    let mut is_end = true;
    if !tables.is_empty() {
        for trace in tables.walk(copied_to, Snapshot::Now) {
            last = trace.attempt.id();
            looked += 1;
            fates.cost += 1;
            lives.extend(rollup::life(&trace));
            if let Some(ended) = ended(&trace) {
                match expiry(catalog, &mut reader, &trace, &ended, &mut fates)? {
                    Some(day) => {
                        let one = Kept::new(catalog, &mut reader, trace);
                        if let Some(values) = one.values(home) {
                            bytes += size(&values);
                            rows.push((day, values));
                            kept.push(one);
                        }
                    }
                    None if successors.has(last) => orphans.push(last),
                    None => {}
                }
            }
            if fates.cost >= BATCH || bytes >= BYTES {
                is_end = false;
                break;
            }
        }
    }
    let mut of_days = Vec::new();
    for day in days(&rows) {
        let find = |children: &[Child]| children.iter().copied().find(|child| child.day == day);
        let known =
            CHILDREN.with_borrow(|children| find(children)).filter(|child| sys::table_name(child.table).is_some());
        let child = known.or_else(|| {
            CHILDREN.set(history::children(catalog));
            CHILDREN.with_borrow(|children| find(children))
        });
        // Nobody is waited for.
        match child {
            // In a transaction of its own, before anything is inserted; then this batch is read again.
            None => {
                MINUTES.set(Some(minutes));
                return Ok(if history::create_child(catalog, day)? { Step::Did(1) } else { Step::Later(PAUSE) });
            }
            Some(child) if !sys::try_lock(child.table, pg_sys::RowExclusiveLock) => {
                MINUTES.set(Some(minutes));
                return Ok(Step::Later(PAUSE));
            }
            Some(child) => of_days.push(child),
        }
    }
    for child in of_days {
        let of_day = rows.iter().filter(|(day, _)| *day == child.day).map(|(_, values)| *values);
        history::insert(child, &of_day.collect::<Vec<_>>());
    }
    drop(kept);
    if !orphans.is_empty() {
        spi::run("DELETE FROM queue.successor WHERE id OPERATOR(pg_catalog.=) ANY ($1)", &[orphans.into()])?;
    }
    lives.iter().for_each(|life| minutes.rollup.add(life));
    minutes.read_to = last;
    let state = if is_end { State::Copied } else { State::Drained };
    if is_end {
        rollup::write(catalog, &minutes.rollup, generation);
        census::write_totals(catalog, &minutes.rollup, generation);
    } else {
        MINUTES.set(Some(minutes));
    }
    segment::record(catalog, segment, generation, state, Some(last));
    Ok(Step::Did(looked.max(1)))
}

fn days(rows: &[(Day, history::Values)]) -> Vec<Day> {
    let mut days: Vec<Day> = rows.iter().map(|(day, _)| *day).collect();
    days.sort_unstable();
    days.dedup();
    days
}

/// How an attempt ended here; `None`: it went elsewhere before, or is none.
fn ended(trace: &Trace) -> Option<Outcome> {
    let outcome = trace.outcome.row().map(outcome::read)?;
    (outcome.kind != Kind::Moved && !trace.attempt.is_payload_only()).then_some(outcome)
}

/// What became of jobs, found out once a batch: a job may have thousands of failed attempts in it, and to find the newest of
/// them all are read.
#[derive(Default)]
struct Fates {
    /// Whether a job is dead, or may die.
    known: HashMap<i64, bool>,
    /// What it was to find out, in looks at an attempt.
    cost: usize,
}

impl Fates {
    fn is_dead(&mut self, catalog: &Catalog, reader: &mut Reader<'_>, job_id: i64) -> bool {
        let Self { known, cost } = self;
        *known.entry(job_id).or_insert_with(|| {
            *cost += SEARCH;
            let (newest, _) = reader.newest(job_id);
            let newest = match newest {
                Some(newest) => outcome::find(catalog, newest.home.segment, newest.id()),
                None => history::newest(catalog, job_id).map(|past| past.outcome()),
            };
            // Not yet ended: it may die.
            !newest.is_some_and(|outcome| outcome.kind == Kind::Completed || outcome.kind == Kind::Cancelled)
        })
    }
}

/// The day on which an ended attempt expires; `None`: nothing is kept of it.
fn expiry(
    catalog: &Catalog,
    reader: &mut Reader<'_>,
    trace: &Trace,
    outcome: &Outcome,
    fates: &mut Fates,
) -> Result<Option<Day>> {
    let Some(queue) = queue::by_lane(catalog, trace.attempt.lane())? else { return Ok(None) };
    let retention = retention(catalog, reader, &queue, &trace.attempt, outcome, fates);
    if retention == 0 {
        return Ok(None);
    }
    let day = Day::of_expiry(outcome.ended_at, retention);
    Ok((day >= Day::of(sys::now_us())).then_some(day))
}

/// For how long, in microseconds, an ended attempt is kept: a failed one as long as its job.
fn retention(
    catalog: &Catalog,
    reader: &mut Reader<'_>,
    queue: &Queue,
    attempt: &Attempt,
    outcome: &Outcome,
    fates: &mut Fates,
) -> i64 {
    let is_dead = match outcome.kind {
        Kind::Dead => true,
        Kind::TimedOut if outcome.next_id.is_none() => true,
        Kind::Failed | Kind::TimedOut if queue.retention != queue.dead_retention => {
            fates.is_dead(catalog, reader, attempt.job_id())
        }
        _ => false,
    };
    if is_dead { queue.dead_retention } else { queue.retention }
}
