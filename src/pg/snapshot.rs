//! Snapshots: which transactions a session sees.
//!
//! Responsible for giving up a statement's snapshots, and for an active snapshot. Not responsible for reading by one
//! (`scan`).
//!
//! Invariant: a snapshot that was pushed here is popped on every way out, by its value or by the transaction's abort.

use std::cell::Cell;

use pgrx::pg_sys;

/// Gives up every snapshot of this statement, so that the session's xmin is empty while it sleeps. Only for a procedure
/// in a non-atomic context (`Call::is_atomic`).
pub fn drop_snapshots() {
    // SAFETY: a procedure in a non-atomic context: the active snapshot belongs to the CALL and is not used after this;
    // PostgreSQL's own pg_wal_replay_wait pops it in the same way. The portal holds the same snapshot, and another for
    // the row that the CALL will return; a COMMIT at this point would find and release both, too.
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

/// Which transactions a snapshot sees. See `pg_queue_core::counter::Horizon`.
#[derive(Clone, Copy)]
pub struct Seen {
    /// All transactions before it have ended.
    pub xmin: u32,
    /// No transaction from it on had ended.
    pub xmax: u32,
    /// How many transactions between `xmin` and `xmax` were in progress.
    pub in_progress: usize,
}

/// A snapshot of one moment, by which `scan::Snapshot::Statement` reads until this value is dropped.
pub struct ActiveSnapshot(());

impl ActiveSnapshot {
    /// Takes the snapshot of this moment, in every isolation level. Unlike `scan::Snapshot::Now` it never misses a row
    /// that is updated during the scan. The transaction must have a snapshot.
    pub fn latest() -> Self {
        // SAFETY: in a transaction that has a snapshot, since it runs a statement; the stack takes a copy.
        unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot()) };
        Self(())
    }

    /// The same, with all that this transaction has done by now, also in this statement.
    pub fn with_own() -> Self {
        // SAFETY: in a transaction. Nothing is counted where it has written nothing.
        unsafe { pg_sys::CommandCounterIncrement() };
        Self::latest()
    }

    /// Takes the snapshot of this moment without what this transaction has done itself.
    pub fn of_others() -> Self {
        let latest = Self::latest();
        // SAFETY: the copy on the stack, which was pushed a moment ago and is no one else's.
        unsafe { (*pg_sys::GetActiveSnapshot()).curcid = pg_sys::FirstCommandId };
        latest
    }

    /// Takes the snapshot within `hold`, which calls its argument once and may do so under the frontier's lock. The
    /// argument takes the snapshot, copies the ids of the transactions in progress into a slice, as many as fit, and
    /// returns which transactions the snapshot sees. The transaction must have a snapshot. Not on a standby.
    pub fn take<R>(hold: impl FnOnce(&dyn Fn(&mut [u32]) -> Seen) -> R) -> (Self, R) {
        let taken = Cell::new(std::ptr::null_mut());
        let take = |in_progress: &mut [u32]| {
            // SAFETY: this is the one call of Postgres under the frontier's lock. It takes ProcArrayLock, shared, while
            // it looks through the processes. No process that holds ProcArrayLock waits for the frontier's lock, since
            // no code of an extension runs while ProcArrayLock is held: so there is no deadlock. The call raises
            // nothing: the memory that it allocates once was allocated by the call below, before the lock. The snapshot
            // lies in memory that is never freed, and has `xcnt` ids of top-level transactions.
            unsafe {
                let snapshot = pg_sys::GetLatestSnapshot();
                taken.set(snapshot);
                let count = (*snapshot).xcnt as usize;
                for (n, xid) in in_progress.iter_mut().enumerate().take(count) {
                    *xid = (*(*snapshot).xip.add(n)).into();
                }
                Seen { xmin: (*snapshot).xmin.into(), xmax: (*snapshot).xmax.into(), in_progress: count }
            }
        };
        take(&mut []);
        let result = hold(&take);
        // SAFETY: the snapshot that was taken last. The stack takes a copy, which holds back the horizon of vacuum.
        unsafe { pg_sys::PushActiveSnapshot(taken.get()) };
        (Self(()), result)
    }
}

impl Drop for ActiveSnapshot {
    fn drop(&mut self) {
        // After an error the transaction's abort clears the stack.
        if !std::thread::panicking() {
            // SAFETY: pushed by `take` or `latest`; every snapshot that was pushed since was popped.
            unsafe { pg_sys::PopActiveSnapshot() };
        }
    }
}
