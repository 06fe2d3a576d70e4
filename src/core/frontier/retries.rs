//! The slot of a retrying group, and what a gate knows of its retrying groups.
//!
//! Responsible for these types. Not responsible for their changes (`retrying`).

use super::slot::{GateSlot, RetryingSlot, SessionSlot, of};
use super::slots::{Entry, Listed};

/// A retrying group. All zero is a free slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Retrying {
    pub(super) key: i64,
    pub(super) hash: i64,
    /// The attempt that may be waiting. 0: more than one may be.
    pub(super) id: i64,
    pub(super) lane: i32,
    /// Its gate. `None`: the slot is free.
    pub(super) gate: Option<GateSlot>,
    /// The next free slot.
    pub(super) next: Option<RetryingSlot>,
    /// 1: an attempt was added since a session began to read the group.
    pub(super) is_unread: u8,
    /// 1: groups of several lanes have this key. What is read of one of them says nothing of the others.
    pub(super) is_shared: u8,
}

impl Entry for Retrying {
    type Of = of::Retrying;
}

impl Listed for Retrying {
    #[inline]
    fn next_free(&self) -> Option<RetryingSlot> {
        self.next
    }

    #[inline]
    fn set_next_free(&mut self, next: Option<RetryingSlot>) {
        self.next = next;
    }
}

impl Retrying {
    /// Returns the gate of a slot that is in use.
    #[inline]
    pub(super) fn gate(&self) -> GateSlot {
        self.gate.unwrap_or(GateSlot::BEYOND)
    }
}

/// What a gate knows of its retrying groups. All zero: nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Retries {
    /// How many records the gate has.
    pub(super) count: u32,
    /// The session that reads them from the logs.
    pub(super) reader: Option<SessionSlot>,
    /// True if every retrying group has a record.
    pub(super) is_known: bool,
    /// The groups are not read before this monotonic time.
    pub(super) reads_at: i64,
    pub(super) began_at: i64,
}
