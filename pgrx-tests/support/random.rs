//! A small random generator with a seed, so that a run can be repeated.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Makes a generator. The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends, and no caller wants an iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Returns a number from 0 to `below` minus one.
    pub fn below(&mut self, below: u64) -> u64 {
        self.next() % below
    }

    /// Returns a number from `from` to `to`, both included.
    pub fn between(&mut self, from: i64, to: i64) -> i64 {
        from + self.below((to - from + 1) as u64) as i64
    }

    /// Returns true with this probability in percent.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of these values.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// The default seed, so that each run of `make test` does the same.
const SEED: u64 = 14;

/// Returns and prints the seed of a test: `QUEUE_SEED`, or the clock's time in a long run (`QUEUE_SOAK`), or a
/// constant. With the printed seed a failure can be repeated.
pub fn seed(test: &str) -> u64 {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").subsec_nanos().into();
    let seed = number("QUEUE_SEED").unwrap_or_else(|| if number("QUEUE_SOAK").is_some() { clock() } else { SEED });
    eprintln!("{test}: QUEUE_SEED={seed}");
    seed
}

/// Returns how long a random test runs: `QUEUE_SOAK` seconds, or else this long.
pub fn length(seconds: u64) -> Duration {
    Duration::from_secs(number("QUEUE_SOAK").unwrap_or(seconds))
}

pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}")))
}
