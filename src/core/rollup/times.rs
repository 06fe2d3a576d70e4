//! A histogram of durations that is small and can be merged without loss.
//!
//! Invariant: equal sets of durations have equal bytes, whatever the order and the parts in which they were added.

use std::borrow::Cow;

use histogram::{Config, Histogram, SparseHistogram};

/// Each power of two is divided into 2^5 buckets. A bucket is at most 1/32 of its values wide.
const GROUPING_POWER: u8 = 5;
/// Values from 0 to 2^64 - 1.
const CONFIG: Config = match Config::new(GROUPING_POWER, 64) {
    Ok(config) => config,
    Err(_) => panic!("the powers are in range"),
};
/// The largest relative error of a quantile: half the width of a bucket, because its middle is returned.
pub const MAX_ERROR: f64 = 0.5 / (1_u64 << GROUPING_POWER) as f64;

/// The first byte of the serialized form. It identifies the format and `CONFIG`.
const VERSION: u8 = 1;
/// A serialized form has fewer durations than this, so that merging cannot overflow.
const MANY: u64 = 1 << 48;
/// How many durations are collected before they go into the buckets together.
const RECENT: usize = 256;

/// Durations in microseconds: their number, their sum, and their quantiles within [`MAX_ERROR`].
///
/// The serialized form has the version, the sum, and the buckets' counts in ascending order. All numbers are of
/// variable length: 7 bits a byte, the lowest first. A number `2 * n` is a bucket with `n` durations, `2 * n + 1`
/// stands for `n` empty buckets. No number is longer than necessary, and no gap is empty, last, or next to another gap.
/// So each histogram has exactly one form.
#[derive(Clone, Debug)]
pub struct Times {
    buckets: SparseHistogram,
    recent: Vec<u64>,
    sum: u128,
}

impl Default for Times {
    fn default() -> Self {
        Self { buckets: SparseHistogram::with_config(&CONFIG), recent: Vec::new(), sum: 0 }
    }
}

impl Times {
    /// Adds a duration.
    pub fn record(&mut self, us: u64) {
        self.recent.push(us);
        self.sum += u128::from(us);
        if self.recent.len() == RECENT {
            self.buckets = self.settled().into_owned();
            self.recent.clear();
        }
    }

    /// Adds all durations of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.buckets = sum(&self.settled(), &other.settled());
        self.recent.clear();
        self.sum += other.sum;
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.count().iter().sum::<u64>() + self.recent.len() as u64
    }

    /// Returns their exact sum.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// Returns their mean, rounded down to a microsecond. `None` if there are none.
    pub fn mean(&self) -> Option<u64> {
        u64::try_from(self.sum.checked_div(self.count().into())?).ok()
    }

    /// Returns the quantile `q` (0 to 1) within [`MAX_ERROR`]: a share `q` of all durations does not exceed it. `None`:
    /// there are no durations.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let found = self.settled().quantile(q).ok()??;
        let (_, bucket) = found.entries().first_key_value()?;
        Some(bucket.start() + (bucket.end() - bucket.start()) / 2)
    }

    /// Returns the buckets, including the recent durations.
    fn settled(&self) -> Cow<'_, SparseHistogram> {
        if self.recent.is_empty() {
            return Cow::Borrowed(&self.buckets);
        }
        let mut dense = Histogram::with_config(&CONFIG);
        for &us in &self.recent {
            // Every u64 has a bucket.
            let _ = dense.increment(us);
        }
        Cow::Owned(sum(&self.buckets, &SparseHistogram::from(&dense)))
    }

    /// Returns the serialized form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let buckets = self.settled();
        let mut bytes = vec![VERSION];
        put(&mut bytes, self.sum);
        let mut next = 0;
        for (&index, &count) in buckets.index().iter().zip(buckets.count()) {
            if index > next {
                put(&mut bytes, u128::from(index - next) << 1 | 1);
            }
            put(&mut bytes, u128::from(count) << 1);
            next = index + 1;
        }
        bytes
    }

    /// Reads the serialized form. `None`: the bytes are not a form of a known version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&VERSION, mut rest) = bytes.split_first()? else { return None };
        let sum = take(&mut rest)?;
        let (mut index, mut count) = (Vec::new(), Vec::new());
        let (mut next, mut total) = (0_u32, 0_u64);
        let mut after_gap = false;
        while !rest.is_empty() {
            let number = take(&mut rest)?;
            let n = u64::try_from(number >> 1).ok().filter(|&n| n > 0)?;
            if number & 1 == 1 {
                if after_gap {
                    return None;
                }
                next = next.checked_add(u32::try_from(n).ok()?)?;
            } else {
                total = total.checked_add(n).filter(|&total| total < MANY)?;
                index.push(next);
                count.push(n);
                next = next.checked_add(1)?;
            }
            after_gap = number & 1 == 1;
        }
        // A sum that is too large for the number of durations is refused, because it could overflow.
        if after_gap || sum > u128::from(total) << 64 {
            return None;
        }
        let buckets = SparseHistogram::from_parts(CONFIG, index, count).ok()?;
        Some(Self { buckets, recent: Vec::new(), sum })
    }
}

