//! The unsafe fence: small, safe functions over raw calls of Postgres and the operating system.
//!
//! Nothing here keeps state. A function that can raise a Postgres error says so.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, PgTryBuilder};

use crate::error::{self, Error, Result};

/// Functions of Postgres that the bindings leave out.
pub mod raw {
    use std::ffi::{c_char, c_int};

    use pgrx::pg_sys;

    unsafe extern "C-unwind" {
        pub fn errstart(level: c_int, domain: *const c_char) -> bool;
        pub fn errcode(code: c_int) -> c_int;
        pub fn errmsg(format: *const c_char, ...) -> c_int;
        pub fn errdetail(format: *const c_char, ...) -> c_int;
        pub fn errhint(format: *const c_char, ...) -> c_int;
        pub fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
        pub fn pq_check_connection() -> bool;
        pub fn nextval_internal(sequence: pg_sys::Oid, check_permissions: bool) -> i64;
        pub fn find_inheritance_children(parent: pg_sys::Oid, mode: pg_sys::LOCKMODE) -> *mut pg_sys::List;
        pub fn Async_Notify(channel: *const c_char, payload: *const c_char);
        pub fn hash_bytes_extended(bytes: *const u8, length: c_int, seed: u64) -> u64;
        pub fn get_timeout_active(timeout: c_int) -> bool;
        pub fn get_timeout_finish_time(timeout: c_int) -> pg_sys::TimestampTz;
    }

    unsafe extern "C" {
        pub static max_prepared_xacts: c_int;
    }

    #[cfg(feature = "pg14")]
    unsafe extern "C" {
        pub static autovacuum_max_workers: c_int;
    }

    // These the bindings have, but behind a guard, which costs more than a function that raises nothing, or as a Rust
    // function that cannot be a handler.
    unsafe extern "C-unwind" {
        pub fn GetCurrentTimestamp() -> pg_sys::TimestampTz;
        pub fn GetCurrentSubTransactionId() -> pg_sys::SubTransactionId;
        pub fn GetTopTransactionIdIfAny() -> pg_sys::TransactionId;
        pub fn RecoveryInProgress() -> bool;
        pub fn GetUserId() -> pg_sys::Oid;
        pub fn GetUserIdAndSecContext(user: *mut pg_sys::Oid, context: *mut c_int);
        pub fn SetUserIdAndSecContext(user: pg_sys::Oid, context: c_int);
        pub fn LWLockAcquire(lock: *mut pg_sys::LWLock, mode: pg_sys::LWLockMode::Type) -> bool;
        pub fn LWLockRelease(lock: *mut pg_sys::LWLock);
        pub fn die(signal: c_int);
        pub fn SignalHandlerForConfigReload(signal: c_int);
        pub fn standard_ProcessUtility(
            planned: *mut pg_sys::PlannedStmt,
            query: *const c_char,
            read_only_tree: bool,
            context: pg_sys::ProcessUtilityContext::Type,
            params: pg_sys::ParamListInfo,
            environment: *mut pg_sys::QueryEnvironment,
            receiver: *mut pg_sys::DestReceiver,
            completion: *mut pg_sys::QueryCompletion,
        );
    }
}

/// Postgres's hash of a text, the same on all servers of one byte order.
pub fn hash(text: &str) -> i64 {
    // SAFETY: reads so many bytes, and has nothing to raise.
    unsafe { raw::hash_bytes_extended(text.as_ptr(), text.len() as i32, 0) as i64 }
}

/// The innermost open subtransaction.
pub fn subtransaction() -> pg_sys::SubTransactionId {
    // SAFETY: reads this backend's transaction state.
    unsafe { raw::GetCurrentSubTransactionId() }
}

/// Microseconds of a clock that no one sets.
pub fn monotonic_us() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writing; CLOCK_MONOTONIC exists on every platform Postgres runs on.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

/// The wall clock, in microseconds as `timestamptz` counts them.
pub fn now_us() -> i64 {
    // SAFETY: reads the clock.
    unsafe { raw::GetCurrentTimestamp() }
}

/// This session's number, from 0, below the number of sessions in shared memory.
pub fn session() -> u32 {
    // SAFETY: a plain global of this backend, set before any of our code can run in it.
    #[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
    let number = unsafe { pg_sys::MyBackendId } - 1;
    // SAFETY: as above.
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    let number = unsafe { pg_sys::MyProcNumber };
    u32::try_from(number).unwrap_or(0)
}

/// This process's id.
pub fn pid() -> i32 {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::MyProcPid }
}

/// The database this session is connected to; invalid in the launcher.
pub fn database() -> pg_sys::Oid {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::MyDatabaseId }
}

/// Whether the server is recovering or a standby.
pub fn in_recovery() -> bool {
    // SAFETY: reads shared memory.
    unsafe { raw::RecoveryInProgress() }
}

/// Whether the server runs for pg_upgrade alone.
pub fn is_binary_upgrade() -> bool {
    // SAFETY: a plain global that the postmaster sets before everything.
    unsafe { pg_sys::IsBinaryUpgrade }
}

/// Whether the script of an extension is running.
pub fn is_in_extension_script() -> bool {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::creating_extension }
}

/// The number that this server's data directory got from initdb; copies of it have the same.
pub fn system_identifier() -> i64 {
    // SAFETY: reads what the server has read at its start.
    unsafe { pg_sys::GetSystemIdentifier() }.cast_signed()
}

/// Whether the transaction may not write.
pub fn is_read_only() -> bool {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::XactReadOnly }
}

/// Whether the transaction reads by one snapshot from its begin to its end.
pub fn uses_one_snapshot() -> bool {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as c_int }
}

/// Whether the transaction has written something.
pub fn has_xid() -> bool {
    // SAFETY: reads this backend's transaction state.
    unsafe { pg_sys::GetTopTransactionIdIfAny() != pg_sys::TransactionId::from(0) }
}

/// The id of the transaction, its top level's; 0: it has written nothing. Also while it is committing.
pub fn transaction_id() -> u32 {
    // SAFETY: reads this backend's transaction state.
    unsafe { raw::GetTopTransactionIdIfAny() }.into()
}

