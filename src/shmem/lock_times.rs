//! How often and for how long the frontier's lock was held, in builds with the feature `lock-times`: for the benchmark.
//!
//! Invariant: the times are read and written under that lock.

use std::time::Instant;

use crate::shmem::layout::{BASE, Header};
use crate::shmem::lock;

/// All holds that have ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Times {
    holds: u64,
    nanoseconds: u64,
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

/// Returns the number of holds that have ended, and their nanoseconds.
pub fn totals() -> (u64, u64) {
    // SAFETY: a part of the header, under the lock.
    let Times { holds, nanoseconds } = lock::with(|_| unsafe { (*BASE.cast::<Header>()).lock_times });
    (holds, nanoseconds)
}
