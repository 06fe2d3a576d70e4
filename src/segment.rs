//! What each segment of the logs is doing: the ring of eight young ones and the two halves of old.
//!
//! ```text
//! Free -> Open -> Closed -> Moving -> Drained -> Copied -> Emptying -> Free
//! ```
//!
//! *Open*: new attempts go there. *Closed*: no new ones. *Moving*: the living go over to the open half of old,
//! one after the other; whoever meets the mark of a moved one follows it. *Drained*: nothing lives there any
//! more and nothing changes; what has ended is copied to history. *Copied*: history has it.
//! *Emptying*: its tables are being truncated.
//!
//! The truth is the table `queue.segment_log`, where a segment's newest row counts; shared memory has a copy,
//! one word a segment, that is read without a lock.
//!
//! Invariant (lock, then resolve): a segment's generation changes only while its tables are locked against
//! everybody. Who holds a lock on one of them and finds the generation in which he found a row has the row's
//! place; otherwise he must look again.

use std::cell::Cell;

use pg_queue_core::id::SEGMENTS;

use crate::instance::Catalog;
use crate::log::table::{Entry, Relation, Snapshot};
use crate::shmem::{self, Filling, Instance};
use crate::transaction::{self, Step};
use crate::{guc, sys};

/// The first half of old; young segments come before.
pub const OLD: u8 = 8;

/// What a segment is doing; see the module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum State {
    Free = 0,
    Open,
    Closed,
    Moving,
    Drained,
    Copied,
    Emptying,
}

impl State {
    /// As it is stored.
    pub fn char(self) -> u8 {
        b"focmdhe"[self as usize]
    }

    fn of(char: u8) -> Self {
        match char {
            b'o' => Self::Open,
            b'c' => Self::Closed,
            b'm' => Self::Moving,
            b'd' => Self::Drained,
            b'h' => Self::Copied,
            b'e' => Self::Emptying,
            _ => Self::Free,
        }
    }

    fn of_number(number: u8) -> Self {
        [Self::Free, Self::Open, Self::Closed, Self::Moving, Self::Drained, Self::Copied, Self::Emptying]
            .into_iter()
            .find(|state| *state as u8 == number)
            .unwrap_or(Self::Free)
    }

    /// Whether attempts may live there.
    pub fn is_inhabited(self) -> bool {
        matches!(self, Self::Open | Self::Closed | Self::Moving)
    }
}

/// Generation and state of a segment, read together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word(u64);

impl Word {
    /// Of its parts.
    pub fn new(generation: i64, state: State) -> Self {
        Self(((generation as u64) << 8) | state as u64)
    }

    /// As it is kept in memory.
    pub fn of(word: u64) -> Self {
        Self(word)
    }

    /// The number of this filling of the segment, never used twice; 0: it is free, or being
    /// emptied.
    pub fn generation(self) -> i64 {
        (self.0 >> 8) as i64
    }

    /// What it is doing.
    pub fn state(self) -> State {
        State::of_number(self.0 as u8)
    }
}

/// Where a row lies: the segment, in the generation in which it was found there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    pub segment: u8,
    pub generation: i64,
}

impl Home {
    /// The segment as it is now. For rows: take the segment's lock first, or the frontier's.
    pub fn now(catalog: &Catalog, segment: u8) -> Self {
        Self { segment, generation: word(catalog, segment).generation() }
    }

    /// As of the moment at which the frontier's lock is held.
    pub fn of(instance: &Instance, segment: u8) -> Self {
        Self { segment, generation: Word(instance.words[segment as usize]).generation() }
    }

    /// Of a row that was not found: valid never.
    pub fn nowhere(segment: u8) -> Self {
        Self { segment, generation: -1 }
    }

    /// Whether the row is still there: ask it with a lock on one of the segment's tables.
    pub fn is_valid(self, catalog: &Catalog) -> bool {
        word(catalog, self.segment).generation() == self.generation
    }
}

