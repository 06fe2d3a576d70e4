//! Keeps the tables of unique keys small. If the open half has grown, opens the other half, copies the rows that still
//! count into it, and empties the old half.
//!
//! Not responsible for the meaning of a row and the look-up of a key (`log::key`), nor for the locks on keys
//! (`job::keys`).
//!
//! Invariant: it can be interrupted at any point. The newest row of a key in both halves counts, so a row that was
//! copied twice, or not yet, does no harm. A half is emptied only after all of it was read while no session could add
//! to it.

use std::cell::Cell;

use pgrx::pg_sys;

use crate::catalog::{self, dump, queue, spi};
use crate::duty::{Duty, Memory, Work};
use crate::error::Result;
use crate::log::key::{self, Keys};
use crate::pg::datum::{self, bytes_datum};
use crate::pg::fault::fault;
use crate::pg::table::Relation;
use crate::pg::{self, lock, process, time};
use crate::shmem::{self, here};
use crate::{guc, transaction};

/// The duty.
pub const DUTY: Duty = Duty { name: "rotate_keys", is_due: Some(is_due), next_at, work: Work::Own(run) };

/// The time between two looks, also while a session blocks it, in microseconds.
const LOOK_PAUSE_US: i64 = 10_000_000;
/// At most this many rows are copied in one transaction.
const MAX_COPIED_ROWS: usize = 2_000;
/// At most this many rows are read in one transaction.
const MAX_READ_ROWS: usize = 10_000;

/// How far this process has read the closed half. Another process starts again, which does no harm.
struct Pass {
    /// The instance, and the number of its turn.
    turn: (u32, u64),
    /// The last key that was read, as its bytes.
    last: Option<Vec<u8>>,
    /// True if nothing had to be copied so far.
    is_clean: bool,
}

thread_local! {
    /// The monotonic time of the next look of this session.
    static NEXT: Cell<i64> = const { Cell::new(0) };
    static PASS: Cell<Option<Pass>> = const { Cell::new(None) };
}

/// Returns the time of the next look. The worker does not wake for it if no half needs emptying.
fn next_at(memory: &Memory<'_, '_>) -> i64 {
    if memory.instance.keys.is_turning { NEXT.get() } else { i64::MAX }
}

fn is_due() -> bool {
    time::monotonic_us() >= NEXT.get()
}

fn run() -> Result<i64> {
    transaction::register();
    // The emptied half stays locked until the end of the transaction.
    if pg::transaction::in_transaction_block() || pg::transaction::has_xid() {
        return Ok(0);
    }
    NEXT.set(time::monotonic_us() + LOOK_PAUSE_US);
    let did = step()?;
    if did > 0 {
        NEXT.set(0);
    }
    Ok(did)
}

fn blocks(half: usize) -> u32 {
    let catalog = catalog::pinned();
    Relation::read(catalog.halves[half].key).blocks()
}

fn step() -> Result<i64> {
    let open = key::open_half();
    fault!("keys.looked");
    let closed = 1 - open;
    let is_empty = blocks(closed) == 0;
    shmem::with_instance(|_, instance| instance.keys.is_turning = !is_empty);
    if is_empty {
        return Ok(open_other(open));
    }
    let catalog = catalog::pinned();
    // This lock is the mutex of all processes that do this duty.
    if !lock::try_lock(catalog.segment_log, pg_sys::ShareUpdateExclusiveLock) {
        return Ok(0);
    }
    // A session that holds a lock for adding rows has held it since before the half was closed.
    if lock::lock_holders(catalog.halves[closed].key, pg_sys::ShareLock) > 0 {
        return Ok(0);
    }
    // From now on no other process rotates. But one may have done so since the look above.
    if key::open_half() != open {
        return Ok(0);
    }
    let Some((turn, copied_at)) = turn() else { return Ok(0) };
    if copied_at == 0 {
        return copy(turn, closed, open);
    }
    // A dump takes its snapshot a moment before other sessions can see it.
    let delay = i64::from(guc::RECLAIM_DELAY.get()) * 1_000;
    if time::monotonic_us() < copied_at.saturating_add(delay) || dump::is_running()? {
        return Ok(0);
    }
    if !lock::try_lock_whole(&[catalog.halves[closed].key], pg_sys::AccessExclusiveLock) {
        return Ok(0);
    }
    // TRUNCATE makes a new file, while segments are emptied in place. It is rare enough, and a crash in the middle
    // undoes it.
    fault!("keys.copied");
    spi::run(&format!("TRUNCATE queue_internal.key_{closed}"), &[])?;
    fault!("keys.emptied");
    Ok(1)
}

