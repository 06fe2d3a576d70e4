//! What each segment of the logs is doing: the ring of eight young ones and the two halves of old. A segment goes
//! through *Free*, *Open* (new attempts go there), *Closed*, *Moving* (the living go over to the open half of old; a
//! session that meets the mark of a moved one follows it), *Drained* (nothing lives there or changes; what has ended is
//! copied), *Copied* (history has it) and *Emptying* (its tables are being truncated): docs/internals/segments.md.
//!
//! The truth is the table `queue_internal.segment_log`, where a segment's newest row counts; shared memory has a copy,
//! one word a segment, that is read without a lock; on a standby, which has no copy, the table is read. Invariant
//! (lock, then resolve): a segment's generation changes only while its tables are locked against all other sessions. A
//! session that holds a lock on one of them and finds the generation in which it found a row has the row's place;
//! otherwise it looks again.

use std::cell::Cell;

use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys;

use crate::catalog;
use crate::pg::scan::{Probe, Snapshot};
use crate::pg::table::{Entry, Relation};
use crate::pg::{lock, process, session, time};
use crate::shmem::ledger::Ledger;
use crate::shmem::segments::{Filling, OLD, State, Word};
use crate::shmem::{self, Instance, words};
use crate::transaction::{self, SegmentStep};

/// Waits for a move, which takes milliseconds. The wait is bounded, because the mover may be stopped.
pub struct BoundedWait(u32);

impl Default for BoundedWait {
    /// For a caller that has nothing else to do.
    fn default() -> Self {
        Self(2_000)
    }
}

impl BoundedWait {
    /// For a caller that may do without.
    pub fn short() -> Self {
        Self(500)
    }

    /// Sleeps for a millisecond. Returns false if the bound is reached.
    pub fn wait(&mut self) -> bool {
        let Some(left) = self.0.checked_sub(1) else { return false };
        self.0 = left;
        process::sleep(1);
        true
    }

    /// Repeats `probe` until it does not return `Moving`. Returns its last answer. `Moving`: the bound is reached.
    pub fn settled(&mut self, mut probe: impl FnMut() -> Probe) -> Probe {
        loop {
            let seen = probe();
            if seen != Probe::Moving || !self.wait() {
                return seen;
            }
        }
    }
}

/// The home of a row: its segment, in the generation in which the row was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    pub segment: u8,
    pub generation: i64,
}

impl Home {
    /// Returns the segment with its present generation. For rows the caller must hold the segment's lock, or the
    /// frontier's.
    pub fn now(segment: u8) -> Self {
        Self { segment, generation: word(segment).generation() }
    }

    /// Returns it for the moment at which the caller holds the frontier's lock.
    pub fn of(instance: &Instance, segment: u8) -> Self {
        Self { segment, generation: instance.storage.word(segment).generation() }
    }

    /// Returns whether the segment was not emptied since. The caller holds a lock on one of the segment's tables.
    pub fn is_valid(self) -> bool {
        word(self.segment).generation() == self.generation
    }
}

/// Returns generation and state of a segment.
pub fn word(segment: u8) -> Word {
    let word = Word(words::segment_word(segment as usize));
    // This is asked only if memory says that the segment is free. On a standby memory says so of all segments.
    if word == Word::default() && session::in_recovery() {
        let catalog = catalog::pinned();
        return Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Now).word(segment);
    }
    word
}

/// Returns the open young segment and the open half of old.
fn open() -> (u8, u8) {
    let word = words::open_word();
    // An instance that is gone has no segments. Any word will do, because the transaction can no longer commit.
    ((word as u8).min(OLD - 1), ((word >> 8) as u8).clamp(OLD, OLD + 1))
}

/// Returns the open half of old.
pub fn open_old() -> u8 {
    open().1
}

/// Returns the segments in which attempts may live. A reader in this order meets every attempt that moves meanwhile at
/// least once, because attempts move into the open half of old, which comes last.
pub fn inhabited() -> impl Iterator<Item = u8> {
    let last = open_old();
    let other = if last == OLD { OLD + 1 } else { OLD };
    let young = 0..OLD;
    let words: [Word; SEGMENTS] = std::array::from_fn(|n| word(n as u8));
    young.chain([other, last]).filter(move |&n| n == last || words[n as usize].state().is_inhabited())
}

/// Returns the segments whose tables a statement may name. The planner reads the first page of each index. If a crash
/// has interrupted the emptying of a table, its indexes lack that page, and the segment is on record as being emptied.
/// History has its rows.
pub fn plannable() -> Vec<u8> {
    let catalog = catalog::pinned();
    // The log is read, because memory may not have been told yet.
    let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Now);
    let is_whole = |n: &u8| ledger.word(*n).state() != State::Emptying;
    let has_rows = |n: &u8| Relation::read(catalog.segments[*n as usize].attempt).blocks() > 0;
    (0..SEGMENTS as u8).filter(is_whole).filter(has_rows).collect()
}

