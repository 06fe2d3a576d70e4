//! A unique key has one producer at a time: who enqueues under a key holds it until his transaction has ended, for
//! only then can others see what he has made of it. Who wants a key that is held waits for its holder's transaction,
//! as with a unique index: he is seen in pg_locks, can be cancelled, and a deadlock is found. A savepoint's rollback
//! lets go of what it had acquired.
//!
//! Nobody else waits here: workers that end jobs do not ask for keys, and the background worker only tries.
//!
//! Invariant: whatever a transaction holds is in `HELD` and goes when the transaction, or the part of it that
//! acquired it, ends; in a callback, before Postgres wakes those who wait. What was prepared stays, for whoever
//! meets it finds out whether that transaction has ended. Those that were prepared before the server's start are found by
//! their rows.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hasher};

use pg_queue_core::holders::{Acquire, Key};
use pgrx::pg_sys::SubTransactionId;

use crate::error::{self, Error, Result};
use crate::instance::Catalog;
use crate::{guc, shmem, spi, sys};

/// A key that this transaction holds.
#[derive(Clone, Copy)]
struct Held {
    key: Key,
    xid: u32,
    subtransaction: SubTransactionId,
}

thread_local! {
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

/// Keys in one hold of the lock.
const AT_ONCE: usize = 256;

/// What a key of a queue is known by. The same in every process of the server.
pub fn hash(queue_id: i32, key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_i32(queue_id);
    hasher.write(key);
    hasher.finish()
}

/// Acquires keys in the order of their hashes, so that two who want many cannot stand in each other's way; waits for
/// other holders.
///
/// Errors: 53400 when too many keys are held.
pub fn acquire(catalog: &Catalog, hashes: &mut Vec<u64>) -> Result<()> {
    hashes.sort_unstable();
    hashes.dedup();
    let mut left: &[u64] = hashes;
    while let Some(&first) = left.first() {
        let (count, stop) = acquire_some(catalog, left);
        left = &left[count..];
        match stop {
            Stop::No => {}
            Stop::Held(holder) if sys::is_current(holder) => left = &left[1..],
            Stop::Held(holder) => {
                if count == 0 && !sys::is_in_progress(holder) {
                    forget((catalog.number, first), holder);
                } else {
                    sys::wait_for_transaction(holder);
                }
            }
            Stop::Full if sweep() => {}
            Stop::Full => {
                return Err(Error::new(error::LIMIT, "too many unique keys are held by open transactions")
                    .detail(format!("Shared memory has room for {} keys.", guc::MAX_KEYS.get()))
                    .hint("Raise pg_queue.max_keys and restart the server, or enqueue in smaller transactions."));
            }
        }
        sys::check_for_interrupts();
    }
    Ok(())
}

/// Whether a transaction may hold keys of which memory knows nothing: one that was prepared before the server's start.
///
/// Errors: of a look at the prepared transactions.
pub fn may_miss_holders() -> Result<bool> {
    if !sys::has_prepared_transactions() || shmem::with_holders(|holders| holders.head.is_complete) {
        return Ok(false);
    }
    // Of any database. Some that are known may be among them: they cost a look more.
    if spi::has_row("SELECT FROM pg_catalog.pg_prepared_xacts", &[])? {
        return Ok(true);
    }
    shmem::with_holders(|holders| holders.head.is_complete = true);
    Ok(false)
}

/// Acquires a key if nobody else has it.
pub fn try_acquire(catalog: &Catalog, hash: u64) -> bool {
    loop {
        match acquire_some(catalog, &[hash]).1 {
            Stop::No => return true,
            Stop::Held(holder) if sys::is_current(holder) => return true,
            Stop::Held(holder) if sys::is_in_progress(holder) => return false,
            Stop::Held(holder) => forget((catalog.number, hash), holder),
            Stop::Full if sweep() => {}
            Stop::Full => return false,
        }
    }
}

/// Why not all were acquired.
enum Stop {
    No,
    Held(u32),
    Full,
}

/// Acquires the first ones, until one is not to be had. Returns how many.
fn acquire_some(catalog: &Catalog, hashes: &[u64]) -> (usize, Stop) {
    let (xid, subtransaction) = (sys::subtransaction_xid(), sys::subtransaction());
    let chunk = &hashes[..hashes.len().min(AT_ONCE)];
    if shmem::with_holders(|holders| std::mem::take(&mut holders.head.is_suspect)) {
        sweep();
    }
    HELD.with_borrow_mut(|held| {
        // The place for them now: nothing may fail between the acquisition and the note of it.
        held.reserve(chunk.len());
        shmem::with_holders(|holders| {
            for (n, &hash) in chunk.iter().enumerate() {
                let key = (catalog.number, hash);
                match holders.acquire(key, xid) {
                    Acquire::Acquired => held.push(Held { key, xid, subtransaction }),
                    Acquire::Own => {}
                    Acquire::Held(holder) => return (n, Stop::Held(holder)),
                    Acquire::Full => return (n, Stop::Full),
                }
            }
            (chunk.len(), Stop::No)
        })
    })
}

/// The holder's transaction has ended, and nobody has told.
fn forget(key: Key, holder: u32) {
    shmem::with_holders(|holders| holders.release(key, holder));
}

/// Removes the entries of prepared transactions that have ended. False: there were none.
fn sweep() -> bool {
    let (mut from, mut did_any) = (Some(0), false);
    while let Some(at) = from {
        let mut found = [((0, 0), 0); AT_ONCE];
        let (count, next) = shmem::with_holders(|holders| holders.list(at, &mut found));
        let mut last = (0, true);
        for &(key, holder) in &found[..count] {
            // Many keys in a row have the same holder.
            if last.0 != holder {
                last = (holder, sys::is_current(holder) || sys::is_in_progress(holder));
            }
            if !last.1 {
                forget(key, holder);
                did_any = true;
            }
        }
        from = next;
        sys::check_for_interrupts();
    }
    did_any
}

fn release(held: &[Held]) {
    for chunk in held.chunks(AT_ONCE) {
        shmem::with_holders(|holders| chunk.iter().for_each(|one| holders.release(one.key, one.xid)));
    }
}

/// The transaction has ended.
pub fn end() {
    let mut held = HELD.take();
    release(&held);
    held.clear();
    if held.capacity() > 65_536 {
        held.shrink_to(1024);
    }
    HELD.set(held);
}

/// The transaction was prepared: what it holds it goes on to hold.
pub fn prepared() {
    HELD.with_borrow_mut(|held| {
        if !held.is_empty() {
            shmem::with_holders(|holders| holders.head.has_prepared = true);
            held.clear();
        }
    });
}

/// COMMIT PREPARED or ROLLBACK PREPARED has run.
pub fn prepared_ended() {
    shmem::with_holders(|holders| holders.head.is_suspect |= holders.head.has_prepared);
}

/// A subtransaction has ended: what it holds goes, or becomes its parent's.
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
