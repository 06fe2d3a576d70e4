//! Answers that are shared: requests for the same, of the same viewer, within a moment get one answer, and the database
//! one question.
//!
//! Invariant: an answer is shared among requests of one role on one database only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use tokio::sync::OnceCell;

use crate::error::Error;

/// What all get.
pub type Answer = Result<Bytes, Error>;

/// The database's place, the role, and the question.
pub type Key = (usize, Option<String>, String);

struct Entry {
    until: Instant,
    cell: Arc<OnceCell<Answer>>,
}

#[derive(Default)]
pub struct Cache(Mutex<HashMap<Key, Entry>>);

impl Cache {
    /// Returns the answer to another that asked the same less than `age` ago, or has not got it yet; else asks.
    pub async fn get<F>(&self, key: Key, age: Duration, ask: impl FnOnce() -> F) -> Answer
    where
        F: Future<Output = Answer>,
    {
        let cell = {
            let now = Instant::now();
            let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            entries.retain(|_, entry| entry.until > now || Arc::strong_count(&entry.cell) > 1);
            let entry = entries.entry(key).or_insert_with(|| Entry { until: now + age, cell: Arc::default() });
            // One that is over is shared with those that wait for it only.
            if entry.until <= now && entry.cell.initialized() {
                *entry = Entry { until: now + age, cell: Arc::default() };
            }
            entry.cell.clone()
        };
        cell.get_or_init(ask).await.clone()
    }

    /// After a change the next look is a new one.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn key(role: &str) -> Key {
        (0, Some(role.to_owned()), "overview".to_owned())
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
        cache.clear();
        cache.get(key("a"), age, ask).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 3);
        cache.get(key("c"), Duration::ZERO, ask).await.unwrap();
        cache.get(key("c"), Duration::ZERO, ask).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 5, "what is old is asked anew");
    }
}
