//! Locks on tables and other objects, tried or waited for. Also a strategy for reading in bulk.
//!
//! Responsible for Postgres's heavyweight locks. Not responsible for the locks of shared memory (`shmem::lock`), nor
//! for waiting for another transaction (`transaction::wait_for_transaction`).
//!
//! Invariant: if `try_lock_whole` cannot take all locks, it releases the locks it has taken.

use pgrx::pg_sys;

use crate::pg::{session, syscache};

/// Returns how many other transactions hold a lock on this table that conflicts with the mode. Takes no lock, and so
/// delays no session. Must run in a transaction.
pub fn lock_holders(table: pg_sys::Oid, mode: u32) -> usize {
    let tag = pg_sys::LOCKTAG {
        locktag_field1: session::database().into(),
        locktag_field2: table.into(),
        locktag_field3: 0,
        locktag_field4: 0,
        locktag_type: pg_sys::LockTagType::LOCKTAG_RELATION as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
    };
    let mut count = 0;
    // SAFETY: reads the lock tables; the list is in memory of the transaction.
    unsafe { pg_sys::GetLockConflicts(&raw const tag, mode as pg_sys::LOCKMODE, &raw mut count) };
    usize::try_from(count).unwrap_or(0)
}

/// Takes a lock on a table until the transaction ends. Waits for it. Can raise: cancel, lock_timeout, deadlock.
pub fn lock(table: pg_sys::Oid, mode: u32) {
    // SAFETY: in a transaction.
    unsafe { pg_sys::LockRelationOid(table, mode as pg_sys::LOCKMODE) };
}

/// Takes one of many tokens of a table until the transaction ends. Waits for it. Can raise: cancel, lock_timeout,
/// deadlock. A token is no lock on the table, so sessions that use the table are not affected.
pub fn lock_token(table: pg_sys::Oid, token: u32) {
    // SAFETY: in a transaction. No catalog has the oid of a table of the extension, so nothing else uses this lock.
    unsafe { pg_sys::LockDatabaseObject(table, token.into(), 0, pg_sys::ExclusiveLock as pg_sys::LOCKMODE) };
}

/// Locks an extension against being dropped until the transaction ends. Does not wait. Returns false if another
/// transaction is dropping it.
pub fn try_lock_extension(extension: pg_sys::Oid) -> bool {
    try_lock_object(pg_sys::ExtensionRelationId, extension, 0, pg_sys::AccessShareLock)
}

/// Takes a table's own token until the transaction ends. Does not wait. Returns false if another transaction has it.
/// Sessions that use the table are not affected.
pub fn try_lock_token(table: pg_sys::Oid) -> bool {
    try_lock_part(table, 0, pg_sys::ExclusiveLock)
}

/// Takes one of a table's tokens in a mode. Otherwise as `try_lock_token`.
pub fn try_lock_part(table: pg_sys::Oid, part: u16, mode: u32) -> bool {
    // Postgres locks a table as a relation, and never as an object of pg_class.
    try_lock_object(pg_sys::RelationRelationId, table, part, mode)
}

/// Takes one of 2^48 tokens of a table in a mode until the transaction ends. Waits for it. Can raise: cancel,
/// lock_timeout, deadlock. Sessions that use the table are not affected.
pub fn lock_numbered(table: pg_sys::Oid, number: u64, mode: u32) {
    lock_object(table, (number as u32).into(), (number >> 32) as u16, mode, true);
}

/// As `lock_numbered`, but does not wait. Returns false if another transaction's lock conflicts.
pub fn try_lock_numbered(table: pg_sys::Oid, number: u64, mode: u32) -> bool {
    lock_object(table, (number as u32).into(), (number >> 32) as u16, mode, false)
}

fn try_lock_object(class: pg_sys::Oid, object: pg_sys::Oid, part: u16, mode: u32) -> bool {
    lock_object(class, object, part, mode, false)
}

fn lock_object(class: pg_sys::Oid, object: pg_sys::Oid, part: u16, mode: u32, waits: bool) -> bool {
    let tag = pg_sys::LOCKTAG {
        locktag_field1: session::database().into(),
        locktag_field2: class.into(),
        locktag_field3: object.into(),
        locktag_field4: part,
        locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
    };
    // SAFETY: a lock of the transaction.
    let answer = unsafe { pg_sys::LockAcquire(&raw const tag, mode as pg_sys::LOCKMODE, false, !waits) };
    answer != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
}

/// Takes a lock on a table until the transaction ends. Does not wait. Returns false if another transaction's lock
/// conflicts.
pub fn try_lock(table: pg_sys::Oid, mode: u32) -> bool {
    // SAFETY: in a transaction.
    unsafe { pg_sys::ConditionalLockRelationOid(table, mode as pg_sys::LOCKMODE) }
}

/// Locks tables with their indexes and toast tables until the transaction ends: all of them or none. Does not wait.
/// Returns true if it has all locks.
pub fn try_lock_whole(tables: &[pg_sys::Oid], mode: u32) -> bool {
    fn lock_one(table: pg_sys::Oid, mode: u32, locked: &mut Vec<pg_sys::Oid>) -> bool {
        let mut try_one = |oid| {
            let is_locked = try_lock(oid, mode);
            if is_locked {
                locked.push(oid);
            }
            is_locked
        };
        if !try_one(table) {
            return false;
        }
        // SAFETY: the table is locked; the list is one of oids.
        let (indexes, toast) = unsafe {
            let rel = pg_sys::table_open(table, pg_sys::NoLock as pg_sys::LOCKMODE);
            let indexes = syscache::index_oids(rel);
            let toast = (*(*rel).rd_rel).reltoastrelid;
            pg_sys::table_close(rel, pg_sys::NoLock as pg_sys::LOCKMODE);
            (indexes, toast)
        };
        indexes.into_iter().all(try_one) && (toast == pg_sys::InvalidOid || lock_one(toast, mode, locked))
    }
    let mut locked = Vec::new();
    let is_whole = tables.iter().all(|&table| lock_one(table, mode, &mut locked));
    if !is_whole {
        // SAFETY: taken above.
        locked.into_iter().for_each(|oid| unsafe { pg_sys::UnlockRelationOid(oid, mode as pg_sys::LOCKMODE) });
    }
    is_whole
}

/// Returns a strategy for reading a whole table without evicting the pages of other tables from the cache. It lies in
/// the current memory context.
pub fn bulk_reading() -> pg_sys::BufferAccessStrategy {
    // SAFETY: allocates.
    unsafe { pg_sys::GetAccessStrategy(pg_sys::BufferAccessStrategyType::BAS_BULKREAD) }
}
