//! Keeps the memory of unique keys small: when its open half has grown the other one is opened, what still counts is
//! copied there, and the old one is emptied. See `log::memory`.
//!
//! Invariant: safe to be cut off at any point. Of each key the newest row of both halves counts, so what was copied
//! twice, or not yet, does no harm; and a half is emptied only when all of it was looked at while nobody could add
//! to it.

use std::cell::Cell;

use pgrx::pg_sys;

use crate::call::bytes_datum;
use crate::duty::Duty;
use crate::error::Result;
use crate::instance::{self, Catalog};
use crate::log::memory::{self, Memory};
use crate::log::table::Relation;
use crate::{guc, queue, shmem, spi, sys, transaction};

/// The duty.
pub const DUTY: Duty = Duty { name: "turn_memory", is_due, run };

/// Microseconds between two looks, and where somebody is in the way.
const PAUSE: i64 = 10_000_000;
/// Rows copied in one transaction.
const BATCH: usize = 2_000;
/// Rows looked at in one transaction.
const LOOK: usize = 10_000;

/// How far this process has come with the closed half. Another one begins anew, which does no harm.
struct Pass {
    /// The instance, and which of its turns.
    turn: (u32, u64),
    /// Looked at up to this key, as its bytes.
    last: Option<Vec<u8>>,
    /// Nothing had to be copied so far.
    is_clean: bool,
}

thread_local! {
    /// The monotonic time of the next look of this session.
    static NEXT: Cell<i64> = const { Cell::new(0) };
    /// When this process had copied all of the closed half, as `monotonic_us`, and in which turn of which instance:
    /// another process may have turned to the other half since.
    static COPIED: Cell<Option<((u32, u64), i64)>> = const { Cell::new(None) };
    static PASS: Cell<Option<Pass>> = const { Cell::new(None) };
}

/// The monotonic time of the next look, while a half is to be emptied; else nobody wakes the worker for it.
pub fn next_at(instance: &shmem::Instance) -> i64 {
    if instance.memory_is_turning { NEXT.get() } else { i64::MAX }
}

fn is_due(_number: u32) -> bool {
    sys::monotonic_us() >= NEXT.get()
}

fn run(number: u32) -> i64 {
    transaction::register();
    let Some(catalog) = instance::of_duty(number) else { return 0 };
    // What is emptied is locked to the end of the transaction.
    if sys::in_transaction_block() || sys::has_xid() {
        return 0;
    }
    NEXT.set(sys::monotonic_us() + PAUSE);
    match step(&catalog) {
        Ok(did) => {
            if did > 0 {
                NEXT.set(0);
            }
            did
        }
        Err(error) => error.report(),
    }
}

fn blocks(catalog: &Catalog, half: usize) -> u32 {
    Relation::read(catalog.memory[half]).blocks()
}

fn step(catalog: &Catalog) -> Result<i64> {
    let open = memory::open_half(catalog);
    let closed = 1 - open;
    let is_empty = blocks(catalog, closed) == 0;
    shmem::with_instance(catalog.number, |_, instance| instance.memory_is_turning = !is_empty);
    if is_empty {
        COPIED.set(None);
        return Ok(open_other(catalog, open));
    }
    // The mutex of all who do this.
    if !sys::try_lock(catalog.segment_log, pg_sys::ShareUpdateExclusiveLock) {
        return Ok(0);
    }
    // Whoever has a lock by which he adds to it has had it since before it was closed.
    if sys::lock_holders(catalog.memory[closed], pg_sys::ShareLock) > 0 {
        return Ok(0);
    }
    // By now nobody turns; but somebody may have since the look above.
    if memory::open_half(catalog) != open {
        return Ok(0);
    }
    let turn = turn(catalog);
    let copied = COPIED.get().filter(|(of, _)| *of == turn);
    let Some((_, at)) = copied else { return copy(catalog, turn, closed, open) };
    // A dump takes its snapshot a moment before it can be seen.
    let delay = i64::from(guc::RECLAIM_DELAY.get()) * 1_000;
    if sys::monotonic_us() < at.saturating_add(delay) || sys::is_being_dumped() {
        return Ok(0);
    }
    if !sys::try_lock_whole(&[catalog.memory[closed]], pg_sys::AccessExclusiveLock) {
        return Ok(0);
    }
    // With a new file, and not in place as the segments: seldom enough, and undone by a crash in the middle.
    spi::run(&format!("TRUNCATE queue.key_{closed}"), &[])?;
    COPIED.set(None);
    Ok(1)
}

/// Which turn of which instance this is.
fn turn(catalog: &Catalog) -> (u32, u64) {
    let turns = shmem::with_instance(catalog.number, |_, instance| instance.memory_turns);
    (catalog.number, turns.unwrap_or_default())
}

/// Opens the other half, which is empty, when this one has grown.
fn open_other(catalog: &Catalog, open: usize) -> i64 {
    /// Blocks: less is not worth it.
    const FEW: u32 = 1024;
    let blocks = blocks(catalog, open);
    let is_turned = shmem::with_instance(catalog.number, |_, instance| {
        // Twice what was left by the last turn.
        if blocks <= FEW.max(instance.memory_limit) {
            return false;
        }
        shmem::set_word(&mut instance.memory_half, 1 - open as u64);
        instance.memory_turns += 1;
        true
    });
    i64::from(is_turned.unwrap_or(false))
}

/// Copies what still counts of the keys behind those of the last batch. Whether all is there only a pass says that had
/// nothing to copy: what a batch has copied may be rolled back.
fn copy(catalog: &Catalog, turn: (u32, u64), from: usize, to: usize) -> Result<i64> {
    let mut pass = PASS.take().filter(|pass| pass.turn == turn);
    let mut pass = pass.take().unwrap_or(Pass { turn, last: None, is_clean: true });
    let memory = Memory::open(catalog);
    let now = sys::now_us();
    let start = pass.last.take().map(|last| bytes_datum(&last));
    let mut met: Vec<memory::Met> = Vec::new();
    let mut is_end = true;
    let mut walk = memory.walk(from, start).into_iter().flatten().peekable();
    for looked in 1_usize.. {
        let Some(row) = walk.next() else { break };
        let key = sys::plain(row.key());
        let is_same = |next: &memory::Met| {
            next.queue_id == row.queue_id && sys::bytes_of(&sys::plain(next.key())) == sys::bytes_of(&key)
        };
        // Of each key the last one is the newest.
        if walk.peek().is_some_and(is_same) {
            continue;
        }
        let last = (looked >= LOOK || met.len() + 1 >= BATCH).then(|| sys::bytes_of(&key).to_vec());
        let is_there = || memory.newest_in(to, row.queue_id, key).is_some_and(|there| there.entry >= row.known.entry);
        if row.known.expires_at > now && queue::exists(catalog, row.queue_id) && !is_there() {
            met.push(row);
        }
        if last.is_some() {
            (pass.last, is_end) = (last, false);
            break;
        }
        if looked % 1024 == 0 {
            sys::check_for_interrupts();
        }
    }
    let rows: Vec<memory::New> = met.iter().map(memory::Met::copy).collect();
    memory::copy(catalog, to, &rows);
    pass.is_clean &= rows.is_empty();
    if !is_end {
        PASS.set(Some(pass));
    } else if pass.is_clean {
        COPIED.set(Some((turn, sys::monotonic_us())));
        let limit = blocks(catalog, to).saturating_mul(2);
        shmem::with_instance(catalog.number, |_, instance| instance.memory_limit = limit);
    }
    Ok(1)
}
