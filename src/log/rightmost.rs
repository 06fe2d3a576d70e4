//! Knows where b-trees have their last leaf, so that an entry which belongs at the end needs no descent from the root: a
//! job makes four entries, nearly all of them at the end of an index, and three sessions beside it do the same, through
//! the same root page.
//!
//! Postgres has this short cut (`_bt_search_insert`), but takes it only in indexes of three levels, which segments seldom
//! grow to; where it looks for the leaf's number is the place to leave one at any height. The number is a hint:
//! whether that page is still the last leaf, has room and begins before the new key is checked under the page's lock, by
//! `leaf::append`, which takes what comes behind all others, and else by Postgres, which drops a hint that is wrong and
//! makes the entry from the root.
//!
//! Invariant: a number is left there only while the index is locked, and lies with the file's own data
//! (`smgr_targblock`), which Postgres forgets when the file is cut or replaced. None is kept elsewhere.

use std::cell::Cell;

use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

use crate::log::leaf;

// nbtree.h: without guards, as in `table::raw`.
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

/// How often an index is worth a look for its last leaf, which costs a descent. Where keys come in no order, or many
/// sessions want the leaf at once, hints are lost at once; then looks become rare.
#[derive(Clone, Copy)]
struct Pace {
    index: pg_sys::Oid,
    /// Entries made since the last look by the hint.
    uses: u8,
    /// So many entries more are made without a hint.
    wait: u8,
    /// So many it will be when the next hint is lost at once, too.
    step: u8,
}

impl Pace {
    /// A look has paid when its hint was used so often.
    const PAYS: u8 = 4;
    /// Most entries between two looks.
    const SELDOM: u8 = 127;

    const fn of(index: pg_sys::Oid) -> Self {
        Self { index, uses: 0, wait: 0, step: 0 }
    }

    /// Whether to look now.
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

/// The paces of the indexes a session writes to; two that share a place begin anew each time.
const PLACES: usize = 64;

thread_local! {
    static PACES: [Cell<Pace>; PLACES] = const { [const { Cell::new(Pace::of(pg_sys::Oid::INVALID)) }; PLACES] };
}

/// Makes a row's entry in this index: at its end if it belongs there, else by `insert`, which tells whether the key is
/// new; true when it does not matter.
///
/// # Safety
/// Under a guard; `insert` drops nothing. An open b-tree whose lock allows inserting, a value for each column.
pub unsafe fn insert(
    index: pg_sys::Relation,
    tid: &pg_sys::ItemPointerData,
    values: &[Datum],
    insert: impl FnOnce() -> bool,
) -> bool {
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
            let is_new = hinted.is_some_and(|block| leaf::append(index, block, tid, values)) || insert();
            if hinted.is_some() {
                if hint(index).is_some() { pace.hit() } else { pace.missed() }
            }
            place.set(pace);
            is_new
        }
    })
}

/// RelationGetTargetBlock
///
/// # Safety
/// An open relation.
unsafe fn hint(index: pg_sys::Relation) -> Option<pg_sys::BlockNumber> {
    // SAFETY: null, or this file's.
    unsafe {
        let block = (*index).rd_smgr.as_ref()?.smgr_targblock;
        (block != pg_sys::InvalidBlockNumber).then_some(block)
    }
}

/// Looks the last leaf up; an empty index has none.
///
/// # Safety
/// Under a guard. An open b-tree, locked.
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
