//! The unique keys that this session's transaction holds in shared memory, released at its end.
//!
//! Responsible for the session's list of them, and for the lock of the holders. Not responsible for the table of
//! holders (`pg_queue_core::holders`), for waiting for a holder and the order of acquisition (`job::keys`), nor for the
//! newest job under a key (`job::unique`). See docs/internals/keys.md.
//!
//! Invariant: a key that is held is on the list of its holder, in the subtransaction that acquired it, before anything
//! can fail.

use std::cell::RefCell;

use pg_queue_core::frontier::index;
use pg_queue_core::holders::{Acquire, Holders, Key};
use pgrx::pg_sys::SubTransactionId;

use crate::guc;
use crate::pg::{memory, process, transaction};
use crate::shmem::layout::{BASE, Header, LAYOUT};
use crate::shmem::lock::LockGuard;

/// A key that this session's transaction holds.
#[derive(Clone, Copy)]
struct HeldKey {
    key: Key,
    xid: u32,
    subtransaction: SubTransactionId,
}

thread_local! {
    /// The keys in the order of acquisition, so that those of inner subtransactions come last.
    static HELD: RefCell<Vec<HeldKey>> = const { RefCell::new(Vec::new()) };
}

/// The most keys that are handled in one hold of the lock, so that no hold is long.
const BATCH: usize = 256;

/// Why `acquire_some` has stopped.
pub enum Stop {
    /// All keys were acquired.
    No,
    /// The transaction with this id holds the next key.
    Held(u32),
    /// There is no room for the next key.
    Full,
}

/// Acquires keys of an instance in the order of `hashes`, at most `BATCH`, until one cannot be had. Returns how many
/// it has acquired, and why it stopped. Does not wait. The innermost open subtransaction gets an id if it has none.
/// Takes the lock of the holders.
pub fn acquire_some(number: u32, hashes: &[u64]) -> (usize, Stop) {
    let (xid, subtransaction) = (transaction::subtransaction_xid(), transaction::subtransaction());
    let chunk = &hashes[..hashes.len().min(BATCH)];
    if with_holders(|holders| std::mem::take(&mut holders.head.is_suspect)) {
        sweep();
    }
    HELD.with_borrow_mut(|held| {
        // The memory is reserved first: nothing may fail between the acquisition of a key and its entry in `HELD`.
        memory::grow(held, chunk.len());
        with_holders(|holders| {
            for (n, &hash) in chunk.iter().enumerate() {
                let key = (number, hash);
                match holders.acquire(key, xid) {
                    Acquire::Acquired => held.push(HeldKey { key, xid, subtransaction }),
                    Acquire::Own => {}
                    Acquire::Held(holder) => return (n, Stop::Held(holder)),
                    Acquire::Full => return (n, Stop::Full),
                }
            }
            (chunk.len(), Stop::No)
        })
    })
}

/// Removes the entry of a holder whose transaction has ended without removing it. If another transaction holds the key
/// by now, it does nothing.
pub fn forget(key: Key, holder: u32) {
    with_holders(|holders| holders.release(key, holder));
}

/// Removes the entries of transactions that have ended, which are those of prepared ones. Returns false if there were
/// none. Takes the lock of the holders for a chunk at a time. Can raise a cancel.
pub fn sweep() -> bool {
    let (mut from, mut did_any) = (Some(0), false);
    while let Some(at) = from {
        let mut found = [((0, 0), 0); BATCH];
        let (count, next) = with_holders(|holders| holders.list(at, &mut found));
        let mut last = (0, true);
        for &(key, holder) in &found[..count] {
            // Many keys in a row have the same holder, so the answer for the last holder is kept.
            if last.0 != holder {
                last = (holder, transaction::is_current(holder) || transaction::is_in_progress(holder));
            }
            if !last.1 {
                forget(key, holder);
                did_any = true;
            }
        }
        from = next;
        process::check_for_interrupts();
    }
    did_any
}

/// Releases keys, a chunk in each hold of the lock.
fn release(held: &[HeldKey]) {
    for chunk in held.chunks(BATCH) {
        with_holders(|holders| chunk.iter().for_each(|one| holders.release(one.key, one.xid)));
    }
}

/// Releases all keys of this session's transaction, which has ended. Cannot fail.
pub fn end() {
    let mut held = HELD.take();
    release(&held);
    held.clear();
    if held.capacity() > 65_536 {
        held.shrink_to(1024);
    }
    HELD.set(held);
}

/// Whether this session's transaction holds keys.
pub fn holds_any() -> bool {
    HELD.with_borrow(|held| !held.is_empty())
}

/// Is called when the transaction was prepared. Its keys stay held: the session forgets them, and the entries remain.
pub fn prepared() {
    HELD.with_borrow_mut(|held| {
        if !held.is_empty() {
            with_holders(|holders| holders.head.has_prepared = true);
            held.clear();
        }
    });
}

/// Is called when COMMIT PREPARED or ROLLBACK PREPARED has run. If a transaction was prepared that held keys, the next
/// acquisition sweeps.
pub fn prepared_ended() {
    with_holders(|holders| holders.head.is_suspect |= holders.head.has_prepared);
}

/// Is called when a subtransaction has ended. If it was committed, its keys become those of `parent`. `None`: it was
/// rolled back, and its keys are released.
pub fn subtransaction_ended(this: SubTransactionId, parent: Option<SubTransactionId>) {
    HELD.with_borrow_mut(|held| {
        let first = held.iter().rposition(|one| one.subtransaction != this).map_or(0, |at| at + 1);
        match parent {
            Some(parent) => held[first..].iter_mut().for_each(|one| one.subtransaction = parent),
            None => {
                release(&held[first..]);
                held.truncate(first);
            }
        }
    });
}

/// Runs `f` under the lock of the holders of unique keys, which is exclusive, and is taken only while no other lock of
/// shared memory is held. `f` must be short and must not call Postgres.
pub fn with_holders<R>(f: impl FnOnce(&mut Holders<'_>) -> R) -> R {
    // SAFETY: as in `lock::with`, for the fields that this lock protects.
    unsafe {
        let base = BASE;
        let Some(layout) = LAYOUT else { unreachable!("shared memory is used before it is there") };
        let header = base.cast::<Header>();
        let _guard = LockGuard::take((*header).keys_lock);
        let (at, count) = layout.holders;
        f(&mut Holders {
            head: &mut (*header).holders,
            buckets: std::slice::from_raw_parts_mut(base.add(at).cast::<index::Bucket>(), count),
            most: usize::try_from(guc::MAX_KEYS.get()).unwrap_or(1),
        })
    }
}