/// The id of the innermost open subtransaction, which gets one if it has none.
pub fn subtransaction_xid() -> u32 {
    // SAFETY: in a transaction that may write.
    unsafe { pg_sys::GetCurrentTransactionId() }.into()
}

/// Whether this is the id of the open transaction, or of a part of it.
pub fn is_current(xid: u32) -> bool {
    // SAFETY: reads this backend's transaction state.
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(xid.into()) }
}

/// Whether a transaction is open, prepared ones included; not this session's.
pub fn is_in_progress(xid: u32) -> bool {
    // SAFETY: reads shared memory.
    unsafe { pg_sys::TransactionIdIsInProgress(xid.into()) }
}

/// Waits until a transaction of another session has ended, as one waits for a row's lock: it is seen in pg_locks, and
/// ended by an error on cancel, lock_timeout and deadlock.
pub fn wait_for_transaction(xid: u32) {
    // SAFETY: without a relation nothing is said about what is waited for.
    unsafe {
        pg_sys::XactLockTableWait(xid.into(), std::ptr::null_mut(), std::ptr::null_mut(), pg_sys::XLTW_Oper::XLTW_None);
    }
}

/// What a snapshot sees, see `pg_queue_core::tally::Horizon`.
#[derive(Clone, Copy)]
pub struct Seen {
    pub xmin: u32,
    pub xmax: u32,
    /// How many transactions in between were in progress.
    pub in_progress: usize,
}

/// A snapshot of one moment, by which `Snapshot::Statement` reads until this is dropped.
pub struct ActiveSnapshot(());

impl ActiveSnapshot {
    /// Takes that of this moment, whatever the transaction's isolation. Unlike `Snapshot::Now` it never misses a row that is
    /// being updated while it is looked for.
    pub fn latest() -> Self {
        // SAFETY: in a transaction that has a snapshot, since it runs a statement; the stack takes a copy.
        unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot()) };
        Self(())
    }

    /// Takes it within `hold`, which calls its argument once, also under the frontier's lock; that copies the ids
    /// of transactions in progress, as many as fit. In a transaction that has a snapshot, not on a standby.
    pub fn take<R>(hold: impl FnOnce(&dyn Fn(&mut [u32]) -> Seen) -> R) -> (Self, R) {
        let taken = Cell::new(std::ptr::null_mut());
        let take = |in_progress: &mut [u32]| {
            // SAFETY: under the frontier's lock this is the one call of Postgres. It takes ProcArrayLock, shared, for the
            // time it takes to look through the processes. Nobody who has that lock comes to want ours, for no
            // code of an extension runs while it is held: so there is no deadlock. It raises nothing: what it
            // allocates once was allocated by the call below, before the lock. The snapshot lies in memory that is
            // there for ever, and has `xcnt` ids of top-level transactions.
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
        // SAFETY: the snapshot that was taken last. The stack takes a copy, which holds back the horizon.
        unsafe { pg_sys::PushActiveSnapshot(taken.get()) };
        (Self(()), result)
    }
}

impl Drop for ActiveSnapshot {
    fn drop(&mut self) {
        // After an error the transaction's abort clears the stack.
        if !std::thread::panicking() {
            // SAFETY: pushed by `take`; whatever was pushed since was popped.
            unsafe { pg_sys::PopActiveSnapshot() };
        }
    }
}

/// Whether there can be prepared transactions.
pub fn has_prepared_transactions() -> bool {
    // SAFETY: a setting that is fixed when the server has started.
    unsafe { raw::max_prepared_xacts > 0 }
}

/// When statement_timeout will strike, as `timestamptz`; `None` when it will not.
pub fn statement_deadline_us() -> Option<i64> {
    /// STATEMENT_TIMEOUT in timeout.h, the same in 14 to 18.
    const STATEMENT_TIMEOUT: c_int = 3;
    let timeout = STATEMENT_TIMEOUT;
    // SAFETY: both read this backend's timer table; the id is one of Postgres's own.
    unsafe { raw::get_timeout_active(timeout).then(|| raw::get_timeout_finish_time(timeout)) }
}

/// Makes all that is in the write-ahead log by now durable.
pub fn flush_log() {
    const PAGE: u64 = pg_sys::XLOG_BLCKSZ as u64;
    /// SizeOfXLogShortPHD and SizeOfXLogLongPHD, the same in 14 to 18.
    const HEADER: u64 = 24;
    const FIRST_HEADER: u64 = 40;
    // SAFETY: reads shared memory and a plain global, and waits for the disk. Where the log ends with a page,
    // the insert position lies behind the header of the next one, which is not there yet: to flush up to it
    // would be an error. No record ends just behind a header.
    unsafe {
        let at = pg_sys::GetXLogInsertRecPtr();
        let is_first = at % (pg_sys::wal_segment_size as u64) < PAGE;
        let header = if is_first { FIRST_HEADER } else { HEADER };
        pg_sys::XLogFlush(if at % PAGE == header { at - header } else { at });
    }
}

/// Raises an error when this session was cancelled or terminated.
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
}

