//! The pauses between failing attempts, and how often failures are logged.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::Refusal;

/// After what time a failure that persists is logged again.
const REMINDER: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Backoff {
    failures: u32,
    said: HashMap<String, Instant>,
}

impl Backoff {
    /// Returns how long to wait until the next attempt. Logs the failure if it is a new one, or if it was last logged a
    /// minute ago.
    pub fn failed(&mut self, what: &str, Refusal { code, text }: &Refusal) -> Duration {
        let now = Instant::now();
        if self.said.get(text).is_none_or(|at| now - *at >= REMINDER) {
            self.said.insert(text.clone(), now);
            if code.is_empty() {
                log::warn!(target: "pg_queue", "no connection for {what}s, the worker tries again: {text}");
            } else {
                log::error!(target: "pg_queue", "a {what} has failed, the worker tries again: {text}");
            }
        }
        self.failures += 1;
        let most = Duration::from_millis(100 << self.failures.min(10)).min(Duration::from_secs(10));
        // Half of the pause is random, so that workers that lose a server together do not return together.
        let chance = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), self.failures) % 1000;
        most.mul_f64(0.5 + chance as f64 / 2000.0)
    }
}
