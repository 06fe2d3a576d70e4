//! Numbers of slots, one type for each array, and the arrays and indexes that take these numbers.
//!
//! Responsible for which number belongs to which array, and for free slots. Not responsible for what a slot holds.
//!
//! Invariant: `Option<Slot<T>>` has four bytes, and all zero is `None`. A slot that was given back is in the list of
//! free slots once. A slot that was never used lies behind all others.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut, Index, IndexMut};

use super::index::{self, Bucket};

/// The number of a slot in the array of `T`. It is kept plus one.
#[repr(transparent)]
pub struct Slot<T> {
    plus_one: NonZeroU32,
    of: PhantomData<fn() -> T>,
}

impl<T> Slot<T> {
    /// A slot behind every array. An index with it panics, as with any other slot that is not there.
    pub(super) const BEYOND: Self = Self { plus_one: NonZeroU32::MAX, of: PhantomData };

    /// Returns the slot with this number, counted from 0.
    #[inline]
    pub(super) fn new(number: u32) -> Self {
        Self { plus_one: NonZeroU32::MIN.saturating_add(number), of: PhantomData }
    }

    /// Returns its number, counted from 0.
    #[inline]
    pub(super) fn number(self) -> u32 {
        self.plus_one.get() - 1
    }

    #[inline]
    pub(super) fn at(self) -> usize {
        self.number() as usize
    }
}

impl<T> Clone for Slot<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slot<T> {}

impl<T> PartialEq for Slot<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.plus_one == other.plus_one
    }
}

impl<T> Eq for Slot<T> {}

impl<T> PartialOrd for Slot<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Slot<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.plus_one.cmp(&other.plus_one)
    }
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.number())
    }
}

/// An array that only its own slots index.
pub struct Slots<'a, T>(&'a mut [T]);

impl<'a, T> Slots<'a, T> {
    #[inline]
    pub(super) fn new(slots: &'a mut [T]) -> Self {
        Self(slots)
    }

    /// Returns all slots, in order.
    #[inline]
    pub(super) fn slots(&self) -> impl DoubleEndedIterator<Item = Slot<T>> + use<T> {
        (0..self.0.len() as u32).map(Slot::new)
    }

    /// Returns the first slot whose entry `is_it`.
    #[inline]
    pub(super) fn find(&self, mut is_it: impl FnMut(&T) -> bool) -> Option<Slot<T>> {
        self.0.iter().position(&mut is_it).map(|at| Slot::new(at as u32))
    }
}

impl<T> Index<Slot<T>> for Slots<'_, T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: Slot<T>) -> &T {
        &self.0[slot.at()]
    }
}

impl<T> IndexMut<Slot<T>> for Slots<'_, T> {
    #[inline]
    fn index_mut(&mut self, slot: Slot<T>) -> &mut T {
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

/// The hash index of an array: see [`index`]. It may have counts under keys of their own ([`crate::share`]).
pub struct SlotIndex<'a, T> {
    pub(super) buckets: &'a mut [Bucket],
    of: PhantomData<fn() -> T>,
}

impl<'a, T> SlotIndex<'a, T> {
    #[inline]
    pub(super) fn new(buckets: &'a mut [Bucket]) -> Self {
        Self { buckets, of: PhantomData }
    }

    /// Returns the slot that is stored for this id.
    #[inline]
    pub(super) fn find(&self, instance: u32, id: i64) -> Option<Slot<T>> {
        index::find(self.buckets, instance, id).map(Slot::new)
    }

    /// Stores a slot for an id that is not in the index.
    #[inline]
    pub(super) fn insert(&mut self, instance: u32, id: i64, slot: Slot<T>) {
        index::insert(self.buckets, instance, id, slot.number());
    }

    /// Removes an id. Does nothing if the index does not have it.
    #[inline]
    pub(super) fn remove(&mut self, instance: u32, id: i64) {
        index::remove(self.buckets, instance, id);
    }
}

/// An entry of an array whose free slots form a list.
pub(super) trait Listed: Sized {
    /// Returns the next free slot.
    fn next_free(&self) -> Option<Slot<Self>>;
    /// Links a free slot to the next one.
    fn set_next_free(&mut self, next: Option<Slot<Self>>);
}

/// The free slots of an array. Slots that were used before form a list. Slots that were never used lie behind all
/// others. All zero: no slot was ever used.
#[repr(C)]
pub struct FreeSlots<T> {
    first: Option<Slot<T>>,
    /// How many slots were ever used.
    used: u32,
}

impl<T> Clone for FreeSlots<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for FreeSlots<T> {}

impl<T> Default for FreeSlots<T> {
    fn default() -> Self {
        Self { first: None, used: 0 }
    }
}

impl<T> fmt::Debug for FreeSlots<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FreeSlots").field("first", &self.first).field("used", &self.used).finish()
    }
}

impl<T> FreeSlots<T> {
    /// Returns how many slots were ever used. All later slots were never used.
    #[inline]
    pub(super) fn ever_used(self) -> u32 {
        self.used
    }

    /// Returns the slots that were ever used, in order, from this number.
    #[inline]
    pub(super) fn used_from(self, number: u32) -> impl Iterator<Item = Slot<T>> + use<T> {
        (number..self.used).map(Slot::new)
    }

    /// True if no slot of the array is free.
    #[inline]
    pub(super) fn is_empty(self, slots: &Slots<'_, T>) -> bool {
        self.first.is_none() && self.used as usize >= slots.len()
    }
}

impl<T: Listed> FreeSlots<T> {
    /// Takes a free slot of the array. `None`: none is free.
    #[inline]
    pub(super) fn take(&mut self, slots: &mut Slots<'_, T>) -> Option<Slot<T>> {
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
    pub(super) fn give(&mut self, slots: &mut Slots<'_, T>, slot: Slot<T>) {
        slots[slot].set_next_free(self.first.replace(slot));
    }
}

#[cfg(test)]
impl<T: Listed> FreeSlots<T> {
    /// Returns the slots of the list.
    pub(super) fn listed(self, slots: &[T]) -> Vec<Slot<T>> {
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