/// How many transactions hold a lock on this table that conflicts with the mode; takes no lock, and so delays
/// nobody. In a transaction.
pub fn lock_holders(table: pg_sys::Oid, mode: u32) -> usize {
    let tag = pg_sys::LOCKTAG {
        locktag_field1: database().into(),
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

/// Whether a dump may be running: pg_dump reads an extension's tables late and looks others up a moment before it
/// locks them, but holds a lock on pg_extension from its begin to its end.
pub fn is_being_dumped() -> bool {
    lock_holders(pg_sys::ExtensionRelationId, pg_sys::AccessExclusiveLock) > 0
}

/// Takes a lock on a table until the transaction ends; waits for it. Can raise.
pub fn lock(table: pg_sys::Oid, mode: u32) {
    // SAFETY: in a transaction.
    unsafe { pg_sys::LockRelationOid(table, mode as pg_sys::LOCKMODE) };
}

/// Locks an extension against being dropped until the transaction ends. False: somebody is dropping it.
pub fn try_lock_extension(extension: pg_sys::Oid) -> bool {
    try_lock_object(pg_sys::ExtensionRelationId, extension, 0, pg_sys::AccessShareLock)
}

/// Takes a table as a token until the transaction ends: others who want it so get false, and who uses the table
/// notices nothing.
pub fn try_lock_token(table: pg_sys::Oid) -> bool {
    try_lock_part(table, 0, pg_sys::ExclusiveLock)
}

/// The same with one of many tokens, and a mode.
pub fn try_lock_part(table: pg_sys::Oid, part: u16, mode: u32) -> bool {
    // Postgres locks a table as a relation, and never as an object of pg_class.
    try_lock_object(pg_sys::RelationRelationId, table, part, mode)
}

fn try_lock_object(class: pg_sys::Oid, object: pg_sys::Oid, part: u16, mode: u32) -> bool {
    let tag = pg_sys::LOCKTAG {
        locktag_field1: database().into(),
        locktag_field2: class.into(),
        locktag_field3: object.into(),
        locktag_field4: part,
        locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
    };
    // SAFETY: a lock of the transaction, not waited for.
    let answer = unsafe { pg_sys::LockAcquire(&raw const tag, mode as pg_sys::LOCKMODE, false, true) };
    answer != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
}

/// Takes a lock on a table until the transaction ends, if nobody is in the way.
pub fn try_lock(table: pg_sys::Oid, mode: u32) -> bool {
    // SAFETY: in a transaction.
    unsafe { pg_sys::ConditionalLockRelationOid(table, mode as pg_sys::LOCKMODE) }
}

/// Takes locks on tables with their indexes and toast tables, all of them or none; waits for nobody.
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
            let list = pg_sys::RelationGetIndexList(rel);
            let count = if list.is_null() { 0 } else { usize::try_from((*list).length).unwrap_or(0) };
            let indexes: Vec<pg_sys::Oid> = (0..count).map(|n| (*(*list).elements.add(n)).oid_value).collect();
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

/// Empties a table with its indexes, at once and for good, whatever becomes of the transaction. Nothing in the
/// catalogs changes, so that a turn of the ring leaves no dead row there either. The caller has locked it, whole,
/// against everybody. What TRUNCATE does to a table that its own transaction has made.
pub fn truncate(table: pg_sys::Oid) {
    // SAFETY: the relation is locked exclusively by this transaction, its indexes and its toast table are
    // locked by the function.
    unsafe {
        let rel = pg_sys::table_open(table, pg_sys::NoLock as pg_sys::LOCKMODE);
        pg_sys::heap_truncate_one_rel(rel);
        pg_sys::table_close(rel, pg_sys::NoLock as pg_sys::LOCKMODE);
    }
}

/// How to read a whole table without driving others' pages out of the cache. In memory of the transaction.
pub fn bulk_reading() -> pg_sys::BufferAccessStrategy {
    // SAFETY: allocates.
    unsafe { pg_sys::GetAccessStrategy(pg_sys::BufferAccessStrategyType::BAS_BULKREAD) }
}

/// Whether the session is in a transaction block, or in a subtransaction.
pub fn in_transaction_block() -> bool {
    // SAFETY: reads this backend's transaction state.
    unsafe { pg_sys::IsTransactionBlock() || pg_sys::GetCurrentTransactionNestLevel() > 1 }
}

/// A datum of a variable-length type without any part in a toast table, which may be truncated while the datum
/// is in use.
pub fn fetched(datum: pg_sys::Datum) -> pg_sys::Datum {
    let pointer: *mut pg_sys::varlena = datum.cast_mut_ptr();
    // SAFETY: a datum of a variable-length type; its header tells where it is.
    unsafe {
        if pgrx::varlena::varatt_is_1b_e(pointer) { pg_sys::detoast_external_attr(pointer).into() } else { datum }
    }
}

/// A datum of a variable-length type, whole and not compressed; in the current memory context if that takes a copy.
pub fn plain(datum: pg_sys::Datum) -> pg_sys::Datum {
    // SAFETY: a datum of a variable-length type.
    unsafe { pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr()).into() }
}

/// The bytes of a datum that is `plain`; good as long as that.
pub fn bytes_of(datum: &pg_sys::Datum) -> &[u8] {
    // SAFETY: a datum of a variable-length type that is neither toasted nor compressed, by the caller's promise.
    unsafe { pgrx::varlena_to_byte_slice(datum.cast_mut_ptr()) }
}

/// Memory for what is needed for a moment only, many times.
pub struct Scratch(pgrx::PgMemoryContexts);

impl Scratch {
    /// Some.
    pub fn new() -> Self {
        Self(pgrx::PgMemoryContexts::new("pg_queue scratch"))
    }

    /// Runs `f` with it, and frees what was allocated in it. What `f` returns does not lie there.
    pub fn lend<R>(&mut self, f: impl FnOnce() -> R) -> R {
        // SAFETY: the context before is set again; nothing points here any more, by the caller's promise.
        unsafe {
            let result = self.0.switch_to(|_| f());
            self.0.reset();
            result
        }
    }
}

/// A copy of a datum of a variable-length type, as `fetched`.
pub fn owned(datum: pg_sys::Datum) -> pg_sys::Datum {
    // SAFETY: a datum of a variable-length type.
    unsafe { pg_sys::pg_detoast_datum_copy(datum.cast_mut_ptr()).into() }
}

/// The tables that inherit from this one.
pub fn children(table: pg_sys::Oid) -> Vec<pg_sys::Oid> {
    // SAFETY: a look-up in the catalogs; the list is one of oids.
    unsafe {
        let found = raw::find_inheritance_children(table, pg_sys::NoLock as pg_sys::LOCKMODE);
        if found.is_null() {
            return Vec::new();
        }
        let count = usize::try_from((*found).length).unwrap_or(0);
        (0..count).map(|n| (*(*found).elements.add(n)).oid_value).collect()
    }
}

/// Has a table dropped with our extension, though it is no member. In a transaction.
pub fn depend_on_our_extension(table: pg_sys::Oid) {
    let address =
        |class_id, object_id| pg_sys::ObjectAddress { classId: class_id, objectId: object_id, objectSubId: 0 };
    // SAFETY: both objects exist.
    unsafe {
        let extension = pg_sys::get_extension_oid(c"pg_queue".as_ptr(), false);
        let (this, that) =
            (address(pg_sys::RelationRelationId, table), address(pg_sys::ExtensionRelationId, extension));
        let kind = pg_sys::DependencyType::DEPENDENCY_AUTO_EXTENSION;
        pg_sys::recordDependencyOn(&raw const this, &raw const that, kind);
    }
}

/// The name of a table; `None` when it is gone.
pub fn table_name(table: pg_sys::Oid) -> Option<String> {
    // SAFETY: a look-up in the catalogs; null when there is none.
    unsafe {
        let name = pg_sys::get_rel_name(table);
        (!name.is_null()).then(|| text(name))
    }
}

/// The toast table of a table, if it has one.
pub fn toast_table(table: pg_sys::Oid) -> Option<pg_sys::Oid> {
    let cache = pg_sys::SysCacheIdentifier::RELOID;
    by_oid(cache, table, |row: &pg_sys::FormData_pg_class| row.reltoastrelid).filter(|&oid| oid != pg_sys::Oid::INVALID)
}

/// The encoding of this database, if it is not UTF8.
pub fn other_encoding() -> Option<String> {
    // SAFETY: plain look-ups; the name is a static C string.
    unsafe {
        let encoding = pg_sys::GetDatabaseEncoding();
        (encoding != pg_sys::pg_enc::PG_UTF8 as c_int)
            .then(|| CStr::from_ptr(pg_sys::GetDatabaseEncodingName()).to_string_lossy().into_owned())
    }
}

/// Whether there is such an index, and it is in use.
pub fn is_valid_index(index: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::INDEXRELID;
    by_oid(cache, index, |row: &pg_sys::FormData_pg_index| row.indisvalid) == Some(true)
}

/// The b-tree on this column alone of a table, which is or is not partial; of several, which users may have added, the one
/// whose name ends so. `table` must be locked.
pub fn index_on(table: pg_sys::Oid, column: i16, is_partial: bool, name_end: &str) -> Option<pg_sys::Oid> {
    // SAFETY: the relation is locked by the caller; the list of its indexes is ours, the rows of pg_index are
    // valid until released.
    let fitting: Vec<pg_sys::Oid> = unsafe {
        let rel = pg_sys::table_open(table, pg_sys::NoLock as pg_sys::LOCKMODE);
        let indexes = pg_sys::RelationGetIndexList(rel);
        let count = if indexes.is_null() { 0 } else { usize::try_from((*indexes).length).unwrap_or(0) };
        let fits = |index: &pg_sys::Oid| {
            let cache = pg_sys::SysCacheIdentifier::INDEXRELID;
            let row = pg_sys::SearchSysCache1(cache as c_int, pg_sys::Datum::from(*index));
            if row.is_null() {
                return false;
            }
            let form = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_index>(row);
            let first = form.indkey.values.as_slice(1)[0];
            let mut no_condition = false;
            pg_sys::SysCacheGetAttr(cache as c_int, row, pg_sys::Anum_pg_index_indpred as i16, &raw mut no_condition);
            let fits = first == column && form.indnatts == 1 && form.indisvalid && no_condition != is_partial;
            pg_sys::ReleaseSysCache(row);
            fits && is_btree(*index)
        };
        let fitting = (0..count).map(|n| (*(*indexes).elements.add(n)).oid_value).filter(fits).collect();
        pg_sys::table_close(rel, pg_sys::NoLock as pg_sys::LOCKMODE);
        fitting
    };
    let is_ours = |index: &&pg_sys::Oid| table_name(**index).is_some_and(|name| name.ends_with(name_end));
    match fitting.as_slice() {
        [only] => Some(*only),
        several => several.iter().find(is_ours).or(several.first()).copied(),
    }
}

fn is_btree(index: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::RELOID;
    by_oid(cache, index, |row: &pg_sys::FormData_pg_class| row.relam == pg_sys::BTREE_AM_OID) == Some(true)
}

/// Reads what other sessions have said about changed definitions.
pub fn accept_invalidations() {
    // SAFETY: allowed at any time in a transaction.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// A `timestamptz` as JSON has it: ISO 8601, with the offset of the session's time zone.
pub fn iso_time(at: i64) -> String {
    let form = crate::call::text_datum("YYYY-MM-DD\"T\"HH24:MI:SS.USTZH:TZM");
    // SAFETY: prints a timestamptz into memory of the current context.
    let text =
        unsafe { pgrx::direct_function_call_as_datum(pg_sys::timestamptz_to_char, &[Some(at.into()), Some(form)]) };
    text.map(crate::call::text).unwrap_or_default()
}

/// Sleeps until this session's latch is set or the time is over, and resets the latch. Cancel and
/// termination end it by an error; the postmaster's death ends the process.
pub fn sleep(milliseconds: i64) {
    let events = (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as c_int;
    // SAFETY: MyLatch is this backend's own latch, always valid while it runs.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events, milliseconds.max(0), pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    check_for_interrupts();
}

/// Whether the client has closed its connection, as far as the system knows; what it may have sent before is left alone.
/// Asked by Postgres itself only with `client_connection_check_interval`.
pub fn is_client_gone() -> bool {
    // SAFETY: plain globals; there is a port where a client is at the other end. It polls and waits for nothing; an error
    // becomes an unwinding at the guard.
    unsafe { !pg_sys::MyProcPort.is_null() && !pg_sys::ffi::pg_guard_ffi_boundary(|| raw::pq_check_connection()) }
}

/// Sends NOTIFY at commit. Can raise: a payload is at most 8000 bytes.
pub fn notify(channel: &CStr, payload: &CStr) {
    // SAFETY: copies both strings; an error becomes an unwinding at the guard.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| raw::Async_Notify(channel.as_ptr(), payload.as_ptr())) };
}

/// Raises a Postgres error from outside any Rust guard.
///
/// # Safety
/// The pointers are null (detail, hint) or C strings that outlive the call in Postgres's memory; no
/// frame between the caller's and Postgres's holds anything that must be dropped.
pub unsafe fn raise(code: [u8; 5], message: *const i8, detail: *const i8, hint: *const i8) -> ! {
    /// ERROR in elog.h.
    const ERROR: c_int = 21;
    let packed = code.iter().rev().fold(0, |all, c| (all << 6) | ((c_int::from(*c) - 0x30) & 0x3f));
    // SAFETY: the order of calls that ereport() expands to; formats are constant, arguments are C strings.
    unsafe {
        raw::errstart(ERROR, std::ptr::null());
        raw::errcode(packed);
        raw::errmsg(c"%s".as_ptr(), message);
        if !detail.is_null() {
            raw::errdetail(c"%s".as_ptr(), detail);
        }
        if !hint.is_null() {
            raw::errhint(c"%s".as_ptr(), hint);
        }
        raw::errfinish(c"pg_queue".as_ptr(), 0, c"".as_ptr());
    }
    unreachable!("errfinish does not return")
}

/// The text of a C string of Postgres, lossily.
///
/// # Safety
/// `text` is a valid C string.
pub unsafe fn text(text: *const i8) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

// ----- background processes

/// A signal handler.
pub type Handler = unsafe extern "C-unwind" fn(c_int);

/// Installs a signal handler.
pub fn handle_signal(signal: c_int, handler: Handler) {
    // SAFETY: a handler of Postgres's or of ours that only sets flags and latches.
    #[cfg(not(feature = "pg18"))]
    unsafe {
        pg_sys::pqsignal(signal, Some(handler))
    };
    // SAFETY: as above; the function has another name here.
    #[cfg(feature = "pg18")]
    unsafe {
        pg_sys::pqsignal_be(signal, Some(handler))
    };
}

/// Lets signals in, which a background process starts without.
pub fn unblock_signals() {
    // SAFETY: the handlers are installed.
    unsafe { pg_sys::BackgroundWorkerUnblockSignals() };
}

/// Has `f` run when this process exits in whatever way but a crash, after its transaction was aborted
/// and, if it has connected since, after it was taken from the list of connections.
pub fn at_exit(f: unsafe extern "C-unwind" fn(c_int, pg_sys::Datum)) {
    // SAFETY: a function of this library, which is never unloaded.
    unsafe { pg_sys::on_shmem_exit(Some(f), pg_sys::Datum::from(0)) };
}

/// Connects a background process to a database as the cluster's owner, or to none. Ends the process if
/// it cannot.
pub fn connect(database: Option<pg_sys::Oid>) {
    // SAFETY: called once per process, from its main function, after signals were let in.
    unsafe {
        match database {
            Some(oid) => pg_sys::BackgroundWorkerInitializeConnectionByOid(oid, pg_sys::Oid::INVALID, 0),
            None => pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0),
        }
    }
}

/// Ends this process.
#[allow(unreachable_code, reason = "the bindings of 14 to 17 know that it does not return")]
pub fn exit(code: c_int) -> ! {
    // SAFETY: ends the process in order; nothing here runs any more.
    unsafe { pg_sys::proc_exit(code) };
    unreachable!("proc_exit does not return")
}

/// This process's latch, in shared memory.
pub fn my_latch() -> *mut pg_sys::Latch {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::MyLatch }
}

/// Resets this process's latch: from now on a wake-up is kept for `wait_latch`.
pub fn reset_latch() {
    // SAFETY: MyLatch is this backend's own latch, always valid while it runs.
    unsafe { pg_sys::ResetLatch(pg_sys::MyLatch) };
}

/// Sleeps until this process's latch is set or the time is over; `None`: no time. Handles no interrupts.
/// The postmaster's death ends the process.
pub fn wait_latch(milliseconds: Option<i64>) {
    let timeout = if milliseconds.is_some() { pg_sys::WL_TIMEOUT } else { 0 };
    let events = (pg_sys::WL_LATCH_SET | timeout | pg_sys::WL_EXIT_ON_PM_DEATH) as c_int;
    // Any time-out is at most this long; waking for nothing once a day is no harm.
    let milliseconds = milliseconds.unwrap_or(0).clamp(0, 86_400_000);
    // SAFETY: MyLatch is this backend's own latch, always valid while it runs.
    unsafe { pg_sys::WaitLatch(pg_sys::MyLatch, events, milliseconds, pg_sys::PG_WAIT_EXTENSION) };
}

/// Microseconds as milliseconds to sleep, rounded up, so that one does not wake too early.
pub fn milliseconds(microseconds: i64) -> i64 {
    microseconds.max(0).saturating_add(999) / 1000
}

/// Forgets a cancel request that has not been served.
pub fn forget_cancel() {
    // SAFETY: a flag that a signal handler of this process sets.
    unsafe { pg_sys::QueryCancelPending = 0 };
}

/// Forgets a termination request that has not been served: the process ends by itself.
pub fn forget_termination() {
    // SAFETY: a flag that a signal handler of this process sets.
    unsafe { pg_sys::ProcDiePending = 0 };
}

/// Takes the catalog changes that others wait for us to take, as an idle session does.
pub fn catch_up() {
    // SAFETY: does nothing unless asked to; between two transactions.
    unsafe { pg_sys::ProcessCatchupInterrupt() };
}

/// Reads the settings again if SIGHUP came.
pub fn reload_settings() {
    // SAFETY: a flag that a signal handler of this process sets; between two transactions.
    unsafe {
        if pg_sys::ConfigReloadPending != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
}

/// Sets a setting for this process over whatever else says.
pub fn set_option(name: &CStr, value: &CStr) {
    // SAFETY: C strings that are copied.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}

/// Names this session for those who look at the list of sessions.
pub fn set_application_name(name: &str) {
    if let Ok(name) = std::ffi::CString::new(name) {
        set_option(c"application_name", &name);
    }
}

/// Says in the list of sessions what this process does; `None`: nothing.
pub fn report_activity(what: Option<&CStr>) {
    use pg_sys::BackendState::{STATE_IDLE, STATE_RUNNING};
    let (state, text) = what.map_or((STATE_IDLE, std::ptr::null()), |text| (STATE_RUNNING, text.as_ptr()));
    // SAFETY: the text is copied.
    unsafe { pg_sys::pgstat_report_activity(state, text) };
}

/// `report_activity` of a Rust text.
pub fn report_activity_text(what: &str) {
    report_activity(std::ffi::CString::new(what).ok().as_deref());
}

/// Hands over this process's statistics.
pub fn flush_statistics() {
    // SAFETY: between two transactions.
    unsafe { pg_sys::pgstat_report_stat(true) };
}

/// Runs `f` in a transaction with an active snapshot. After an error call `abort_after_error`.
pub fn in_transaction<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: called between two transactions; `f` leaves the snapshot stack as it found it.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
    }
    let result = f();
    // SAFETY: what was begun above.
    unsafe {
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
    }
    result
}

/// Brings this process back between two transactions after an error was caught, as the main loop of a
/// session does.
pub fn abort_after_error() {
    // SAFETY: interrupts are held off, so that none of them raises an error on the way; whatever is open
    // is aborted, which also gives back locks, buffers and the rest.
    unsafe {
        pg_sys::InterruptHoldoffCount += 1;
        pg_sys::QueryCancelPending = 0;
        pg_sys::AbortOutOfAnyTransaction();
        pg_sys::InterruptHoldoffCount -= 1;
    }
}

/// Runs `f` in a subtransaction, which is rolled back when it returns an error or raises one. Errors by which the
/// session or its server is in trouble, and not `f`, pass.
pub fn in_subtransaction<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    enclosed(f, true, |code| {
        matches!(
            code,
            PgSqlErrorCode::ERRCODE_QUERY_CANCELED
                | PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE
                | PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY
                | PgSqlErrorCode::ERRCODE_DISK_FULL
        )
    })
}

