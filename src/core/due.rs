//! The cursor up to which delayed jobs count as due. It follows the wall clock, also when the clock is set back.
//!
//! Invariant: the cursor goes back only if the clock is set back by more than `JITTER`.

/// A step back of up to this many microseconds does not count: the clocks of two processors may differ, and a clock
/// hesitates while it is adjusted.
pub const JITTER: i64 = 1_000_000;

/// Returns the new cursor, from the present cursor `at` and the time `now`, all in microseconds.
pub fn cursor(at: i64, now: i64) -> i64 {
    if now < at.saturating_sub(JITTER) { now } else { now.max(at) }
}

#[cfg(test)]
mod tests {
    use super::cursor;

    #[test]
    fn the_cursor_follows_a_clock_that_is_set_back_and_not_one_that_hesitates() {
        const SECOND: i64 = 1_000_000;
        assert_eq!(cursor(10 * SECOND, 11 * SECOND), 11 * SECOND);
        assert_eq!(cursor(10 * SECOND, 10 * SECOND - 1), 10 * SECOND);
        assert_eq!(cursor(3_600 * SECOND, 10 * SECOND), 10 * SECOND);
        assert_eq!(cursor(i64::MIN, 7), 7);
    }
}
