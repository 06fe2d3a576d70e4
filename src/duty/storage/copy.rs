//! Copies what has ended in a drained segment to history, as far as the queues want it kept, and counts it for
//! the statistics. Nothing changes there any more, so it is read batch by batch in the order of the ids; up to
//! which id is in the log of segments. What is copied counts for readers when all of it is there.

use std::cell::RefCell;
use std::rc::Rc;

use pg_queue_core::rollup::Rollup;

use super::{Picture, Step};
use crate::error::Result;
use crate::instance::Catalog;
use crate::log::attempt::{Attempt, Reader};
use crate::log::history::{self, Child};
use crate::log::outcome::{self, Kind};
use crate::log::table::{Row, Snapshot};
use crate::log::walk::{Tables, Trace};
use crate::log::{census, claim, note, rollup, successor};
use crate::queue::{self, Queue};
use crate::segment::{self, State};
use crate::{spi, sys};

/// Attempts looked at in one transaction.
const BATCH: usize = 2_000;
/// Bytes of payloads copied in one transaction.
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
                    minutes.add(&trace);
                    sys::check_for_interrupts();
                }
            }
            minutes
        })
    }

    fn add(&mut self, trace: &Trace) {
        self.read_to = trace.attempt.id();
        if let Some(life) = rollup::life(trace) {
            self.rollup.add(&life);
        }
    }
}

thread_local! {
    static MINUTES: RefCell<Option<Minutes>> = const { RefCell::new(None) };
    /// The tables for each day, as of the generation that is being copied.
    static CHILDREN: RefCell<Vec<Child>> = const { RefCell::new(Vec::new()) };
}

/// One batch.
pub fn step(catalog: &Rc<Catalog>, segment: u8, picture: &Picture) -> Result<Step> {
    let generation = picture.words[segment as usize].generation();
    let copied_to = picture.filling(segment).copied_to;
    let tables = Tables::open(catalog, segment);
    let home = tables.home;
    let mut reader = Reader::new(catalog);
    let mut minutes = Minutes::resume(&tables, generation, copied_to);
    let mut rows: Vec<(i64, history::Values)> = Vec::new();
    // What nothing is kept of needs no successor on record.
    let successors = successor::Reader::open(catalog, Snapshot::Now);
    let mut orphans: Vec<i64> = Vec::new();
    // Holds the rows' memory until they are inserted.
    let mut traces = Vec::new();
    let (mut looked, mut bytes, mut last) = (0, 0, copied_to);
    let mut is_end = true;
    if !tables.is_empty() {
        for trace in tables.walk(copied_to, Snapshot::Now) {
            last = trace.attempt.id();
            looked += 1;
            minutes.add(&trace);
            let day = expiry(catalog, &mut reader, &trace)?;
            if day.is_none() && successors.has(last) {
                orphans.push(last);
            }
            if let Some(day) = day {
                bytes += trace.attempt.payload_size();
                traces.push((day, trace));
            }
            if looked >= BATCH || bytes >= BYTES {
                is_end = false;
                break;
            }
        }
    }
    for (day, Trace { attempt, claim, outcome }) in &traces {
        let Some(outcome) = outcome.row() else { continue };
        let claim = claim.row().filter(|row| claim::read(row).kind != claim::Kind::System);
        let progress = progress(catalog, attempt);
        let payload = payload(&mut reader, attempt, outcome);
        rows.push((*day, history::values(attempt, home, claim, outcome, payload, progress)));
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
        let Some(child) = child else {
            // In a transaction of its own, before anything is inserted; then this batch is read again.
            history::create_child(catalog, day)?;
            return Ok(Step::Did(1));
        };
        of_days.push(child);
    }
    for child in of_days {
        let of_day = rows.iter().filter(|(day, _)| *day == child.day).map(|(_, values)| *values);
        history::insert(child, &of_day.collect::<Vec<_>>());
    }
    if !orphans.is_empty() {
        spi::run("DELETE FROM queue.successor WHERE id OPERATOR(pg_catalog.=) ANY ($1)", &[orphans.into()])?;
    }
    let state = if is_end { State::Copied } else { State::Drained };
    if is_end {
        rollup::write(catalog, &minutes.rollup, generation);
        census::write_totals(catalog, &minutes.rollup, generation);
    } else {
        MINUTES.set(Some(minutes));
    }
    segment::record(catalog, segment, generation, state, Some(last));
    Ok(Step::Did(looked.max(1) as i64))
}

fn days(rows: &[(i64, history::Values)]) -> Vec<i64> {
    let mut days: Vec<i64> = rows.iter().map(|(day, _)| *day).collect();
    days.sort_unstable();
    days.dedup();
    days
}

/// The day on which an ended attempt expires; `None`: nothing is kept of it.
fn expiry(catalog: &Catalog, reader: &mut Reader<'_>, trace: &Trace) -> Result<Option<i64>> {
    let attempt = &trace.attempt;
    let Some(outcome) = trace.outcome.row().map(outcome::read) else { return Ok(None) };
    if outcome.kind == Kind::Moved || attempt.is_payload_only() {
        return Ok(None);
    }
    let Some(queue) = queue::by_lane(catalog, attempt.lane())? else { return Ok(None) };
    let retention = retention(catalog, reader, &queue, attempt, &outcome);
    if retention == 0 {
        return Ok(None);
    }
    let day = history::expiry_day(outcome.ended_at, retention);
    let today = history::expiry_day(sys::now_us(), 0);
    Ok((day >= today).then_some(day))
}

/// For how long, in microseconds, an ended attempt is kept: a failed one as long as its job.
fn retention(
    catalog: &Catalog,
    reader: &mut Reader<'_>,
    queue: &Queue,
    attempt: &Attempt,
    outcome: &outcome::Outcome,
) -> i64 {
    let is_dead = match outcome.kind {
        Kind::Dead => true,
        Kind::TimedOut if outcome.next_id.is_none() => true,
        Kind::Failed | Kind::TimedOut => {
            let (newest, _) = reader.newest(attempt.job_id());
            let newest = match newest {
                Some(newest) => outcome::find(catalog, newest.home.segment, newest.id()),
                None => history::newest(catalog, attempt.job_id()).map(|past| past.outcome()),
            };
            // Not yet ended: it may die.
            !newest.is_some_and(|outcome| outcome.kind == Kind::Completed || outcome.kind == Kind::Cancelled)
        }
        _ => false,
    };
    if is_dead { queue.dead_retention } else { queue.retention }
}

/// What the attempt had reported last.
fn progress(catalog: &Catalog, attempt: &Attempt) -> Option<pgrx::pg_sys::Datum> {
    let notes = note::summary(catalog, attempt.home.segment, attempt.id());
    notes.progress().map(crate::jsonb::copy).or_else(|| attempt.progress())
}

/// The payload, which only a job's last attempt keeps.
fn payload(reader: &mut Reader<'_>, attempt: &Attempt, outcome: &Row) -> Option<pgrx::pg_sys::Datum> {
    if outcome::read(outcome).next_id.is_some() {
        return None;
    }
    if attempt.payload_of().is_none() {
        return attempt.own_payload();
    }
    reader.payload(attempt, |payload| payload.map(crate::jsonb::copy))
}
