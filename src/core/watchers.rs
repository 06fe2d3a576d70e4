//! Knows which session waits for the end of which job, for all databases.
//!
//! A session waits for one job at most. The end of a job moves its watchers to the list of due sessions. These are
//! woken a few at a time, so that no hold of the lock has to wake many. Links are session numbers plus one; zero is no
//! link. Like the frontier it lies in memory of the caller. Zero bytes are a valid start. It allocates nothing and
//! cannot fail.
//!
//! Invariant: between `watch` and `leave` a session is in the list of its job's bucket, is due, or was woken. Unlike
//! the filter of jobs with successors this is exact: a session calls `leave` when it stops waiting.

/// What a session waits for. All zero: nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Watcher {
    job_id: i64,
    instance: u32,
    /// The link to the next session of its list.
    next: u32,
    state: u32,
}

/// The session is in the list of a bucket.
const WATCHES: u32 = 1;
/// The session is in the list of due sessions.
const DUE: u32 = 2;
/// The session was woken.
const WOKEN: u32 = 3;

/// Counts and the first link of the due list.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// How many sessions are in lists of buckets.
    watching: u32,
    /// The first session that is due.
    due: u32,
}

/// All watchers, in memory of the caller.
pub struct Watchers<'a> {
    /// Counts and the first link of the due list.
    pub head: &'a mut Head,
    /// The link to the first session of each bucket of jobs. There is at least one bucket.
    pub buckets: &'a mut [u32],
    /// What each session waits for.
    pub sessions: &'a mut [Watcher],
}

