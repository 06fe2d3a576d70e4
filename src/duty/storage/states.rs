//! The states of the segments as one step of the storage duty sees them, and the result of a step.
//!
//! Not responsible for where the states are kept and how they change (`shmem::segments`, `log::segment`).

use pg_queue_core::id::SEGMENTS;

use crate::shmem::segments::{Filling, State, Word};

/// If a session blocks a step, the next look is after this many microseconds.
pub const BLOCKED_PAUSE_US: i64 = 100_000;

/// The result of a step.
pub enum StepResult {
    /// This much was done. There may be more to do.
    Did(i64),
    /// This number of attempts of a segment was looked at, and there are more.
    DidPart(i64),
    /// There is nothing to do now. The next look is after this many microseconds. Often a session blocks the step.
    Later(i64),
}

/// The states of the segments when the step began.
pub struct SegmentStates {
    pub words: [Word; SEGMENTS],
    pub fillings: [Filling; SEGMENTS],
    pub young: u8,
    pub old: u8,
}

impl SegmentStates {
    pub fn state(&self, segment: u8) -> State {
        self.words[segment as usize].state()
    }

    pub fn filling(&self, segment: u8) -> &Filling {
        &self.fillings[segment as usize]
    }

    pub fn living(&self, segment: u8) -> i64 {
        self.filling(segment).living()
    }

    pub fn with(&self, state: State) -> impl Iterator<Item = u8> {
        (0..SEGMENTS as u8).filter(move |&n| self.state(n) == state)
    }
}
