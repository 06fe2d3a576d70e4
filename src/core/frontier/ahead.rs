//! The slot of the attempts of a group that were read ahead.
//!
//! Responsible for this type. Not responsible for its changes (`group_set`).

use super::rank::Rank;
use super::ready::Ready;
use super::slot::{AheadSlot, of};
use super::slots::{Entry, Listed};
use crate::id;

/// A turn reads ahead this many attempts.
pub(super) const AHEAD: usize = 16;

/// The attempts that were read ahead of one group. All zero is a free slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Ahead {
    /// The attempts in order. Those from `first` to `end` still wait.
    pub(super) entries: [Ready; AHEAD],
    /// Up to this rank, no other attempt of the group is parked behind its position.
    pub(super) read_to: Rank,
    pub(super) first: u8,
    pub(super) end: u8,
    /// The next free slot.
    pub(super) next: Option<AheadSlot>,
}

impl Entry for Ahead {
    type Of = of::Ahead;
}

impl Listed for Ahead {
    #[inline]
    fn next_free(&self) -> Option<AheadSlot> {
        self.next
    }

    #[inline]
    fn set_next_free(&mut self, next: Option<AheadSlot>) {
        self.next = next;
    }
}

impl Ahead {
    pub(super) fn waiting(&self) -> &[Ready] {
        &self.entries[self.first as usize..self.end as usize]
    }

    /// Adds a parked attempt at its place, if it ranks at or before `read_to`. If there is no room, the last one must
    /// be read again.
    pub(super) fn add(&mut self, entry: &Ready) {
        if entry.rank > self.read_to {
            return;
        }
        if self.end as usize == AHEAD {
            self.entries.copy_within(self.first as usize.., 0);
            (self.first, self.end) = (0, self.end - self.first);
        }
        let nth = self.first as usize + self.waiting().partition_point(|other| other.rank < entry.rank);
        if let Some(known) = self.entries[..self.end as usize].get_mut(nth).filter(|known| known.rank == entry.rank) {
            // Of two attempts of one job only the newer one lives. The same attempt may have moved.
            if id::count(entry.id) >= id::count(known.id) {
                *known = *entry;
            }
            return;
        }
        if self.end as usize == AHEAD {
            let last = self.entries[AHEAD - 1].rank.max(entry.rank);
            self.read_to = last.before();
            if last == entry.rank {
                return;
            }
            self.end -= 1;
        }
        self.entries.copy_within(nth..self.end as usize, nth + 1);
        self.entries[nth] = *entry;
        self.end += 1;
    }
}
