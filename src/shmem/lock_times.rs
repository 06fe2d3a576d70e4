//! How often and for how long the frontier's lock was held, in builds with the feature `lock-times`: for the benchmark.
//!
//! Invariant: the times are read and written under that lock.

use std::time::Instant;

/// All holds that have ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Times {
    pub holds: u64,
    pub nanoseconds: u64,
}

/// Measures one hold, from its making to its drop.
pub struct Clock {
    times: *mut Times,
    start: Instant,
}

impl Clock {
    pub fn start(times: *mut Times) -> Self {
        Self { times, start: Instant::now() }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        // SAFETY: a part of the header, under the lock: `lock::with` drops the clock before it releases the lock.
        unsafe {
            (*self.times).holds += 1;
            (*self.times).nanoseconds += self.start.elapsed().as_nanos() as u64;
        }
    }
}