/// Runs `f`, which only looks, in a subtransaction that is rolled back in any case, so that it keeps no lock. Whatever
/// it raises is returned, but for a cancel.
pub fn look<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    enclosed(f, false, |code| code == PgSqlErrorCode::ERRCODE_QUERY_CANCELED)
}

fn enclosed<R>(f: impl FnOnce() -> Result<R>, keep: bool, passes: fn(PgSqlErrorCode) -> bool) -> Result<R> {
    // SAFETY: in a transaction. Memory and resource owner are those of before, inside as after it, as PL/pgSQL has
    // it; what `f` opens it closes, or the rollback does.
    let (context, owner) = unsafe { (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner) };
    // SAFETY: as above.
    unsafe {
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::CurrentMemoryContext = context;
    }
    let result = PgTryBuilder::new(AssertUnwindSafe(|| Ok(f()))).catch_others(|caught| Err(Box::new(caught))).execute();
    // SAFETY: as above.
    unsafe {
        pg_sys::CurrentMemoryContext = context;
        if keep && matches!(result, Ok(Ok(_))) {
            pg_sys::ReleaseCurrentSubTransaction();
        } else {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
        }
        pg_sys::CurrentMemoryContext = context;
        pg_sys::CurrentResourceOwner = owner;
    }
    result.unwrap_or_else(|caught| {
        let (CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic { ereport: report, .. }) = &*caught;
        if passes(report.sql_error_code()) {
            caught.rethrow()
        }
        Err(Error {
            code: error::INTERNAL,
            message: report.message().to_owned(),
            detail: report.detail().map(str::to_owned),
            hint: report.hint().map(str::to_owned),
        })
    })
}

