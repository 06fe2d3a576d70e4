//! Which open transaction holds which unique key: only producers of the same key exclude each other.
//!
//! A key is known by its hash alone; two keys of one hash exclude each other as well, which delays somebody and
//! does nothing worse. Like the frontier it is laid over memory of the caller, takes none and cannot fail.
//!
//! Invariant: a key has one holder at most. An entry may outlive its transaction (a prepared one): who finds that
//! it has ended takes the entry over, and only a holder's own entry is ever released.

use crate::frontier::index::{self, Bucket};

/// The id of a transaction, never 0.
pub type Xid = u32;

/// A key: the instance, and the hash of queue and text.
pub type Key = (u32, u64);

/// Counters; all zero is a valid start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// Keys held.
    pub held: u32,
    /// A transaction was prepared while it held keys: nobody tells when it ends.
    pub has_prepared: bool,
    /// There may be entries of prepared transactions that have ended.
    pub is_suspect: bool,
    /// No transaction that was prepared before this memory began is left: what those hold is not here.
    pub is_complete: bool,
}

/// What became of the wish to hold a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquire {
    /// It was free and is the caller's now.
    Acquired,
    /// The caller's transaction holds it already.
    Own,
    /// Another transaction has it.
    Held(Xid),
    /// So many are held that there is no room.
    Full,
}

/// The holders, laid over memory of the caller.
pub struct Holders<'a> {
    /// Counters.
    pub head: &'a mut Head,
    /// [`index::buckets_for`] as many as `most`.
    pub buckets: &'a mut [Bucket],
    /// Keys that can be held at once.
    pub most: usize,
}

// The index keeps a number next to each key; it adds one to it, and an id of a transaction may be the largest number.
fn stored(xid: Xid) -> u32 {
    xid - 1
}

impl Holders<'_> {
    fn holder(&self, (instance, hash): Key) -> Option<Xid> {
        index::find(self.buckets, instance, hash.cast_signed()).map(|stored| stored + 1)
    }

    fn insert(&mut self, (instance, hash): Key, xid: Xid) {
        index::insert(self.buckets, instance, hash.cast_signed(), stored(xid));
        self.head.held += 1;
    }

    fn remove(&mut self, (instance, hash): Key) {
        index::remove(self.buckets, instance, hash.cast_signed());
        self.head.held -= 1;
    }

    /// Wishes to hold a key.
    pub fn acquire(&mut self, key: Key, xid: Xid) -> Acquire {
        match self.holder(key) {
            Some(holder) if holder == xid => Acquire::Own,
            Some(holder) => Acquire::Held(holder),
            None if self.head.held as usize == self.most => Acquire::Full,
            None => {
                self.insert(key, xid);
                Acquire::Acquired
            }
        }
    }

    /// Removes the entry of a holder whose transaction has ended, unless it is another's by now.
    pub fn release(&mut self, key: Key, xid: Xid) {
        if self.holder(key) == Some(xid) {
            self.remove(key);
        }
    }

    /// The holders whose entries lie from bucket `from` on, as many as fit into `out` (which is not empty): how many
    /// there are, and the bucket to go on from; `None` at the end.
    pub fn list(&self, from: usize, out: &mut [(Key, Xid)]) -> (usize, Option<usize>) {
        let mut count = 0;
        for (at, bucket) in self.buckets.iter().enumerate().skip(from) {
            let Some((instance, id, stored)) = bucket.get() else { continue };
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
    use std::collections::BTreeMap;

    const MOST: usize = 8;

    #[derive(Clone, Debug)]
    enum Step {
        Acquire(Key, Xid),
        Release(Key, Xid),
        EndAll(Xid),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = || (1u32..3, 0u64..8);
        let xid = || prop_oneof![3u32..6, Just(u32::MAX)];
        prop_oneof![
            4 => (key(), xid()).prop_map(|(key, xid)| Step::Acquire(key, xid)),
            2 => (key(), xid()).prop_map(|(key, xid)| Step::Release(key, xid)),
            1 => xid().prop_map(Step::EndAll),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_of_keys_to_holders(steps in prop::collection::vec(step(), 0..300)) {
            let mut head = Head::default();
            let mut buckets = vec![Bucket::default(); index::buckets_for(MOST)];
            let mut holders = Holders { head: &mut head, buckets: &mut buckets, most: MOST };
            let mut model: BTreeMap<Key, Xid> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Acquire(key, xid) => {
                        let expected = match model.get(&key) {
                            Some(&holder) if holder == xid => Acquire::Own,
                            Some(&holder) => Acquire::Held(holder),
                            None if model.len() == MOST => Acquire::Full,
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
                    // As one that looks for the entries of ended transactions does: in pieces.
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
            }
        }
    }
}
