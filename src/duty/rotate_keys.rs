//! Keeps the tables of unique keys small: if the open half has grown, it opens the other half, copies there what still
//! counts, and empties the old one.
//!
//! Not here: what a row says and how a key is looked up (`log::key`), and the locks on keys (`job::keys`).
//!
//! Invariant: it can be cut off at any point. Of each key the newest row of both halves counts, so a row that was
//! copied twice, or not yet, does no harm. A half is emptied only after all of it was looked at while no session could
//! add to it.

use std::cell::Cell;

use pgrx::pg_sys;

use crate::catalog::{self, Catalog, dump, queue, spi};
use crate::duty::{Duty, Memory};
use crate::error::Result;
use crate::log::key::{self, Keys};
use crate::pg::datum::{self, bytes_datum};
use crate::pg::fault::fault;
use crate::pg::table::Relation;
use crate::pg::{self, lock, process, time};
use crate::shmem;
use crate::{guc, transaction};

/// The duty.
pub const DUTY: Duty = Duty { name: "rotate_keys", is_due: Some(is_due), next_at, run };

/// Microseconds between two looks, also while a session is in the way.
const PAUSE: i64 = 10_000_000;
/// Rows copied in one transaction.
const BATCH: usize = 2_000;
/// Rows looked at in one transaction.
const LOOK: usize = 10_000;

/// How far this process has come with the closed half. Another process begins anew, which does no harm.
struct Pass {
    /// The instance, and the number of its turn.
    turn: (u32, u64),
    /// Looked at up to this key, as its bytes.
    last: Option<Vec<u8>>,
    /// Whether nothing had to be copied so far.
    is_clean: bool,
}

thread_local! {
    /// The monotonic time of the next look of this session.
    static NEXT: Cell<i64> = const { Cell::new(0) };
    static PASS: Cell<Option<Pass>> = const { Cell::new(None) };
}

/// The worker does not wake for it if no half is to be emptied.
fn next_at(memory: &Memory<'_, '_>) -> i64 {
    if memory.instance.keys.is_turning { NEXT.get() } else { i64::MAX }
}

fn is_due(_number: u32) -> bool {
    time::monotonic_us() >= NEXT.get()
}

fn run(number: u32) -> i64 {
    transaction::register();
    let Some(catalog) = catalog::of_duty(number) else { return 0 };
    // The half that is emptied stays locked to the end of the transaction.
    if pg::transaction::in_transaction_block() || pg::transaction::has_xid() {
        return 0;
    }
    NEXT.set(time::monotonic_us() + PAUSE);
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
    Relation::read(catalog.key[half]).blocks()
}

fn step(catalog: &Catalog) -> Result<i64> {
    let open = key::open_half(catalog);
    fault!("keys.looked");
    let closed = 1 - open;
    let is_empty = blocks(catalog, closed) == 0;
    shmem::with_instance(catalog.number, |_, instance| instance.keys.is_turning = !is_empty);
    if is_empty {
        return Ok(open_other(catalog, open));
    }
    // The mutex of all processes that do this.
    if !lock::try_lock(catalog.segment_log, pg_sys::ShareUpdateExclusiveLock) {
        return Ok(0);
    }
    // A session that holds a lock for adding rows has held it since before the half was closed.
    if lock::lock_holders(catalog.key[closed], pg_sys::ShareLock) > 0 {
        return Ok(0);
    }
    // From here on no other process rotates; but one may have since the look above.
    if key::open_half(catalog) != open {
        return Ok(0);
    }
    let Some((turn, copied_at)) = turn(catalog) else { return Ok(0) };
    if copied_at == 0 {
        return copy(catalog, turn, closed, open);
    }
    // A dump takes its snapshot a moment before it can be seen.
    let delay = i64::from(guc::RECLAIM_DELAY.get()) * 1_000;
    if time::monotonic_us() < copied_at.saturating_add(delay) || dump::is_running(catalog)? {
        return Ok(0);
    }
    if !lock::try_lock_whole(&[catalog.key[closed]], pg_sys::AccessExclusiveLock) {
        return Ok(0);
    }
    // TRUNCATE makes a new file, while segments are emptied in place: it is seldom enough, and a crash in the middle
    // undoes it.
    fault!("keys.copied");
    spi::run(&format!("TRUNCATE queue.key_{closed}"), &[])?;
    fault!("keys.emptied");
    Ok(1)
}

/// Returns the instance with the number of its present turn, and since when the closed half is known to be copied; 0:
/// it is not. Shared memory has both, as the next look may be another session's. `None`: the instance is gone.
fn turn(catalog: &Catalog) -> Option<((u32, u64), i64)> {
    let number = catalog.number;
    shmem::with_instance(number, |_, instance| ((number, instance.keys.turns), instance.keys.copied_at))
}

/// Opens the other half, which is empty, if the open one has grown. Returns 1 if it did, else 0.
fn open_other(catalog: &Catalog, open: usize) -> i64 {
    /// Blocks. Fewer are not worth a turn.
    const MIN_BLOCKS: u32 = 1024;
    let blocks = blocks(catalog, open);
    let is_turned = shmem::with_instance(catalog.number, |_, instance| {
        // `max_blocks` is twice the size that the last turn has left.
        if blocks <= MIN_BLOCKS.max(instance.keys.max_blocks) {
            return false;
        }
        instance.keys.open.set(1 - open as u64);
        instance.keys.begin_turn();
        true
    });
    i64::from(is_turned.unwrap_or(false))
}

/// Copies one batch of the rows that still count, behind the keys of the last batch. What a batch has copied may be
/// rolled back: so only a pass that had nothing to copy proves that everything is copied.
fn copy(catalog: &Catalog, turn: (u32, u64), from: usize, to: usize) -> Result<i64> {
    let mut pass = PASS.take().filter(|pass| pass.turn == turn);
    let mut pass = pass.take().unwrap_or(Pass { turn, last: None, is_clean: true });
    let keys = Keys::open(catalog);
    let now = time::now_us();
    let start = pass.last.take().map(|last| bytes_datum(&last));
    let mut met: Vec<key::Met> = Vec::new();
    let mut is_end = true;
    let mut walk = keys.walk(from, start).into_iter().flatten().peekable();
    for looked in 1_usize.. {
        let Some(row) = walk.next() else { break };
        let key = datum::plain(row.key());
        let is_same = |next: &key::Met| {
            next.queue_id == row.queue_id && datum::bytes_of(&datum::plain(next.key())) == datum::bytes_of(&key)
        };
        // Of the rows of a key the last one is the newest.
        if walk.peek().is_some_and(is_same) {
            continue;
        }
        let last = (looked >= LOOK || met.len() + 1 >= BATCH).then(|| datum::bytes_of(&key).to_vec());
        let is_there = || keys.newest_in(to, row.queue_id, key).is_some_and(|there| there.entry >= row.known.entry);
        if row.known.expires_at > now && queue::exists(catalog, row.queue_id) && !is_there() {
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
    let rows: Vec<key::New> = met.iter().map(key::Met::copy).collect();
    key::copy(catalog, to, &rows);
    pass.is_clean &= rows.is_empty();
    if !is_end {
        PASS.set(Some(pass));
    } else if pass.is_clean {
        let limit = blocks(catalog, to).saturating_mul(2);
        shmem::with_instance(catalog.number, |_, instance| {
            instance.keys.max_blocks = limit;
            // A foreign writer may have made this pass void.
            if instance.keys.turns == turn.1 {
                instance.keys.copied_at = time::monotonic_us();
            }
        });
    }
    Ok(1)
}
