//! The slot of a retrying group, and what a gate knows of its retrying groups.
//!
//! Responsible for these types. Not responsible for their changes (`retrying`).

/// A retrying group. All zero is a free slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Retrying {
    pub(super) key: i64,
    pub(super) hash: i64,
    /// The attempt that may be waiting. 0: more than one may be.
    pub(super) id: i64,
    pub(super) lane: i32,
    /// The slot of the gate, plus one. 0: the slot is free.
    pub(super) gate: u32,
    /// The next free slot, plus one.
    pub(super) next: u32,
    /// 1: an attempt was added since a session began to read the group.
    pub(super) is_unread: u8,
    /// 1: groups of several lanes have this key. What is read of one of them says nothing of the others.
    pub(super) is_shared: u8,
}

/// What a gate knows of its retrying groups. All zero: nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Retries {
    /// How many records the gate has.
    pub(super) count: u32,
    /// The number of the session that reads them from the logs, plus one. 0: none.
    pub(super) reader: u32,
    /// True if every retrying group has a record.
    pub(super) is_known: bool,
    /// The groups are not read before this monotonic time.
    pub(super) reads_at: i64,
    pub(super) began_at: i64,
}
