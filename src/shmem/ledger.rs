//! The state of the segments, as read from `queue_internal.segment_log`, before it is written into shared memory.
//!
//! Responsible for writing it into an instance. Not responsible for reading the log (`log::segment`), nor for later
//! changes of a state (`Storage::changed`).
//!
//! Invariant: it is applied under the frontier's lock.

use pg_queue_core::id::SEGMENTS;

use crate::guc;
use crate::shmem::instance::Instance;
use crate::shmem::segments::{Filling, State, Word};

/// The state of all segments, by the log of segments.
pub struct Ledger {
    /// The generation and state of each segment.
    pub words: [Word; SEGMENTS],
    /// How full each segment is.
    pub fillings: [Filling; SEGMENTS],
    /// The number of the last row of queue_internal.segment_log.
    pub last_entry: i64,
    /// The largest generation.
    pub last_generation: i64,
}

impl Ledger {
    /// Returns generation and state of a segment.
    pub fn word(&self, segment: u8) -> Word {
        self.words[segment as usize]
    }

    /// True if a segment's attempts must be read in the segment. Otherwise history has them, or there are none.
    pub fn is_read_here(&self, segment: u8) -> bool {
        !matches!(self.word(segment).state(), State::Free | State::Copied | State::Emptying)
    }

    /// Returns the segments whose attempts must be read there.
    pub fn read_here(&self) -> impl Iterator<Item = u8> {
        (0..SEGMENTS as u8).filter(|&segment| self.is_read_here(segment))
    }

    /// True if attempts may live in a segment.
    pub fn is_inhabited(&self, segment: u8) -> bool {
        self.word(segment).state().is_inhabited()
    }

    /// Writes the state into an instance. The caller holds the frontier's lock.
    pub fn apply(&self, instance: &mut Instance) {
        for (n, word) in self.words.iter().enumerate() {
            instance.storage.words[n].set(word.0);
            if word.state() == State::Open {
                instance.storage.set_open(n as u8);
            }
        }
        instance.storage.fillings = self.fillings;
        instance.storage.last_entry = self.last_entry;
        instance.storage.last_generation = self.last_generation;
        // The storage duty does not know yet how fast segments fill. Until then `far` is four times
        // pg_queue.segment_age, in microseconds: a few turns of a ring that turns by age.
        instance.storage.far = i64::from(guc::SEGMENT_AGE.get()) * 4_000_000;
        instance.storage.look_at = i64::MIN;
    }
}
