//! Time zones as PostgreSQL has them, from its own data or the machine's.
//!
//! Not responsible for the zones of schedules, whose data is part of the library (`pg_queue_core::schedule`).
//!
//! Invariant: times are in microseconds as `timestamptz` counts them.

use std::ffi::{CString, c_long};

use pgrx::pg_sys;

const SECOND_US: i64 = 1_000_000;
/// From 1970-01-01 to 2000-01-01, in seconds.
const EPOCH_S: i64 = 946_684_800;

/// A time zone.
pub struct Zone(*mut pg_sys::pg_tz);

impl Zone {
    /// Returns the zone of this name. `None`: PostgreSQL does not know it.
    pub fn find(name: &str) -> Option<Self> {
        let name = CString::new(name).ok()?;
        // SAFETY: a name with a zero byte at its end. This process keeps the result for ever.
        let zone = unsafe { pg_sys::pg_tzset(name.as_ptr()) };
        (!zone.is_null()).then_some(Self(zone))
    }

    /// Returns the offset from UTC in seconds at this time, and when it may change. `i64::MAX`: never.
    pub fn offset_until(&self, at: i64) -> (i64, i64) {
        let at = at.div_euclid(SECOND_US) + EPOCH_S;
        let (mut before, mut after): (c_long, c_long) = (0, 0);
        let (mut was_summer, mut is_summer, mut change) = (0, 0, 0);
        // SAFETY: the zone is from `find`. The other pointers are valid for reading or writing.
        let found = unsafe {
            pg_sys::pg_next_dst_boundary(
                &raw const at,
                &raw mut before,
                &raw mut was_summer,
                &raw mut change,
                &raw mut after,
                &raw mut is_summer,
                self.0,
            )
        };
        (before, if found == 1 { (change - EPOCH_S) * SECOND_US } else { i64::MAX })
    }
}
