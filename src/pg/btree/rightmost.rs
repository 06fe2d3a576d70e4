//! Knows where b-trees have their last leaf, so that an entry which belongs at the end needs no descent from the root.
//! See docs/decisions/leaf-at-once.md.
//!
//! Responsible for the hint, and for how often it is worth a search. Not responsible for whether the hint is right:
//! under the page's lock Postgres checks that it is still the last leaf, has room and begins before the new key. It
//! drops a wrong hint and makes the entry from the root.
//!
//! Invariant: a hint is left only while the index is locked, and lies with the data of the open file
//! (`smgr_targblock`), which Postgres forgets if the file is cut or replaced. It is kept nowhere else.

use std::cell::Cell;

use pgrx::pg_sys;

// These are of nbtree.h and bufmgr.h; without guards, as in `pg::unguarded`.
unsafe extern "C-unwind" {
    #[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
    fn _bt_get_endpoint(
        index: pg_sys::Relation,
        level: u32,
        rightmost: bool,
        snapshot: pg_sys::Snapshot,
    ) -> pg_sys::Buffer;
    #[cfg(not(any(feature = "pg14", feature = "pg15", feature = "pg16")))]
    fn _bt_get_endpoint(index: pg_sys::Relation, level: u32, rightmost: bool) -> pg_sys::Buffer;
    fn BufferGetBlockNumber(buffer: pg_sys::Buffer) -> pg_sys::BlockNumber;
    fn UnlockReleaseBuffer(buffer: pg_sys::Buffer);
}

/// How often an index is worth a search for its last leaf, which costs a descent. If keys come in no order, or many
/// sessions want the leaf at once, hints are lost at once; then searches become rare.
#[derive(Clone, Copy)]
struct Pace {
    index: pg_sys::Oid,
    /// Entries that were made by the hint since the last search.
    uses: u8,
    /// How many more entries are made without a hint before the next search.
    wait: u8,
    /// The last value given to `wait`. It about doubles if the next hint is lost at once, too.
    step: u8,
}

impl Pace {
    /// A search has paid if its hint was used this often.
    const PAYS: u8 = 4;
    /// The most entries between two searches. Twice this and one still fit a `u8`.
    const SELDOM: u8 = 127;

    const fn of(index: pg_sys::Oid) -> Self {
        Self { index, uses: 0, wait: 0, step: 0 }
    }

    /// Whether to search now. Counts this entry.
    fn looks(&mut self) -> bool {
        self.uses = 0;
        let looks = self.wait == 0;
        self.wait = self.wait.saturating_sub(1);
        looks
    }

    fn hit(&mut self) {
        self.uses = self.uses.saturating_add(1);
        if self.uses >= Self::PAYS {
            self.step = 0;
        }
    }

    fn missed(&mut self) {
        if self.uses < Self::PAYS {
            self.step = (self.step * 2 + 1).min(Self::SELDOM);
        }
        self.wait = self.step;
    }
}

/// How many indexes have a place for their pace, given by the last bits of the oid. Two indexes that share a place
/// begin anew each time.
const PLACES: usize = 64;

thread_local! {
    static PACES: [Cell<Pace>; PLACES] = const { [const { Cell::new(Pace::of(pg_sys::Oid::INVALID)) }; PLACES] };
}

/// Makes a row's entry in an index by `insert`, with a hint where the index ends. Returns what `insert` does: whether
/// the key is new; true if the check does not matter.
///
/// A job makes four entries, nearly all of them at the end of an index, and several sessions make them at once, through
/// the same root page. Postgres has a short cut for this (`_bt_search_insert`), but takes it only in indexes of three
/// levels, which segments seldom grow to. It looks for the leaf's number in a place where this function can leave one
/// at any height.
///
/// # Safety
/// The call stands under a guard, and `insert` drops nothing. `index` is an open b-tree whose lock allows inserting.
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
            if hint(index).is_none() && pace.looks() {
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

/// Returns the block that the hint says is the last leaf (RelationGetTargetBlock). `None` if there is no hint.
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

/// Searches for the last leaf and leaves its number as the hint. An empty index has no leaf, and gets no hint.
///
/// # Safety
/// The call stands under a guard. `index` is an open b-tree, and locked.
unsafe fn leave_hint(index: pg_sys::Relation) {
    // SAFETY: the caller's promise. The leaf comes pinned and locked to read; reading it has opened the file.
    unsafe {
        #[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
        let leaf = _bt_get_endpoint(index, 0, true, std::ptr::null_mut());
        #[cfg(not(any(feature = "pg14", feature = "pg15", feature = "pg16")))]
        let leaf = _bt_get_endpoint(index, 0, true);
        if leaf == pg_sys::InvalidBuffer as pg_sys::Buffer {
            return;
        }
        let block = BufferGetBlockNumber(leaf);
        UnlockReleaseBuffer(leaf);
        if let Some(file) = (*index).rd_smgr.as_mut() {
            file.smgr_targblock = block;
        }
    }
}
