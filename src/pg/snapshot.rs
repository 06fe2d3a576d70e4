//! Snapshots: which transactions a session sees.
//!
//! Responsible for releasing a statement's snapshots, and for an active snapshot. Not responsible for reading with one
//! (`scan`).
//!
//! Invariant: a snapshot that was pushed here is popped on every way out, by its value or by the transaction's abort.

use std::cell::Cell;

use pgrx::pg_sys;

/// Releases every snapshot of this statement, so that the session's xmin is empty while it sleeps. Only for a procedure
/// in a non-atomic context (`Call::is_atomic`).
pub fn drop_snapshots() {
    // SAFETY: a procedure in a non-atomic context. The active snapshot belongs to the CALL and is not used after this;
    // PostgreSQL's own pg_wal_replay_wait pops it in the same way. The portal holds the same snapshot, and another one
    // for the row that the CALL will return. A COMMIT at this point would release both, too.
    unsafe {
        if pg_sys::ActiveSnapshotSet() {
            pg_sys::PopActiveSnapshot();
        }
        let portal = pg_sys::ActivePortal;
        if !portal.is_null() {
            (*portal).portalSnapshot = std::ptr::null_mut();
            if !(*portal).holdSnapshot.is_null() {
                pg_sys::UnregisterSnapshotFromOwner((*portal).holdSnapshot, (*portal).resowner);
                (*portal).holdSnapshot = std::ptr::null_mut();
            }
        }
        pg_sys::InvalidateCatalogSnapshot();
    }
}

/// The transactions that a snapshot sees. See `pg_queue_core::counter::Horizon`.
#[derive(Clone, Copy)]
pub struct Seen {
    /// All transactions before this one have ended. With its epoch.
    pub xmin: u64,
    /// This transaction and all later ones had not ended. With its epoch.
    pub xmax: u64,
    /// The number of transactions between `xmin` and `xmax` that were in progress.
    pub in_progress: usize,
}

/// A snapshot of one moment. `scan::Snapshot::Statement` reads by it until this value is dropped.
pub struct ActiveSnapshot(());

impl ActiveSnapshot {
    /// Takes a snapshot of the current moment, in every isolation level. Unlike `scan::Snapshot::Now` it never misses a
    /// row that is updated during the scan. The transaction must have a snapshot.
    pub fn latest() -> Self {
        // SAFETY: in a transaction that has a snapshot, because it runs a statement. The stack takes a copy.
        unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot()) };
        Self(())
    }

    /// As `latest`, but also sees everything that this transaction has done, even in this statement.
    pub fn with_own() -> Self {
        // SAFETY: in a transaction. If it has written nothing, the counter does not change.
        unsafe { pg_sys::CommandCounterIncrement() };
        Self::latest()
    }

    /// As `latest`, but without this transaction's own changes.
    pub fn of_others() -> Self {
        let latest = Self::latest();
        // SAFETY: the copy on the stack was just pushed, and belongs to this value.
        unsafe { (*pg_sys::GetActiveSnapshot()).curcid = pg_sys::FirstCommandId };
        latest
    }

    /// Takes the snapshot within `hold`, which must call its argument once and may do so under the frontier's lock. The
    /// argument takes the snapshot and copies as many ids of transactions in progress as fit into a slice. It returns
    /// which transactions the snapshot sees. The transaction must have a snapshot. Not on a standby.
    pub fn take<R>(hold: impl FnOnce(&dyn Fn(&mut [u32]) -> Seen) -> R) -> (Self, R) {
        let taken = Cell::new(std::ptr::null_mut());
        // SAFETY: reads shared memory under a lock of Postgres.
        let next = unsafe { pg_sys::ReadNextFullTransactionId() }.value;
        // All ids of a snapshot lie within half of the circle around the next one.
        let with_epoch = |xid: pg_sys::TransactionId| {
            let behind = u32::from(xid).wrapping_sub(next as u32) as i32;
            next.wrapping_add_signed(behind.into())
        };
        let take = |in_progress: &mut [u32]| {
            // SAFETY: this is the only call of Postgres under the frontier's lock. It takes ProcArrayLock, shared,
            // while it reads the processes. No process that holds ProcArrayLock waits for the frontier's lock, because
            // no code of an extension runs while ProcArrayLock is held. So no deadlock is possible. The call raises
            // nothing: the call below, before the lock, has allocated the memory that it needs. The snapshot lies in
            // memory that is never freed, and has `xcnt` ids of top-level transactions.
            unsafe {
                let snapshot = pg_sys::GetLatestSnapshot();
                taken.set(snapshot);
                let count = (*snapshot).xcnt as usize;
                for (n, xid) in in_progress.iter_mut().enumerate().take(count) {
                    *xid = (*(*snapshot).xip.add(n)).into();
                }
                let (xmin, xmax) = ((*snapshot).xmin, (*snapshot).xmax);
                Seen { xmin: with_epoch(xmin), xmax: with_epoch(xmax), in_progress: count }
            }
        };
        take(&mut []);
        let result = hold(&take);
        // SAFETY: the last snapshot taken. The stack takes a copy, which holds back vacuum's horizon.
        unsafe { pg_sys::PushActiveSnapshot(taken.get()) };
        (Self(()), result)
    }
}

impl Drop for ActiveSnapshot {
    fn drop(&mut self) {
        // After an error the transaction's abort clears the stack.
        if !std::thread::panicking() {
            // SAFETY: pushed by `take` or `latest`. Every snapshot that was pushed since was popped.
            unsafe { pg_sys::PopActiveSnapshot() };
        }
    }
}