/// Runs `f` with other settings, as a function with SET clauses does; an error's rollback ends them, too.
pub fn with_settings<R>(settings: &[(&CStr, &CStr)], f: impl FnOnce() -> R) -> R {
    // SAFETY: C strings that are copied; the level is left in the order in which it was entered.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        for (name, value) in settings {
            pg_sys::set_config_option(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
        }
        let result = f();
        pg_sys::AtEOXact_GUC(true, level);
        result
    }
}

/// The cost at which this query is planned, and whether it would be compiled. Locks its tables. Can raise.
pub fn plan(query: &CStr) -> (f64, bool) {
    // SAFETY: within SPI, which frees the plan when it ends; a SELECT has one planned statement, or none of a cost.
    unsafe {
        pg_sys::SPI_connect();
        let plan = pg_sys::SPI_prepare(query.as_ptr(), 0, std::ptr::null_mut());
        let cached = if plan.is_null() { std::ptr::null_mut() } else { pg_sys::SPI_plan_get_cached_plan(plan) };
        let mut found = (0.0, false);
        if !cached.is_null() {
            if let Some(statement) = list((*cached).stmt_list).next().map(|s| s.cast::<pg_sys::PlannedStmt>()) {
                found =
                    ((*(*statement).planTree).total_cost, (*statement).jitFlags & pg_sys::PGJIT_PERFORM as i32 != 0);
            }
            // Of a plan that is not kept it is counted for no owner.
            pg_sys::ReleaseCachedPlan(cached, std::ptr::null_mut());
        }
        pg_sys::SPI_finish();
        found
    }
}

