//! What Postgres's invalidation messages have told this session of changed tables and indexes.
//!
//! Responsible for flags and counters of the session. Not responsible for which relations matter: the catalog names
//! them (`watch`). Not responsible for reading anything anew: `catalog` does that.
//!
//! Invariant: the callback only takes notes. It looks nothing up and cannot fail.

use std::cell::{Cell, RefCell};

use pgrx::pg_guard;
use pgrx::pg_sys::{self, Oid};

use crate::pg::syscache;

thread_local! {
    /// Counts the changes of the queue table of which this session was told.
    static QUEUE_CHANGES: Cell<u64> = const { Cell::new(0) };
    /// Whether the catalog has to be read anew.
    static STALE: Cell<bool> = const { Cell::new(true) };
    /// Whether this session was told anything since it began to read the catalog (`begin`).
    static HAS_NEWS: Cell<bool> = const { Cell::new(false) };
    /// The queue table, and the attempts' table of the first segment, by which changed oids are noticed.
    static WATCHED: Cell<[Oid; 2]> = const { Cell::new([Oid::INVALID; 2]) };
    /// The oids of the catalog's indexes, sorted.
    static INDEXES: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    /// The oids of the catalog's tables, sorted.
    static TABLES: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    /// The tables that were seen to have no other indexes, each with the number of messages at that time. The place is
    /// given by the last bits of the table's oid.
    static PLAIN: [Cell<(u32, u64)>; PLACES] = const { [const { Cell::new((0, 0)) }; PLACES] };
    /// Counts the messages about tables and indexes.
    static MESSAGES: Cell<u64> = const { Cell::new(1) };
    /// The catalog's indexes of which this session was told something.
    static SUSPECTS: RefCell<Vec<Oid>> = const { RefCell::new(Vec::new()) };
    /// Whether the callback is registered.
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// How many tables `PLAIN` has room for: more than the extension has in a database.
const PLACES: usize = 64;

/// Is called by Postgres when a table's definition changes, or when `catalog::queue::changed` has announced a change of
/// a queue's settings. Takes notes and looks nothing up, as a callback must not read the catalogs.
#[pg_guard]
unsafe extern "C-unwind" fn on_relcache(_arg: pg_sys::Datum, relation: Oid) {
    HAS_NEWS.set(true);
    MESSAGES.set(MESSAGES.get() + 1);
    let [queue, attempt] = WATCHED.get();
    if relation == Oid::INVALID || relation == queue {
        QUEUE_CHANGES.set(QUEUE_CHANGES.get() + 1);
    }
    if relation == Oid::INVALID || relation == attempt {
        STALE.set(true);
    }
    // REINDEX CONCURRENTLY puts another index into the place of one. `has_lost_index` looks later: a callback must not.
    if INDEXES.with_borrow(|indexes| indexes.binary_search(&relation.to_u32()).is_ok()) {
        SUSPECTS.with_borrow_mut(|suspects| {
            if !suspects.contains(&relation) {
                suspects.push(relation);
            }
        });
    }
}

/// Registers the callback, once per session.
pub fn listen() {
    if !REGISTERED.replace(true) {
        // SAFETY: once per backend; the callback only sets flags.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(on_relcache), pg_sys::Datum::from(0)) };
    }
}

/// Sets what matters from now on. `watched` are the table whose messages tell of changed queues and the table whose
/// messages tell of changed oids. `tables` and `indexes` are all that are written directly, as sorted oids.
pub fn watch(watched: [Oid; 2], tables: Vec<u32>, indexes: Vec<u32>) {
    WATCHED.set(watched);
    INDEXES.set(indexes);
    TABLES.set(tables);
}

/// Is called when the session is about to read the catalog.
pub fn begin() {
    HAS_NEWS.set(false);
}

/// Is called when the session has read the catalog. If the session was told something since `begin`, the catalog is
/// stale.
pub fn end() {
    STALE.set(HAS_NEWS.get());
}

/// Marks the catalog as stale: it will be read anew.
pub fn invalidate() {
    STALE.set(true);
}

/// Whether the catalog has to be read anew.
pub fn is_stale() -> bool {
    STALE.get()
}

/// Whether an index is one of the catalog's, as far as this session knows.
pub fn knows_index(index: Oid) -> bool {
    INDEXES.with_borrow(|indexes| indexes.binary_search(&index.to_u32()).is_ok())
}

/// Whether a table of the catalog has indexes beside those of the catalog, as `look` finds. If `look` finds none, it is
/// not called again for the table until this session is told something. False for any table that is not of the catalog:
/// of those nothing is known.
pub fn has_other_indexes(table: Oid, look: impl FnOnce() -> bool) -> bool {
    let table = table.to_u32();
    PLAIN.with(|plain| {
        let (place, now) = (&plain[table as usize % PLACES], (table, MESSAGES.get()));
        if place.get() == now || TABLES.with_borrow(|tables| tables.binary_search(&table).is_err()) {
            return false;
        }
        let has_others = look();
        if !has_others {
            place.set(now);
        }
        has_others
    })
}

/// Whether an index of the catalog, of which this session was told something, is gone or no longer valid.
pub fn has_lost_index() -> bool {
    let mut has_lost = false;
    // The look-up may itself deliver messages about more of them.
    while let Some(suspect) = SUSPECTS.with_borrow_mut(Vec::pop) {
        has_lost = has_lost || !syscache::is_valid_index(suspect);
    }
    has_lost
}

/// Returns how often this session was told that a table or an index changed.
pub fn messages() -> u64 {
    MESSAGES.get()
}

/// Returns how often this session was told that queues changed, or has called `forget_queues`.
pub fn queue_changes() -> u64 {
    QUEUE_CHANGES.get()
}

/// Makes void what this session has cached of queues and permissions, as a message about the queue table would.
pub fn forget_queues() {
    QUEUE_CHANGES.set(QUEUE_CHANGES.get() + 1);
}

/// Queues a message that tells every session, when this transaction commits, that a table has changed.
pub fn announce(table: Oid) {
    // SAFETY: queues an invalidation message for an existing table.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) };
}
