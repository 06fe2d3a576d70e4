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
use super::group::GroupSlot;
use super::memory::Frontier;
use super::rank::Rank;
use super::ready::Ready;
#[cfg(test)]
use super::slots::Slot;

impl Frontier<'_> {
    /// Returns how many attempts the next turn should read ahead.
    pub(super) fn room_ahead(&self) -> usize {
        if self.head.ahead_slots.is_empty(&self.ahead) { 0 } else { AHEAD }
    }

    /// Returns the attempts of a group that were read ahead.
    pub(super) fn read_ahead(&self, group: GroupSlot) -> &[Ready] {
        match self.groups[group].ahead {
            Some(slot) => self.ahead[slot].waiting(),
            None => &[],
        }
    }

    /// Returns the priority of the first parked attempt of a group, or a smaller one.
    pub(super) fn parked_priority(&self, group: GroupSlot) -> i32 {
        let first = self.read_ahead(group).first().map(|entry| entry.rank);
        first.unwrap_or(self.groups[group].from()).priority
    }

    /// Keeps attempts that rank behind the position of a group. `read_to`: up to this rank, nothing else is parked
    /// there.
    pub(super) fn keep_ahead(&mut self, group: GroupSlot, entries: &[Ready], read_to: Rank) {
        let known = entries.partition_point(|entry| entry.rank <= read_to);
        let kept = known.min(AHEAD);
        if kept == 0 || self.groups[group].ahead.is_some() {
            return;
        }
        let Some(slot) = self.head.ahead_slots.take(&mut self.ahead) else { return };
        let read_to = entries.get(kept).map_or(read_to, |next| next.rank.before().min(read_to));
        let ahead = &mut self.ahead[slot];
        *ahead = Ahead { read_to, end: kept as u8, ..Ahead::default() };
        ahead.entries[..kept].copy_from_slice(&entries[..kept]);
        self.groups[group].ahead = Some(slot);
    }

    /// Removes the first of the attempts that were read ahead. The group's position moves behind it. The caller lists
    /// the group again.
    pub(super) fn pop_ahead(&mut self, group: GroupSlot) {
        self.unlist(group);
        let Some(slot) = self.groups[group].ahead else { return };
        let ahead = &mut self.ahead[slot];
        let Some(&Ready { rank, .. }) = ahead.waiting().first() else { return };
        ahead.first += 1;
        let (is_last, read_to) = (ahead.first == ahead.end, ahead.read_to);
        self.groups[group].position = if is_last { read_to } else { rank };
        if is_last {
            self.forget_ahead(group);
        }
        self.groups[group].urgency = self.parked_priority(group);
    }

    /// Adds an attempt of a group that is parked, if it ranks within what was read.
    pub(super) fn add_ahead(&mut self, group: GroupSlot, entry: &Ready) {
        let Some(slot) = self.groups[group].ahead else { return };
        self.ahead[slot].add(entry);
    }

    /// Forgets what was read ahead of a group.
    pub(super) fn forget_ahead(&mut self, group: GroupSlot) {
        let Some(slot) = self.groups[group].ahead.take() else { return };
        self.head.ahead_slots.give(&mut self.ahead, slot);
    }
}

#[cfg(test)]
impl Frontier<'_> {
    /// Returns what was read ahead of a group, and up to which rank.
    pub(super) fn whole_ahead(&self, group: GroupSlot) -> Option<(Vec<Ready>, Rank)> {
        let slot = self.groups[group].ahead?;
        Some((self.read_ahead(group).to_vec(), self.ahead[slot].read_to))
    }

    /// Checks that each slot is free or belongs to one group.
    pub(super) fn check_ahead(&self) {
        let mut slots: Vec<Slot<Ahead>> = self.groups.iter().filter_map(|group| group.ahead).collect();
        slots.extend(self.head.ahead_slots.listed(&self.ahead));
        slots.sort_unstable();
        assert_eq!(slots, self.head.ahead_slots.used_from(0).collect::<Vec<_>>());
    }
}
