//! The two halves of the keys' tables: which one is written to, and how far the other one is copied.
//!
//! Responsible for their form in shared memory. Not responsible for copying and emptying (`duty::rotate_keys`).
//!
//! Invariant: `turns` changes with each event that invalidates what a process has copied.

use crate::shmem::shared_word::SharedWord;

/// The halves. Zero is the state at the start.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct KeyHalves {
    /// The half that is written to: 0 or 1. See `log::key`.
    pub open: SharedWord,
    /// If the open half has more blocks than this, the other half replaces it.
    pub max_blocks: u32,
    /// True if one half is being copied and emptied.
    pub is_turning: bool,
    /// Counts turns to the other half, and ends of foreign writers. Both invalidate what a process has copied.
    pub turns: u64,
    /// The monotonic time at which a session saw that the closed half is copied completely. 0: no session has in this
    /// turn.
    pub copied_at: i64,
}

impl KeyHalves {
    /// Discards the knowledge that the closed half is copied. The caller holds the frontier's lock.
    pub fn begin_turn(&mut self) {
        self.turns += 1;
        self.copied_at = 0;
    }
}
