//! Records what the clients of a run have done. It knows every job from before it is sent until its end. So a lost job,
//! or one that was done twice, is noticed.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::soak::load::{Job, Load};

/// The ledger, which all clients of a run share.
pub struct Ledger {
    pub load: Load,
    pub start: Instant,
    /// True when no more jobs come.
    pub stop_sending: AtomicBool,
    is_done: Vec<AtomicBool>,
    /// For each second of the run: how many jobs should have ended in it and have not.
    undone: Vec<AtomicI64>,
    /// Jobs sent.
    pub sent: AtomicU64,
    /// Jobs ended.
    pub done: AtomicU64,
    /// Jobs that ended once more.
    pub twice: AtomicU64,
    claims: Mutex<Vec<f64>>,
}

impl Ledger {
    /// Returns a ledger for a run of this length, which begins now.
    pub fn new(load: Load, length: Duration) -> Self {
        let seconds = (length + load.longest_wait()).as_secs() + 2;
        Self {
            load,
            start: Instant::now(),
            stop_sending: AtomicBool::default(),
            is_done: (0..load.jobs(length)).map(|_| AtomicBool::default()).collect(),
            undone: (0..seconds).map(|_| AtomicI64::default()).collect(),
            sent: AtomicU64::default(),
            done: AtomicU64::default(),
            twice: AtomicU64::default(),
            claims: Mutex::default(),
        }
    }

    /// How many jobs there are.
    pub fn jobs(&self) -> u32 {
        self.is_done.len() as u32
    }

    /// Records a job. Call it before the job is sent: afterwards it may be done already.
    pub fn sending(&self, job: &Job) {
        self.sent.fetch_add(1, Relaxed);
        self.count(job, 1);
    }

    /// Records the end of a job.
    pub fn done(&self, job: &Job) {
        if self.is_done[job.number as usize].swap(true, Relaxed) {
            self.twice.fetch_add(1, Relaxed);
            return;
        }
        self.done.fetch_add(1, Relaxed);
        self.count(job, -1);
    }

    /// Records the duration of a claim in milliseconds.
    pub fn claimed(&self, took: f64) {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).push(took);
    }

    fn count(&self, job: &Job, change: i64) {
        self.undone[self.load.due(job).as_secs() as usize].fetch_add(change, Relaxed);
    }

    /// Returns how many jobs should have ended in a past second, and have not.
    pub fn overdue(&self, now: Duration) -> i64 {
        self.undone.iter().take(now.as_secs() as usize).map(|jobs| jobs.load(Relaxed)).sum()
    }

    /// Returns the durations of the claims since the last call.
    pub fn take_claims(&self) -> Vec<f64> {
        std::mem::take(&mut self.claims.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
