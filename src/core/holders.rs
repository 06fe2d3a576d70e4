//! Knows which open transaction holds which unique key, so that producers of the same key exclude each other.
//!
//! Only the hash of a key is stored. Two keys with the same hash exclude each other as well. That delays a producer and
//! does no other harm. The table lies in memory of the caller, allocates nothing and cannot fail.
//!
//! Invariant: a key has at most one holder. An entry may outlive its transaction, if that was prepared. A session that
//! finds the transaction ended takes the entry over. A holder releases only its own entry.

use crate::frontier::index::{self, Bucket};
use crate::share;

/// The id of a transaction, never 0.
pub type Xid = u32;

/// A key: the instance, and the number that [`key`] makes of queue and text.
pub type Key = (u32, u64);

/// How many bits of a key come from its text.
const TEXT: u32 = 40;

/// Returns the number that stands for a queue's key. Its highest bit is never set: that bit marks the counts of the
/// parties.
pub fn key(queue: u32, text: u64) -> u64 {
    (u64::from(queue) << TEXT & i64::MAX.cast_unsigned()) | text >> (u64::BITS - TEXT)
}

/// Returns the queue of a key. Queues that differ only in higher bits than a key has count as one.
pub fn queue((_, hash): Key) -> u32 {
    (hash >> TEXT) as u32
}

/// Counters; all zero is a valid start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// How many keys are held.
    pub held: u32,
    /// How many buckets are in use for the parties' counts.
    parties: u32,
    /// Whether a transaction was prepared while it held keys. No callback reports its end.
    pub has_prepared: bool,
    /// Whether there may be entries of prepared transactions that have ended.
    pub is_suspect: bool,
    /// True if all transactions have ended that were prepared before the server's start. This table does not have their
    /// keys.
    pub is_complete: bool,
}

/// The answer to a request to hold a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquire {
    /// The key was free, and the caller's transaction holds it now.
    Acquired,
    /// The caller's transaction already holds it.
    Own,
    /// Another transaction holds it.
    Held(Xid),
    /// There is no room: too many keys are held in total, or by this queue or instance.
    Full,
}

/// The holders, in memory of the caller.
pub struct Holders<'a> {
    /// Counters.
    pub head: &'a mut Head,
    /// As many buckets as [`index::buckets_for`] says for `most`, at least 32.
    pub buckets: &'a mut [Bucket],
    /// How many keys can be held at the same time.
    pub most: usize,
}

// The index keeps a number with each key and adds one to it. A transaction's id may be the largest number, so it is
// stored minus one.
fn stored(xid: Xid) -> u32 {
    xid - 1
}

