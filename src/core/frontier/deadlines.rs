//! The deadlines of one instance: an intrusive pairing heap (Fredman, Sedgewick, Sleator, Tarjan 1986) over the entries
//! of `running`. Each database has its own earliest deadline, although all databases share one array.
//!
//! `prev` is the left sibling, or the parent of a first child.
//! Siblings are merged in a loop and not by recursion, so that many entries do not exhaust the stack.
//!
//! Invariant: an entry is in the heap exactly if `timed` is 1, and no child has an earlier deadline than its parent.

use super::running::{DeadlineRoot, Running};
use super::slot::RunningSlot;
use super::slots::Slots;

/// Makes the later of two roots the first child of the earlier one. Returns the new root.
fn meld(running: &mut Slots<'_, Running>, a: DeadlineRoot, b: DeadlineRoot) -> DeadlineRoot {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
    let earlier = running[a].deadline <= running[b].deadline;
    let (root, child) = if earlier { (a, b) } else { (b, a) };
    let first = running[root].child.replace(child);
    if let Some(first) = first {
        running[first].prev = Some(child);
    }
    let entry = &mut running[child];
    (entry.next, entry.prev) = (first, Some(root));
    Some(root)
}

/// Merges a list of siblings into one heap: in pairs from the left, then all pairs from the right.
fn merge_siblings(running: &mut Slots<'_, Running>, mut first: Option<RunningSlot>) -> DeadlineRoot {
    let mut pairs = None;
    while let Some(a) = first {
        let b = running[a].next;
        first = b.and_then(|b| running[b].next);
        for slot in [Some(a), b].into_iter().flatten() {
            (running[slot].next, running[slot].prev) = (None, None);
        }
        let pair = meld(running, Some(a), b);
        if let Some(pair) = pair {
            running[pair].next = pairs;
        }
        pairs = pair;
    }
    let mut root = None;
    while let Some(pair) = pairs {
        pairs = running[pair].next.take();
        root = meld(running, root, Some(pair));
    }
    root
}

/// Adds a slot. Its `deadline` must be set, and it must be in no heap.
pub(super) fn insert(running: &mut Slots<'_, Running>, root: &mut DeadlineRoot, slot: RunningSlot) {
    let entry = &mut running[slot];
    (entry.child, entry.next, entry.prev, entry.timed) = (None, None, None, 1);
    *root = meld(running, *root, Some(slot));
}

/// Removes a slot. Does nothing if the slot is in no heap.
pub(super) fn remove(running: &mut Slots<'_, Running>, root: &mut DeadlineRoot, slot: RunningSlot) {
    let entry = &mut running[slot];
    if entry.timed == 0 {
        return;
    }
    entry.timed = 0;
    let (child, next, prev) = (entry.child.take(), entry.next.take(), entry.prev.take());
    if let Some(prev) = prev {
        let before = &mut running[prev];
        if before.child == Some(slot) {
            before.child = next;
        } else {
            before.next = next;
        }
        if let Some(next) = next {
            running[next].prev = Some(prev);
        }
    }
    let orphans = merge_siblings(running, child);
    *root = if *root == Some(slot) { orphans } else { meld(running, *root, orphans) };
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
            let mut running = Slots::new(&mut running);
            let mut root = None;
            let mut model = std::collections::BTreeMap::new();
            for (number, deadline, add) in steps {
                let slot = RunningSlot::new(number);
                remove(&mut running, &mut root, slot);
                model.remove(&slot);
                if add {
                    running[slot].deadline = deadline;
                    insert(&mut running, &mut root, slot);
                    model.insert(slot, deadline);
                }
                let earliest = root.map(|s| running[s].deadline);
                prop_assert_eq!(earliest, model.values().min().copied());
            }
            while let Some(slot) = root {
                prop_assert_eq!(running[slot].deadline, *model.values().min().unwrap());
                remove(&mut running, &mut root, slot);
                model.remove(&slot);
            }
            prop_assert!(model.is_empty());
        }
    }
}
