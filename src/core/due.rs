//! Up to when delayed jobs count as due: a cursor that moves with the wall clock, and back with it when that is set back.

/// Two processors may disagree by as much, and a clock that is being adjusted hesitate: microseconds.
const JITTER: i64 = 1_000_000;

/// Where the cursor belongs now.
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