impl Holders<'_> {
    fn holder(&self, (instance, hash): Key) -> Option<Xid> {
        index::find(self.buckets, instance, hash.cast_signed()).map(|stored| stored + 1)
    }

    fn insert(&mut self, key @ (instance, hash): Key, xid: Xid) {
        index::insert(self.buckets, instance, hash.cast_signed(), stored(xid));
        self.head.held += 1;
        self.head.parties += share::enter_of(self.buckets, instance, queue(key));
    }

    fn remove(&mut self, key @ (instance, hash): Key) {
        index::remove(self.buckets, instance, hash.cast_signed());
        self.head.held -= 1;
        self.head.parties -= share::leave_of(self.buckets, instance, queue(key));
    }

    /// Returns how many more keys the queue of this key may hold. There are twice as many buckets as keys. They suffice
    /// for the counts of the parties, too, unless nearly every key belongs to another queue.
    fn room(&self, key: Key) -> u32 {
        if (self.head.held + self.head.parties) as usize + 3 >= self.buckets.len() {
            return 0;
        }
        share::room_of(self.buckets, key.0, queue(key), self.most - self.head.held as usize)
    }

    /// Returns how many keys an instance holds.
    pub fn held_by(&self, instance: u32) -> u32 {
        share::held(self.buckets, instance)
    }

    /// Returns how many keys a queue holds, and how many more it may hold.
    pub fn share(&self, instance: u32, queue: u32) -> (u32, u32) {
        let queue = self::queue((instance, key(queue, 0)));
        (share::held_of(self.buckets, instance, queue), self.room((instance, key(queue, 0))))
    }

    /// Enters the transaction as the holder of a key, if the key is free and there is room.
    pub fn acquire(&mut self, key: Key, xid: Xid) -> Acquire {
        match self.holder(key) {
            Some(holder) if holder == xid => Acquire::Own,
            Some(holder) => Acquire::Held(holder),
            None if self.room(key) == 0 => Acquire::Full,
            None => {
                self.insert(key, xid);
                Acquire::Acquired
            }
        }
    }

    /// Removes the entry of a holder whose transaction has ended, unless another transaction has taken it over.
    pub fn release(&mut self, key: Key, xid: Xid) {
        if self.holder(key) == Some(xid) {
            self.remove(key);
        }
    }

    /// Lists holders into `out`, which must not be empty, beginning at bucket `from`. Returns how many it has listed,
    /// and the bucket at which the next call begins. `None`: there are no more.
    pub fn list(&self, from: usize, out: &mut [(Key, Xid)]) -> (usize, Option<usize>) {
        let mut count = 0;
        for (at, bucket) in self.buckets.iter().enumerate().skip(from) {
            let Some((instance, id, stored)) = bucket.get().filter(|&(_, id, _)| id >= 0) else { continue };
            out[count] = ((instance, id.cast_unsigned()), stored + 1);
            count += 1;
            if count == out.len() {
                return (count, Some(at + 1));
            }
        }
        (count, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const MOST: usize = 8;

    /// How many more keys the key's queue may hold, taken one by one.
    fn room(model: &BTreeMap<Key, Xid>, of: Key) -> usize {
        let alpha = share::ALPHA as usize;
        let one_by_one = |free: usize, held: usize| (0..free).find(|n| held + n >= alpha * (free - n)).unwrap_or(free);
        let of_instance = model.keys().filter(|key| key.0 == of.0).count();
        let of_queue = model.keys().filter(|&&key| (key.0, queue(key)) == (of.0, queue(of))).count();
        one_by_one(one_by_one(MOST - model.len(), of_instance), of_queue)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Acquire(Key, Xid),
        Release(Key, Xid),
        EndAll(Xid),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = || (1u32..3, 0u32..3, 0u64..8).prop_map(|(instance, queue, text)| (instance, key(queue, text << 61)));
        let xid = || prop_oneof![3u32..6, Just(u32::MAX)];
        prop_oneof![
            4 => (key(), xid()).prop_map(|(key, xid)| Step::Acquire(key, xid)),
            2 => (key(), xid()).prop_map(|(key, xid)| Step::Release(key, xid)),
            1 => xid().prop_map(Step::EndAll),
        ]
    }

    proptest! {
        #![proptest_config(crate::cases(256))]

        #[test]
        fn behaves_like_a_map_of_keys_to_holders(steps in prop::collection::vec(step(), crate::length(300))) {
            let mut head = Head::default();
            let mut buckets = vec![Bucket::default(); index::buckets_for(MOST.max(32))];
            let mut holders = Holders { head: &mut head, buckets: &mut buckets, most: MOST };
            let mut model: BTreeMap<Key, Xid> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Acquire(key, xid) => {
                        let expected = match model.get(&key) {
                            Some(&holder) if holder == xid => Acquire::Own,
                            Some(&holder) => Acquire::Held(holder),
                            None if room(&model, key) == 0 => Acquire::Full,
                            None => {
                                model.insert(key, xid);
                                Acquire::Acquired
                            }
                        };
                        prop_assert_eq!(holders.acquire(key, xid), expected);
                    }
                    Step::Release(key, xid) => {
                        holders.release(key, xid);
                        if model.get(&key) == Some(&xid) {
                            model.remove(&key);
                        }
                    }
                    // In pieces, like the search for entries of ended transactions.
                    Step::EndAll(xid) => {
                        let (mut from, mut found) = (Some(0), Vec::new());
                        while let Some(at) = from {
                            let mut out = [((0, 0), 0); 3];
                            let (count, next) = holders.list(at, &mut out);
                            found.extend_from_slice(&out[..count]);
                            from = next;
                        }
                        found.sort_unstable();
                        let all: Vec<_> = model.iter().map(|(&key, &xid)| (key, xid)).collect();
                        prop_assert_eq!(&found, &all);
                        for (key, holder) in found {
                            if holder == xid {
                                holders.release(key, xid);
                            }
                        }
                        model.retain(|_, holder| *holder != xid);
                    }
                }
                prop_assert_eq!(holders.head.held as usize, model.len());
                for &key in model.keys() {
                    let parties = model.keys().map(|&other| (other.0, queue(other)));
                    let of_queue = parties.filter(|&holder| holder == (key.0, queue(key))).count();
                    let share = holders.share(key.0, queue(key));
                    prop_assert_eq!(share, (of_queue as u32, room(&model, key) as u32));
                }
                let parties: BTreeSet<_> = model.keys().map(|&key| (key.0, queue(key))).collect();
                let instances: BTreeSet<_> = parties.iter().map(|party| party.0).collect();
                prop_assert_eq!(holders.head.parties as usize, parties.len() + instances.len());
            }
        }
    }
}
