//! The two halves of the keys' tables: which one is written to, and how far the other one is copied.
//!
//! Responsible for their form in shared memory. Not responsible for copying and emptying (`duty::rotate_keys`).
//!
//! Invariant: `turns` changes with each event that makes void what a process has copied.

use crate::shmem::shared_word::SharedWord;

/// The halves. Zero is the state at the start.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct KeyHalves {
    /// The half that is written to: 0 or 1. See `log::key`.
    pub open: SharedWord,
    /// The number of blocks above which the open half gives way to the other one.
    pub max_blocks: u32,
    /// Whether one half is being copied from and emptied.
    pub is_turning: bool,
    /// Counts turns to the other half, and ends of foreign writers, which also make void what a process has copied.
    pub turns: u64,
    /// The monotonic time at which a session had seen that all of the closed half is copied; 0: no session has in this
    /// turn.
    pub copied_at: i64,
}

impl KeyHalves {
    /// Makes void what is known of copies out of the closed half. The caller holds the frontier's lock.
    pub fn begin_turn(&mut self) {
        self.turns += 1;
        self.copied_at = 0;
    }
}