/// A segment to insert attempts into. Its table is locked until the transaction ends, so that no attempts are moved out
/// of it before.
pub struct Target {
    pub home: Home,
    pub table: Relation,
}

impl Target {
    /// Returns the open segment for an attempt that is to run at this time. Distant ones go to old.
    pub fn open(run_at: Option<i64>) -> Self {
        let is_far = run_at.is_some_and(is_far);
        let wanted = || {
            let (young, old) = open();
            if is_far { old } else { young }
        };
        loop {
            let segment = wanted();
            let table = Relation::write(catalog::segment(segment).attempt);
            if wanted() == segment {
                return Self { home: Home::now(segment), table };
            }
            // The segment was closed meanwhile. The lock is released immediately.
            table.unlock();
        }
    }

    /// Returns this segment, for the duty that moves rows there and keeps it open.
    pub fn of(segment: u8) -> Self {
        let table = Relation::write(catalog::segment(segment).attempt);
        Self { home: Home::now(segment), table }
    }
}

/// Takes the lock of writers on all tables of a segment, until the transaction ends. Does not wait. Returns false if
/// another transaction's lock conflicts.
///
/// A step takes this lock before it reads the segment. REINDEX locks a table against writers, and then its indexes one
/// by one. Without this lock REINDEX could wait for an index that the step has read, and the step for the lock of a
/// writer, or for another index that REINDEX has locked.
pub fn try_lock_to_write(segment: u8) -> bool {
    let segment = catalog::segment(segment);
    segment.tables().all(|table| lock::try_lock(table, pg_sys::RowExclusiveLock))
}

/// Returns whether the ring would turn several times before an attempt of this time runs.
pub fn is_far(run_at: i64) -> bool {
    thread_local! {
        // Every delayed job asks for it, and it changes seldom.
        static KNOWN: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
    }
    const MAX_AGE_US: i64 = 1_000_000;
    let now = time::now_us();
    let (at, far) = KNOWN.get();
    let far = if (now - at).abs() < MAX_AGE_US {
        far
    } else {
        let far = shmem::with_instance(|_, instance| instance.storage.far).unwrap_or(i64::MAX);
        KNOWN.set((now, far));
        far
    };
    run_at.saturating_sub(now) > far
}

/// Columns of queue_internal.segment_log, counted from 0: entry, segment, generation, state, at, copied_to.
const COLUMNS: usize = 6;

impl Ledger {
    /// Reads the log.
    pub fn read(table: pgrx::pg_sys::Oid, index: pgrx::pg_sys::Oid, snapshot: Snapshot) -> Self {
        let mut ledger = Self {
            words: [Word(0); SEGMENTS],
            fillings: [Filling::default(); SEGMENTS],
            last_entry: 0,
            last_generation: 0,
        };
        let table = Relation::read(table);
        let index = Relation::read_index(index);
        let mut scan = table.scan(&index, &[], snapshot);
        while scan.next().is_some() {
            let (values, nulls) = scan.columns(COLUMNS);
            let segment = values[1].value();
            if segment >= SEGMENTS {
                continue;
            }
            let (generation, at) = (values[2].value() as i64, values[4].value() as i64);
            let state = State::of(values[3].value() as u8);
            let filling = &mut ledger.fillings[segment];
            if state == State::Open {
                *filling = Filling { opened_at: at, ..Filling::default() };
            }
            filling.since = at;
            filling.copied_to = if nulls[5] { 0 } else { values[5].value() as i64 };
            ledger.words[segment] = Word::new(generation, state);
            ledger.last_entry = values[0].value() as i64;
            ledger.last_generation = ledger.last_generation.max(generation);
        }
        ledger
    }
}

/// Records the change of a segment's state in the log, and after the commit in memory.
pub fn record(segment: u8, generation: i64, state: State, copied_to: Option<i64>) {
    let entry = shmem::with_instance(|_, instance| {
        instance.storage.last_entry += 1;
        instance.storage.last_entry
    });
    let Some(entry) = entry else { return };
    let catalog = catalog::pinned();
    let table = Relation::write(catalog.segment_log);
    let row: [_; COLUMNS] = [
        Some(entry.into()),
        Some(i32::from(segment).into()),
        Some(generation.into()),
        Some(pgrx::pg_sys::Datum::from(state.char() as i8)),
        Some(time::now_us().into()),
        copied_to.map(Into::into),
    ];
    let pkey = Relation::write_index(catalog.segment_log_pkey);
    table.insert_row(row, &mut [Entry { index: &pkey, is_unique: false, key: &mut [entry.into()] }]);
    let step = SegmentStep::Changed { segment, generation, state, copied_to: copied_to.unwrap_or(0) };
    transaction::record(step);
}
