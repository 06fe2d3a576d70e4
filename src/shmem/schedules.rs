//! The state of an instance's schedules and of the log of their firings.
//!
//! Responsible for its form in shared memory. Only `duty::fire_schedules`, `duty::rotate_firings`, `transaction` and
//! `awake` change it.
//!
//! Invariant: `changes` grows with each change of a schedule, so that no process believes an old one.

/// The state of schedules.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Schedules {
    /// The wall time of the next slot; `i64::MIN` while it is not known.
    pub next_slot: i64,
    /// Counts the events that make void what a process knows of schedules.
    pub changes: u64,
    /// The id of the process that has fired last.
    pub firer: i32,
    /// The monotonic time since when the other half of the log of firings is known to wait to be emptied; 0: none is
    /// known to.
    pub left_at: i64,
}

impl Schedules {
    /// The state at the start: nothing is known.
    pub const NOTHING: Self = Self { next_slot: i64::MIN, changes: 0, firer: 0, left_at: 0 };

    /// Asks that all schedules be read again. The caller holds the frontier's lock.
    pub fn invalidate(&mut self) {
        self.changes += 1;
        self.next_slot = i64::MIN;
    }
}
