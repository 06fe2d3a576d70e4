//! The state of a segment, as a word that is read without a lock, and further facts about how full it is.
//!
//! Responsible for their form in shared memory, and for the counts of rows. Not responsible for deciding on a state
//! (`log::segment`), nor for moving and emptying (`duty::storage`).
//!
//! Invariant: a word has both generation and state, so that a reader never gets them from two different moments.

use pg_queue_core::id::SEGMENTS;

use crate::guc;
use crate::pg::time;
use crate::shmem::shared_word::SharedWord;

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
    /// Returns the `"char"` that stands for the state in `queue_internal.segment_log`.
    pub fn char(self) -> u8 {
        b"focmdhe"[self as usize]
    }

    /// Returns the state for which this `"char"` stands. Any other `"char"`: `Free`.
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

    /// Returns the state of this number. Any other number: `Free`.
    fn of_number(number: u8) -> Self {
        [Self::Free, Self::Open, Self::Closed, Self::Moving, Self::Drained, Self::Copied, Self::Emptying]
            .into_iter()
            .find(|state| *state as u8 == number)
            .unwrap_or(Self::Free)
    }

    /// True if history may have rows of a segment in this state, which do not count yet: those in the segment do.
    pub fn is_copied_from(self) -> bool {
        matches!(self, Self::Moving | Self::Drained)
    }

    /// True if attempts may live in a segment in this state.
    pub fn is_inhabited(self) -> bool {
        matches!(self, Self::Open | Self::Closed | Self::Moving)
    }
}

/// Generation and state of a segment in one word, so that they are read together. The default is a free segment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Word(pub u64);

impl Word {
    /// Makes a word from its parts.
    pub fn new(generation: i64, state: State) -> Self {
        Self(((generation as u64) << 8) | state as u64)
    }

    /// Returns the number of this filling of the segment, which is never reused. 0: the segment is free, or its
    /// attempts were removed.
    pub fn generation(self) -> i64 {
        (self.0 >> 8) as i64
    }

    /// Returns the state.
    pub fn state(self) -> State {
        State::of_number(self.0 as u8)
    }
}

/// Further facts about a segment. Only `log::segment`, the changes in `Instance` and the storage duty use them.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Filling {
    /// When the segment got its state, as `timestamptz`.
    pub since: i64,
    /// When the segment was opened, as `timestamptz`.
    pub opened_at: i64,
    /// The estimated number of attempts and notes in the segment.
    pub attempts: i64,
    /// The estimated number of these that have ended or moved, or are notes.
    pub ended: i64,
    /// True if the attempts were counted in the tables after a start of the server, or since the segment was opened.
    pub is_counted: bool,
    /// The last attempt, in the order of copying, that was copied to history.
    pub copied_to: i64,
}

impl Filling {
    /// Returns the estimated number of attempts that live in the segment.
    pub fn living(&self) -> i64 {
        (self.attempts - self.ended).max(0)
    }

    /// True if at most one in twenty attempts lives in the segment. Then it is reclaimed even if no segment is needed.
    pub fn is_nearly_done(&self) -> bool {
        self.living() * 20 <= self.attempts
    }
}

/// The segments of an instance.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Storage {
    /// Generation and state of each segment (`Word`). See `log::segment`.
    pub words: [SharedWord; SEGMENTS],
    /// The open young segment and, in the next byte, the open half of old.
    pub open: SharedWord,
    /// Further facts about each segment.
    pub fillings: [Filling; SEGMENTS],
    /// The number of the last row of queue_internal.segment_log.
    pub last_entry: i64,
    /// The largest generation.
    pub last_generation: i64,
    /// A duration in microseconds. An attempt that is due later than this from now goes to old immediately.
    pub far: i64,
    /// The monotonic time at which the storage duty must look again.
    pub look_at: i64,
    /// The file numbers of each segment's attempts and of its index of groups. 0: unknown. Only `log::parked` changes
    /// them.
    pub parked_files: [[u32; 2]; SEGMENTS],
    /// How often everything was unparked because a file was another one. Only `log::parked` changes it.
    pub parked_version: u64,
}

