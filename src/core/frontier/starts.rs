//! The slots that record when attempts of a group have started.

use super::window::Span;

/// How many nodes the pool has for each record.
pub const NODES_PER_RATE: usize = 8;

/// A node of the pool: older starts of a group. All zero is a free node that was never used.
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
    /// Links (nodes plus one) to the oldest starts and to the youngest of the older starts.
    pub(super) older: (u32, u32),
    pub(super) len: u32,
    /// How many starts there are, without the open ones.
    pub(super) sum: u32,
    /// Open starts: taken attempts whose claim is neither committed nor rolled back.
    pub(super) open: u32,
    /// The slot of its gate, plus one. 0: the slot is free, and `older.0` is the next one in the free list.
    pub(super) gate: u32,
}

/// Starts from before the server's start that the logs have.
#[derive(Clone, Copy, Debug)]
pub struct PastStart {
    /// The lane of the group.
    pub lane: i32,
    /// The hash of the group.
    pub group: i64,
    /// The monotonic time.
    pub at: i64,
    /// How many attempts have started.
    pub count: u32,
}
