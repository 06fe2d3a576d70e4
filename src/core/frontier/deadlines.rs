//! The deadlines of one instance: an intrusive pairing heap (Fredman, Sedgewick, Sleator, Tarjan 1986) over the entries
//! of `running`. Each database has its own earliest deadline, although all databases share one array.
//!
//! Links are slot numbers plus one; zero is no link. `prev` is the left sibling, or the parent of a first child.
//! Siblings are merged in a loop and not by recursion, so that many entries do not exhaust the stack.
//!
//! Invariant: an entry is in the heap exactly if `timed` is 1, and no child has an earlier deadline than its parent.

use super::running::Running;

fn link(slot: u32) -> u32 {
    slot + 1
}

fn node(running: &mut [Running], link: u32) -> &mut Running {
    &mut running[link as usize - 1]
}

/// Makes the later of two roots the first child of the earlier one. Returns the new root.
fn meld(running: &mut [Running], a: u32, b: u32) -> u32 {
    if a == 0 || b == 0 {
        return a | b;
    }
    let earlier = node(running, a).deadline <= node(running, b).deadline;
    let (root, child) = if earlier { (a, b) } else { (b, a) };
    let first = node(running, root).child;
    if first != 0 {
        node(running, first).prev = child;
    }
    let entry = node(running, child);
    entry.next = first;
    entry.prev = root;
    node(running, root).child = child;
    root
}

/// Merges a list of siblings into one heap: in pairs from the left, then all pairs from the right.
fn merge_siblings(running: &mut [Running], mut first: u32) -> u32 {
    let mut pairs = 0;
    while first != 0 {
        let a = first;
        let b = node(running, a).next;
        first = if b == 0 { 0 } else { node(running, b).next };
        for link in [a, b] {
            if link != 0 {
                let entry = node(running, link);
                entry.next = 0;
                entry.prev = 0;
            }
        }
        let pair = meld(running, a, b);
        node(running, pair).next = pairs;
        pairs = pair;
    }
    let mut root = 0;
    while pairs != 0 {
        let rest = node(running, pairs).next;
        node(running, pairs).next = 0;
        root = meld(running, root, pairs);
        pairs = rest;
    }
    root
}

/// Adds a slot. Its `deadline` must be set, and it must be in no heap.
pub fn insert(running: &mut [Running], root: &mut u32, slot: u32) {
    let entry = node(running, link(slot));
    (entry.child, entry.next, entry.prev, entry.timed) = (0, 0, 0, 1);
    *root = meld(running, *root, link(slot));
}

/// Removes a slot. Does nothing if the slot is in no heap.
pub fn remove(running: &mut [Running], root: &mut u32, slot: u32) {
    let this = link(slot);
    let (child, next, prev) = {
        let entry = node(running, this);
        if entry.timed == 0 {
            return;
        }
        entry.timed = 0;
        (entry.child, entry.next, entry.prev)
    };
    if prev != 0 {
        if node(running, prev).child == this {
            node(running, prev).child = next;
        } else {
            node(running, prev).next = next;
        }
        if next != 0 {
            node(running, next).prev = prev;
        }
    }
    let orphans = merge_siblings(running, child);
    *root = if *root == this { orphans } else { meld(running, *root, orphans) };
    let entry = node(running, this);
    (entry.child, entry.next, entry.prev) = (0, 0, 0);
}

/// Returns the slot with the earliest deadline.
pub fn first(root: u32) -> Option<u32> {
    (root != 0).then(|| root - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::cases(256))]

        #[test]
        fn the_first_is_always_the_earliest(
            steps in prop::collection::vec((0u32..24, 0i64..100, any::<bool>()), crate::length(500))
        ) {
            let mut running = vec![Running::default(); 24];
            let mut root = 0;
            let mut model = std::collections::BTreeMap::new();
            for (slot, deadline, add) in steps {
                remove(&mut running, &mut root, slot);
                model.remove(&slot);
                if add {
                    running[slot as usize].deadline = deadline;
                    insert(&mut running, &mut root, slot);
                    model.insert(slot, deadline);
                }
                let earliest = first(root).map(|s| running[s as usize].deadline);
                prop_assert_eq!(earliest, model.values().min().copied());
            }
            while let Some(slot) = first(root) {
                prop_assert_eq!(running[slot as usize].deadline, *model.values().min().unwrap());
                remove(&mut running, &mut root, slot);
                model.remove(&slot);
            }
            prop_assert!(model.is_empty());
        }
    }
}
