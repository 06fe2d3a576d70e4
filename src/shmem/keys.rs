//! The unique keys that this session's transaction holds in shared memory, released at its end.
//!
//! Responsible for the session's list of keys, and for the lock of the holders. Not responsible for the table of
//! holders (`pg_queue_core::holders`), for waiting for a holder and the order of acquisition (`job::keys`), nor for the
//! newest job under a key (`job::unique`). See docs/internals/keys.md.
//!
//! Invariant: a held key is on the list of its holder, in the subtransaction that acquired it, before anything can
//! fail.

use std::cell::RefCell;

use pg_queue_core::frontier::index;
use pg_queue_core::holders::{Acquire, Holders, Key};
use pgrx::pg_sys::SubTransactionId;

use crate::guc;
use crate::pg::{memory, process, transaction};
use crate::shmem::here;
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
    /// The keys in the order of acquisition. So the keys of inner subtransactions come last.
    static HELD: RefCell<Vec<HeldKey>> = const { RefCell::new(Vec::new()) };
}

/// At most this many keys are handled in one hold of the lock, so that no hold is long.
const KEYS_PER_HOLD: usize = 256;

/// The reason why `acquire_some` stopped.
pub enum Stop {
    /// All keys were acquired.
    No,
    /// The transaction with this id holds the next key.
    Held(u32),
    /// The table has no room for the next key.
    Full,
}

/// Acquires keys in the order of `hashes`, at most `KEYS_PER_HOLD`, until one is not available. Returns
/// how many keys it has acquired, and why it stopped. Does not wait. If the innermost open subtransaction has no id, it
/// gets one. Takes the lock of the holders.
pub fn acquire_some(hashes: &[u64]) -> (usize, Stop) {
    let (xid, subtransaction) = (transaction::subtransaction_xid(), transaction::subtransaction());
    let batch = &hashes[..hashes.len().min(KEYS_PER_HOLD)];
    if with_holders(|holders| std::mem::take(&mut holders.head.is_suspect)) {
        sweep();
    }
    HELD.with_borrow_mut(|held| {
        // The memory is reserved first, because nothing may fail between the acquisition of a key and its entry in
        // `HELD`.
        memory::grow(held, batch.len());
        with_holders(|holders| {
            for (n, &hash) in batch.iter().enumerate() {
                let key = (here::number(), hash);
                match holders.acquire(key, xid) {
                    Acquire::Acquired => held.push(HeldKey { key, xid, subtransaction }),
                    Acquire::Own => {}
                    Acquire::Held(holder) => return (n, Stop::Held(holder)),
                    Acquire::Full => return (n, Stop::Full),
                }
            }
            (batch.len(), Stop::No)
        })
    })
}

/// Removes the entry of a holder whose transaction has ended without removing it. Does nothing if another transaction
/// already holds the key.
pub fn forget(key: Key, holder: u32) {
    with_holders(|holders| holders.release(key, holder));
}

/// Removes the entries of prepared transactions that have ended. Returns false if there were none. Takes the lock of
/// the holders for `KEYS_PER_HOLD` at a time. Can raise a cancel.
pub fn sweep() -> bool {
    let (mut from, mut did_any) = (Some(0), false);
    while let Some(at) = from {
        let mut found = [((0, 0), 0); KEYS_PER_HOLD];
        let (count, next) = with_holders(|holders| holders.list(at, &mut found));
        let mut last = (0, true);
        for &(key, holder) in &found[..count] {
            // Successive keys often have the same holder, so the answer for the last holder is kept.
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

/// Releases keys, `KEYS_PER_HOLD` in each hold of the lock.
fn release(held: &[HeldKey]) {
    for batch in held.chunks(KEYS_PER_HOLD) {
        with_holders(|holders| batch.iter().for_each(|one| holders.release(one.key, one.xid)));
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

/// True if this session's transaction holds keys.
pub fn holds_any() -> bool {
    HELD.with_borrow(|held| !held.is_empty())
}

/// Called when the transaction was prepared. Its keys stay held: the session forgets them, and the entries remain.
pub fn prepared() {
    HELD.with_borrow_mut(|held| {
        if !held.is_empty() {
            with_holders(|holders| holders.head.has_prepared = true);
            held.clear();
        }
    });
}

/// Called after COMMIT PREPARED or ROLLBACK PREPARED. If a prepared transaction held keys, the next acquisition sweeps.
pub fn prepared_ended() {
    with_holders(|holders| holders.head.is_suspect |= holders.head.has_prepared);
}

/// Called when a subtransaction has ended. If it was committed, its keys become keys of `parent`. `None`: it was rolled
/// back, and its keys are released.
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

/// Runs `f` under the exclusive lock of the holders of unique keys. It is taken only while the process holds no other
/// lock of shared memory. `f` must be short and must not call Postgres.
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
