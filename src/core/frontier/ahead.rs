//! The slot of the attempts that a turn has read ahead of a group.
//!
//! Responsible for this type. Not responsible for its changes (`reading_ahead`).

use super::rank::Rank;
use super::ready::Ready;

/// A turn reads ahead this many attempts.
pub(super) const AHEAD: usize = 16;

/// The attempts that were read ahead of one group. All zero is a free slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Ahead {
    /// The attempts in order. Those from `first` to `end` still wait.
    pub(super) entries: [Ready; AHEAD],
    /// The turn has read everything up to this rank.
    pub(super) read_to: Rank,
    pub(super) first: u8,
    pub(super) end: u8,
    /// The next free slot, plus one.
    pub(super) next: u32,
}

impl Ahead {
    pub(super) fn waiting(&self) -> &[Ready] {
        &self.entries[self.first as usize..self.end as usize]
    }
}