/// Returns the sum of two histograms.
fn sum(a: &SparseHistogram, b: &SparseHistogram) -> SparseHistogram {
    // It fails only for histograms of different configurations.
    a.wrapping_add(b).unwrap_or_else(|_| a.clone())
}

fn put(bytes: &mut Vec<u8>, mut number: u128) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u128> {
    /// No number has more bytes than this: the largest sum is 2^112.
    const LONGEST: usize = 17;
    let length = bytes.iter().take(LONGEST).position(|byte| byte & 0x80 == 0)? + 1;
    let (digits, rest) = bytes.split_at(length);
    if length > 1 && digits[length - 1] == 0 {
        return None;
    }
    *bytes = rest;
    Some(digits.iter().rev().fold(0, |number, digit| number << 7 | u128::from(digit & 0x7f)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(durations: &[u64]) -> Times {
        let mut times = Times::default();
        durations.iter().for_each(|&us| times.record(us));
        times
    }

    /// Durations as in real queues: of any magnitude, and many of them equal.
    fn durations(count: usize) -> impl Strategy<Value = Vec<u64>> {
        let any_magnitude = (0..64_u32, any::<u64>()).prop_map(|(bits, us)| us >> bits);
        prop::collection::vec(prop_oneof![any_magnitude, 0..2_000_u64, Just(u64::MAX)], crate::length(count))
    }

    #[test]
    fn the_form_is_what_it_was() {
        // Every version has written these bytes to disk. A new format needs a new version byte.
        let cases: [(&[u64], &[u8]); 5] = [
            (&[], &[1, 0]),
            (&[0], &[1, 0, 2]),
            (&[1, 1, 3], &[1, 5, 3, 4, 3, 2]),
            (&[63, 64, 65, 66], &[1, 130, 2, 127, 2, 4, 2]),
            (&[60_000_000; 100], &[1, 128, 248, 130, 173, 22, 243, 10, 200, 1]),
        ];
        for (durations, form) in cases {
            assert_eq!(of(durations).to_bytes(), form);
        }
    }

    #[test]
    fn a_minute_is_small() {
        // 1,000 runs of 10 to 50 milliseconds.
        let minute: Vec<u64> = (0..1000).map(|n| 10_000 + n * 40).collect();
        let size = of(&minute).to_bytes().len();
        assert!(size < 100, "{size} bytes");
    }

    #[test]
    fn what_is_no_form_is_refused() {
        let good = of(&[5, 70, 70, 1 << 40]).to_bytes();
        assert!(Times::from_bytes(&good).is_some());
        for cut in 0..good.len() {
            assert!(Times::from_bytes(&good[..cut]).is_none_or(|less| less.to_bytes() == good[..cut]));
        }
        let other_version = [&[2], &good[1..]].concat();
        let too_long = [good.as_slice(), &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]].concat();
        let endless = [good.as_slice(), &[0xff; 30]].concat();
        for bad in [&[][..], &other_version, &too_long, &endless, &[1, 0, 0], &[1, 0, 1], &[1, 0, 3], &[1, 0x80, 0]] {
            assert!(Times::from_bytes(bad).is_none(), "{bad:?}");
        }
    }

    proptest! {
        #![proptest_config(crate::cases(100))]

        #[test]
        fn the_parts_make_the_whole(parts in prop::collection::vec(durations(400), 0..8)) {
            let mut merged = Times::default();
            parts.iter().for_each(|part| merged.merge(&of(part)));
            let whole = of(&parts.concat());
            prop_assert_eq!(merged.to_bytes(), whole.to_bytes());
            prop_assert_eq!((merged.count(), merged.sum()), (whole.count(), whole.sum()));
        }

        #[test]
        fn bytes_and_back(durations in durations(600)) {
            let times = of(&durations);
            let back = Times::from_bytes(&times.to_bytes()).expect("a form just made");
            prop_assert_eq!(back.to_bytes(), times.to_bytes());
            prop_assert_eq!(back.count(), durations.len() as u64);
            prop_assert_eq!(back.sum(), durations.iter().map(|&us| u128::from(us)).sum::<u128>());
        }

        #[test]
        fn a_quantile_is_near(mut durations in durations(600), q in 0.0..=1.0) {
            let times = of(&durations);
            durations.sort_unstable();
            let Some(found) = times.quantile(q) else {
                prop_assert!(durations.is_empty());
                return Ok(());
            };
            let rank = (q * durations.len() as f64).ceil().max(1.0) as usize;
            let exact = durations[rank - 1];
            prop_assert!(found.abs_diff(exact) as f64 <= exact as f64 * MAX_ERROR, "{found} for {exact}");
        }

        #[test]
        fn any_bytes_are_a_form_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let bytes = [&[VERSION], bytes.as_slice()].concat();
            if let Some(times) = Times::from_bytes(&bytes) {
                prop_assert_eq!(times.to_bytes(), bytes);
                let mut twice = times.clone();
                twice.merge(&times);
                prop_assert_eq!(twice.count(), 2 * times.count());
                prop_assert_eq!(twice.quantile(0.5).is_some(), times.count() > 0);
            }
        }
    }
}