/// Returns the instance with the number of its current turn, and the time since when the closed half is known to be
/// copied. 0: it is not. Both are in shared memory, because another session may look next. `None`: the instance was
/// dropped.
fn turn() -> Option<((u32, u64), i64)> {
    let number = here::number();
    shmem::with_instance(|_, instance| ((number, instance.keys.turns), instance.keys.copied_at))
}

/// If the open half has grown, opens the other half, which is empty. Returns 1 if it did, else 0.
fn open_other(open: usize) -> i64 {
    /// In blocks. Fewer do not pay for a turn.
    const MIN_BLOCKS: u32 = 1024;
    let blocks = blocks(open);
    let is_turned = shmem::with_instance(|_, instance| {
        // `max_blocks` is twice the size that the last turn left.
        if blocks <= MIN_BLOCKS.max(instance.keys.max_blocks) {
            return false;
        }
        instance.keys.open.set(1 - open as u64);
        instance.keys.begin_turn();
        true
    });
    i64::from(is_turned.unwrap_or(false))
}

/// Copies one batch of the rows that still count, after the keys of the last batch. A batch may be rolled back. So only
/// a pass without anything to copy proves that everything is copied.
fn copy(turn: (u32, u64), from: usize, to: usize) -> Result<i64> {
    let mut pass = PASS.take().filter(|pass| pass.turn == turn);
    let mut pass = pass.take().unwrap_or(Pass { turn, last: None, is_clean: true });
    let keys = Keys::open();
    let now = time::now_us();
    let start = pass.last.take().map(|last| bytes_datum(&last));
    let mut met: Vec<key::Met> = Vec::new();
    let mut is_end = true;
    let mut walk = keys.walk(from, start).into_iter().flatten().peekable();
    for looked in 1_usize.. {
        let Some(row) = walk.next() else { break };
        let key::New { queue_id, key, known } = row.new;
        let key = datum::plain(key);
        let is_same = |next: &key::Met| {
            next.new.queue_id == queue_id && datum::bytes_of(&datum::plain(next.new.key)) == datum::bytes_of(&key)
        };
        // The last row of a key is the newest.
        if walk.peek().is_some_and(is_same) {
            continue;
        }
        let last =
            (looked >= MAX_READ_ROWS || met.len() + 1 >= MAX_COPIED_ROWS).then(|| datum::bytes_of(&key).to_vec());
        let is_there = || keys.newest_in(to, queue_id, key).is_some_and(|there| there.entry >= known.entry);
        if known.expires_at > now && queue::exists(queue_id) && !is_there() {
            met.push(row);
        }
        if last.is_some() {
            (pass.last, is_end) = (last, false);
            break;
        }
        if looked % 1024 == 0 {
            process::check_for_interrupts();
        }
    }
    fault!("keys.read");
    let rows: Vec<key::New> = met.iter().map(|met| met.new).collect();
    key::copy(to, &rows);
    pass.is_clean &= rows.is_empty();
    if !is_end {
        PASS.set(Some(pass));
    } else if pass.is_clean {
        let limit = blocks(to).saturating_mul(2);
        shmem::with_instance(|_, instance| {
            instance.keys.max_blocks = limit;
            // A foreign writer may have voided this pass.
            if instance.keys.turns == turn.1 {
                instance.keys.copied_at = time::monotonic_us();
            }
        });
    }
    Ok(1)
}
