//! How many jobs of a lane have to run at the same time: the number by which workers are scaled.
//!
//! Responsible for the arithmetic. Not responsible for counting (`minutes`), nor for reading the numbers
//! (`view::load`).
//!
//! The formula is Little's law: as many jobs run at the same time as begin per second, times how long each runs. Jobs
//! that are already waiting begin, too, within the time in which they should.
//!
//! A mean knows only jobs that have ended. Jobs that run longer than the mean are as many as the formula expects, or
//! they last. So the greater of the two numbers counts.
//!
//! Invariant: with equal arrivals, running times, waiting and lasting jobs the answer is the same. So the pool that
//! follows the number does not swing by itself. The answer is never below the number of lasting jobs, unless
//! `max_running` is.

use crate::minutes::Minutes;

/// The numbers of a lane at one moment. Times are in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen<'a> {
    /// Jobs that can be claimed.
    pub ready: i64,
    /// Jobs that will be ready within `target_age_us`.
    pub due_soon: i64,
    /// Jobs that workers run.
    pub running: i64,
    /// When each of them was claimed, as far as that is known. In any order.
    pub started_at: &'a [i64],
    /// What was counted in the last hour. `None`: nothing was.
    pub minutes: Option<&'a Minutes>,
    /// The time, as `minutes` counts it.
    pub now_us: i64,
    /// In which time a waiting job should begin. Larger than 0.
    pub target_age_us: i64,
    /// True if no claim finds a job.
    pub is_paused: bool,
    /// How many jobs may run at the same time. 0: any number.
    pub max_running: u32,
    /// How many jobs may start in a period. 0: any number.
    pub rate: u32,
    /// That period.
    pub period_us: i64,
}

/// What a lane needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Jobs that become ready, each second.
    pub arrivals: f64,
    /// Attempts that end, each second.
    pub ends: f64,
    /// How long an attempt runs, in microseconds. `None`: none has ended.
    pub run_mean_us: Option<f64>,
    /// In which time no job will be waiting any more, in microseconds. `None`: never.
    pub drain_us: Option<f64>,
    /// How many jobs have to run at the same time.
    pub needed: i64,
    /// Those of them that run longer than the mean, and go on.
    pub lasting: i64,
}

const SECOND_US: f64 = 1_000_000.0;
/// The spans that arrivals and ends are counted over, in minutes. The short one sees a rise soon. The long one keeps a
/// pause of a minute from being taken for the end.
const SHORT_MINUTES: i64 = 1;
const LONG_MINUTES: i64 = 5;
/// The span that running times are averaged over, in minutes.
const RUN_MINUTES: i64 = 15;

impl Seen<'_> {
    /// Returns what the lane needs.
    pub fn load(&self) -> Load {
        let per_second = |minutes: i64| self.last(minutes).0.map(|count| count / (60 * minutes) as f64);
        let (short, long) = (per_second(SHORT_MINUTES), per_second(LONG_MINUTES));
        let [enqueued, ..] = short;
        let [enqueued_long, claimed_long, ..] = long;
        // Retries, later stages and jobs that come due are not enqueued but claimed. The claims of the last minute do
        // not count: while a backlog is being worked off, they are more than the arrivals, and the backlog would count
        // twice.
        let arrivals = enqueued.max(enqueued_long).max(claimed_long);
        let ends = ended(short);
        let (counts, busy_us) = self.last(RUN_MINUTES);
        let run_mean_us = (ended(counts) > 0.0).then(|| busy_us / ended(counts));
        let lasting = self.lasting(run_mean_us);
        let wanted = self.wanted(arrivals, run_mean_us, lasting);
        let needed = self.limited(wanted, run_mean_us, lasting);
        let drain_us = self.drain_us(arrivals, ends);
        Load { arrivals, ends, run_mean_us, drain_us, needed, lasting: lasting.min(needed) }
    }

    /// Returns how many jobs run longer than the mean.
    fn lasting(&self, run_mean_us: Option<f64>) -> i64 {
        let is_longer = |&&at: &&i64| run_mean_us.is_some_and(|mean| self.now_us.saturating_sub(at) as f64 > mean);
        self.started_at.iter().filter(is_longer).count() as i64
    }

    fn last(&self, minutes: i64) -> ([f64; 7], f64) {
        self.minutes.map_or(([0.0; 7], 0.0), |known| known.last(minutes, self.now_us))
    }

    fn drain_us(&self, arrivals: f64, ends: f64) -> Option<f64> {
        match self.ready {
            0 => Some(0.0),
            ready => (ends > arrivals).then(|| ready as f64 / (ends - arrivals) * SECOND_US),
        }
    }

    /// Returns how many jobs have to run at the same time if nothing limits the queue.
    fn wanted(&self, arrivals: f64, run_mean_us: Option<f64>, lasting: i64) -> f64 {
        let (ready, running) = (self.ready, self.running);
        if ready == 0 && running == 0 && self.due_soon == 0 {
            return 0.0;
        }
        if self.is_paused {
            return running as f64;
        }
        let Some(run_mean_us) = run_mean_us else {
            // One job more than now shows how long jobs run.
            return (running + i64::from(ready + self.due_soon > 0)) as f64;
        };
        let target = self.target_age_us as f64 / SECOND_US;
        let at_once = |starts: f64| starts * run_mean_us / SECOND_US;
        // Where the arrivals alone keep as many jobs running, these are the lasting ones.
        let steady = at_once(arrivals).max(lasting as f64);
        // A job that has not ended yet runs, however short the others were.
        (steady + at_once((ready + self.due_soon) as f64 / target)).max(1.0)
    }

    /// Returns `wanted`, or as many jobs as the limits of the queue allow to run at the same time, if that is less.
    fn limited(&self, wanted: f64, run_mean_us: Option<f64>, lasting: i64) -> i64 {
        let mut at_most = f64::INFINITY;
        if self.max_running > 0 {
            at_most = f64::from(self.max_running);
        }
        if self.rate > 0
            && let Some(run_mean_us) = run_mean_us
        {
            // The rate bounds starts. Lasting jobs have started.
            let starts = f64::from(self.rate) * run_mean_us / self.period_us.max(1) as f64;
            at_most = at_most.min(starts.max(lasting as f64).max(1.0));
        }
        // Sums of many parts are off in their last digits, which must not make a job of them.
        (wanted.min(at_most) - 1e-6).ceil() as i64
    }
}

/// Divides `max_running` among the lanes of a queue if they need more together. Each lane keeps its lasting jobs and
/// gets its part of the rest, rounded up. 0: any number may run.
pub fn share(loads: &mut [Load], max_running: u32) {
    let sum = |number: fn(&Load) -> i64| loads.iter().map(number).sum::<i64>();
    let (all, lasting, most) = (sum(|load| load.needed), sum(|load| load.lasting), i64::from(max_running));
    if most > 0 && all > most {
        let (free, more) = ((most - lasting).max(0), (all - lasting).max(1));
        for load in loads {
            load.needed = load.lasting + ((load.needed - load.lasting) * free + more - 1) / more;
        }
    }
}

/// Returns how many attempts have ended.
fn ended([_, _, completed, failed, timed_out, _, _]: [f64; 7]) -> f64 {
    completed + failed + timed_out
}

#[cfg(test)]
mod tests;
