//! A word in shared memory that sessions read without the lock.
//!
//! Responsible for writing it. Not responsible for finding it (`words`).
//!
//! Invariant: a word is written under the frontier's lock, and as an atomic.

use std::sync::atomic::{AtomicU64, Ordering};

/// The word. Zero is a valid start.
#[repr(transparent)]
#[derive(Clone, Copy, Default)]
pub struct SharedWord(u64);

impl SharedWord {
    /// Returns the value. The caller holds the frontier's lock.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Writes the value. The caller holds the frontier's lock.
    pub fn set(&mut self, value: u64) {
        // SAFETY: an aligned word. Only the session that holds the lock has a reference to it, and readers without the
        // lock use atomics.
        unsafe { AtomicU64::from_ptr(&raw mut self.0) }.store(value, Ordering::SeqCst);
    }

    /// Adds one. The caller holds the frontier's lock.
    pub fn increment(&mut self) {
        self.set(self.0 + 1);
    }
}