impl Storage {
    /// Nothing is known: the first session that uses the instance reads the log (`restore::learn`).
    pub fn new() -> Self {
        Self {
            words: [SharedWord::default(); SEGMENTS],
            open: SharedWord::default(),
            fillings: [Filling::default(); SEGMENTS],
            last_entry: 0,
            last_generation: 0,
            far: 0,
            look_at: i64::MIN,
            parked_files: [[0; 2]; SEGMENTS],
            parked_version: 0,
        }
    }

    /// Returns generation and state of a segment.
    pub fn word(&self, segment: u8) -> Word {
        Word(self.words[segment as usize].get())
    }

    /// Returns the open young segment.
    pub fn young(&self) -> u8 {
        self.open.get() as u8
    }

    /// Returns the open half of old.
    pub fn old(&self) -> u8 {
        (self.open.get() >> 8) as u8
    }

    /// Makes the storage duty look at the segments at this monotonic time at the latest. Returns true if that is
    /// earlier than before. The caller holds the frontier's lock.
    pub fn look_by(&mut self, at: i64) -> bool {
        let is_earlier = at < self.look_at;
        self.look_at = self.look_at.min(at);
        is_earlier
    }

    /// Makes a segment the open one among the young segments or the two halves of old. The caller holds the frontier's
    /// lock.
    pub fn set_open(&mut self, segment: u8) {
        let (young, old) = (self.young(), self.old());
        let (young, old) = if segment < OLD { (segment, old) } else { (young, segment) };
        self.open.set(u64::from(young) | (u64::from(old) << 8));
    }

    /// Changes the state of a segment when the transaction that recorded the change was committed
    /// (`SegmentStep::Changed`). `now` is a `timestamptz`. The caller holds the frontier's lock.
    pub fn changed(&mut self, segment: u8, generation: i64, state: State, copied_to: i64, now: i64) {
        let n = segment as usize;
        let before = self.word(segment).state();
        let filling = &mut self.fillings[n];
        match state {
            State::Open => *filling = Filling { opened_at: now, is_counted: true, ..Filling::default() },
            State::Free => *filling = Filling { is_counted: true, ..Filling::default() },
            _ => filling.copied_to = copied_to,
        }
        if before != state {
            self.fillings[n].since = now;
        }
        self.words[n].set(Word::new(generation, state).0);
        if state == State::Open {
            self.set_open(segment);
        }
    }

    /// Counts rows of a segment: `attempts` were added, and `ended` have ended or moved. Returns the monotonic time at
    /// which the storage duty should look at the segment at the latest. `None`: it need not look. The caller holds the
    /// frontier's lock.
    pub fn count_rows(&mut self, segment: u8, attempts: i64, ended: i64) -> Option<i64> {
        let state = self.word(segment).state();
        let filling = &mut self.fillings[segment as usize];
        let before = *filling;
        filling.attempts += attempts;
        filling.ended += ended;
        let crosses = |limit: i64, before: i64, now: i64| before < limit && now >= limit;
        let rows = i64::from(guc::SEGMENT_ROWS.get());
        let is_full =
            crosses(rows, before.attempts, filling.attempts) || crosses(rows * 2, before.attempts, filling.attempts);
        match state {
            State::Open if is_full => Some(time::monotonic_us()),
            State::Open if before.attempts == 0 && attempts > 0 => {
                filling.opened_at = time::now_us();
                Some(time::monotonic_us().saturating_add(i64::from(guc::SEGMENT_AGE.get()) * 1_000_000))
            }
            // The storage duty looks at the open half of old when its first attempt has ended. It looks again when a
            // quarter of a segment's rows has ended in it.
            State::Open if segment >= OLD && (before.ended == 0 || crosses(rows / 4, before.ended, filling.ended)) => {
                (ended > 0).then(time::monotonic_us)
            }
            State::Closed if !before.is_nearly_done() && filling.is_nearly_done() => Some(time::monotonic_us()),
            _ => None,
        }
    }
}
