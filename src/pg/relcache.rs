//! What Postgres's invalidation messages have told this session about changed tables and indexes.
//!
//! Responsible for flags and counters of the session. Not responsible for which relations matter, which the catalog
//! says (`watch`), nor for reading anything again (`catalog`).
//!
//! Invariant: the callback only takes notes. It looks nothing up and cannot fail. If an index died before its table was
//! locked, it is not opened (`replace_dead_indexes`): REINDEX CONCURRENTLY has replaced it by another one, and only
//! that one gets new entries.

use std::cell::{Cell, RefCell};
use std::ffi::CString;

use pgrx::pg_guard;
use pgrx::pg_sys::{self, Oid};

use crate::pg::syscache;

thread_local! {
    /// Counts the messages about changes of the queue table.
    static QUEUE_CHANGES: Cell<u64> = const { Cell::new(0) };
    /// True if the catalog must be read again.
    static STALE: Cell<bool> = const { Cell::new(true) };
    /// True if this session got a message since it began to read the catalog (`begin`).
    static HAS_NEWS: Cell<bool> = const { Cell::new(false) };
    /// The queue table, and two tables of the first segment: attempts, whose messages mean changed oids, and notes, to
    /// which an upgrade has added columns.
    static WATCHED: Cell<[Oid; 3]> = const { Cell::new([Oid::INVALID; 3]) };
    /// The catalog's indexes, sorted by oid.
    static INDEXES: RefCell<Vec<Index>> = const { RefCell::new(Vec::new()) };
    /// Indexes that the catalog had, each with its replacement. Running calls may still know the old ones.
    static REPLACED: RefCell<Vec<(Oid, Oid)>> = const { RefCell::new(Vec::new()) };
    /// The oids of the catalog's tables, sorted.
    static TABLES: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    /// Tables that were seen to have no other indexes, each with the number of messages at that time. The last bits of
    /// the table's oid choose the slot.
    static PLAIN: [Cell<(u32, u64)>; PLACES] = const { [const { Cell::new((0, 0)) }; PLACES] };
    /// Counts the messages about tables and indexes.
    static MESSAGES: Cell<u64> = const { Cell::new(1) };
    /// Indexes of the catalog for which this session got an invalidation message.
    static SUSPECTS: RefCell<Vec<Oid>> = const { RefCell::new(Vec::new()) };
    /// True if the callback is registered.
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// An index of the catalog: its oid and its name. REINDEX CONCURRENTLY gives the name to another index.
pub type Index = (u32, CString);

/// How many tables `PLAIN` has room for, more than the extension has in a database.
const PLACES: usize = 64;

/// Called by Postgres when a table's definition changes, or when `catalog::queue::changed` has announced a change of a
/// queue's settings. Only takes notes, because a callback must not read the catalogs.
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
    // REINDEX CONCURRENTLY replaces an index by another one. `replace_dead_indexes` and `has_lost_index` look later,
    // because a callback must not.
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
        // SAFETY: once per backend. The callback only sets flags.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(on_relcache), pg_sys::Datum::from(0)) };
    }
}

/// Sets which relations matter. `watched`: the queue table, whose messages mean changed queues, and two tables whose
/// messages mean changed oids and columns. `tables` and `indexes`: all relations that are written directly, sorted by
/// oid.
pub fn watch(watched: [Oid; 3], tables: Vec<u32>, indexes: Vec<Index>) {
    WATCHED.set(watched);
    let old = INDEXES.replace(indexes);
    TABLES.set(tables);
    REPLACED.with_borrow_mut(|replaced| {
        // An oid may be reused.
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

/// Called when the session is about to read the catalog.
pub fn begin() {
    HAS_NEWS.set(false);
}

/// Called when the session has read the catalog. If the session got a message since `begin`, the catalog is stale.
pub fn end() {
    STALE.set(HAS_NEWS.get());
}

/// Marks the catalog as stale, so that it is read again.
pub fn invalidate() {
    STALE.set(true);
}

/// True if the catalog must be read again.
pub fn is_stale() -> bool {
    STALE.get()
}

/// True if an index is one of the catalog's, as far as this session knows.
pub fn knows_index(index: Oid) -> bool {
    INDEXES.with_borrow(|indexes| indexes.binary_search_by_key(&index.to_u32(), |(oid, _)| *oid).is_ok())
}

/// True if a table of the catalog has indexes besides those of the catalog. `look` finds that out. If it finds none, it
/// is not called again for the table until this session gets a message. False for any table outside the catalog.
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

/// True if an index of the catalog, for which this session got a message, was dropped or is no longer valid. Then the
/// catalog is stale until it is read again.
pub fn has_lost_index() -> bool {
    let mut has_lost = false;
    // The look-up may itself deliver messages about more indexes.
    while let Some(suspect) = SUSPECTS.with_borrow_mut(Vec::pop) {
        has_lost = has_lost || !syscache::is_valid_index(suspect);
    }
    STALE.set(STALE.get() || has_lost);
    has_lost
}

/// True if `replace_dead_indexes` has nothing to do.
pub fn has_no_suspects() -> bool {
    SUSPECTS.with_borrow(Vec::is_empty)
}

/// Called when a table was locked, before its indexes are opened. The lock delivers all earlier messages. While it is
/// held, none of the table's indexes dies, because REINDEX CONCURRENTLY waits for it. A dead index is replaced by the
/// one that has its name now. An index that still lives stays in use for all calls that know it, even if another one
/// has its name.
pub fn replace_dead_indexes() {
    if has_no_suspects() {
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

/// Returns the index that has replaced an index of the catalog, or the same index.
pub fn index_now(index: Oid) -> Oid {
    REPLACED.with_borrow(|replaced| {
        // The list is in the order of the replacements.
        replaced.iter().fold(index, |index, (old, now)| if *old == index { *now } else { index })
    })
}

/// Returns how many messages about tables and indexes this session has got.
pub fn messages() -> u64 {
    MESSAGES.get()
}

/// Returns how many messages about changed queues this session has got, plus its calls of `forget_queues`.
pub fn queue_changes() -> u64 {
    QUEUE_CHANGES.get()
}

/// Invalidates what this session has cached of queues and permissions, as a message about the queue table would.
pub fn forget_queues() {
    QUEUE_CHANGES.set(QUEUE_CHANGES.get() + 1);
}

/// Queues a message for every session that a table has changed. It is sent when this transaction commits.
pub fn announce(table: Oid) {
    // SAFETY: queues an invalidation message for an existing table.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) };
}
