//! The slots that record when attempts of a group have started.

use super::dear::Dear;
use super::slot::{GateSlot, RateSlot, StartSlot, of};
use super::slots::{Entry, Listed};
use super::window::Span;

/// How many nodes the pool has for each record.
pub const NODES_PER_RATE: usize = 8;

/// A node of the pool: older starts of a group. All zero is a free node that was never used.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Starts {
    pub(super) span: Span,
    /// The node after it in the list.
    pub(super) next: Option<StartSlot>,
}

/// The starts of a group. All zero is a free slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    pub(super) key: i64,
    pub(super) newest: Span,
    /// The node of the oldest starts, and that of the youngest of the older starts.
    pub(super) older: (Option<StartSlot>, Option<StartSlot>),
    pub(super) len: u32,
    /// How many starts there are, without the open ones.
    pub(super) sum: u64,
    /// What open starts cost: taken attempts whose claim is neither committed nor rolled back.
    pub(super) open: u64,
    /// The job that waits until as much of the rate as it costs is free.
    pub(super) dear: Dear,
    /// Its gate. `None`: the slot is free, and `older.0` has the number of the next free slot.
    pub(super) gate: Option<GateSlot>,
}

impl Entry for Rate {
    type Of = of::Rate;
}

/// A free record keeps the number of the next one in the place of a node's.
impl Listed for Rate {
    #[inline]
    fn next_free(&self) -> Option<RateSlot> {
        self.older.0.map(|next| RateSlot::new(next.number()))
    }

    #[inline]
    fn set_next_free(&mut self, next: Option<RateSlot>) {
        self.older.0 = next.map(|next| StartSlot::new(next.number()));
    }
}

impl Rate {
    /// Returns the gate of a slot that is in use.
    #[inline]
    pub(super) fn gate(&self) -> GateSlot {
        self.gate.unwrap_or(GateSlot::BEYOND)
    }
}

impl Entry for Starts {
    type Of = of::Start;
}

impl Listed for Starts {
    #[inline]
    fn next_free(&self) -> Option<StartSlot> {
        self.next
    }

    #[inline]
    fn set_next_free(&mut self, next: Option<StartSlot>) {
        self.next = next;
    }
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
    /// How many attempts have started, or what they cost.
    pub count: u64,
}
