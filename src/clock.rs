//! The one clock that schedules go by, so that a test can set it. Nothing else does: leases and delays are real.

use crate::{guc, sys};

/// What time it is for schedules, in microseconds as `timestamptz` counts them.
pub fn now_us() -> i64 {
    sys::now_us().saturating_add((guc::CLOCK_OFFSET.get() * 1e6) as i64)
}
