//! What Postgres's invalidation messages have told this session of changed tables and indexes.
//!
//! Responsible for flags and counters of the session. Not responsible for which relations matter: the catalog names
//! them (`watch`). Not responsible for reading anything anew: `catalog` does that.
//!
//! Invariant: the callback only takes notes. It looks nothing up and cannot fail. An index that died before its table
//! was locked is not opened (`settle`): REINDEX CONCURRENTLY has put another one into its place, which alone gets new
//! entries.

use std::cell::{Cell, RefCell};
use std::ffi::CString;

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
    /// The queue table, and two tables of the first segment: attempts, by which changed oids are noticed, and notes, to
    /// which an upgrade has added columns.
    static WATCHED: Cell<[Oid; 3]> = const { Cell::new([Oid::INVALID; 3]) };
    /// The catalog's indexes, sorted by oid.
    static INDEXES: RefCell<Vec<Index>> = const { RefCell::new(Vec::new()) };
    /// Indexes that were the catalog's, each with the one in its place. Calls under way may know the old ones.
    static REPLACED: RefCell<Vec<(Oid, Oid)>> = const { RefCell::new(Vec::new()) };
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

/// An index of the catalog: its oid and its name, which REINDEX CONCURRENTLY gives to another one.
pub type Index = (u32, CString);

/// How many tables `PLAIN` has room for: more than the extension has in a database.
const PLACES: usize = 64;

/// Is called by Postgres when a table's definition changes, or when `catalog::queue::changed` has announced a change of
/// a queue's settings. Takes notes and looks nothing up, as a callback must not read the catalogs.
#[pg_guard]
unsafe extern "C-unwind" fn on_relcache(_arg: pg_sys::Datum, relation: Oid) {
    HAS_NEWS.set(true);
    MESSAGES.set(MESSAGES.get() + 1);
    let [queue, attempt, note] = WATCHED.get();
    if relation == Oid::INVALID || relation == queue {
        QUEUE_CHANGES.set(QUEUE_CHANGES.get() + 1);
    }
    if [Oid::INVALID, attempt, note].contains(&relation) {
        STALE.set(true);
    }
    // REINDEX CONCURRENTLY puts another index into the place of one. `settle` and `has_lost_index` look later: a
    // callback must not.
    if relation == Oid::INVALID {
        INDEXES.with_borrow(|indexes| {
            SUSPECTS.with_borrow_mut(|suspects| {
                suspects.clear();
                suspects.extend(indexes.iter().map(|(oid, _)| Oid::from(*oid)));
            });
        });
    } else if knows_index(relation) {
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

/// Sets what matters from now on. `watched` are the table whose messages tell of changed queues and the tables whose
/// messages tell of changed oids and columns. `tables` and `indexes` are all that are written directly, sorted by oid.
pub fn watch(watched: [Oid; 3], tables: Vec<u32>, indexes: Vec<Index>) {
    WATCHED.set(watched);
    let old = INDEXES.replace(indexes);
    TABLES.set(tables);
    REPLACED.with_borrow_mut(|replaced| {
        // An oid may be used again.
        replaced.retain(|(old, _)| !knows_index(*old));
        INDEXES.with_borrow(|indexes| {
            for (oid, name) in old.into_iter().filter(|(oid, _)| !knows_index(Oid::from(*oid))) {
                if let Some((now, _)) = indexes.iter().find(|(_, other)| *other == name) {
                    replaced.push((Oid::from(oid), Oid::from(*now)));
                }
            }
        });
    });
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
    INDEXES.with_borrow(|indexes| indexes.binary_search_by_key(&index.to_u32(), |(oid, _)| *oid).is_ok())
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

/// Whether an index of the catalog, of which this session was told something, is gone or no longer valid. If so, the
/// catalog is stale, until it has been read anew.
pub fn has_lost_index() -> bool {
    let mut has_lost = false;
    // The look-up may itself deliver messages about more of them.
    while let Some(suspect) = SUSPECTS.with_borrow_mut(Vec::pop) {
        has_lost = has_lost || !syscache::is_valid_index(suspect);
    }
    STALE.set(STALE.get() || has_lost);
    has_lost
}

/// Whether nothing is to be settled.
pub fn is_settled() -> bool {
    SUSPECTS.with_borrow(Vec::is_empty)
}

/// Is called when a table has been locked, before its indexes are opened. Whatever became of them before is known with
/// the lock, and while it is held none of them dies: REINDEX CONCURRENTLY waits for it. Those that are dead are
/// replaced by those that have their names now. One whose name another has, but which lives, is used by all calls that
/// know it.
pub fn settle() {
    if is_settled() {
        return;
    }
    let suspects = SUSPECTS.with_borrow(Clone::clone);
    for suspect in suspects.into_iter().filter(|&suspect| !syscache::is_live_index(suspect)) {
        let name = INDEXES.with_borrow(|indexes| {
            indexes.iter().find(|(oid, _)| *oid == suspect.to_u32()).map(|(_, name)| name.clone())
        });
        let Some((name, now)) = name.and_then(|name| Some((name.clone(), syscache::our_relation(&name)?))) else {
            continue;
        };
        INDEXES.with_borrow_mut(|indexes| {
            indexes.retain(|(oid, _)| *oid != suspect.to_u32());
            let place = indexes.partition_point(|(oid, _)| *oid < now.to_u32());
            indexes.insert(place, (now.to_u32(), name));
        });
        REPLACED.with_borrow_mut(|replaced| replaced.push((suspect, now)));
        STALE.set(true);
    }
}

/// The index that is now in the place of one that the caller has from the catalog.
pub fn index_now(index: Oid) -> Oid {
    REPLACED.with_borrow(|replaced| {
        // The last one that was replaced is the last in the list.
        replaced.iter().fold(index, |index, (old, now)| if *old == index { *now } else { index })
    })
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
