//! The slots of managed groups, and the attempts that turns have read ahead of them.
//!
//! A turn reads more attempts of its group than may start now, and keeps the rest here. The first attempts that are
//! parked of a group are kept here, too. So most hand-outs of a group with many parked attempts need no turn. This is a
//! hint: what is here ranks behind the group's position, so forgetting it costs one turn. If all slots are in use,
//! nothing is kept.
//!
//! Responsible for slots, lists and what was read ahead. Not responsible for which standing a group has (`managed`).
//!
//! Invariant: between the position of a group and the `read_to` of what was read ahead of it, every parked attempt that
//! waits was read ahead.

use super::ahead::{AHEAD, Ahead};
use super::group::{Group, Standing};
use super::index::Bucket;
use super::lane::Lists;
use super::rank::Rank;
use super::ready::Ready;
use super::slot::{GateSlot, GroupSlot, of};
use super::slots::{FreeSlots, SlotIndex, Slots, indexed_by_slot};
use super::turns::Turns;

/// Counts of groups. All zero: no group is managed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupsHead {
    /// How many groups are in use.
    pub(super) used: u32,
    /// How many groups are being served by sessions.
    pub(super) served: u32,
    /// How many groups were ever throttled: then their rests are compared with the present time.
    pub(super) throttled: u32,
    slots: FreeSlots<of::Group>,
    ahead_slots: FreeSlots<of::Ahead>,
    /// The groups of all lanes that have waiting jobs and are at their rate, in the order in which they may start jobs
    /// again.
    pub(super) resting: Turns,
}

/// The managed groups: they have running jobs, or were served recently, or wait for a turn.
pub struct GroupSet<'a> {
    groups: Slots<'a, Group>,
    index: SlotIndex<'a, of::Group>,
    ahead: Slots<'a, Ahead>,
    pub(super) head: &'a mut GroupsHead,
}

impl<'a> GroupSet<'a> {
    #[inline]
    pub(super) fn new(
        head: &'a mut GroupsHead,
        groups: &'a mut [Group],
        index: &'a mut [Bucket],
        ahead: &'a mut [Ahead],
    ) -> Self {
        Self { groups: Slots::new(groups), index: SlotIndex::new(index), ahead: Slots::new(ahead), head }
    }

    // ---- slots

    pub(super) fn slots(&self) -> impl DoubleEndedIterator<Item = GroupSlot> + use<> {
        self.groups.slots()
    }

    /// Returns how many slots there are.
    pub(super) fn size(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }

    /// Returns the first group that `is_it`.
    pub(super) fn first(&self, is_it: impl Fn(&Group) -> bool) -> Option<GroupSlot> {
        self.groups.find(is_it)
    }

    #[inline]
    pub(super) fn find(&self, gate: GateSlot, key: i64) -> Option<GroupSlot> {
        self.index.find(gate.number(), key)
    }

    /// Returns how many slots are free.
    pub(super) fn free(&self) -> usize {
        self.groups.len() - self.head.used as usize
    }

    /// True if no slot is free.
    pub(super) fn is_full(&self) -> bool {
        self.head.slots.is_empty(&self.groups)
    }

    /// Adds a group of this gate. `None`: no slot is free.
    pub(super) fn add(&mut self, gate: GateSlot, group: Group) -> Option<GroupSlot> {
        let slot = self.head.slots.take(&mut self.groups)?;
        self.groups[slot] = Group { gate: Some(gate), ..group };
        self.index.insert(gate.number(), group.key, slot);
        self.head.used += 1;
        Some(slot)
    }

    /// Frees the slot of a group that is in no list.
    pub(super) fn remove(&mut self, slot: GroupSlot) {
        let group = self.groups[slot];
        self.forget_ahead(slot);
        self.index.remove(group.gate().number(), group.key);
        self.groups[slot] = Group::default();
        self.head.slots.give(&mut self.groups, slot);
        self.head.used -= 1;
    }

    // ---- lists