/// Runs `f` with memory that lasts as long as this process, for what Postgres allocates in it.
pub fn in_lasting_memory<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: the context that is there for ever; the one before is set again. After an error whoever
    // catches it sets his own.
    unsafe {
        let before = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = pg_sys::TopMemoryContext;
        let result = f();
        pg_sys::CurrentMemoryContext = before;
        result
    }
}

/// Whether a background process that this one asked for has ended, or was never started.
pub fn has_ended(handle: *mut pg_sys::BackgroundWorkerHandle) -> bool {
    let mut pid = 0;
    // SAFETY: a handle that Postgres gave and nobody has freed.
    let status = unsafe { pg_sys::GetBackgroundWorkerPid(handle, &raw mut pid) };
    status == pg_sys::BgwHandleStatus::BGWH_STOPPED
}

/// Frees what Postgres allocated.
///
/// # Safety
/// The caller owns it, and uses it no more.
pub unsafe fn free<T>(pointer: *mut T) {
    // SAFETY: the caller's promise.
    unsafe { pg_sys::pfree(pointer.cast()) };
}

/// Asks a process of this server to end.
pub fn terminate(pid: i32) {
    // SAFETY: a plain system call; callers know that the process is theirs.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}

/// Wakes all that sleep in `wait_on` for it.
pub fn broadcast(variable: *mut pg_sys::ConditionVariable) {
    // SAFETY: a condition variable in shared memory, initialized at start.
    unsafe { pg_sys::ConditionVariableBroadcast(variable) };
}

/// Sleeps until `is_done`, which whoever makes it true tells by `broadcast`, at most so many
/// microseconds. Cancel and termination end it by an error.
pub fn wait_on(variable: *mut pg_sys::ConditionVariable, microseconds: i64, is_done: impl Fn() -> bool) {
    let until = monotonic_us() + microseconds;
    // SAFETY: a condition variable in shared memory, initialized at start; after an error the abort of
    // the transaction takes this session off it.
    unsafe {
        pg_sys::ConditionVariablePrepareToSleep(variable);
        while !is_done() {
            let left = until - monotonic_us();
            if left <= 0 {
                break;
            }
            pg_sys::ConditionVariableTimedSleep(variable, milliseconds(left), pg_sys::PG_WAIT_EXTENSION);
        }
        pg_sys::ConditionVariableCancelSleep();
    }
}

// ----- databases, roles and privileges

/// Calls `f` for each row of pg_database. In a transaction; works without a database.
pub fn each_database(mut f: impl FnMut(&pg_sys::FormData_pg_database)) {
    // SAFETY: a scan of a shared catalog, each row valid until the next one is read.
    unsafe {
        let table = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let scan = pg_sys::table_beginscan_catalog(table, 0, std::ptr::null_mut());
        loop {
            let row = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if row.is_null() {
                break;
            }
            f(&*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_database>(row));
        }
        pg_sys::heap_endscan(scan);
        pg_sys::table_close(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
    }
}

/// A name out of a catalog's row.
pub fn name(name: &pg_sys::NameData) -> String {
    // SAFETY: names end in a zero byte.
    unsafe { text(name.data.as_ptr()) }
}

/// The database of this name. In a transaction.
///
/// # Safety
/// `name` is a valid C string.
pub unsafe fn database_oid(name: *const c_char) -> Option<pg_sys::Oid> {
    // SAFETY: the caller's promise.
    let oid = unsafe { pg_sys::get_database_oid(name, true) };
    (oid != pg_sys::Oid::INVALID).then_some(oid)
}

/// The name of this database, empty if it is gone. In a transaction.
pub fn database_name(database: pg_sys::Oid) -> String {
    // SAFETY: a look-up in the catalog; null when there is none.
    unsafe {
        let name = pg_sys::get_database_name(database);
        if name.is_null() { String::new() } else { text(name) }
    }
}

/// Reads one row of a catalog by its oid. In a transaction.
fn by_oid<T, R>(cache: pg_sys::SysCacheIdentifier::Type, oid: pg_sys::Oid, f: impl FnOnce(&T) -> R) -> Option<R> {
    // SAFETY: callers name the row's type that belongs to the cache; the row is valid until released.
    unsafe {
        let row = pg_sys::SearchSysCache1(cache as c_int, pg_sys::Datum::from(oid));
        if row.is_null() {
            return None;
        }
        let result = f(&*pg_sys::heap_tuple_get_struct::<T>(row));
        pg_sys::ReleaseSysCache(row);
        Some(result)
    }
}

/// Whether the current user owns the database, by membership or as superuser. In a transaction.
pub fn owns_database(database: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::DATABASEOID;
    by_oid(cache, database, |row: &pg_sys::FormData_pg_database| row.datdba)
        // SAFETY: looks at roles.
        .is_some_and(|owner| unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), owner) })
}

