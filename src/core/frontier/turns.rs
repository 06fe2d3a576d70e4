//! Sorts groups: the smaller `order` first, then the smaller `pass`, and by arrival among equals. The owner of a tree
//! decides whether `order` is the urgency or a time. The tree is an intrusive treap (Seidel, Aragon 1996) over the
//! slots of groups. The smallest group is known, the largest is a few steps away, and an insertion or removal takes
//! logarithmic time under the lock. A heap does not know the largest, and it defers work that a single claim would then
//! have to do for all.
//!
//! The place in the tree implies the arrival, so no time of arrival is kept.
//!
//! Invariant: `Group::order` and `Group::pass` do not change while the group is in a tree.

use super::group::Group;
use super::slot::GroupSlot;
use super::slots::Slots;

/// A tree. All zero is empty.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Turns {
    root: Option<GroupSlot>,
    first: Option<GroupSlot>,
    len: u32,
}

/// Returns the weight of a node. The heavier of two nodes is nearer to the root. Weights are pseudo-random and never
/// equal for two nodes (the finalizer of MurmurHash3, by Appleby).
fn weight(slot: GroupSlot) -> u32 {
    let mut x = slot.number() + 1;
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

impl Turns {
    pub(super) fn is_empty(self) -> bool {
        self.root.is_none()
    }

    pub(super) fn len(self) -> u32 {
        self.len
    }

    /// Returns the slot of the group that comes first.
    pub(super) fn first(self) -> Option<GroupSlot> {
        self.first
    }

    /// Returns the slot of the group that comes last.
    pub(super) fn last(self, groups: &Slots<'_, Group>) -> Option<GroupSlot> {
        let mut at = self.root?;
        while let Some(next) = groups[at].next {
            at = next;
        }
        Some(at)
    }

    /// Returns the slot of the group that comes after this one.
    pub(super) fn after(groups: &Slots<'_, Group>, mut this: GroupSlot) -> Option<GroupSlot> {
        if let Some(mut next) = groups[this].next {
            while let Some(before) = groups[next].prev {
                next = before;
            }
            return Some(next);
        }
        loop {
            let up = groups[this].up?;
            if groups[up].prev == Some(this) {
                return Some(up);
            }
            this = up;
        }
    }

    /// Replaces `from` by `to` below its parent.
    fn replace(&mut self, groups: &mut Slots<'_, Group>, from: GroupSlot, to: Option<GroupSlot>) {
        let up = groups[from].up;
        match up {
            None => self.root = to,
            Some(up) if groups[up].prev == Some(from) => groups[up].prev = to,
            Some(up) => groups[up].next = to,
        }
        if let Some(to) = to {
            groups[to].up = up;
        }
    }

    /// Returns the first group with this `order`.
    pub(super) fn first_of(self, groups: &Slots<'_, Group>, order: i64) -> Option<GroupSlot> {
        let (mut found, mut at) = (None, self.root);
        while let Some(slot) = at {
            let group = &groups[slot];
            if order <= group.order {
                (found, at) = (Some(slot), group.prev);
            } else {
                at = group.next;
            }
        }
        found.filter(|&slot| groups[slot].order == order)
    }

    /// Adds a group behind those with an equal `order` and `pass`. The group must be in no list.
    pub(super) fn insert(&mut self, groups: &mut Slots<'_, Group>, this: GroupSlot) {
        self.len += 1;
        let key = groups[this].key_in_tree();
        let (mut parent, mut at, mut is_first) = (None, self.root, true);
        let mut is_before = false;
        while let Some(other) = at {
            let group = &groups[other];
            is_before = key < group.key_in_tree();
            is_first &= is_before;
            (parent, at) = (Some(other), if is_before { group.prev } else { group.next });
        }
        let group = &mut groups[this];
        (group.prev, group.next, group.up) = (None, None, parent);
        match parent {
            None => self.root = Some(this),
            Some(up) if is_before => groups[up].prev = Some(this),
            Some(up) => groups[up].next = Some(this),
        }
        if is_first {
            self.first = Some(this);
        }
        self.raise(groups, this);
    }

    /// Moves a group up until its parent is heavier.
    fn raise(&mut self, groups: &mut Slots<'_, Group>, this: GroupSlot) {
        while let Some(up) = groups[this].up.filter(|&up| weight(up) < weight(this)) {
            self.replace(groups, up, Some(this));
            let between = if groups[up].prev == Some(this) {
                let between = groups[this].next.replace(up);
                groups[up].prev = between;
                between
            } else {
                let between = groups[this].prev.replace(up);
                groups[up].next = between;
                between
            };
            if let Some(between) = between {
                groups[between].up = Some(up);
            }
            groups[up].up = Some(this);
        }
    }

    /// Removes a group that is in this tree.
    pub(super) fn remove(&mut self, groups: &mut Slots<'_, Group>, this: GroupSlot) {
        self.len -= 1;
        let Group { prev: mut left, next: mut right, up, .. } = groups[this];
        if self.first == Some(this) {
            // It has no left child: the next group is the first on its right, or else its parent.
            self.first = right.or(up);
            while right.is_some()
                && let Some(before) = self.first.and_then(|first| groups[first].prev)
            {
                self.first = Some(before);
            }
        }
        // Its two subtrees are merged from above and take its place. `this` marks the place of the part that is not
        // merged yet.
        while let (Some(one), Some(other)) = (left, right) {
            if weight(one) > weight(other) {
                self.replace(groups, this, left);
                left = groups[one].next.replace(this);
                groups[this].up = Some(one);
            } else {
                self.replace(groups, this, right);
                right = groups[other].prev.replace(this);
                groups[this].up = Some(other);
            }
        }
        self.replace(groups, this, left.or(right));
        let group = &mut groups[this];
        (group.prev, group.next, group.up) = (None, None, None);
    }
}

#[cfg(test)]
impl Turns {
    /// Returns the slots of the tree in order, and checks links and weights.
    pub(super) fn slots(self, groups: &Slots<'_, Group>) -> Vec<GroupSlot> {
        let (mut found, mut open, mut at) = (Vec::new(), Vec::new(), self.root);
        while at.is_some() || !open.is_empty() {
            while let Some(slot) = at {
                open.push(slot);
                at = groups[slot].prev;
            }
            let this = open.pop().unwrap();
            let group = &groups[this];
            for child in [group.prev, group.next].into_iter().flatten() {
                assert!(groups[child].up == Some(this) && weight(child) < weight(this));
            }
            found.push(this);
            at = group.next;
        }
        assert_eq!((found.first().copied(), found.last().copied()), (self.first(), self.last(groups)));
        assert!(found.windows(2).all(|two| Self::after(groups, two[0]) == Some(two[1])));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::cases(256))]

        #[test]
        fn they_come_by_urgency_then_by_pass_then_by_arrival(
            steps in prop::collection::vec((0u32..40, -3i32..4, 0u8..4), crate::length(600))
        ) {
            let mut groups = vec![Group::default(); 40];
            let mut groups = Slots::new(&mut groups);
            let mut turns = Turns::default();
            let mut model: Vec<((i32, u64), GroupSlot)> = Vec::new();
            for (number, urgency, what) in steps {
                let slot = GroupSlot::new(number);
                if let Some(nth) = model.iter().position(|&(_, other)| other == slot) {
                    turns.remove(&mut groups, slot);
                    model.remove(nth);
                }
                if what > 0 {
                    let pass = u64::from(what - 1);
                    (groups[slot].order, groups[slot].pass) = (i64::from(urgency), pass);
                    turns.insert(&mut groups, slot);
                    let nth = model.partition_point(|&(other, _)| other <= (urgency, pass));
                    model.insert(nth, ((urgency, pass), slot));
                }
                prop_assert_eq!(turns.slots(&groups), model.iter().map(|&(_, slot)| slot).collect::<Vec<_>>());
                prop_assert_eq!(turns.is_empty(), model.is_empty());
                let first = model.iter().find(|&&((other, _), _)| other == urgency).map(|&(_, slot)| slot);
                prop_assert_eq!(turns.first_of(&groups, i64::from(urgency)), first);
            }
        }
    }

    /// Arrivals in order do not turn the tree into a list.
    #[test]
    fn it_is_not_deep() {
        const MANY: u32 = if cfg!(miri) { 500 } else { 100_000 };
        for step in [0, 1, -1] {
            let mut groups = vec![Group::default(); MANY as usize];
            let mut groups = Slots::new(&mut groups);
            let mut turns = Turns::default();
            for slot in groups.slots() {
                groups[slot].order = i64::from(slot.number() as i32 * step);
                turns.insert(&mut groups, slot);
            }
            let depth = |mut at: GroupSlot| {
                std::iter::from_fn(|| {
                    at = groups[at].up?;
                    Some(())
                })
                .count()
            };
            assert!(groups.slots().map(depth).max().unwrap() < 80);
        }
    }
}
