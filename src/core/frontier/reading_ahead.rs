//! Attempts of groups that were read ahead. A turn reads more attempts of its group than may start now, and keeps the
//! rest here. The first attempts that are parked of a group are kept here, too. So most hand-outs of a group with many
//! parked attempts need no turn.
//!
//! This is a hint: what is here ranks behind the group's position, so forgetting it costs one turn. If all slots are in
//! use, nothing is kept.
//!
//! Invariant: between the position of a group that has a slot here and the slot's `read_to`, every parked attempt that
//! waits is in the slot.

use super::ahead::{AHEAD, Ahead};
use super::memory::Frontier;
use super::rank::Rank;
use super::ready::Ready;

impl Frontier<'_> {
    /// Returns how many attempts the next turn should read ahead.
    pub(super) fn room_ahead(&self) -> usize {
        if self.head.ahead_slots.is_empty(self.ahead.len()) { 0 } else { AHEAD }
    }

    /// Returns the attempts of a group that were read ahead.
    pub(super) fn read_ahead(&self, group: u32) -> &[Ready] {
        match self.groups[group as usize].ahead.checked_sub(1) {
            Some(slot) => self.ahead[slot as usize].waiting(),
            None => &[],
        }
    }

    /// Returns the priority of the first parked attempt of a group, or a smaller one.
    pub(super) fn parked_priority(&self, group: u32) -> i32 {
        let first = self.read_ahead(group).first().map(|entry| entry.rank);
        first.unwrap_or(self.groups[group as usize].from()).priority
    }

    /// Keeps attempts that rank behind the position of a group. `read_to`: up to this rank, nothing else is parked
    /// there.
    pub(super) fn keep_ahead(&mut self, group: u32, entries: &[Ready], read_to: Rank) {
        let known = entries.partition_point(|entry| entry.rank <= read_to);
        let kept = known.min(AHEAD);
        if kept == 0 || self.groups[group as usize].ahead != 0 {
            return;
        }
        let slots = &self.ahead;
        let Some(slot) = self.head.ahead_slots.take(slots.len(), |slot| slots[slot as usize].next) else { return };
        let read_to = entries.get(kept).map_or(read_to, |next| next.rank.before().min(read_to));
        let ahead = &mut self.ahead[slot as usize];
        *ahead = Ahead { read_to, end: kept as u8, ..Ahead::default() };
        ahead.entries[..kept].copy_from_slice(&entries[..kept]);
        self.groups[group as usize].ahead = slot + 1;
    }

    /// Removes the first of the attempts that were read ahead. The group's position moves behind it. The caller lists
    /// the group again.
    pub(super) fn pop_ahead(&mut self, group: u32) {
        self.unlist(group);
        let Some(slot) = self.groups[group as usize].ahead.checked_sub(1) else { return };
        let ahead = &mut self.ahead[slot as usize];
        let Some(&Ready { rank, .. }) = ahead.waiting().first() else { return };
        ahead.first += 1;
        let (is_last, read_to) = (ahead.first == ahead.end, ahead.read_to);
        self.groups[group as usize].position = if is_last { read_to } else { rank };
        if is_last {
            self.forget_ahead(group);
        }
        self.groups[group as usize].urgency = self.parked_priority(group);
    }

    /// Adds an attempt of a group that is parked, if it ranks within what was read.
    pub(super) fn add_ahead(&mut self, group: u32, entry: &Ready) {
        let Some(slot) = self.groups[group as usize].ahead.checked_sub(1) else { return };
        self.ahead[slot as usize].add(entry);
    }

    /// Forgets what was read ahead of a group.
    pub(super) fn forget_ahead(&mut self, group: u32) {
        let Some(slot) = std::mem::take(&mut self.groups[group as usize].ahead).checked_sub(1) else { return };
        self.ahead[slot as usize].next = self.head.ahead_slots.give(slot);
    }
}

#[cfg(test)]
impl Frontier<'_> {
    /// Returns what was read ahead of a group, and up to which rank.
    pub(super) fn whole_ahead(&self, group: u32) -> Option<(Vec<Ready>, Rank)> {
        let slot = self.groups[group as usize].ahead.checked_sub(1)?;
        Some((self.read_ahead(group).to_vec(), self.ahead[slot as usize].read_to))
    }

    /// Checks that each slot is free or belongs to one group.
    pub(super) fn check_ahead(&self) {
        let mut slots: Vec<u32> = self.groups.iter().filter_map(|group| group.ahead.checked_sub(1)).collect();
        slots.extend(self.head.ahead_slots.listed(|slot| self.ahead[slot as usize].next));
        slots.sort_unstable();
        assert_eq!(slots, (0..self.head.ahead_slots.fresh()).collect::<Vec<_>>());
    }
}
