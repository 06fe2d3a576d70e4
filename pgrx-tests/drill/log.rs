//! Reads the relevant moments from a node's log.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, by the clock that all nodes share.
pub fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(now.as_millis()).expect("a time of this age")
}

/// A log of a node's Patroni and its server together.
pub fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Returns the times of the server's lines with these words. The prefix is `%n [%p] `: seconds since 1970 with
/// milliseconds.
pub fn times(log: &str, words: &str) -> Vec<i64> {
    let time = |line: &str| {
        let (seconds, _) = line.split_once(' ')?;
        let (whole, millis) = seconds.split_once('.')?;
        Some(whole.parse::<i64>().ok()? * 1000 + millis.parse::<i64>().ok()?)
    };
    log.lines().filter(|line| line.contains(words)).filter_map(time).collect()
}