/// Whether the current user may create databases. In a transaction.
pub fn can_create_databases() -> bool {
    // SAFETY: looks at roles.
    let (user, is_superuser) = unsafe { (pg_sys::GetUserId(), pg_sys::superuser()) };
    let cache = pg_sys::SysCacheIdentifier::AUTHOID;
    is_superuser || by_oid(cache, user, |row: &pg_sys::FormData_pg_authid| row.rolcreatedb).unwrap_or(false)
}

/// Whether the current user owns the table, by membership or as superuser. In a transaction.
pub fn owns_table(table: pg_sys::Oid) -> bool {
    by_oid(pg_sys::SysCacheIdentifier::RELOID, table, |row: &pg_sys::FormData_pg_class| row.relowner)
        // SAFETY: looks at roles.
        .is_some_and(|owner| unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), owner) })
}

/// The user whose rights count at this moment.
pub fn user() -> pg_sys::Oid {
    // SAFETY: reads this backend's state.
    unsafe { raw::GetUserId() }
}

/// The role of this name. In a transaction.
pub fn role(name: &str) -> Option<pg_sys::Oid> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: a look-up in the catalog; invalid when there is none.
    let oid = unsafe { pg_sys::get_role_oid(name.as_ptr(), true) };
    (oid != pg_sys::Oid::INVALID).then_some(oid)
}

/// The name of a role; `None` when it is gone. In a transaction.
pub fn role_name(role: pg_sys::Oid) -> Option<String> {
    // SAFETY: a look-up in the catalog; null when there is none.
    unsafe {
        let name = pg_sys::GetUserNameFromId(role, true);
        (!name.is_null()).then(|| text(name))
    }
}

/// Whether a user has the rights of the role of this name; false when there is none. In a transaction.
pub fn has_rights_of(user: pg_sys::Oid, name: &str) -> bool {
    // SAFETY: looks at roles.
    role(name).is_some_and(|role| unsafe { pg_sys::has_privs_of_role(user, role) })
}

/// The role that a statement names, if the current user has its rights. In a transaction.
///
/// # Safety
/// A node of the parser.
pub unsafe fn own_role(role: *const pg_sys::RoleSpec) -> Option<String> {
    // SAFETY: the caller's promise; look-ups in the catalogs.
    unsafe {
        let oid = pg_sys::get_rolespec_oid(role, true);
        (oid != pg_sys::Oid::INVALID && pg_sys::has_privs_of_role(user(), oid)).then(|| role_name(oid)).flatten()
    }
}

/// Has `f` called whenever roles or their memberships change. It cannot fail. Once per process.
pub fn on_role_changes(f: unsafe extern "C-unwind" fn(pg_sys::Datum, c_int, u32)) {
    use pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID};
    for cache in [AUTHMEMROLEMEM, AUTHOID] {
        // SAFETY: a function of this library, which is never unloaded.
        unsafe { pg_sys::CacheRegisterSyscacheCallback(cache as c_int, Some(f), pg_sys::Datum::from(0)) };
    }
}

