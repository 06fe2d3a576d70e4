//! A unique key has one producer at a time: a producer that enqueues under a key holds it until its transaction has
//! ended, since only then others see what it has made. A producer that wants a held key waits for the holder's
//! transaction, as with a unique index: it is seen in pg_locks, can be cancelled, and a deadlock is found. A
//! savepoint's rollback lets go of what it had acquired. Nothing else waits here: workers that end jobs ask for no
//! keys, and the background worker only tries.
//!
//! Invariant: whatever a transaction holds is in `HELD` and goes when the transaction, or the part of it that acquired
//! it, ends; in a callback, before Postgres wakes those that wait. What was prepared stays: a session that meets it
//! finds out whether that transaction has ended. Those that were prepared before the server's start are found by their
//! rows.

use std::hash::{DefaultHasher, Hasher};

use pg_queue_core::{holders, share};

use crate::catalog::{Catalog, spi};
use crate::error::{self, Error, Result};
use crate::guc;
use crate::pg::fault::fault;
use crate::pg::{process, transaction};
use crate::shmem::keys::{self, Stop};

/// Returns the hash by which a key of a queue is known, the same in every process of the server.
pub fn hash(queue_id: i32, key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    holders::key(queue_id.cast_unsigned(), hasher.finish())
}

/// Acquires keys, and waits for other holders. It does so in the order of the hashes, so that two sessions that want
/// many cannot block each other.
///
/// Errors: 53400 when too many keys are held.
pub fn acquire(catalog: &Catalog, hashes: &mut Vec<u64>) -> Result<()> {
    hashes.sort_unstable();
    hashes.dedup();
    let mut left: &[u64] = hashes;
    while let Some(&first) = left.first() {
        let (count, stop) = keys::acquire_some(catalog.number, left);
        left = &left[count..];
        match stop {
            Stop::No => {}
            Stop::Held(holder) if transaction::is_current(holder) => left = &left[1..],
            Stop::Held(holder) => {
                if count == 0 && !transaction::is_in_progress(holder) {
                    keys::forget((catalog.number, first), holder);
                } else {
                    transaction::wait_for_transaction(holder);
                }
            }
            Stop::Full if keys::sweep() => {}
            Stop::Full => {
                return Err(Error::new(error::LIMIT, "too many unique keys are held by open transactions")
                    .detail(format!(
                        "Shared memory has room for {} keys; a queue, and a database, may hold {} times what is free.",
                        guc::MAX_KEYS.get(),
                        share::ALPHA
                    ))
                    .hint("Raise pg_queue.max_keys and restart the server, or enqueue in smaller transactions."));
            }
        }
        process::check_for_interrupts();
    }
    fault!("key.held");
    Ok(())
}

/// Whether a transaction may hold keys of which memory knows nothing: one that was prepared before the server's start.
///
/// Errors: those of a look at the prepared transactions.
pub fn may_miss_holders() -> Result<bool> {
    if !transaction::has_prepared_transactions() || keys::with_holders(|holders| holders.head.is_complete) {
        return Ok(false);
    }
    // Of any database. Some that memory knows may be among them; they cost another look.
    if spi::has_row("SELECT FROM pg_catalog.pg_prepared_xacts", &[])? {
        return Ok(true);
    }
    keys::with_holders(|holders| holders.head.is_complete = true);
    Ok(false)
}

/// Acquires a key if no other transaction has it.
pub fn try_acquire(catalog: &Catalog, hash: u64) -> bool {
    loop {
        match keys::acquire_some(catalog.number, &[hash]).1 {
            Stop::No => return true,
            Stop::Held(holder) if transaction::is_current(holder) => return true,
            Stop::Held(holder) if transaction::is_in_progress(holder) => return false,
            Stop::Held(holder) => keys::forget((catalog.number, hash), holder),
            Stop::Full if keys::sweep() => {}
            Stop::Full => return false,
        }
    }
}
