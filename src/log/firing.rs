//! The log of firings: a row says that a slot of a schedule was handled, and every slot before it. It is inserted in
//! the transaction that enqueues the slot's job.
//!
//! Rows are only inserted, into two halves in turn. When the current half is large, the newest row of each schedule is
//! copied to the other half, which becomes the current one. Then the first half is truncated as segments are, even
//! while a transaction holds back the horizon. So the log does not grow, and leaves nothing to vacuum.
//!
//! If many missed slots have to run and not all of them can run together, a row of its own says which are owed.
//!
//! Invariant: a session that inserts holds the token, so that there is one at a time and none waits. The key (schedule,
//! slot) stands behind that. The newest row of a schedule is in the current half, unless that has none of it.

use pgrx::pg_sys::{self, Datum};

use crate::catalog::tables::firing as column;
use crate::catalog::{self, dump};
use crate::error::{self, Error, Result};
use crate::pg::emptying::{self, Trust};
use crate::pg::row::NewRows;
use crate::pg::scan::{Key, Scan, Snapshot};
use crate::pg::table::Relation;
use crate::pg::{lock, transaction};

/// How a slot was handled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Its job was enqueued.
    Run = b'r' as isize,
    /// It was skipped.
    Skipped = b's' as isize,
    /// The row was copied from the other half.
    Copied = b'c' as isize,
    /// Some missed slots are still owed. The row says which, beside the newest slot that has run.
    Owed = b'o' as isize,
}

/// The missed slots that still have to run, and the later ones that are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// The last slot that is to be run.
    pub run_to: i64,
    /// The last slot that is skipped. There are missed slots behind `run_to`.
    pub skip_to: i64,
}

/// A slot that was handled.
#[derive(Clone, Copy)]
pub struct Firing {
    pub schedule: i32,
    /// The planned time.
    pub slot: i64,
    /// When the last job up to this slot was enqueued, and its id.
    pub last: Option<(i64, i64)>,
    pub kind: Kind,
    /// The slots before `slot` that are still owed.
    pub owed: Option<Owed>,
}

impl Firing {
    /// Returns the row about owed slots. Its slot is the last skipped one, so that it is the newest row until a later
    /// slot is fired. Its time is the last slot that has to run.
    pub fn owed(schedule: i32, owed: Owed) -> Self {
        Self { schedule, slot: owed.skip_to, last: None, kind: Kind::Owed, owed: Some(owed) }
    }
}

/// Takes the token until the transaction ends. Returns false if another transaction has it.
pub fn try_lock() -> bool {
    let catalog = catalog::pinned();
    lock::try_lock_token(catalog.halves[0].firing)
}

struct Half {
    number: usize,
    table: Relation,
    pkey: Relation,
    /// The turn of its rows; `None`: it has none.
    turn: Option<i32>,
    /// Whether this transaction has inserted its first row.
    is_own: bool,
}

impl Half {
    fn read(number: usize) -> Self {
        let catalog = catalog::pinned();
        let oids = &catalog.halves[number];
        let (table, pkey) = (Relation::read(oids.firing), Relation::read_index(oids.firing_pkey));
        let mut half = Self { number, table, pkey, turn: None, is_own: false };
        // A half without blocks may have an index that a crash has left.
        if half.table.blocks() > 0 {
            let mut scan = half.table.scan(&half.pkey, &[], Snapshot::Now);
            let turn = scan.next().map(|_| (scan.columns(2).0[1].value() as i32, scan.is_own()));
            drop(scan);
            half.turn = turn.map(|(turn, _)| turn);
            half.is_own = turn.is_some_and(|(_, is_own)| is_own);
        }
        half
    }

    /// Returns the newest rows of a schedule: the last one, and the one before it if the last one is about owed slots.
    fn newest(&self, schedule: i32) -> Vec<Firing> {
        if self.turn.is_none() {
            return Vec::new();
        }
        let mut scan = self.table.scan(&self.pkey, &[Key::eq_i32(1, schedule)], Snapshot::Now);
        let mut rows: Vec<Firing> = Vec::new();
        while rows.iter().all(|row| row.kind == Kind::Owed) && scan.previous().is_some() {
            rows.push(read(&mut scan));
        }
        rows
    }
}

fn read(scan: &mut Scan<'_>) -> Firing {
    let column::Row { schedule_id, slot, fired_at, job_id, kind, .. } = column::Row::read(&scan.columns(column::COUNT));
    let kind = match kind {
        b'r' => Kind::Run,
        b's' => Kind::Skipped,
        b'o' => Kind::Owed,
        _ => Kind::Copied,
    };
    let owed = fired_at.filter(|_| kind == Kind::Owed).map(|run_to| Owed { run_to, skip_to: slot });
    Firing { schedule: schedule_id, slot, last: fired_at.zip(job_id), kind, owed }
}

/// Both halves, open to read. Neither is emptied meanwhile.
pub struct Log {
    current: Half,
    other: Half,
}

impl Log {
    /// Opens the log.
    pub fn read() -> Self {
        let (first, second) = (Half::read(0), Half::read(1));
        if second.turn > first.turn {
            Self { current: second, other: first }
        } else {
            Self { current: first, other: second }
        }
    }

