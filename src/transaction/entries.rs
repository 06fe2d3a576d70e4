//! The entries that the open transaction has made in indexes of groups, for attempts that it has moved.
//!
//! Responsible for knowing at the commit whether an index was replaced meanwhile. Not responsible for the entries
//! (`log::parked`).
//!
//! Invariant: an attempt whose entry may be in a replaced index reaches the frontier as one without an entry.

use std::cell::Cell;

thread_local! {
    /// The least `parked_version` at which the transaction has made entries; `u64::MAX`: it has made none.
    static VERSION: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Notes that the transaction has made entries at this `parked_version`.
pub fn note(version: u64) {
    VERSION.set(VERSION.get().min(version));
}

/// True if an index of groups was replaced since the transaction has made its entries. `version`: the present
/// `parked_version`.
pub fn may_be_lost(version: u64) -> bool {
    VERSION.get() < version
}

/// Forgets the entries. Called when the steps of the transaction were applied.
pub fn forget() {
    VERSION.set(u64::MAX);
}
