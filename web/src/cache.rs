//! Shared answers: equal requests of the same viewer within a moment get one answer, and the database gets one query.
//!
//! Invariants: an answer is shared only among requests of one role on one database. What is kept is bounded in bytes,
//! for each role and in total.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use tokio::sync::OnceCell;

use crate::error::Error;

/// The kept answers have at most this many bytes in total, and for each role.
const MAX_BYTES: usize = 32 << 20;
const MAX_BYTES_OF_A_ROLE: usize = 4 << 20;
/// The bytes that an entry counts besides its answer.
const BYTES_OF_AN_ENTRY: usize = 1024;

/// The answer that all equal requests get.
pub type Answer = Result<Bytes, Error>;

/// The role that asks, and its question.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// The index of the database.
    pub place: usize,
    pub role: Option<String>,
    /// The question in its only spelling.
    pub question: String,
}

struct Entry {
    begun: Instant,
    until: Instant,
    /// The bytes of the entry. 0: no answer yet.
    bytes: usize,
    cell: Arc<OnceCell<Answer>>,
}

impl Entry {
    fn new(age: Duration) -> Self {
        let now = Instant::now();
        Self { begun: now, until: now + age, bytes: 0, cell: Arc::default() }
    }
}

#[derive(Default)]
pub struct Cache(Mutex<HashMap<Key, Entry>>);

impl Cache {
    /// Returns the answer to an equal request that was made less than `age` ago, or is still running. Otherwise asks.
    pub async fn get<F>(&self, key: Key, age: Duration, ask: impl FnOnce() -> F) -> Answer
    where
        F: Future<Output = Answer>,
    {
        let cell = {
            let now = Instant::now();
            let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            entries.retain(|_, entry| entry.until > now || Arc::strong_count(&entry.cell) > 1);
            let entry = entries.entry(key.clone()).or_insert_with(|| Entry::new(age));
            // An entry whose time is over is shared only with requests that already wait for it.
            if entry.until <= now && entry.cell.initialized() {
                *entry = Entry::new(age);
            }
            entry.cell.clone()
        };
        let answer = cell.get_or_init(ask).await.clone();
        self.count(key, &cell, &answer);
        answer
    }

    /// Notes the bytes of an answer, and forgets the oldest answers beyond the bounds. An error goes only to the
    /// requests that have waited for it.
    fn count(&self, key: Key, cell: &Arc<OnceCell<Answer>>, answer: &Answer) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get_mut(&key).filter(|entry| entry.bytes == 0 && Arc::ptr_eq(&entry.cell, cell));
        match (entry, answer) {
            (Some(entry), Ok(answer)) => entry.bytes = BYTES_OF_AN_ENTRY + key.question.len() + answer.len(),
            (Some(_), Err(_)) => drop(entries.remove(&key)),
            (None, _) => return,
        }
        forget(&mut entries, MAX_BYTES_OF_A_ROLE, |other| (other.place, &other.role) == (key.place, &key.role));
        forget(&mut entries, MAX_BYTES, |_| true);
    }

    /// Forgets the answers about a database, because it was changed.
    pub fn clear(&self, place: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| key.place != place);
    }
}

/// Forgets the oldest entries among those that `is_meant` selects, until they have at most `max` bytes.
fn forget(entries: &mut HashMap<Key, Entry>, max: usize, is_meant: impl Fn(&Key) -> bool) {
    let mut bytes: usize = entries.iter().filter(|(key, _)| is_meant(key)).map(|(_, entry)| entry.bytes).sum();
    while bytes > max {
        let kept = entries.iter().filter(|(key, entry)| entry.bytes > 0 && is_meant(key));
        let Some(oldest) = kept.min_by_key(|(_, entry)| entry.begun).map(|(key, _)| key.clone()) else { return };
        bytes -= entries.remove(&oldest).map_or(0, |entry| entry.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn key(role: &str) -> Key {
        Key { place: 0, role: Some(role.to_owned()), question: "overview".to_owned() }
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let cache = Cache::default();
        let age = Duration::from_secs(3600);
        let big = Bytes::from(vec![b'x'; 100_000]);
        cache.get(key("other"), age, || async { Ok(big.clone()) }).await.unwrap();
        for n in 0..100 {
            let asked = Key { question: format!("{n}"), ..key("a") };
            cache.get(asked, age, || async { Ok(big.clone()) }).await.unwrap();
        }
        let entries = cache.0.lock().unwrap();
        let bytes = |role: &str| {
            let of_role = entries.iter().filter(|(key, _)| key.role.as_deref() == Some(role));
            of_role.map(|(_, entry)| entry.bytes).sum::<usize>()
        };
        assert!(bytes("a") > MAX_BYTES_OF_A_ROLE / 2 && bytes("a") <= MAX_BYTES_OF_A_ROLE, "{}", bytes("a"));
        assert!(bytes("other") > 0, "one role does not push out another's");
    }

    #[tokio::test]
    async fn those_who_ask_at_once_share_and_roles_do_not() {
        let (cache, asked) = (Cache::default(), AtomicUsize::new(0));
        let ask = || async {
            asked.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            Ok(Bytes::from_static(b"1"))
        };
        let age = Duration::from_secs(3600);
        let (a, b, c) =
            tokio::join!(cache.get(key("a"), age, ask), cache.get(key("a"), age, ask), cache.get(key("b"), age, ask));
        assert!(a.is_ok() && b.is_ok() && c.is_ok());
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        cache.clear(1);
        cache.get(key("a"), age, ask).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 2, "another database has changed");
        cache.clear(0);
        cache.get(key("a"), age, ask).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 3);
        cache.get(key("c"), Duration::ZERO, ask).await.unwrap();
        cache.get(key("c"), Duration::ZERO, ask).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 5, "what is old is asked anew");
    }
}
