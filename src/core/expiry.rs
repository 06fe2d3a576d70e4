//! Which waiting attempts have expired: a cursor over the times by which they must start.
//!
//! Responsible for the cursor, and for when the background worker has to move it. Not responsible for ending attempts
//! (`duty::expire_waiting`), nor for refusing them to claims (`job::claim`).
//!
//! Invariant: every committed waiting attempt with a time at or before the cursor has been ended, or an open
//! transaction has it and its entry is marked as late, or the worker looks by `next` behind a cursor that went back.

use crate::due;

/// How far attempts have expired. Times are wall times in microseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The time up to which waiting attempts were ended.
    at: i64,
    /// Of the attempts with that time, those up to this id were ended.
    id: i64,
    /// The cursor need not move before this time.
    next: i64,
    /// The earliest time of attempts that are marked as late. `MAX`: none is.
    late_from: i64,
    /// Memory may have dropped attempts that had expired by this time.
    passed: i64,
}

/// A place in the order of times and ids.
pub type Position = (i64, i64);

/// What the worker has to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Behind this place.
    pub from: Position,
    /// Up to this time.
    pub to: i64,
    /// True if the clock was set back. Attempts that memory has dropped may live, so all lanes are read anew.
    pub is_set_back: bool,
}

impl Expiry {
    /// Nothing is known: the worker reads everything.
    pub const NEW: Self = Self { at: i64::MIN, id: i64::MAX, next: i64::MIN, late_from: i64::MAX, passed: i64::MIN };

    /// Makes the worker read everything again.
    pub fn invalidate(&mut self) {
        *self = Self { passed: self.passed, ..Self::NEW };
    }

    /// Notes a committed attempt that expires at this time. Returns true if the worker has to look earlier than it
    /// knew.
    pub fn waits(&mut self, at: i64) -> bool {
        if at <= self.at {
            self.go_back((at.saturating_sub(1), i64::MAX));
            return true;
        }
        let is_next = at < self.next;
        self.next = self.next.min(at);
        is_next
    }

    /// Notes that memory drops an attempt that has expired at this time.
    pub fn drops(&mut self, at: i64) {
        self.passed = self.passed.max(at);
    }

    /// Returns when the worker has to look, as a wall time.
    pub fn next_at(&self, now: i64) -> i64 {
        if self.is_set_back(now) { i64::MIN } else { self.next }
    }

    fn is_set_back(&self, now: i64) -> bool {
        now < self.passed.saturating_sub(due::JITTER)
    }

    /// Moves the cursor to `now`. The caller reads the span afterwards, and then calls `ends`.
    pub fn begin(&mut self, now: i64) -> Span {
        let to = due::cursor(self.at, now);
        let from = (self.at, self.id).min((to, i64::MAX));
        let is_set_back = self.is_set_back(now);
        if is_set_back {
            self.passed = now;
        }
        (self.at, self.id, self.next) = (to, i64::MAX, i64::MAX);
        if from.0 < self.late_from {
            self.late_from = i64::MAX;
        }
        Span { from, to, is_set_back }
    }

    /// Notes that the span was read, and that nothing expires before `next`.
    pub fn ends(&mut self, next: i64) {
        self.next = self.next.min(next);
    }

    /// Moves the cursor back, unless it is behind that place already. The worker looks again.
    pub fn go_back(&mut self, to: Position) {
        (self.at, self.id) = (self.at, self.id).min(to);
        self.next = i64::MIN;
    }

    /// Moves the cursor back to this place. The worker looks again at the time `again`.
    pub fn go_back_until(&mut self, to: Position, again: i64) {
        (self.at, self.id) = (self.at, self.id).min(to);
        self.next = self.next.min(again);
    }

    /// Notes that an attempt with this time was marked as late.
    pub fn marks(&mut self, at: i64) {
        self.late_from = self.late_from.min(at);
    }