    /// Returns the newest firing of a schedule, with the owed slots. If none is owed any more, its slot is the last
    /// skipped one.
    pub fn last(&self, schedule: i32) -> Option<Firing> {
        let rows = self.newest(schedule);
        let (&last, owed) = (rows.last()?, rows.first()?.owed);
        match owed {
            Some(owed) if last.slot >= owed.run_to => Some(Firing { slot: owed.skip_to, owed: None, ..last }),
            _ => Some(Firing { owed, ..last }),
        }
    }

    /// Returns the ids of the newest jobs of a schedule, as far as they are known here, the newest first, at most
    /// `most`.
    pub fn last_jobs(&self, schedule: i32, most: usize) -> Vec<i64> {
        /// Rows that are read of each half.
        const MAX_ROWS: usize = 16;
        let mut jobs: Vec<i64> = Vec::new();
        for half in [&self.current, &self.other].into_iter().filter(|half| half.turn.is_some()) {
            let mut scan = half.table.scan(&half.pkey, &[Key::eq_i32(1, schedule)], Snapshot::Now);
            for _ in 0..MAX_ROWS {
                if jobs.len() == most || scan.previous().is_none() {
                    break;
                }
                if let Some((_, job_id)) = read(&mut scan).last.filter(|(_, job_id)| *job_id != 0)
                    && !jobs.contains(&job_id)
                {
                    jobs.push(job_id);
                }
            }
        }
        jobs
    }

    fn newest(&self, schedule: i32) -> Vec<Firing> {
        let rows = self.current.newest(schedule);
        if rows.is_empty() { self.other.newest(schedule) } else { rows }
    }

    /// Returns how many blocks the current half has.
    pub fn blocks(&self) -> u32 {
        self.current.table.blocks()
    }

    /// Returns whether the other half has rows, and waits to be emptied.
    pub fn has_other(&self) -> bool {
        self.other.turn.is_some()
    }

    /// Returns whether this transaction has turned to the current half, so that the turn may be undone.
    pub fn has_turned(&self) -> bool {
        self.current.is_own
    }
}

/// Inserts firings into the current half. The caller holds the token.
///
/// Errors: XX000 when the half has one of the slots. The caller's transaction must not go on then.
pub fn insert(firings: &[Firing]) -> Result<()> {
    let current = Log::read().current;
    // A crash has interrupted the emptying of this half. A session that reads it now ends soon.
    if current.pkey.blocks() == 0 && !empty_half(current.number) {
        return Err(Error::new(error::IN_USE, "the log of firings is in use").hint("Try again."));
    }
    append(current.number, current.turn.unwrap_or(1), firings)
}

fn append(half: usize, turn: i32, firings: &[Firing]) -> Result<()> {
    if firings.is_empty() {
        return Ok(());
    }
    let catalog = catalog::pinned();
    let oids = &catalog.halves[half];
    let (table, pkey) = Relation::write_both(oids.firing, oids.firing_pkey);
    let mut rows = NewRows::new(column::COUNT, firings.len());
    for &Firing { schedule: schedule_id, slot, last, kind, owed } in firings {
        let fired_at = owed.map(|owed| owed.run_to).or(last.map(|(fired_at, _)| fired_at));
        let job_id = last.map(|(_, job_id)| job_id);
        rows.add(column::Row { schedule_id, turn, slot, fired_at, job_id, kind: kind as u8 }.values());
    }
    let tids = table.insert(&mut rows);
    let key = |n: usize| Some([Datum::from(firings[n].schedule), Datum::from(firings[n].slot)]);
    match pkey.insert_entries(&table, &tids, true, key).first() {
        None => Ok(()),
        Some(&n) => Err(Error::internal(format!("a slot of schedule {} was dealt with before", firings[n].schedule))),
    }
}

/// Makes the other half, which has no rows, the current one. Returns false if a session reads it. The caller holds the
/// token.
pub fn turn(schedules: &[i32]) -> Result<bool> {
    let (current, half, turn, copies) = {
        let log = Log::read();
        let copies: Vec<Firing> = schedules
            .iter()
            .flat_map(|&schedule| log.newest(schedule))
            .map(|f| if f.kind == Kind::Owed { f } else { Firing { kind: Kind::Copied, ..f } })
            .collect();
        (log.current.number, log.other.number, log.current.turn.unwrap_or(0) + 1, copies)
    };
    if copies.is_empty() {
        // A half without rows would not be the current one. These rows are of no schedule that still exists.
        return Ok(!dump::is_running()? && empty_half(current));
    }
    if !empty_half(half) {
        return Ok(false);
    }
    append(half, turn, &copies)?;
    Ok(true)
}

/// Empties the half that is not the current one. Returns false if a session reads it. The caller holds the token, and
/// an earlier transaction has copied the newest rows.
pub fn empty_other() -> bool {
    let half = Log::read().other.number;
    empty_half(half)
}

fn empty_half(half: usize) -> bool {
    let catalog = catalog::pinned();
    let table = catalog.halves[half].firing;
    if !lock::try_lock_whole(&[table], pg_sys::AccessExclusiveLock) {
        return false;
    }
    // A truncation cannot be undone, so the copies must be durable before.
    transaction::flush_log();
    emptying::empty(table, Trust::Nothing);
    true
}
