//! Waiting for a fact: polls until it is there or the deadline has passed.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long [`until`] waits. Generous: it only matters to a test that fails anyway.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(30);

/// Polls `probe` until it returns a value, for [`DEFAULT_LIMIT`]; then panics, saying `what` it waited for.
pub fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    within(what, DEFAULT_LIMIT, probe)
}

/// Polls `probe` until it returns a value; panics after `limit`, saying `what` it waited for.
///
/// The probe always runs once more after the limit has passed, so that a pause of the whole machine
/// does not fail a test whose fact has long been there.
pub fn within<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        let last = start.elapsed() >= limit;
        if let Some(value) = probe() {
            return value;
        }
        assert!(!last, "waited {limit:?} in vain until {what}");
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
