//! Sorts groups: the smaller `order` first, and by arrival among equals. The owner of a tree decides whether `order` is
//! the urgency or a time. The tree is an intrusive treap (Seidel, Aragon 1996) over the slots of groups. The smallest
//! group is known, the largest is a few steps away, and an insertion or removal takes logarithmic time under the lock.
//! A heap does not know the largest, and it defers work that a single claim would then have to do for all.
//!
//! Links are slot numbers plus one; zero is no link. The place in the tree implies the arrival, so no time of arrival
//! is kept.
//!
//! Invariant: `Group::order` does not change while the group is in a tree.

use super::group::Group;

/// A tree. All zero is empty.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Turns {
    root: u32,
    first: u32,
    len: u32,
}

fn node(groups: &mut [Group], link: u32) -> &mut Group {
    &mut groups[link as usize - 1]
}

/// Returns the weight of a node. The heavier of two nodes is nearer to the root. Weights are pseudo-random and never
/// equal for two nodes (the finalizer of MurmurHash3, by Appleby).
fn weight(link: u32) -> u32 {
    let mut x = link;
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

impl Turns {
    pub(super) fn is_empty(self) -> bool {
        self.root == 0
    }

    pub(super) fn len(self) -> u32 {
        self.len
    }

    /// Returns the slot of the group that comes first.
    pub(super) fn first(self) -> Option<u32> {
        self.first.checked_sub(1)
    }

    /// Returns the slot of the group that comes last.
    pub(super) fn last(self, groups: &[Group]) -> Option<u32> {
        let mut at = self.root.checked_sub(1)?;
        while let Some(next) = groups[at as usize].next.checked_sub(1) {
            at = next;
        }
        Some(at)
    }

    /// Replaces `from` by `to` below its parent.
    fn replace(&mut self, groups: &mut [Group], from: u32, to: u32) {
        let up = node(groups, from).up;
        if up == 0 {
            self.root = to;
        } else if node(groups, up).prev == from {
            node(groups, up).prev = to;
        } else {
            node(groups, up).next = to;
        }
        if to != 0 {
            node(groups, to).up = up;
        }
    }

    /// Adds a group behind those with an equal `order`. The group must be in no list.
    pub(super) fn insert(&mut self, groups: &mut [Group], slot: u32) {
        self.len += 1;
        let this = slot + 1;
        let order = node(groups, this).order;
        let (mut up, mut at, mut is_first) = (0, self.root, true);
        while at != 0 {
            let group = node(groups, at);
            let is_before = order < group.order;
            is_first &= is_before;
            (up, at) = (at, if is_before { group.prev } else { group.next });
        }
        let group = node(groups, this);
        (group.prev, group.next, group.up) = (0, 0, up);
        if up == 0 {
            self.root = this;
        } else if order < node(groups, up).order {
            node(groups, up).prev = this;
        } else {
            node(groups, up).next = this;
        }
        if is_first {
            self.first = this;
        }
        // The group rises until its parent is heavier.
        while up != 0 && weight(up) < weight(this) {
            self.replace(groups, up, this);
            if node(groups, up).prev == this {
                let between = std::mem::replace(&mut node(groups, this).next, up);
                node(groups, up).prev = between;
                if between != 0 {
                    node(groups, between).up = up;
                }
            } else {
                let between = std::mem::replace(&mut node(groups, this).prev, up);
                node(groups, up).next = between;
                if between != 0 {
                    node(groups, between).up = up;
                }
            }
            node(groups, up).up = this;
            up = node(groups, this).up;
        }
    }

    /// Removes a group that is in this tree.
    pub(super) fn remove(&mut self, groups: &mut [Group], slot: u32) {
        self.len -= 1;
        let this = slot + 1;
        let (mut left, mut right, up) =
            (groups[slot as usize].prev, groups[slot as usize].next, groups[slot as usize].up);
        if self.first == this {
            // It has no left child: the next group is the first on its right, or else its parent.
            self.first = if right == 0 { up } else { right };
            while right != 0 && node(groups, self.first).prev != 0 {
                self.first = node(groups, self.first).prev;
            }
        }
        // Its two subtrees are merged from above and take its place. `this` marks the place of the part that is not
        // merged yet.
        while left != 0 && right != 0 {
            if weight(left) > weight(right) {
                self.replace(groups, this, left);
                let next = std::mem::replace(&mut node(groups, left).next, this);
                (node(groups, this).up, left) = (left, next);
            } else {
                self.replace(groups, this, right);
                let next = std::mem::replace(&mut node(groups, right).prev, this);
                (node(groups, this).up, right) = (right, next);
            }
        }
        self.replace(groups, this, left | right);
        let group = node(groups, this);
        (group.prev, group.next, group.up) = (0, 0, 0);
    }
}

#[cfg(test)]
impl Turns {
    /// Returns the slots of the tree in order, and checks links and weights.
    pub(super) fn slots(self, groups: &[Group]) -> Vec<u32> {
        let (mut found, mut open, mut at) = (Vec::new(), Vec::new(), self.root);
        while at != 0 || !open.is_empty() {
            while at != 0 {
                open.push(at);
                at = groups[at as usize - 1].prev;
            }
            let this = open.pop().unwrap();
            let group = &groups[this as usize - 1];
            for child in [group.prev, group.next].into_iter().filter(|&child| child != 0) {
                assert!(groups[child as usize - 1].up == this && weight(child) < weight(this));
            }
            found.push(this - 1);
            at = group.next;
        }
        assert_eq!((found.first().copied(), found.last().copied()), (self.first(), self.last(groups)));
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
        fn they_come_by_urgency_and_then_by_arrival(
            steps in prop::collection::vec((0u32..40, -3i32..4, 0u8..3), crate::length(600))
        ) {
            let mut groups = vec![Group::default(); 40];
            let mut turns = Turns::default();
            let mut model: Vec<(i32, u32)> = Vec::new();
            for (slot, urgency, what) in steps {
                if let Some(nth) = model.iter().position(|&(_, other)| other == slot) {
                    turns.remove(&mut groups, slot);
                    model.remove(nth);
                }
                if what > 0 {
                    groups[slot as usize].order = i64::from(urgency);
                    turns.insert(&mut groups, slot);
                    let nth = model.partition_point(|&(other, _)| other <= urgency);
                    model.insert(nth, (urgency, slot));
                }
                prop_assert_eq!(turns.slots(&groups), model.iter().map(|&(_, slot)| slot).collect::<Vec<_>>());
                prop_assert_eq!(turns.is_empty(), model.is_empty());
            }
        }
    }

    /// Arrivals in order do not turn the tree into a list.
    #[test]
    fn it_is_not_deep() {
        const MANY: u32 = if cfg!(miri) { 500 } else { 100_000 };
        for step in [0, 1, -1] {
            let mut groups = vec![Group::default(); MANY as usize];
            let mut turns = Turns::default();
            for slot in 0..MANY {
                groups[slot as usize].order = i64::from(slot as i32 * step);
                turns.insert(&mut groups, slot);
            }
            let depth = |mut at: u32| {
                std::iter::from_fn(|| {
                    at = groups[at as usize].up.checked_sub(1)?;
                    Some(())
                })
                .count()
            };
            assert!((0..MANY).map(depth).max().unwrap() < 80);
        }
    }
}
