//! The offered load: when each job comes, its priority, when it may run, how it ends. A job's number decides all of it.
//! So each contender gets the same load.

use std::time::Duration;

use queue_tests::random::Random;

use crate::contender::Payload;
use crate::options::Soak;

/// The delay after a failed attempt.
pub const RETRY: Duration = Duration::from_secs(1);

/// Jobs offered in a second.
pub const RATE: f64 = 2_000.0;

/// The load of a run.
#[derive(Clone, Copy)]
pub struct Load {
    /// The shortest wait of a job that waits for minutes.
    pub hold: Duration,
    /// True if the jobs are events: without priority, delay or failure.
    is_plain: bool,
}

/// Who takes a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lot {
    /// The workers.
    Usual,
    /// A client that comes for it minutes later.
    Held,
}

/// A job and its fate.
pub struct Job {
    /// Counts from 0.
    pub number: u32,
    /// Who takes it.
    pub lot: Lot,
    /// Smaller runs first.
    pub priority: i32,
    /// How long it must wait before it may run.
    pub delay: Option<Duration>,
    /// How many of its attempts fail.
    pub failures: u32,
    /// True if the first failure is final.
    pub is_fatal: bool,
}

impl Load {
    /// Returns the load for contenders with jobs, or for contenders that have only events.
    pub fn new(options: &Soak, is_plain: bool) -> Self {
        // Long enough for a turn of the ring of segments, and short enough for jobs to end within the run.
        Self { hold: (options.length / 4).min(Duration::from_secs(180)), is_plain }
    }

    /// Returns how many jobs are offered in this time.
    pub fn jobs(&self, time: Duration) -> usize {
        (time.as_secs_f64() * RATE).ceil() as usize
    }

    /// Returns when the job is offered, since the start of the run.
    pub fn at(&self, number: u32) -> Duration {
        Duration::from_secs_f64(f64::from(number) / RATE)
    }

    /// Returns when the job should have ended: its waits have passed, and the work takes no time.
    pub fn due(&self, job: &Job) -> Duration {
        let held = if job.lot == Lot::Held { self.hold } else { Duration::ZERO };
        let retries = if job.is_fatal { 0 } else { job.failures };
        self.at(job.number) + held + job.delay.unwrap_or_default() + RETRY * retries
    }

    /// Returns the longest wait of a job.
    pub fn longest_wait(&self) -> Duration {
        self.hold * 2 + RETRY * 10
    }

    /// Returns the job of this number: 5 % wait for minutes, 5 % for seconds, 4.5 % fail.
    pub fn job(&self, number: u32) -> Job {
        let plain = Job { number, lot: Lot::Usual, priority: 0, delay: None, failures: 0, is_fatal: false };
        if self.is_plain {
            return plain;
        }
        let dice = Random::new(number.into()).next();
        // Each decision depends on other digits.
        let share = f64::from((dice >> 32) as u32) / f64::from(u32::MAX);
        let priority = [-10, -1, 0, 0, 0, 0, 0, 0, 1, 10][(dice >> 16) as usize % 10];
        match dice % 1_000 {
            0..25 => Job { lot: Lot::Held, priority: 1_000, ..plain },
            25..50 => Job { priority: 100, delay: Some(self.hold.mul_f64(1.0 + share / 2.0)), ..plain },
            50..100 => Job { priority, delay: Some(RETRY.mul_f64(1.0 + 4.0 * share)), ..plain },
            100..130 => Job { priority, failures: 1, ..plain },
            130..140 => Job { priority, failures: 2, ..plain },
            140..145 => Job { priority, failures: 1, is_fatal: true, ..plain },
            _ => Job { priority, ..plain },
        }
    }
}

impl Job {
    /// Returns a document of about 100 bytes with the number.
    pub fn payload(&self) -> Payload {
        Payload::of(format!(r#"{{"job": {}, "text": "{}"}}"#, self.number, "x".repeat(58)))
    }
}
