//! The state of a segment, as a word that is read without a lock, and the other facts about how full it is.
//!
//! Responsible for their form in shared memory. Not responsible for changing a state (`log::segment`), for counting
//! rows (`Instance::count_rows`), nor for moving and emptying (`duty::storage`).
//!
//! Invariant: a word has both generation and state, so that no reader gets those of two different moments.

/// The number of the first half of old. The young segments have the numbers below it.
pub const OLD: u8 = 8;

/// The state of a segment. `log::segment` has the drawing and says what each state means.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum State {
    Free = 0,
    Open,
    Closed,
    Moving,
    Drained,
    Copied,
    Emptying,
}

impl State {
    /// Returns the `"char"` by which the state is stored in `queue.segment_log`.
    pub fn char(self) -> u8 {
        b"focmdhe"[self as usize]
    }

    /// Returns the state that this `"char"` stands for. `Free` for any other one.
    pub fn of(char: u8) -> Self {
        match char {
            b'o' => Self::Open,
            b'c' => Self::Closed,
            b'm' => Self::Moving,
            b'd' => Self::Drained,
            b'h' => Self::Copied,
            b'e' => Self::Emptying,
            _ => Self::Free,
        }
    }

    /// Returns the state of this number. `Free` for any other one.
    fn of_number(number: u8) -> Self {
        [Self::Free, Self::Open, Self::Closed, Self::Moving, Self::Drained, Self::Copied, Self::Emptying]
            .into_iter()
            .find(|state| *state as u8 == number)
            .unwrap_or(Self::Free)
    }

    /// Whether attempts may live in a segment of this state.
    pub fn is_inhabited(self) -> bool {
        matches!(self, Self::Open | Self::Closed | Self::Moving)
    }
}

/// Generation and state of a segment in one word, so that they are read together. By default that of a free segment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Word(pub u64);

impl Word {
    /// Makes a word of its parts.
    pub fn new(generation: i64, state: State) -> Self {
        Self(((generation as u64) << 8) | state as u64)
    }

    /// Makes a word of the number that is kept in shared memory.
    pub fn of(word: u64) -> Self {
        Self(word)
    }

    /// Returns the number of this filling of the segment, which is never used twice. 0 if the segment is free, or its
    /// attempts are gone.
    pub fn generation(self) -> i64 {
        (self.0 >> 8) as i64
    }

    /// Returns the state.
    pub fn state(self) -> State {
        State::of_number(self.0 as u8)
    }
}

/// The facts about a segment beside its state. Only `log::segment`, the changes in `Instance` and the storage duty use
/// them.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Filling {
    /// When the segment got its state, as `timestamptz`.
    pub since: i64,
    /// When the segment was opened, as `timestamptz`.
    pub opened_at: i64,
    /// How many attempts and notes are in the segment: an estimate.
    pub attempts: i64,
    /// How many of `attempts` are attempts that have ended or moved, or notes: an estimate.
    pub ended: i64,
    /// Whether the attempts were counted in the tables after a start of the server, or since the segment was opened.
    pub is_counted: bool,
    /// The last attempt, in the order of copying, that was copied to history.
    pub copied_to: i64,
}

impl Filling {
    /// Returns how many attempts live in the segment: an estimate.
    pub fn living(&self) -> i64 {
        (self.attempts - self.ended).max(0)
    }

    /// Whether so few attempts live in the segment, at most one in twenty, that it is reclaimed though no segment is
    /// needed.
    pub fn is_nearly_done(&self) -> bool {
        self.living() * 20 <= self.attempts
    }
}
