//! The slots that keep when attempts of a group have started.

use super::window::Span;

/// Nodes of the pool for each record.
pub const NODES_PER_RATE: usize = 8;

/// A node of the pool: starts of a group that are not its newest. All zero is a free node that was never used.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Starts {
    pub(super) span: Span,
    /// The node after it in the list, plus one.
    pub(super) next: u32,
}

/// The starts of a group. All zero is a free slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    pub(super) key: i64,
    pub(super) newest: Span,
    /// The oldest and the last but one of the older starts, nodes plus one.
    pub(super) older: (u32, u32),
    pub(super) len: u32,
    /// How many starts there are, but for the open ones.
    pub(super) sum: u32,
    /// Attempts that are taken, and whose claim is neither committed nor rolled back.
    pub(super) open: u32,
    /// The slot of its gate, plus one. 0: the slot is free, and `older.0` is the next one in the free list.
    pub(super) gate: u32,
}

/// A start that the logs have from before the server's start.
#[derive(Clone, Copy, Debug)]
pub struct PastStart {
    /// The lane and the hash of the group.
    pub lane: i32,
    /// See `lane`.
    pub group: i64,
    /// The monotonic time.
    pub at: i64,
    /// How many.
    pub count: u32,
}