/// What a segment is doing now.
pub fn word(catalog: &Catalog, segment: u8) -> Word {
    Word(shmem::segment_word(catalog.slot, catalog.number, segment as usize))
}

/// The young segment that is open, and the open half of old.
fn open(catalog: &Catalog) -> (u8, u8) {
    let word = shmem::open_word(catalog.slot, catalog.number);
    // An instance that is gone has no segments; any will do for what cannot commit any more.
    ((word as u8).min(OLD - 1), ((word >> 8) as u8).clamp(OLD, OLD + 1))
}

/// The open half of old.
pub fn open_old(catalog: &Catalog) -> u8 {
    open(catalog).1
}

fn set_open(instance: &mut Instance, segment: u8) {
    let (young, old) = (instance.open as u8, (instance.open >> 8) as u8);
    let (young, old) = if segment < OLD { (segment, old) } else { (young, segment) };
    shmem::set_word(&mut instance.open, u64::from(young) | (u64::from(old) << 8));
}

/// The segments in which attempts may live, so that whoever reads them in this order meets everyone who moves
/// meanwhile at least once: they move into the open half of old, which comes last.
pub fn inhabited(catalog: &Catalog) -> impl Iterator<Item = u8> {
    let last = open_old(catalog);
    let other = if last == OLD { OLD + 1 } else { OLD };
    let young = 0..OLD;
    let words: [Word; SEGMENTS] = std::array::from_fn(|n| word(catalog, n as u8));
    young.chain([other, last]).filter(move |&n| n == last || words[n as usize].state().is_inhabited())
}

/// A segment to insert attempts into: its table is locked until the transaction ends, so that it is not moved
/// out of before.
pub struct Target {
    pub home: Home,
    pub table: Relation,
}

impl Target {
    /// The open segment for an attempt that is to run at this time: far ones go to old.
    pub fn open(catalog: &Catalog, run_at: Option<i64>) -> Self {
        let is_far = run_at.is_some_and(|at| is_far(catalog, at));
        let wanted = || {
            let (young, old) = open(catalog);
            if is_far { old } else { young }
        };
        loop {
            let segment = wanted();
            let table = Relation::write(catalog.segments[segment as usize].attempt);
            if wanted() == segment {
                return Self { home: Home::now(catalog, segment), table };
            }
            // It was closed meanwhile. Nobody shall wait for the lock's end.
            table.unlock();
        }
    }

    /// The segment itself, for who moves rows there and sees to it that it stays open.
    pub fn of(catalog: &Catalog, segment: u8) -> Self {
        let table = Relation::write(catalog.segments[segment as usize].attempt);
        Self { home: Home::now(catalog, segment), table }
    }
}

/// Whether an attempt that runs at this time would see several turns of the ring before.
pub fn is_far(catalog: &Catalog, run_at: i64) -> bool {
    thread_local! {
        // Asked for every delayed job, changed once in a while.
        static KNOWN: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
    }
    const FRESH: i64 = 1_000_000;
    let now = sys::now_us();
    let (at, far) = KNOWN.get();
    let far = if (now - at).abs() < FRESH {
        far
    } else {
        let far = shmem::with_instance(catalog.number, |_, instance| instance.far).unwrap_or(i64::MAX);
        KNOWN.set((now, far));
        far
    };
    run_at.saturating_sub(now) > far
}

/// Columns of queue.segment_log, counted from 0: entry, segment, generation, state, at, copied_to.
const COLUMNS: usize = 6;

