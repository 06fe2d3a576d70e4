//! Units of time, and the bounds of slots.

/// Microseconds in a second.
pub const SECOND: i64 = 1_000_000;

/// A day, in seconds.
pub const DAY: i64 = 86_400;

/// No slot lies before this moment: 0001-01-01 00:00 UTC.
pub const EARLIEST: i64 = -730_119 * DAY * SECOND;

/// No slot lies after this moment: 9999-01-01 00:00 UTC.
pub const LATEST: i64 = 2_921_575 * DAY * SECOND;
