//! Which slots of an array are free. Slots that were used before form a list, through a link in each. Slots that were
//! never used lie behind all others.
//!
//! Responsible for this choice. Not responsible for what a slot holds, nor for counting slots in use.
//!
//! Invariant: a slot is in the list once, or it was never used, or it is in use.

/// The free slots of an array. All zero: no slot was ever used.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FreeSlots {
    /// The first slot of the list, plus one. 0: the list is empty.
    first: u32,
    /// The first slot that was never used.
    fresh: u32,
}

impl FreeSlots {
    /// Returns the slot that was never used and lies behind all slots that were.
    pub(super) fn fresh(self) -> u32 {
        self.fresh
    }

    /// True if none of `count` slots is free.
    pub(super) fn is_empty(self, count: usize) -> bool {
        self.first == 0 && self.fresh as usize >= count
    }

    /// Takes a free one of `count` slots. `link` returns what `give` has returned for a slot. `None`: none is free.
    pub(super) fn take(&mut self, count: usize, link: impl FnOnce(u32) -> u32) -> Option<u32> {
        if let Some(slot) = self.first.checked_sub(1) {
            self.first = link(slot);
            return Some(slot);
        }
        let slot = self.fresh;
        ((slot as usize) < count).then(|| {
            self.fresh += 1;
            slot
        })
    }

    /// Gives a slot back. Returns the link that the slot must keep until it is taken again.
    #[must_use]
    pub(super) fn give(&mut self, slot: u32) -> u32 {
        std::mem::replace(&mut self.first, slot + 1)
    }
}

#[cfg(test)]
impl FreeSlots {
    /// Returns the slots of the list. `link` as for `take`.
    pub(super) fn listed(self, link: impl Fn(u32) -> u32) -> Vec<u32> {
        let mut at = self.first;
        std::iter::from_fn(|| {
            let slot = at.checked_sub(1)?;
            at = link(slot);
            Some(slot)
        })
        .take(self.fresh as usize + 1)
        .collect()
    }
}
