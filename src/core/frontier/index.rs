//! A hash index from (instance, id) to a slot number: open addressing with linear probing, in a slice whose length is a
//! power of two and at least twice the number of slots.
//!
//! Invariant: no empty bucket lies between an entry and its home bucket, because a removal shifts entries back. So a
//! look-up may stop at the first empty bucket.

/// One bucket. All zero is empty.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Bucket {
    id: i64,
    instance: u32,
    slot_plus_one: u32,
}

impl Bucket {
    /// True if the bucket is empty.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.slot_plus_one == 0
    }

    /// Returns the stored instance, id and slot. `None`: the bucket is empty.
    pub fn get(&self) -> Option<(u32, i64, u32)> {
        (self.slot_plus_one != 0).then(|| (self.instance, self.id, self.slot_plus_one - 1))
    }
}

/// Returns how many buckets an index of `slots` slots needs.
pub const fn buckets_for(slots: usize) -> usize {
    let doubled = if slots < 8 { 16 } else { slots * 2 };
    doubled.next_power_of_two()
}

/// Returns the bucket at which the search for an id begins. The ids of four successive attempts go to the same cache
/// line (and page), because they are mostly looked up one after the other. The groups of four are scattered, because
/// long runs of used buckets would make look-ups slow.
fn home(buckets: &[Bucket], instance: u32, id: i64) -> usize {
    /// The lowest bits of an id's count. The bits below them are the segment, and most attempts of a moment share it.
    const IN_LINE: u64 = 0b11 << 4;
    let id = id as u64;
    // The finalizer of splitmix64 (Steele, Lea, Flood 2014).
    let mut x = (id & !IN_LINE) ^ (u64::from(instance) << 53);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    ((x & !0b11) | (id & IN_LINE) >> 4) as usize & (buckets.len() - 1)
}

fn position(buckets: &[Bucket], instance: u32, id: i64) -> Option<usize> {
    let mut at = home(buckets, instance, id);
    loop {
        let bucket = &buckets[at];
        if bucket.slot_plus_one == 0 {
            return None;
        }
        if bucket.id == id && bucket.instance == instance {
            return Some(at);
        }
        at = (at + 1) & (buckets.len() - 1);
    }
}

/// Returns the slot that is stored for this id.
pub fn find(buckets: &[Bucket], instance: u32, id: i64) -> Option<u32> {
    position(buckets, instance, id).map(|at| buckets[at].slot_plus_one - 1)
}

/// Stores a slot for an id that is not in the index.
pub fn insert(buckets: &mut [Bucket], instance: u32, id: i64, slot: u32) {
    let mut at = home(buckets, instance, id);
    while buckets[at].slot_plus_one != 0 {
        at = (at + 1) & (buckets.len() - 1);
    }
    buckets[at] = Bucket { id, instance, slot_plus_one: slot + 1 };
}

/// Removes an id. Does nothing if the index does not have it.
pub fn remove(buckets: &mut [Bucket], instance: u32, id: i64) {
    let Some(mut hole) = position(buckets, instance, id) else { return };
    let mask = buckets.len() - 1;
    let mut at = hole;
    loop {
        at = (at + 1) & mask;
        let bucket = buckets[at];
        if bucket.slot_plus_one == 0 {
            break;
        }
        // An entry may fill the hole only if its home does not lie behind the hole.
        let wanted = home(buckets, bucket.instance, bucket.id);
        if at.wrapping_sub(wanted) & mask >= at.wrapping_sub(hole) & mask {
            buckets[hole] = bucket;
            hole = at;
        }
    }
    buckets[hole] = Bucket::default();
}

/// Returns the count under a key. Such a key has a count instead of a slot.
pub fn count(buckets: &[Bucket], instance: u32, id: i64) -> u32 {
    position(buckets, instance, id).map_or(0, |at| buckets[at].slot_plus_one)
}

/// Counts one more under a key. Returns whether it is the first one, so that a bucket was taken.
pub fn count_up(buckets: &mut [Bucket], instance: u32, id: i64) -> bool {
    let known = position(buckets, instance, id);
    match known {
        Some(at) => buckets[at].slot_plus_one += 1,
        None => insert(buckets, instance, id, 0),
    }
    known.is_none()
}

/// Counts one less under a key. Returns whether it was the last one, so that the bucket is free.
pub fn count_down(buckets: &mut [Bucket], instance: u32, id: i64) -> bool {
    let Some(at) = position(buckets, instance, id) else { return false };
    let is_last = buckets[at].slot_plus_one == 1;
    if is_last {
        remove(buckets, instance, id);
    } else {
        buckets[at].slot_plus_one -= 1;
    }
    is_last
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::cases(256))]

        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((1u32..3, 0i64..12, any::<bool>()), crate::length(400))) {
            let mut buckets = vec![Bucket::default(); buckets_for(8)];
            let mut model = std::collections::BTreeMap::new();
            for (n, (instance, id, add)) in steps.into_iter().enumerate() {
                let key = (instance, id);
                if !add {
                    remove(&mut buckets, instance, id);
                    model.remove(&key);
                } else if model.len() < 8 && !model.contains_key(&key) {
                    insert(&mut buckets, instance, id, n as u32);
                    model.insert(key, n as u32);
                }
                for key in (1..3).flat_map(|instance| (0..12).map(move |id| (instance, id))) {
                    prop_assert_eq!(find(&buckets, key.0, key.1), model.get(&key).copied());
                }
                prop_assert_eq!(buckets.iter().filter(|bucket| !bucket.is_empty()).count(), model.len());
            }
        }
    }
}
