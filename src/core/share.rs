//! Limits how much of a common resource one party may hold: a fixed multiple of what is free (the dynamic threshold of
//! Choudhury and Hahne, 1998). A single party gets nearly all, several get equal shares, and something always stays
//! free for the next one. No setting is needed, and nothing is reserved for absent parties. See
//! docs/decisions/shares.md.
//!
//! Parties are nested: an instance has a share of everything, a queue has a share of what its instance may still take.
//! The counts lie in the same index as the parties' entries, under negative keys. No entry has a negative key.
//!
//! Invariant: a count is the number of the party's entries in the index. It changes only where an entry is inserted or
//! removed.

use crate::frontier::index::{self, Bucket};

/// A party may hold this many times what is free. The factor is smaller in tests, because their memory is small.
pub const ALPHA: u32 = if cfg!(test) { 3 } else { 15 };

/// The key of an instance's count.
const INSTANCE: i64 = i64::MIN;

/// The key of a queue's or lane's count.
fn key(queue: u32) -> i64 {
    INSTANCE + 1 + i64::from(queue)
}

/// Returns how many more entries a party may take that holds `held`, while `free` are free. The rule it solves: a party
/// may take one more while it holds less than `alpha` times the free ones.
pub fn room(alpha: u32, free: usize, held: u32) -> u32 {
    let free = u32::try_from(free).unwrap_or(u32::MAX);
    alpha.saturating_mul(free).saturating_sub(held).div_ceil(alpha + 1).min(free)
}

/// Returns how many entries an instance holds.
pub fn held(buckets: &[Bucket], instance: u32) -> u32 {
    index::count(buckets, instance, INSTANCE)
}

/// Returns how many entries a queue holds.
pub fn held_of(buckets: &[Bucket], instance: u32, queue: u32) -> u32 {
    index::count(buckets, instance, key(queue))
}

/// Returns how many more entries a queue may take while `free` are free.
pub fn room_of(buckets: &[Bucket], instance: u32, queue: u32, free: usize) -> u32 {
    let left = room(ALPHA, free, held(buckets, instance));
    room(ALPHA, left as usize, held_of(buckets, instance, queue))
}

/// Counts one more entry of an instance. Returns how many buckets the count has taken.
pub fn enter(buckets: &mut [Bucket], instance: u32) -> u32 {
    u32::from(index::count_up(buckets, instance, INSTANCE))
}

/// Counts one entry less of an instance. Returns how many buckets the count has freed.
pub fn leave(buckets: &mut [Bucket], instance: u32) -> u32 {
    u32::from(index::count_down(buckets, instance, INSTANCE))
}

/// Counts one more entry of a queue and its instance, as [`enter`] does.
pub fn enter_of(buckets: &mut [Bucket], instance: u32, queue: u32) -> u32 {
    enter(buckets, instance) + u32::from(index::count_up(buckets, instance, key(queue)))
}

/// Counts one entry less of a queue and its instance, as [`leave`] does.
pub fn leave_of(buckets: &mut [Bucket], instance: u32, queue: u32) -> u32 {
    leave(buckets, instance) + u32::from(index::count_down(buckets, instance, key(queue)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::cases(256))]

        #[test]
        fn room_is_what_one_by_one_would_give(alpha in 1u32..70, size in 0u32..200, held in 0u32..200) {
            let held = held.min(size);
            let mut now = held;
            while now < alpha * (size - now) {
                now += 1;
            }
            prop_assert_eq!(room(alpha, (size - held) as usize, held), now - held);
        }

        #[test]
        fn one_alone_gets_most_and_something_is_left_for_each_that_comes(size in 300u32..20_000, alpha in 2u32..16) {
            let mut free = size;
            for nth in 0..4 {
                let got = room(alpha, free as usize, 0);
                prop_assert!(got < free && got >= free * alpha / (alpha + 1), "the {nth}th of {free}: {got}");
                free -= got;
                if free <= alpha + 1 {
                    break;
                }
            }
        }
    }

    #[test]
    fn those_who_hold_less_than_their_share_get_what_the_others_leave() {
        // The first party holds what it could get alone. The second party takes each entry that the first one ends,
        // until both have the same.
        let size = 1600u32;
        let mut held = [0u32; 2];
        held[0] += room(ALPHA, size as usize, 0);
        for _ in 0..20_000 {
            held[0] -= u32::from(held[0] > 0);
            for party in [0, 1] {
                let free = size - held[0] - held[1];
                held[party] += room(ALPHA, free as usize, held[party]).min(1);
            }
        }
        assert!(held[0].abs_diff(held[1]) <= ALPHA + 1, "{held:?}");
        assert!(held[0] + held[1] < size, "{held:?}");
    }
}
