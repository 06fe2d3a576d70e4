//! Gives each unique key to one producer at a time. A producer that enqueues under a key holds it until its transaction
//! has ended, because other sessions see its job only then. A producer that needs a held key waits for the holder's
//! transaction, as with a unique index. The wait is visible in pg_locks, can be cancelled, and deadlocks are detected.
//! The rollback of a savepoint releases the keys that were acquired since. No other session waits here: workers that
//! end jobs acquire no keys, and the background worker only tries to.
//!
//! Invariant: every key that a transaction holds is in `HELD`. A callback releases it when the transaction or
//! subtransaction that has acquired it ends, before Postgres wakes the waiters. Keys of a prepared transaction stay: a
//! session that finds one checks whether that transaction has ended. Transactions that were prepared before the
//! server's start are found by their rows.

use std::hash::{DefaultHasher, Hasher};

use pg_queue_core::{holders, share};

use crate::catalog::spi;
use crate::error::{self, Error, Result};
use crate::guc;
use crate::pg::fault::fault;
use crate::pg::{process, transaction};
use crate::shmem::here;
use crate::shmem::keys::{self, Stop};

/// Returns the hash of a queue's key. It is the same in every process of the server.
pub fn hash(queue_id: i32, key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    holders::key(queue_id.cast_unsigned(), hasher.finish())
}

/// Acquires keys, and waits for other holders. They are acquired in the order of the hashes, so that two sessions that
/// need many keys cannot block each other.
///
/// Errors: 53400 when too many keys are held.
pub fn acquire(hashes: &mut Vec<u64>) -> Result<()> {
    hashes.sort_unstable();
    hashes.dedup();
    let mut left: &[u64] = hashes;
    while let Some(&first) = left.first() {
        let (count, stop) = keys::acquire_some(left);
        left = &left[count..];
        match stop {
            Stop::No => {}
            Stop::Held(holder) if transaction::is_current(holder) => left = &left[1..],
            Stop::Held(holder) => {
                if count == 0 && !transaction::is_in_progress(holder) {
                    keys::forget((here::number(), first), holder);
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

/// Returns whether a transaction may hold keys that memory does not know, because it was prepared before the server's
/// start.
///
/// Errors: those of the query of prepared transactions.
pub fn may_miss_holders() -> Result<bool> {
    if !transaction::has_prepared_transactions() || keys::with_holders(|holders| holders.head.is_complete) {
        return Ok(false);
    }
    // The query finds prepared transactions of all databases, even those that memory knows. They cost one more search.
    if spi::has_row("SELECT FROM pg_catalog.pg_prepared_xacts", &[])? {
        return Ok(true);
    }
    keys::with_holders(|holders| holders.head.is_complete = true);
    Ok(false)
}

/// Acquires a key if no other transaction holds it. Returns whether it did.
pub fn try_acquire(hash: u64) -> bool {
    loop {
        match keys::acquire_some(&[hash]).1 {
            Stop::No => return true,
            Stop::Held(holder) if transaction::is_current(holder) => return true,
            Stop::Held(holder) if transaction::is_in_progress(holder) => return false,
            Stop::Held(holder) => keys::forget((here::number(), hash), holder),
            Stop::Full if keys::sweep() => {}
            Stop::Full => return false,
        }
    }
}
