//! The totals of a lane, and the end of one attempt.
//!
//! Responsible for the numbers. Not responsible for when they are counted (`counter`), nor for minutes (`minutes`,
//! `rollup`).

/// How an attempt that ran has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The log's letter: `c` completed, `a` advanced, `f` failed, `d` dead, `t` timed out, `e` expired. Others are not
    /// counted.
    pub outcome: u8,
    /// Whether the job goes on with another attempt.
    pub has_next: bool,
}

/// What has happened since the lane was created, or in a minute. All zero means that nothing has happened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Jobs enqueued.
    pub enqueued: i64,
    /// Attempts claimed by workers.
    pub claimed: i64,
    /// Attempts completed or advanced.
    pub completed: i64,
    /// Attempts that failed, including the last ones of their jobs.
    pub failed: i64,
    /// Attempts whose lease or connection ended.
    pub timed_out: i64,
    /// Attempts that ended badly and were the last ones of their jobs.
    pub died: i64,
    /// Jobs that expired: no worker had claimed them in time.
    pub expired: i64,
}

impl Totals {
    /// Nothing has happened.
    pub const NONE: Totals =
        Totals { enqueued: 0, claimed: 0, completed: 0, failed: 0, timed_out: 0, died: 0, expired: 0 };

    /// Returns the totals with these values, in the order of `values`.
    pub fn of([enqueued, claimed, completed, failed, timed_out, died, expired]: [i64; 7]) -> Self {
        Self { enqueued, claimed, completed, failed, timed_out, died, expired }
    }

    /// Returns the values in the order of the fields.
    pub fn values(&self) -> [i64; 7] {
        [self.enqueued, self.claimed, self.completed, self.failed, self.timed_out, self.died, self.expired]
    }

    /// Counts an end.
    pub fn end(&mut self, End { outcome, has_next }: End) {
        match outcome {
            b'c' | b'a' => self.completed += 1,
            b'f' => self.failed += 1,
            b'd' => {
                self.failed += 1;
                self.died += 1;
            }
            b't' => {
                self.timed_out += 1;
                self.died += i64::from(!has_next);
            }
            b'e' => self.expired += 1,
            _ => {}
        }
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        self.enqueued += other.enqueued;
        self.claimed += other.claimed;
        self.completed += other.completed;
        self.failed += other.failed;
        self.timed_out += other.timed_out;
        self.died += other.died;
        self.expired += other.expired;
    }
}
