//! Remembers the last leaf of b-trees, so that an entry that belongs at the end needs no descent from the root. See
//! docs/decisions/leaf-at-once.md.
//!
//! Responsible for the hint, and for how often a search for it pays. Not responsible for whether the hint is right:
//! under the page's lock Postgres checks that the leaf is still the last one, has room and begins before the new key.
//! If not, Postgres drops the hint and inserts the entry from the root.
//!
//! Invariant: a hint is set only while the index is locked. It lies only with the data of the open file
//! (`smgr_targblock`), which Postgres discards if the file is truncated or replaced.

use std::cell::Cell;

use pgrx::pg_sys;

use crate::pg::raw;

/// How often a search for an index's last leaf pays; it costs a descent. If keys come in no order, or many sessions
/// insert into that leaf, hints are soon lost. Then searches become rare.
#[derive(Clone, Copy)]
struct Pace {
    index: pg_sys::Oid,
    /// How many entries used the hint since the last search.
    uses: u8,
    /// How many more entries are inserted without a hint before the next search.
    wait: u8,
    /// The last value given to `wait`. It about doubles if the next hint is lost too soon again.
    step: u8,
}

impl Pace {
    /// A search has paid if its hint was used this often.
    const MIN_USES: u8 = 4;
    /// At most this many entries between two searches. Twice this and one still fit a `u8`.
    const MAX_WAIT: u8 = 127;

    const fn of(index: pg_sys::Oid) -> Self {
        Self { index, uses: 0, wait: 0, step: 0 }
    }

    /// True if this entry should search. Counts this entry.
    fn should_search(&mut self) -> bool {
        self.uses = 0;
        let should_search = self.wait == 0;
        self.wait = self.wait.saturating_sub(1);
        should_search
    }

    fn hit(&mut self) {
        self.uses = self.uses.saturating_add(1);
        if self.uses >= Self::MIN_USES {
            self.step = 0;
        }
    }

    fn missed(&mut self) {
        if self.uses < Self::MIN_USES {
            self.step = (self.step * 2 + 1).min(Self::MAX_WAIT);
        }
        self.wait = self.step;
    }
}

/// How many indexes have a slot for their pace. The last bits of the oid choose the slot. Two indexes that share a slot
/// reset it each time.
const PLACES: usize = 64;

thread_local! {
    static PACES: [Cell<Pace>; PLACES] = const { [const { Cell::new(Pace::of(pg_sys::Oid::INVALID)) }; PLACES] };
}

/// Inserts a row's entry into an index by calling `insert`, with a hint for the last leaf. Returns the result of
/// `insert`: true if the key is new, or if the check does not matter.
///
/// A job makes four entries, nearly all at the end of an index. Several sessions make them concurrently, through the
/// same root page. Postgres has a short cut for this (`_bt_search_insert`), but uses it only in indexes of three
/// levels. Segments seldom grow to that. The short cut reads the leaf's number from a place that this function can fill
/// at any height.
///
/// # Safety
/// The call is made under a guard, and `insert` drops nothing. `index` is an open b-tree whose lock allows inserting.
pub unsafe fn insert(index: pg_sys::Relation, insert: impl FnOnce() -> bool) -> bool {
    PACES.with(|paces| {
        // SAFETY: the caller's promise.
        unsafe {
            let oid = (*index).rd_id;
            let place = &paces[oid.to_u32() as usize % PLACES];
            let mut pace = place.get();
            if pace.index != oid {
                pace = Pace::of(oid);
            }
            if hint(index).is_none() && pace.should_search() {
                leave_hint(index);
            }
            let hinted = hint(index);
            let is_new = insert();
            if hinted.is_some() {
                if hint(index).is_some() { pace.hit() } else { pace.missed() }
            }
            place.set(pace);
            is_new
        }
    })
}

/// Returns the block that is the last leaf by the hint (RelationGetTargetBlock). `None`: no hint.
///
/// # Safety
/// `index` is an open relation.
unsafe fn hint(index: pg_sys::Relation) -> Option<pg_sys::BlockNumber> {
    // SAFETY: `rd_smgr` is null, or that of the index's file.
    unsafe {
        let block = (*index).rd_smgr.as_ref()?.smgr_targblock;
        (block != pg_sys::InvalidBlockNumber).then_some(block)
    }
}

/// Searches for the last leaf and sets its number as the hint. An empty index has no leaf and gets no hint.
///
/// # Safety
/// The call is made under a guard. `index` is an open b-tree, and locked.
unsafe fn leave_hint(index: pg_sys::Relation) {
    // SAFETY: the caller's promise. The leaf is pinned and locked for reading. Reading it has opened the file.
    unsafe {
        #[cfg(not(feature = "from17"))]
        let leaf = raw::_bt_get_endpoint(index, 0, true, std::ptr::null_mut());
        #[cfg(feature = "from17")]
        let leaf = raw::_bt_get_endpoint(index, 0, true);
        if leaf == pg_sys::InvalidBuffer as pg_sys::Buffer {
            return;
        }
        let block = raw::BufferGetBlockNumber(leaf);
        raw::UnlockReleaseBuffer(leaf);
        if let Some(file) = (*index).rd_smgr.as_mut() {
            file.smgr_targblock = block;
        }
    }
}