impl Watchers<'_> {
    fn bucket(&self, instance: u32, job_id: i64) -> usize {
        let mixed = (job_id.cast_unsigned() ^ u64::from(instance)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize % self.buckets.len()
    }

    /// Notes that a session waits for the end of this job, and no longer for any other job.
    pub fn watch(&mut self, session: u32, instance: u32, job_id: i64) {
        self.leave(session);
        let bucket = self.bucket(instance, job_id);
        let next = std::mem::replace(&mut self.buckets[bucket], session + 1);
        self.sessions[session as usize] = Watcher { job_id, instance, next, state: WATCHES };
        self.head.watching += 1;
    }

    /// True if the session was woken since it began to wait.
    pub fn is_woken(&self, session: u32) -> bool {
        self.sessions[session as usize].state == WOKEN
    }

    /// Ends a session's wait, if it has one.
    pub fn leave(&mut self, session: u32) {
        let Watcher { job_id, instance, next, state } = std::mem::take(&mut self.sessions[session as usize]);
        let first = match state {
            WATCHES => {
                self.head.watching -= 1;
                let bucket = self.bucket(instance, job_id);
                &mut self.buckets[bucket]
            }
            DUE => &mut self.head.due,
            _ => return,
        };
        if *first == session + 1 {
            *first = next;
            return;
        }
        let mut at = *first;
        while at != 0 {
            let entry = &mut self.sessions[at as usize - 1];
            if entry.next == session + 1 {
                entry.next = next;
                return;
            }
            at = entry.next;
        }
    }

    /// Makes all sessions due that wait for the end of this job. Returns whether there are any.
    pub fn ended(&mut self, instance: u32, job_id: i64) -> bool {
        if self.head.watching == 0 {
            return false;
        }
        let bucket = self.bucket(instance, job_id);
        self.pick(bucket, |entry| (entry.instance, entry.job_id) == (instance, job_id))
    }

    /// Makes all sessions due that wait for the end of a job of this instance, because an unknown job has ended.
    /// Returns whether there are any.
    pub fn ended_unknown(&mut self, instance: u32) -> bool {
        if self.head.watching == 0 {
            return false;
        }
        let mut any = false;
        for bucket in 0..self.buckets.len() {
            any |= self.pick(bucket, |entry| entry.instance == instance);
        }
        any
    }

    fn pick(&mut self, bucket: usize, is_meant: impl Fn(&Watcher) -> bool) -> bool {
        let mut any = false;
        let mut at = std::mem::take(&mut self.buckets[bucket]);
        while at != 0 {
            let entry = &mut self.sessions[at as usize - 1];
            let next = entry.next;
            let list = if is_meant(entry) {
                any = true;
                entry.state = DUE;
                self.head.watching -= 1;
                &mut self.head.due
            } else {
                &mut self.buckets[bucket]
            };
            entry.next = std::mem::replace(list, at);
            at = next;
        }
        any
    }

    /// Takes a due session from the list. The caller sets its latch.
    pub fn next_due(&mut self) -> Option<u32> {
        let session = self.head.due.checked_sub(1)?;
        let entry = &mut self.sessions[session as usize];
        self.head.due = entry.next;
        (entry.next, entry.state) = (0, WOKEN);
        Some(session)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    struct Memory {
        head: Head,
        buckets: Vec<u32>,
        sessions: Vec<Watcher>,
    }

    impl Memory {
        fn new(buckets: usize, sessions: usize) -> Self {
            Self { head: Head::default(), buckets: vec![0; buckets], sessions: vec![Watcher::default(); sessions] }
        }

        fn watchers(&mut self) -> Watchers<'_> {
            Watchers { head: &mut self.head, buckets: &mut self.buckets, sessions: &mut self.sessions }
        }

        fn woken(&mut self) -> BTreeSet<u32> {
            let mut watchers = self.watchers();
            std::iter::from_fn(|| watchers.next_due()).collect()
        }
    }

    #[test]
    fn all_that_wait_for_a_job_are_woken_and_no_others() {
        let mut memory = Memory::new(2, 8);
        for (session, instance, job_id) in [(0, 1, 31), (1, 1, 47), (2, 1, 31), (3, 2, 31), (4, 1, 31)] {
            memory.watchers().watch(session, instance, job_id);
        }
        memory.watchers().leave(2);
        assert!(memory.watchers().ended(1, 31) && !memory.watchers().ended(1, 31));
        assert_eq!(memory.woken(), BTreeSet::from([0, 4]));
        assert!(memory.watchers().is_woken(0) && !memory.watchers().is_woken(3));
        memory.watchers().watch(0, 1, 31);
        assert!(!memory.watchers().is_woken(0));
        assert!(memory.watchers().ended_unknown(1) && !memory.watchers().ended_unknown(1));
        assert_eq!(memory.woken(), BTreeSet::from([0, 1]));
        assert!(memory.watchers().ended(2, 31));
        memory.watchers().leave(3);
        assert_eq!(memory.woken(), BTreeSet::new());
    }

    proptest! {
        #![proptest_config(crate::cases(256))]

        /// Compares with maps which watchers wait, are due and were woken.
        #[test]
        fn no_watcher_is_lost(steps in prop::collection::vec((0u8..7, 0u32..6, 1u32..3, 1i64..5), crate::length(200))) {
            let mut memory = Memory::new(3, 6);
            let (mut waits, mut due, mut woken) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
            for (verb, session, instance, id) in steps {
                let job_id = id << 4 | 15;
                if verb < 4 {
                    waits.remove(&session);
                    due.remove(&session);
                    woken.remove(&session);
                }
                let mut watchers = memory.watchers();
                let is_meant = |of: &(u32, i64)| of.0 == instance && (verb == 5 || of.1 == job_id);
                match verb {
                    0..=2 => {
                        watchers.watch(session, instance, job_id);
                        waits.insert(session, (instance, job_id));
                    }
                    3 => watchers.leave(session),
                    4 | 5 => {
                        let any =
                            if verb == 4 { watchers.ended(instance, job_id) } else { watchers.ended_unknown(instance) };
                        prop_assert_eq!(any, waits.values().any(is_meant));
                        due.extend(waits.iter().filter(|(_, of)| is_meant(of)).map(|(session, _)| *session));
                        waits.retain(|_, of| !is_meant(of));
                    }
                    _ => {
                        let next = watchers.next_due();
                        prop_assert_eq!(next.is_some(), !due.is_empty());
                        if let Some(session) = next {
                            prop_assert!(due.remove(&session));
                            woken.insert(session);
                        }
                    }
                }
                prop_assert_eq!(memory.head.watching as usize, waits.len());
                for session in 0..6 {
                    prop_assert_eq!(memory.watchers().is_woken(session), woken.contains(&session));
                }
            }
            prop_assert_eq!(memory.woken(), due);
            for instance in [1, 2] {
                memory.watchers().ended_unknown(instance);
            }
            prop_assert_eq!(memory.woken(), waits.into_keys().collect::<BTreeSet<_>>());
        }
    }
}