/// What the log says of all segments.
pub struct Ledger {
    words: [Word; SEGMENTS],
    fillings: [Filling; SEGMENTS],
    last_entry: i64,
    last_generation: i64,
}

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

    /// What a segment was doing.
    pub fn word(&self, segment: u8) -> Word {
        self.words[segment as usize]
    }

    /// Whether a segment's attempts are to be read there; else history has them, or there are none.
    pub fn is_read_here(&self, segment: u8) -> bool {
        !matches!(self.word(segment).state(), State::Free | State::Copied | State::Emptying)
    }

    /// Puts it into shared memory.
    pub fn apply(&self, instance: &mut Instance) {
        for (n, word) in self.words.iter().enumerate() {
            shmem::set_word(&mut instance.words[n], word.0);
            if word.state() == State::Open {
                set_open(instance, n as u8);
            }
        }
        instance.segments = self.fillings;
        instance.last_entry = self.last_entry;
        instance.last_generation = self.last_generation;
        // A few turns of a ring that turns by age.
        instance.far = i64::from(guc::SEGMENT_AGE.get()) * 4_000_000;
        instance.storage_at = i64::MIN;
    }
}

/// Says in the log, and after the commit in memory, that a segment's state has changed.
pub fn record(catalog: &Catalog, segment: u8, generation: i64, state: State, copied_to: Option<i64>) {
    let entry = shmem::with_instance(catalog.number, |_, instance| {
        instance.last_entry += 1;
        instance.last_entry
    });
    let Some(entry) = entry else { return };
    let table = Relation::write(catalog.segment_log);
    let row: [_; COLUMNS] = [
        Some(entry.into()),
        Some(i32::from(segment).into()),
        Some(generation.into()),
        Some(pgrx::pg_sys::Datum::from(state.char() as i8)),
        Some(sys::now_us().into()),
        copied_to.map(Into::into),
    ];
    let pkey = Relation::write_index(catalog.segment_log_pkey);
    table.insert_row(row, &mut [Entry { index: &pkey, is_unique: false, key: &mut [entry.into()] }]);
    let step = Step::Segment { segment, generation, state, copied_to: copied_to.unwrap_or(0) };
    transaction::remember(catalog.number, step);
}

/// The commit of what `record` said. Under the frontier's lock.
pub fn changed(instance: &mut Instance, segment: u8, generation: i64, state: State, copied_to: i64, now: i64) {
    let n = segment as usize;
    let before = Word(instance.words[n]).state();
    let filling = &mut instance.segments[n];
    match state {
        State::Open => *filling = Filling { opened_at: now, is_counted: true, ..Filling::default() },
        State::Free => *filling = Filling { is_counted: true, ..Filling::default() },
        _ => filling.copied_to = copied_to,
    }
    if before != state {
        instance.segments[n].since = now;
    }
    shmem::set_word(&mut instance.words[n], Word::new(generation, state).0);
    if state == State::Open {
        set_open(instance, segment);
    }
}

/// Counts rows of a segment. Returns by when, in monotonic time, the storage duty should look at it. Under the
/// frontier's lock.
pub fn count(instance: &mut Instance, segment: u8, attempts: i64, ended: i64) -> Option<i64> {
    let state = Word(instance.words[segment as usize]).state();
    let filling = &mut instance.segments[segment as usize];
    let before = *filling;
    filling.attempts += attempts;
    filling.ended += ended;
    let crosses = |limit: i64, before: i64, now: i64| before < limit && now >= limit;
    let rows = i64::from(guc::SEGMENT_ROWS.get());
    let is_full =
        crosses(rows, before.attempts, filling.attempts) || crosses(rows * 2, before.attempts, filling.attempts);
    match state {
        State::Open if is_full => Some(sys::monotonic_us()),
        State::Open if before.attempts == 0 && attempts > 0 => {
            filling.opened_at = sys::now_us();
            Some(sys::monotonic_us().saturating_add(i64::from(guc::SEGMENT_AGE.get()) * 1_000_000))
        }
        // The open half of old: when a quarter of a segment has ended, or something for the first time.
        State::Open if segment >= OLD && (before.ended == 0 || crosses(rows / 4, before.ended, filling.ended)) => {
            (ended > 0).then(sys::monotonic_us)
        }
        State::Closed if !before.is_nearly_done() && filling.is_nearly_done() => Some(sys::monotonic_us()),
        _ => None,
    }
}