/// The relation of this name in our schema. In a transaction.
pub fn our_relation(name: &CStr) -> Option<pg_sys::Oid> {
    // SAFETY: look-ups in the catalogs; invalid when there is none.
    let oid = unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue".as_ptr(), true);
        pg_sys::get_relname_relid(name.as_ptr(), schema)
    };
    (oid != pg_sys::Oid::INVALID).then_some(oid)
}

/// The owner of a table. In a transaction.
pub fn owner(table: pg_sys::Oid) -> Option<pg_sys::Oid> {
    by_oid(pg_sys::SysCacheIdentifier::RELOID, table, |row: &pg_sys::FormData_pg_class| row.relowner)
}

/// Runs `f` with the rights of a table's owner, as the checks of foreign keys are run. Superusers, too: what the owner
/// has put around his tables, such as triggers, is his.
pub fn as_owner<R>(table: pg_sys::Oid, f: impl FnOnce() -> R) -> R {
    struct Before(pg_sys::Oid, c_int);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: what was there before; also on the way out of an error, which would set it itself.
            unsafe { raw::SetUserIdAndSecContext(self.0, self.1) };
        }
    }
    // SAFETY: a global.
    let user = unsafe { pg_sys::GetUserId() };
    let Some(owner) = owner(table).filter(|&owner| owner != user) else { return f() };
    let mut before = Before(pg_sys::Oid::INVALID, 0);
    // SAFETY: both are valid for writing; the role exists, for it owns something.
    unsafe {
        raw::GetUserIdAndSecContext(&raw mut before.0, &raw mut before.1);
        let local = pg_sys::SECURITY_LOCAL_USERID_CHANGE as c_int;
        raw::SetUserIdAndSecContext(owner, before.1 | local);
    }
    let _before = before;
    f()
}

/// Runs a GRANT or REVOKE. As part of our extension, what comes out is what the extension brings along: pg_dump leaves it
/// out. No event trigger gets to see it. Can raise.
pub fn grant(statement: &str, is_part_of_extension: bool) -> Result<()> {
    struct Before(bool, pg_sys::Oid);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: plain globals of this backend, as they were.
            unsafe { (pg_sys::creating_extension, pg_sys::CurrentExtensionObject) = (self.0, self.1) };
        }
    }
    let statement =
        std::ffi::CString::new(statement).map_err(|_| Error::internal("the name of a role holds a zero byte"))?;
    // SAFETY: the parser makes a list of statements, of which there is one, of the type that was written. The globals
    // are what tells a script of the extension from a user, and stay so for this one call only. In a transaction that
    // may write.
    unsafe {
        let parsed = pg_sys::raw_parser(statement.as_ptr(), pg_sys::RawParseMode::RAW_PARSE_DEFAULT);
        let parsed = list(parsed).next().map(|cell| (*cell.cast::<pg_sys::RawStmt>()).stmt);
        let Some(parsed) = parsed.filter(|node| (**node).type_ == pg_sys::NodeTag::T_GrantStmt) else {
            return Err(Error::internal("this is no GRANT"));
        };
        let extension = pg_sys::get_extension_oid(c"pg_queue".as_ptr(), false);
        let _before = Before(pg_sys::creating_extension, pg_sys::CurrentExtensionObject);
        pg_sys::creating_extension = is_part_of_extension;
        pg_sys::CurrentExtensionObject = if is_part_of_extension { extension } else { pg_sys::Oid::INVALID };
        pg_sys::ExecuteGrantStmt(parsed.cast());
        pg_sys::CommandCounterIncrement();
    }
    Ok(())
}

/// A name as SQL has it.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The table that a statement names, if there is one. In a transaction.
///
/// # Safety
/// A node of the parser.
pub unsafe fn table_oid(name: *const pg_sys::RangeVar) -> Option<pg_sys::Oid> {
    let if_there = pg_sys::RVROption::RVR_MISSING_OK;
    let no_lock = pg_sys::NoLock as pg_sys::LOCKMODE;
    // SAFETY: the caller's promise; a look-up in the catalog.
    let oid = unsafe { pg_sys::RangeVarGetRelidExtended(name, no_lock, if_there, None, std::ptr::null_mut()) };
    (oid != pg_sys::Oid::INVALID).then_some(oid)
}

/// Our extension in this database, as it is committed at this moment. In a transaction.
///
/// Not `get_extension_oid`: from 18 on it asks a cache, and who is woken by a commit may look before the cache has
/// heard of it.
pub fn our_extension() -> Option<pg_sys::Oid> {
    let mut oid = None;
    // SAFETY: a scan of a catalog of few rows with a new snapshot, each row valid until the next one is read.
    unsafe {
        pg_sys::InvalidateCatalogSnapshot();
        let table = pg_sys::table_open(pg_sys::ExtensionRelationId, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let scan = pg_sys::table_beginscan_catalog(table, 0, std::ptr::null_mut());
        loop {
            let row = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if row.is_null() {
                break;
            }
            let extension = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_extension>(row);
            if CStr::from_ptr(extension.extname.data.as_ptr()) == c"pg_queue" {
                oid = Some(extension.oid);
            }
        }
        pg_sys::heap_endscan(scan);
        pg_sys::table_close(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
    }
    oid
}

/// Whether this is the extension that this library belongs to. In a transaction.
pub fn is_our_extension(extension: pg_sys::Oid) -> bool {
    // SAFETY: a look-up in the catalog; null when there is none.
    unsafe {
        let name = pg_sys::get_extension_name(extension);
        !name.is_null() && CStr::from_ptr(name) == c"pg_queue"
    }
}

/// The cells of a list of Postgres's.
///
/// # Safety
/// `list` is null or a list of pointers that stays as it is meanwhile.
pub unsafe fn list(list: *mut pg_sys::List) -> impl Iterator<Item = *mut std::ffi::c_void> {
    // SAFETY: the caller's promise; a list has `length` cells at `elements`.
    let length = if list.is_null() { 0 } else { unsafe { (*list).length } };
    // SAFETY: as above.
    (0..usize::try_from(length).unwrap_or(0)).map(move |at| unsafe { (*(*list).elements.add(at)).ptr_value })
}
