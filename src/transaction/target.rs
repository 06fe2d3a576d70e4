//! What a step is applied to at the end of its transaction, and the sessions and workers to wake afterwards.
//!
//! Responsible for the changes that steps of several kinds make: rows of a segment are counted, the end of a job is
//! told, the worker is woken. Not responsible for what a kind of step does (`steps`).
//!
//! Invariant: nothing here can fail: it allocates nothing and runs no SQL. The caller holds the frontier's lock.

use std::cell::LazyCell;

use pg_queue_core::awaited::Awaited;
use pg_queue_core::frontier::Frontier;
use pg_queue_core::watchers::Watchers;
use pgrx::pg_sys;

use crate::shmem::{self, Instance, Shared};
use crate::transaction::awaited_ends;

/// The sessions to wake after the lock is released. They are a few; each of them wakes the next one if jobs are left.
#[derive(Default)]
pub struct Wake {
    sessions: [Option<u32>; 8],
    count: usize,
    /// The lane that jobs were pushed to last, and how many sessions were woken for it.
    pub lane: (i32, usize),
    /// Whether sessions that wait for the end of a job are due.
    watchers: bool,
    pub worker: Option<*mut pg_sys::Latch>,
}

impl Wake {
    /// How many sessions are woken for the jobs of one lane that follow each other. They wake the other waiters.
    pub const SESSIONS_PER_LANE: usize = 4;

    pub fn session(&mut self, session: Option<u32>) {
        if let Some(session) = session {
            if self.count < self.sessions.len() {
                self.sessions[self.count] = Some(session);
                self.count += 1;
            } else {
                // If the list is full, the session's own latch is set under the lock. A spurious wake-up does no harm.
                shmem::wake(session);
            }
        }
    }

    pub fn go(self) {
        self.sessions.iter().flatten().for_each(|&session| shmem::wake(session));
        if let Some(latch) = self.worker {
            shmem::wake_latch(latch);
        }
        if self.watchers {
            shmem::wake_watchers();
        }
    }
}

/// An instance and what belongs to it, under the lock.
pub struct Target<'a, 's> {
    pub frontier: &'a mut Frontier<'s>,
    pub instance: &'a mut Instance,
    pub awaited: &'a mut Awaited,
    pub watchers: &'a mut Watchers<'s>,
    /// The instance's number.
    pub number: u32,
    /// The instance's slot.
    pub slot: usize,
    /// The monotonic time, read when a step asks for it.
    pub now: &'a LazyCell<i64>,
    pub wake: &'a mut Wake,
    /// How long the attempt had run whose end was applied last, in microseconds. 0: not known.
    pub busy_us: i64,
}

impl<'a, 's> Target<'a, 's> {
    /// Returns the target of steps of the instance in this slot.
    pub fn new(shared: &'a mut Shared<'s>, slot: usize, now: &'a LazyCell<i64>, wake: &'a mut Wake) -> Self {
        let instance = &mut shared.instances[slot];
        Self {
            number: instance.number,
            frontier: &mut shared.frontier,
            instance,
            awaited: &mut shared.awaited[slot],
            watchers: &mut shared.watchers,
            slot,
            now,
            wake,
            busy_us: 0,
        }
    }

    /// Wakes the instance's worker after the lock is released.
    pub fn wake_worker(&mut self) {
        self.wake.worker = Some(self.instance.worker.latch);
    }

    /// Wakes the worker at this monotonic time at the latest.
    pub fn wake_worker_by(&mut self, at: i64) {
        if let Some(latch) = self.instance.worker.wake_by(at) {
            self.wake.worker = Some(latch);
        }
    }

    /// Counts rows of a segment, and asks the storage duty for a look if that makes a difference.
    pub fn count_rows(&mut self, segment: u8, attempts: i64, ended: i64) {
        if let Some(at) = self.instance.storage.count_rows(segment, attempts, ended)
            && self.instance.storage.look_by(at)
        {
            self.wake_worker();
        }
    }

    /// Tells the worker and the watchers that a job has ended. 0: it is not known which job.
    pub fn job_ended(&mut self, job_id: i64) {
        let (wakes_worker, wakes_watchers) = match job_id {
            0 => (self.awaited.ended_unknown(), self.watchers.ended_unknown(self.number)),
            _ => {
                let is_awaited = !self.awaited.is_quiet()
                    && match awaited_ends::served(self.number, job_id) {
                        Some(adds) => self.awaited.ended_served(job_id, adds),
                        None => self.awaited.ended(job_id),
                    };
                (is_awaited, self.watchers.ended(self.number, job_id))
            }
        };
        if wakes_worker {
            self.wake_worker();
        }
        self.wake.watchers |= wakes_watchers;
    }
}
