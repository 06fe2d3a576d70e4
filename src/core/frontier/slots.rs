//! The arrays and indexes of the frontier, which take the numbers of their own slots only, and free slots.
//!
//! Responsible for access. Not responsible for what a slot holds.
//!
//! Invariant: a slot that was given back is in the list of free slots once. A slot that was never used lies behind all
//! others.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Index, IndexMut};

use super::index::{self, Bucket};
use super::slot::Slot;

/// An entry of an array.
pub(super) trait Entry {
    /// The array.
    type Of;
}

/// An array that only its own slots index.
pub struct Slots<'a, T>(&'a mut [T]);

impl<'a, T: Entry> Slots<'a, T> {
    #[inline]
    pub(super) fn new(slots: &'a mut [T]) -> Self {
        Self(slots)
    }

    /// Returns all slots, in order.
    #[inline]
    pub(super) fn slots(&self) -> impl DoubleEndedIterator<Item = Slot<T::Of>> + use<T> {
        (0..self.0.len() as u32).map(Slot::new)
    }

    /// Returns the first slot whose entry `is_it`.
    #[inline]
    pub(super) fn find(&self, mut is_it: impl FnMut(&T) -> bool) -> Option<Slot<T::Of>> {
        self.0.iter().position(&mut is_it).map(|at| Slot::new(at as u32))
    }
}

impl<T: Entry> Index<Slot<T::Of>> for Slots<'_, T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: Slot<T::Of>) -> &T {
        &self.0[slot.at()]
    }
}

impl<T: Entry> IndexMut<Slot<T::Of>> for Slots<'_, T> {
    #[inline]
    fn index_mut(&mut self, slot: Slot<T::Of>) -> &mut T {
        &mut self.0[slot.at()]
    }
}

impl<T> Deref for Slots<'_, T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        self.0
    }
}

impl<T> DerefMut for Slots<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        self.0
    }
}

/// Lets a part of the frontier be indexed by the slots of the array that gives it its name.
macro_rules! indexed_by_slot {
    ($part:ident, $slot:ident, $array:ident: $entry:ident) => {
        impl std::ops::Index<$slot> for $part<'_> {
            type Output = $entry;

            #[inline]
            fn index(&self, slot: $slot) -> &$entry {
                &self.$array[slot]
            }
        }

        impl std::ops::IndexMut<$slot> for $part<'_> {
            #[inline]
            fn index_mut(&mut self, slot: $slot) -> &mut $entry {
                &mut self.$array[slot]
            }
        }
    };
}
pub(super) use indexed_by_slot;

/// The hash index of an array: see [`index`]. It may have counts under keys of their own ([`crate::share`]).
pub struct SlotIndex<'a, A> {
    pub(super) buckets: &'a mut [Bucket],
    of: PhantomData<fn() -> A>,
}

impl<'a, A> SlotIndex<'a, A> {
    #[inline]
    pub(super) fn new(buckets: &'a mut [Bucket]) -> Self {
        Self { buckets, of: PhantomData }
    }

    /// Returns the slot that is stored for this id.
    #[inline]
    pub(super) fn find(&self, instance: u32, id: i64) -> Option<Slot<A>> {
        index::find(self.buckets, instance, id).map(Slot::new)
    }

    /// Stores a slot for an id that is not in the index.
    #[inline]
    pub(super) fn insert(&mut self, instance: u32, id: i64, slot: Slot<A>) {
        index::insert(self.buckets, instance, id, slot.number());
    }

    /// Removes an id. Does nothing if the index does not have it.
    #[inline]
    pub(super) fn remove(&mut self, instance: u32, id: i64) {
        index::remove(self.buckets, instance, id);
    }
}

/// An entry of an array whose free slots form a list.
pub(super) trait Listed: Entry {
    /// Returns the next free slot.
    fn next_free(&self) -> Option<Slot<Self::Of>>;
    /// Links a free slot to the next one.
    fn set_next_free(&mut self, next: Option<Slot<Self::Of>>);
}

/// The free slots of an array. Slots that were used before form a list. Slots that were never used lie behind all
/// others. All zero: no slot was ever used.
#[repr(C)]
pub struct FreeSlots<A> {
    first: Option<Slot<A>>,
    /// How many slots were ever used.
    used: u32,
}

impl<A> Clone for FreeSlots<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for FreeSlots<A> {}

impl<A> Default for FreeSlots<A> {
    fn default() -> Self {
        Self { first: None, used: 0 }
    }
}

impl<A> fmt::Debug for FreeSlots<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FreeSlots").field("first", &self.first).field("used", &self.used).finish()
    }
}

impl<A> FreeSlots<A> {
    /// Returns how many slots were ever used. All later slots were never used.
    #[inline]
    pub(super) fn ever_used(self) -> u32 {
        self.used
    }

    /// Returns the slots that were ever used, in order, from this number.
    #[inline]
    pub(super) fn used_from(self, number: u32) -> impl Iterator<Item = Slot<A>> + use<A> {
        (number..self.used).map(Slot::new)
    }

    /// True if no slot of the array is free.
    #[inline]
    pub(super) fn is_empty<T: Entry<Of = A>>(self, slots: &Slots<'_, T>) -> bool {
        self.first.is_none() && self.used as usize >= slots.len()
    }
}

impl<A> FreeSlots<A> {
    /// Takes a free slot of the array. `None`: none is free.
    #[inline]
    pub(super) fn take<T: Listed<Of = A>>(&mut self, slots: &mut Slots<'_, T>) -> Option<Slot<A>> {
        if let Some(slot) = self.first {
            self.first = slots[slot].next_free();
            return Some(slot);
        }
        ((self.used as usize) < slots.len()).then(|| {
            self.used += 1;
            Slot::new(self.used - 1)
        })
    }

    /// Gives a slot back.
    #[inline]
    pub(super) fn give<T: Listed<Of = A>>(&mut self, slots: &mut Slots<'_, T>, slot: Slot<A>) {
        slots[slot].set_next_free(self.first.replace(slot));
    }
}

#[cfg(test)]
impl<A> FreeSlots<A> {
    /// Returns the slots of the list.
    pub(super) fn listed<T: Listed<Of = A>>(self, slots: &[T]) -> Vec<Slot<A>> {
        let mut at = self.first;
        std::iter::from_fn(|| {
            let slot = at?;
            at = slots[slot.at()].next_free();
            Some(slot)
        })
        .take(self.used as usize + 1)
        .collect()
    }
}
