//! The state of an instance's schedules and of the log of their firings.
//!
//! Responsible for its form in shared memory. Only `duty::fire_schedules`, `duty::rotate_firings`, `transaction` and
//! `awake` change it.
//!
//! Invariant: `changes` grows with each change of a schedule, so that no process uses an outdated one.

/// The state of schedules.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Schedules {
    /// The wall time of the next slot. `i64::MIN`: unknown.
    pub next_slot: i64,
    /// Counts the events that invalidate what a process knows of schedules.
    pub changes: u64,
    /// The id of the last process that fired schedules.
    pub firer: i32,
    /// The monotonic time since when the other half of the log of firings is known to wait for emptying. 0: it is not
    /// known to wait.
    pub left_at: i64,
}

impl Schedules {
    /// The state at the start: nothing is known.
    pub const NOTHING: Self = Self { next_slot: i64::MIN, changes: 0, firer: 0, left_at: 0 };

    /// Makes all schedules be read again. The caller holds the frontier's lock.
    pub fn invalidate(&mut self) {
        self.changes += 1;
        self.next_slot = i64::MIN;
    }
}