    /// Takes a group off its list. `lists`: those of its lane, if the lane has a slot.
    pub(super) fn unlist(&mut self, slot: GroupSlot, lists: Option<&mut Lists>) {
        let group = self.groups[slot];
        match (group.standing, lists) {
            (Standing::Resting, _) => self.head.resting.remove(&mut self.groups, slot),
            (Standing::Turn, Some(lists)) => lists.turns.remove(&mut self.groups, slot),
            (Standing::Served { is_in_way: true, .. }, Some(lists)) => lists.in_way.remove(&mut self.groups, slot),
            (Standing::Idle, Some(lists)) => {
                match group.prev {
                    Some(prev) => self.groups[prev].next = group.next,
                    None => lists.idle.0 = group.next,
                }
                match group.next {
                    Some(next) => self.groups[next].prev = group.prev,
                    None => lists.idle.1 = group.prev,
                }
            }
            _ => {}
        }
        let group = &mut self.groups[slot];
        group.standing = group.standing.unlisted();
        (group.next, group.prev, group.up) = (None, None, None);
    }

    /// Gives a group that is in no list this standing, and puts it at the end of the list of that. `order` is its sort
    /// key there.
    pub(super) fn enlist(&mut self, slot: GroupSlot, standing: Standing, order: i64, lists: &mut Lists) {
        let group = &mut self.groups[slot];
        // If the lane has lost its slot meanwhile, its count of hand-outs has begun anew.
        (group.standing, group.order, group.served_at) = (standing, order, group.served_at.min(lists.served));
        match standing {
            Standing::Resting => self.head.resting.insert(&mut self.groups, slot),
            Standing::Turn => lists.turns.insert(&mut self.groups, slot),
            Standing::Served { is_in_way: true, .. } => lists.in_way.insert(&mut self.groups, slot),
            Standing::Idle => {
                let last = lists.idle.1.replace(slot);
                self.groups[slot].prev = last;
                match last {
                    Some(last) => self.groups[last].next = Some(slot),
                    None => lists.idle.0 = Some(slot),
                }
            }
            _ => {}
        }
    }

    /// Returns the group that a lane with these lists forgets first: an idle one, or the last of the turns, which would
    /// wait longest.
    pub(super) fn last_of(&self, lists: &Lists) -> Option<GroupSlot> {
        lists.idle.0.or_else(|| lists.turns.last(&self.groups))
    }

    /// Returns the first of these turns with this sort key.
    pub(super) fn first_with(&self, turns: Turns, order: i64) -> Option<GroupSlot> {
        turns.first_of(&self.groups, order)
    }

    /// Returns the groups of these turns in their order.
    pub(super) fn in_turn(&self, turns: Turns) -> impl Iterator<Item = GroupSlot> {
        std::iter::successors(turns.first(), |&slot| Turns::after(&self.groups, slot))
    }

    /// Returns how many attempts of a group are parked. `None`: memory does not know all of them.
    pub(super) fn parked(&self, group: GroupSlot) -> Option<u32> {
        let ahead = &self.ahead[self.groups[group].ahead?];
        (ahead.read_to == Rank::MAX).then(|| ahead.waiting().len() as u32)
    }

    /// Returns the resting group whose rest ends first, and when.
    pub(super) fn first_resting(&self) -> Option<(GroupSlot, i64)> {
        self.head.resting.first().map(|slot| (slot, self.groups[slot].order))
    }

    // ---- what was read ahead

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

    /// Removes the first of the attempts that were read ahead of a group that is in no list. The group's position moves
    /// behind it.
    pub(super) fn pop_ahead(&mut self, group: GroupSlot) {
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

indexed_by_slot!(GroupSet, GroupSlot, groups: Group);

#[cfg(test)]
impl GroupSet<'_> {
    /// Returns what was read ahead of a group, and up to which rank.
    pub(super) fn whole_ahead(&self, group: GroupSlot) -> Option<(Vec<Ready>, Rank)> {
        let slot = self.groups[group].ahead?;
        Some((self.read_ahead(group).to_vec(), self.ahead[slot].read_to))
    }

    /// Checks that each slot of what was read ahead is free or belongs to one group.
    pub(super) fn check_ahead(&self) {
        let mut slots: Vec<_> = self.groups.iter().filter_map(|group| group.ahead).collect();
        slots.extend(self.head.ahead_slots.listed(&self.ahead));
        slots.sort_unstable();
        assert_eq!(slots, self.head.ahead_slots.used_from(0).collect::<Vec<_>>());
    }
}
