//! Shares: how much of a resource one viewer, address or name may hold at a time, and how much all of them may hold.
//!
//! Invariant: a share is returned when its [`Share`] is dropped, even if its task is cancelled. A key without a share
//! takes no memory.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counts what is held, by key.
pub struct Shares<K> {
    for_each: usize,
    for_all: usize,
    held: Mutex<Held<K>>,
}

struct Held<K> {
    by_key: HashMap<K, usize>,
    all: usize,
}

/// One share. It is returned when this value is dropped.
pub struct Share<K: Eq + Hash> {
    of: Arc<Shares<K>>,
    key: K,
}

impl<K: Eq + Hash + Clone> Shares<K> {
    pub fn new(for_each: usize, for_all: usize) -> Arc<Self> {
        Arc::new(Self { for_each, for_all, held: Mutex::new(Held { by_key: HashMap::new(), all: 0 }) })
    }

    /// Takes a share. `None`: the key, or all keys together, hold as much as they may.
    pub fn take(self: &Arc<Self>, key: K) -> Option<Share<K>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.all >= self.for_all || held.by_key.get(&key).is_some_and(|count| *count >= self.for_each) {
            return None;
        }
        held.all += 1;
        *held.by_key.entry(key.clone()).or_default() += 1;
        Some(Share { of: self.clone(), key })
    }
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut held = self.of.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.all -= 1;
        if let Some(count) = held.by_key.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                held.by_key.remove(&self.key);
            }
        }
    }
}

/// As [`Shares`], for resources worth waiting for: each key has a separate queue.
pub struct Turns<K> {
    for_each: usize,
    queues: Mutex<HashMap<K, Arc<Semaphore>>>,
}

impl<K: Eq + Hash + Clone> Turns<K> {
    pub fn new(for_each: usize) -> Self {
        Self { for_each, queues: Mutex::default() }
    }

    /// Waits until the key holds less than its share.
    pub async fn wait(&self, key: &K) -> Option<OwnedSemaphorePermit> {
        let queue = {
            let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            // If no request waits in a queue and nothing of it is held, only this map refers to it.
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
            queues.entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.for_each))).clone()
        };
        queue.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[test]
    fn one_key_holds_its_share_and_all_together_theirs() {
        let shares = Shares::new(2, 3);
        let (first, second) = (shares.take("a").unwrap(), shares.take("a").unwrap());
        assert!(shares.take("a").is_none());
        let other = shares.take("b").unwrap();
        assert!(shares.take("c").is_none(), "all together");
        drop(first);
        drop((shares.take("c").unwrap(), second, other));
        let held = shares.held.lock().unwrap();
        assert!(held.all == 0 && held.by_key.is_empty(), "what is not held takes no memory");
    }

    #[tokio::test]
    async fn a_key_waits_for_itself_only() {
        let turns = Turns::new(1);
        let first = turns.wait(&"a").await.unwrap();
        let other = turns.wait(&"b").await.unwrap();
        assert!(turns.wait(&"a").now_or_never().is_none());
        drop(first);
        assert!(turns.wait(&"a").now_or_never().is_some());
        drop(other);
        drop(turns.wait(&"c").await);
        assert_eq!(turns.queues.lock().unwrap().len(), 1);
    }
}
