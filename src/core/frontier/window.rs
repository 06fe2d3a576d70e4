//! Counts how many jobs have started within a sliding period, for a rate limit.
//!
//! Starts close to each other are kept as one span with the time of the last of them, so that memory is bounded. A
//! start may then count for a 64th of the period too long. A limit of up to 33 is exact. A start counts from the taking
//! of the job until one period after the commit or rollback of its claim, because the worker may begin at any time in
//! between.
//!
//! Invariant: never do more jobs than the limit start within any period.

/// A span is at most a period divided by this long.
pub(super) const PART: i64 = 64;
/// This many starts are kept apart, however close they are.
pub(super) const APART: u32 = 33;
/// Enough for the starts that are kept apart, for one span in each part of a period, and for the spans at its edges.
const SPANS: usize = 100;

/// Starts that are kept as one. All zero is no start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) count: u64,
}

impl Span {
    /// True if a start at this time may be among these. A group's start may also be among later ones, which count for
    /// longer.
    fn has(&self, at: i64) -> bool {
        self.first <= at && at <= self.last
    }

    /// Takes as many of `left` back as there are, if a start at this time may be among these. Returns how many.
    pub(super) fn take_back(&mut self, at: i64, left: &mut u64) -> u64 {
        let less = if self.has(at) { self.count.min(*left) } else { 0 };
        self.count -= less;
        *left -= less;
        less
    }
}

/// The starts of a period. All zero is no start.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Window {
    spans: [Span; SPANS],
    head: u32,
    len: u32,
    sum: u64,
    /// What open starts cost: taken attempts whose claim is neither committed nor rolled back.
    pub open: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { spans: [Span::default(); SPANS], head: 0, len: 0, sum: 0, open: 0 }
    }
}

impl Window {
    fn at(&mut self, nth: u32) -> &mut Span {
        &mut self.spans[(self.head + nth) as usize % SPANS]
    }

    /// Forgets the starts that are at least a period old.
    pub fn expire(&mut self, period: i64, now: i64) {
        while self.len > 0 && self.at(0).last <= now.saturating_sub(period) {
            self.sum -= self.at(0).count;
            self.head = (self.head + 1) % SPANS as u32;
            self.len -= 1;
        }
    }

    /// Returns how many starts count now, including the open ones.
    pub fn sum(&self) -> u64 {
        self.sum + self.open
    }

    /// Whether no start counts.
    pub fn is_empty(&self) -> bool {
        self.sum() == 0
    }

    /// Adds starts at `now`. Time does not go back.
    pub fn add(&mut self, period: i64, now: i64, count: u64) {
        self.expire(period, now);
        if count == 0 {
            return;
        }
        self.sum += count;
        let is_close = self.len > 0 && {
            let len = self.len;
            let last = self.at(len - 1);
            now - last.first <= period / PART
        };
        if is_close && self.len >= APART || self.len as usize == SPANS {
            let len = self.len;
            let last = self.at(len - 1);
            (last.last, last.count) = (last.last.max(now), last.count + count);
            return;
        }
        self.len += 1;
        let len = self.len;
        *self.at(len - 1) = Span { first: now, last: now, count };
    }

    /// Takes a number back from the starts at this time. If they have expired, they do not count any more.
    pub fn take_back(&mut self, at: i64, mut count: u64) {
        for nth in 0..self.len {
            self.sum -= self.at(nth).take_back(at, &mut count);
        }
    }

    /// Returns when `many` starts will have expired. If too many starts are open, that is a period after `now` at the
    /// earliest.
    pub fn frees_at(&mut self, period: i64, now: i64, many: u64) -> i64 {
        let mut freed = 0;
        let found = (0..self.len).find_map(|nth| {
            let span = *self.at(nth);
            freed += span.count;
            (freed >= many).then_some(span.last)
        });
        found.unwrap_or(now).saturating_add(period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::cases(256))]

        /// Compares with a list of all starts. There are never more than the limit within any period. At the time that
        /// `frees_at` returns there is room, not much later than the limit allows.
        #[test]
        fn no_period_has_more_than_the_limit(
            limit in prop_oneof![1u64..6, 60u64..70, 200u64..2000],
            period in prop_oneof![1i64..40, 1_000i64..2_000, 1_000_000i64..1_000_001],
            steps in prop::collection::vec((0i64..100, 0u64..50), crate::length(300)),
        ) {
            let mut window = Window::default();
            let mut starts: Vec<(i64, u64)> = Vec::new();
            let mut now = 1;
            for (pause, want) in steps {
                now += pause * period / 60;
                window.expire(period, now);
                let exact: u64 = starts.iter().filter(|(at, _)| *at > now - period).map(|(_, n)| n).sum();
                prop_assert!(window.sum() >= exact);
                let is_late = |at: i64| at > now - period - period / PART - 1;
                let late: u64 = starts.iter().filter(|(at, _)| is_late(*at)).map(|(_, n)| n).sum();
                prop_assert!(window.sum() <= late, "{} counted, {late} started", window.sum());
                let count = want.min(limit.saturating_sub(window.sum()));
                if count > 0 {
                    window.add(period, now, count);
                    starts.push((now, count));
                    let within: u64 = starts.iter().filter(|(at, _)| *at > now - period).map(|(_, n)| n).sum();
                    prop_assert!(within <= limit);
                }
                if window.sum() >= limit {
                    let at = window.frees_at(period, now, window.sum() + 1 - limit);
                    let mut then = window;
                    then.expire(period, at);
                    prop_assert!(then.sum() < limit);
                }
            }
        }
    }
}
