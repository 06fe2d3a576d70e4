//! Waits for a condition: polls until it holds or the deadline has passed.

use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long [`until`] waits. It is long, since only a failing test waits that long.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(60);

/// Polls `probe` until it returns a value. Panics with `what` after [`DEFAULT_LIMIT`].
pub fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    within(what, DEFAULT_LIMIT, probe)
}

/// Does what [`until`] does, for a condition without a value.
pub fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(()));
}

/// Returns the factor for all limits: 1, or `QUEUE_TESTS_PATIENCE` for servers that are slow on purpose.
fn patience() -> u32 {
    static SAID: OnceLock<u32> = OnceLock::new();
    *SAID.get_or_init(|| {
        let said = std::env::var("QUEUE_TESTS_PATIENCE").ok();
        said.map_or(1, |times| times.parse().expect("QUEUE_TESTS_PATIENCE, a number"))
    })
}

/// Polls `probe` until it returns a value. Panics with `what` after `limit`.
///
/// The probe always runs once more after the limit. So a pause of the whole machine does not fail a test whose
/// condition already holds.
pub fn within<T>(what: &str, limit: Duration, probe: impl FnMut() -> Option<T>) -> T {
    within_or_say(what, limit, probe, String::new)
}

/// Does what [`within`] does. A failure also prints the result of `seen`.
pub fn within_or_say<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Option<T>,
    seen: impl FnOnce() -> String,
) -> T {
    let start = Instant::now();
    let limit = limit * patience();
    let mut pause = Duration::from_millis(2);
    loop {
        let last = start.elapsed() >= limit;
        if let Some(value) = probe() {
            return value;
        }
        assert!(!last, "after {limit:?} it was not true that {what}\n{}", seen());
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Polls `left` until it lists nothing. Panics with the list after [`DEFAULT_LIMIT`].
pub fn until_empty(what: &str, mut left: impl FnMut() -> Vec<String>) {
    let limit = Instant::now() + DEFAULT_LIMIT * patience();
    loop {
        let is_last = Instant::now() >= limit;
        let found = left();
        if found.is_empty() {
            return;
        }
        assert!(!is_last, "it was not true in time that {what}: {found:#?}");
        sleep(Duration::from_millis(20));
    }
}

/// Polls `left` until it is 0. Panics if it has not become less for twice [`DEFAULT_LIMIT`]. For work of unknown
/// length: a busy machine does not fail the test, but stuck work does.
pub fn until_none_left(what: &str, mut left: impl FnMut() -> i64) {
    let mut least = i64::MAX;
    while least > 0 {
        least = within(what, 2 * DEFAULT_LIMIT, || Some(left()).filter(|&left| left < least));
    }
}