    /// Notes that an attempt that was marked as late waits again.
    pub fn gives_back(&mut self) {
        let from = std::mem::replace(&mut self.late_from, i64::MAX);
        // Without a mark the worker has begun to read them anew.
        if from < i64::MAX {
            self.go_back((from.saturating_sub(1), i64::MAX));
        } else {
            self.next = i64::MIN;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn a_commit_behind_the_cursor_moves_it_back() {
        let mut expiry = Expiry::NEW;
        assert_eq!(expiry.begin(10 * SECOND).from, (i64::MIN, i64::MAX));
        expiry.ends(i64::MAX);
        assert!(expiry.waits(20 * SECOND) && !expiry.waits(30 * SECOND), "only the earliest one wakes the worker");
        assert_eq!(expiry.next_at(10 * SECOND), 20 * SECOND);
        assert!(expiry.waits(5 * SECOND));
        assert_eq!(expiry.begin(11 * SECOND).from, (5 * SECOND - 1, i64::MAX));
    }

    #[test]
    fn a_clock_that_is_set_back_is_followed_once() {
        let mut expiry = Expiry::NEW;
        expiry.begin(3_600 * SECOND);
        expiry.ends(i64::MAX);
        expiry.drops(3_599 * SECOND);
        assert_eq!(expiry.next_at(3_599 * SECOND), i64::MAX, "a clock hesitates");
        assert_eq!(expiry.next_at(10 * SECOND), i64::MIN);
        let span = expiry.begin(10 * SECOND);
        assert_eq!((span.from, span.to, span.is_set_back), ((10 * SECOND, i64::MAX), 10 * SECOND, true));
        expiry.ends(i64::MAX);
        assert!(!expiry.begin(11 * SECOND).is_set_back);
    }

    /// An attempt of the model.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum State {
        /// Its row is committed; the callback has not run.
        Visible,
        Waiting,
        /// An open transaction has it. True: it is marked as late.
        Taken(bool),
        Expired,
        /// A worker has it.
        Running,
    }

    proptest! {
        #![proptest_config(crate::cases(512))]

        /// Whatever happens, one more look of the worker ends everything that has expired and that no transaction has,
        /// and `next` says that it has to look.
        #[test]
        fn nothing_that_has_expired_is_left(
            steps in prop::collection::vec((0u8..8, 0i64..40, 0usize..64), crate::length(120)),
        ) {
            let mut expiry = Expiry::NEW;
            let mut jobs: BTreeMap<i64, (i64, State)> = BTreeMap::new();
            let (mut now, mut ids) = (20 * SECOND, 0);
            let look = |expiry: &mut Expiry, jobs: &mut BTreeMap<i64, (i64, State)>, now: i64, most: usize| {
                let span = expiry.begin(now);
                let mut order: Vec<(i64, i64)> = jobs.iter().map(|(&id, &(at, _))| (at, id)).collect();
                order.sort_unstable();
                let (mut looks, mut next) = (0, i64::MAX);
                for (at, id) in order.into_iter().filter(|&place| place > span.from) {
                    let state = jobs[&id].1;
                    if at > span.to {
                        next = at;
                        break;
                    }
                    looks += 1;
                    match state {
                        State::Visible | State::Waiting => _ = jobs.insert(id, (at, State::Expired)),
                        State::Taken(_) => {
                            expiry.marks(at);
                            jobs.insert(id, (at, State::Taken(true)));
                        }
                        State::Expired | State::Running => {}
                    }
                    if looks == most {
                        expiry.go_back((at, id));
                        next = i64::MIN;
                        break;
                    }
                }
                expiry.ends(next);
            };
            for (what, at, which) in steps {
                let nth = jobs.keys().copied().nth(which);
                match (what, nth) {
                    (0, _) => {
                        ids += 1;
                        jobs.insert(ids, (at * SECOND, State::Visible));
                    }
                    (1, _) => now += at * SECOND / 10,
                    (2, _) => now -= at * SECOND / 4,
                    (3, _) if expiry.next_at(now) <= now => look(&mut expiry, &mut jobs, now, which + 1),
                    (4, Some(id)) if jobs[&id].1 == State::Waiting => {
                        let at = jobs[&id].0;
                        // A claim drops what has expired.
                        if at <= now { expiry.drops(at) } else { jobs.insert(id, (at, State::Taken(false))); }
                    }
                    (5, Some(id)) => {
                        let (at, state) = jobs[&id];
                        if let State::Taken(is_late) = state {
                            jobs.insert(id, (at, State::Waiting));
                            if is_late { expiry.gives_back(); }
                        }
                    }
                    (6, Some(id)) => {
                        if let (at, State::Taken(_)) = jobs[&id] { jobs.insert(id, (at, State::Running)); }
                    }
                    (7, Some(id)) => {
                        let (at, state) = jobs[&id];
                        if state == State::Visible { jobs.insert(id, (at, State::Waiting)); }
                        if matches!(state, State::Visible | State::Expired) { expiry.waits(at); }
                    }
                    _ => {}
                }
                // A row whose callback is still to come may be passed.
                let is_left = |&(at, state): &(i64, State)| state == State::Waiting && at <= now;
                if jobs.values().any(is_left) {
                    prop_assert!(expiry.next_at(now) <= now, "the worker has nothing to do: {jobs:?} {expiry:?}");
                    let mut copy = (expiry, jobs.clone());
                    while copy.0.next_at(now) <= now {
                        look(&mut copy.0, &mut copy.1, now, usize::MAX);
                    }
                    prop_assert!(!copy.1.values().any(is_left), "{jobs:?} {expiry:?}");
                }
            }
        }
    }
}
