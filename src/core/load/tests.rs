//! `needed` by itself, and a pool of workers that follows it, in simulated time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::totals::Totals;

const S: i64 = 1_000_000;
const MINUTE: i64 = 60 * S;
/// The time at which the simulations begin, in the middle of a minute.
const BEGIN: i64 = 1_000 * MINUTE + 23 * S;

/// Returns the minutes of a lane in which this number of attempts was enqueued, claimed and completed in each of the
/// last ten minutes.
fn steady(per_minute: i64, run_us: i64) -> Minutes {
    let mut minutes = Minutes::default();
    for minute in 990..=1_000 {
        let n = if minute == 1_000 { per_minute * 23 / 60 } else { per_minute };
        let totals = Totals { enqueued: n, claimed: n, completed: n, ..Totals::NONE };
        minutes.add(minute, &totals, n * run_us);
    }
    minutes
}

fn seen(minutes: &Minutes) -> Seen<'_> {
    Seen { minutes: Some(minutes), now_us: BEGIN, target_age_us: 30 * S, running: 1, ..Seen::default() }
}

#[test]
fn as_many_workers_are_needed_as_jobs_arrive_while_one_runs() {
    let minutes = steady(6_000, 50_000);
    let load = seen(&minutes).load();
    assert!((load.arrivals - 100.0).abs() < 0.5 && (load.ends - 100.0).abs() < 0.5, "{load:?}");
    assert!((load.run_mean_us.unwrap_or(0.0) - 50_000.0).abs() < 1.0, "{load:?}");
    assert_eq!(load.needed, 5);
    assert_eq!(load.drain_us, Some(0.0));
}

#[test]
fn arrivals_are_the_greatest_of_three() {
    let arrivals = |minute: i64, totals: Totals| {
        let mut minutes = Minutes::default();
        minutes.add(990, &Totals::NONE, 0);
        minutes.add(minute, &totals, 0);
        seen(&minutes).load().arrivals
    };
    let (enqueued, claimed) = (Totals { enqueued: 600, ..Totals::NONE }, Totals { claimed: 600, ..Totals::NONE });
    // A step counts fully in its minute. Three minutes later it still counts in the mean of five minutes.
    assert_eq!(arrivals(1_000, enqueued), 10.0);
    assert_eq!(arrivals(997, enqueued), 2.0);
    assert_eq!(arrivals(994, enqueued), 0.0);
    // Claims of a backlog are no step.
    assert_eq!(arrivals(1_000, claimed), 2.0);
    assert_eq!(arrivals(997, claimed), 2.0);
}

#[test]
fn waiting_jobs_should_begin_within_the_target() {
    let minutes = steady(6_000, 50_000);
    let with = |ready, due_soon| Seen { ready, due_soon, ..seen(&minutes) }.load();
    assert_eq!(with(3_000, 0).needed, 10);
    assert_eq!(with(1_500, 1_500).needed, 10);
    assert_eq!(with(3_000, 0).drain_us, None);
    let target_age_us = 60 * S;
    assert_eq!(Seen { ready: 3_000, target_age_us, ..seen(&minutes) }.load().needed, 8);
}

#[test]
fn limits_and_pauses_bound_the_number_of_needed_workers() {
    let minutes = steady(6_000, 50_000);
    let busy = Seen { ready: 30_000, running: 7, ..seen(&minutes) };
    assert_eq!(busy.load().needed, 55);
    assert_eq!(Seen { max_running: 20, ..busy }.load().needed, 20);
    // The rate allows 200 starts a second, and each job runs for 50 ms.
    assert_eq!(Seen { rate: 400, period_us: 2 * S, ..busy }.load().needed, 10);
    assert_eq!(Seen { rate: 1, period_us: 3_600 * S, ..busy }.load().needed, 1);
    assert_eq!(Seen { is_paused: true, ..busy }.load().needed, 7);
    assert_eq!(Seen { is_paused: true, running: 0, ..busy }.load().needed, 0);
}

#[test]
fn long_running_jobs_keep_their_workers() {
    let minutes = steady(6_000, 50_000);
    let long = [BEGIN - MINUTE; 10];
    let lasting = Seen { running: 10, started_at: &long, ..seen(&minutes) };
    // The arrivals keep 5 workers busy. Ten jobs run long, and the five may be among them.
    assert_eq!(lasting.load().needed, 10);
    // The waiting jobs have to run beside the long ones.
    assert_eq!(Seen { ready: 5, ..lasting }.load().needed, 11);
    assert_eq!(Seen { due_soon: 3_000, ..lasting }.load().needed, 15);
    assert_eq!(Seen { started_at: &long[..4], ..lasting }.load().needed, 5);
    // Jobs that have run for less than the mean say nothing.
    assert_eq!(Seen { started_at: &[BEGIN - 40_000; 10], ..lasting }.load().needed, 5);
    // A limit of starts and a pause stop no running job. The limit of running jobs bounds the number.
    assert_eq!(Seen { rate: 1, period_us: S, ..lasting }.load().needed, 10);
    assert_eq!(Seen { max_running: 7, ..lasting }.load().needed, 7);
    assert_eq!(Seen { is_paused: true, ..lasting }.load().needed, 10);
    // One stage keeps its long jobs beside another stage with a backlog.
    let backlog = Seen { ready: 30_000, running: 0, ..seen(&minutes) };
    let mut loads = [lasting, backlog].map(|seen| Seen { max_running: 20, ..seen }.load());
    share(&mut loads, 20);
    assert_eq!(loads.map(|load| load.needed), [10, 10]);
}

#[test]
fn no_work_needs_no_worker() {
    let minutes = steady(6_000, 50_000);
    assert_eq!(Seen { running: 0, ..seen(&minutes) }.load().needed, 0);
    assert_eq!(Seen { running: 0, due_soon: 1, ..seen(&minutes) }.load().needed, 6);
    assert_eq!(Seen { target_age_us: S, ..Seen::default() }.load().needed, 0);
}

#[test]
fn until_a_job_has_ended_at_most_one_more_worker_is_needed() {
    let with = |ready, running| Seen { ready, running, target_age_us: S, ..Seen::default() }.load().needed;
    assert_eq!(with(1_000_000, 0), 1);
    assert_eq!(with(1, 3), 4);
    assert_eq!(with(0, 3), 3);
}

#[test]
fn the_stages_of_a_queue_share_its_max_running() {
    let minutes = steady(6_000, 50_000);
    let loads = [30_000, 3_000, 0].map(|ready| Seen { ready, running: 0, max_running: 20, ..seen(&minutes) }.load());
    let shared = |max_running| {
        let mut loads = loads;
        share(&mut loads, max_running);
        loads.map(|load| load.needed)
    };
    assert_eq!(shared(0), [20, 10, 0]);
    assert_eq!(shared(30), [20, 10, 0]);
    assert_eq!(shared(20), [14, 7, 0]);
}

#[test]
fn jobs_that_take_no_time_need_one_worker() {
    let minutes = steady(6_000, 0);
    assert_eq!(Seen { ready: 100, running: 0, ..seen(&minutes) }.load().needed, 1);
}

/// A queue, and a pool of workers that follows `needed`. The pool reads `needed` every `POLL`, and has that many
/// workers `START` later.
struct Pool {
    now: i64,
    run_us: i64,
    minutes: Minutes,
    waiting: VecDeque<i64>,
    /// The end and the beginning of each running job.
    running: BinaryHeap<Reverse<(i64, i64)>>,
    workers: i64,
    ordered: VecDeque<(i64, i64)>,
    ended: u64,
    /// `needed` at the last poll, and the greatest age of a job that began in the last `run`.
    needed: i64,
    age: i64,
}

impl Pool {
    const TICK: i64 = 10_000;
    const POLL: i64 = 15 * S;
    const START: i64 = 10 * S;
    const TARGET: i64 = 30 * S;

    fn new(run_us: i64, begin: i64) -> Self {
        let minutes = Minutes::default();
        let (waiting, running, ordered) = (VecDeque::new(), BinaryHeap::new(), VecDeque::new());
        Self { now: begin, run_us, minutes, waiting, running, workers: 0, ordered, ended: 0, needed: 0, age: 0 }
    }

    fn count(&mut self, totals: Totals, busy_us: i64) {
        self.minutes.add(self.now.div_euclid(MINUTE), &totals, busy_us);
    }

    /// Lets jobs arrive at this rate a second, for this number of microseconds.
    fn run(&mut self, rate: i64, us: i64) {
        self.age = 0;
        let mut owed = 0;
        for _ in 0..us / Self::TICK {
            owed += rate * Self::TICK;
            let new = owed / S;
            owed %= S;
            self.waiting.extend((0..new).map(|_| self.now));
            if new > 0 {
                self.count(Totals { enqueued: new, ..Totals::NONE }, 0);
            }
            while let Some(&Reverse((ends_at, began))) = self.running.peek()
                && ends_at <= self.now
            {
                self.running.pop();
                self.count(Totals { completed: 1, ..Totals::NONE }, ends_at - began);
            }
            while self.ordered.front().is_some_and(|(at, _)| *at <= self.now) {
                self.workers = self.ordered.pop_front().map_or(0, |(_, workers)| workers);
            }
            while (self.running.len() as i64) < self.workers
                && let Some(since) = self.waiting.pop_front()
            {
                self.age = self.age.max(self.now - since);
                self.count(Totals { claimed: 1, ..Totals::NONE }, 0);
                // Jobs run for a tenth less than the mean, for the mean, and for a tenth more, in turn.
                let run_us = self.run_us * (9 + (self.ended % 3) as i64) / 10;
                self.ended += 1;
                self.running.push(Reverse((self.now + run_us, self.now)));
            }
            if self.now.rem_euclid(Self::POLL) < Self::TICK {
                let seen = Seen {
                    ready: self.waiting.len() as i64,
                    running: self.running.len() as i64,
                    started_at: &self.running.iter().map(|Reverse((_, began))| *began).collect::<Vec<_>>(),
                    minutes: Some(&self.minutes),
                    now_us: self.now,
                    target_age_us: Self::TARGET,
                    ..Seen::default()
                };
                self.needed = seen.load().needed;
                self.ordered.push_back((self.now + Self::START, self.needed));
            }
            self.now += Self::TICK;
        }
    }

    /// Returns the ideal number of workers at this rate.
    fn ideal(&self, rate: i64) -> f64 {
        rate as f64 * self.run_us as f64 / 1e6
    }

    #[track_caller]
    fn check(&self, rate: i64) {
        let (needed, ideal) = (self.needed as f64, self.ideal(rate));
        // The number of workers is whole, so it may be off by one.
        let off = (needed - ideal).abs();
        assert!(off <= (0.2 * ideal).max(1.0), "needed {needed}, ideal {ideal}, {} wait", self.waiting.len());
    }
}

/// The load goes from 50 to 1,000 jobs a second and back. The step comes at several seconds of the clock's minute.
#[test]
fn a_pool_follows_steps_of_load() {
    let begins: &[i64] = if cfg!(miri) { &[23] } else { &[0, 1, 14, 23, 37, 45, 59] };
    for begin in begins {
        let mut pool = Pool::new(50_000, 1_000 * MINUTE + begin * S);
        pool.run(50, 10 * MINUTE);
        pool.check(50);
        pool.run(1_000, 2 * MINUTE);
        pool.check(1_000);
        pool.run(1_000, 3 * MINUTE);
        pool.check(1_000);
        // In the sixth minute after the step, jobs begin within twice the target.
        pool.run(1_000, MINUTE);
        assert!(pool.age <= 2 * Pool::TARGET, "{} s", pool.age / S);
        pool.check(1_000);
        // When the load falls, `needed` follows within the five minutes of the long span, and is never too small.
        pool.run(50, 4 * MINUTE);
        assert!(pool.needed as f64 >= pool.ideal(50));
        pool.run(50, 2 * MINUTE);
        pool.check(50);
        pool.run(0, 5 * MINUTE);
        assert_eq!((pool.needed, pool.workers), (0, 0));
    }
}

#[test]
fn a_pool_follows_steps_with_long_jobs() {
    let mut pool = Pool::new(8 * S, 1_000 * MINUTE);
    pool.run(1, 12 * MINUTE);
    pool.check(1);
    pool.run(10, 4 * MINUTE);
    pool.check(10);
    pool.run(10, 3 * MINUTE);
    pool.check(10);
}

proptest! {
    #![proptest_config(crate::cases(500))]

    #[test]
    fn needed_is_never_negative_nor_above_the_limits(
        counts in prop::collection::vec(
            (0i64..30, 0i64..1000, 0i64..1000, 0i64..1000, 0i64..60 * S), crate::length(40)
        ),
        ready in 0i64..1_000_000,
        due_soon in 0i64..1_000_000,
        running in 0i64..1_000,
        lasting in 0usize..100,
        max_running in 0u32..50,
        rate in 0u32..50,
    ) {
        let mut minutes = Minutes::default();
        let mut known = BTreeMap::<i64, i64>::new();
        for (minute, enqueued, claimed, completed, busy_us) in counts {
            let totals = Totals { enqueued, claimed, completed, ..Totals::NONE };
            minutes.add(980 + minute, &totals, busy_us);
            *known.entry(minute).or_default() += enqueued;
        }
        let (now_us, started_at) = (1_010 * MINUTE, vec![0; lasting]);
        let running = running.max(lasting as i64);
        let seen = Seen {
            started_at: &started_at, ready, due_soon, running, max_running, rate, period_us: S, now_us,
            target_age_us: 30 * S,
            minutes: Some(&minutes), ..Seen::default()
        };
        let load = seen.load();
        prop_assert!(load.needed >= 0 && load.arrivals >= 0.0 && load.ends >= 0.0);
        prop_assert!(max_running == 0 || load.needed <= i64::from(max_running));
        prop_assert_eq!(load.needed == 0, ready == 0 && due_soon == 0 && running == 0);
        let may_last = if max_running == 0 { lasting } else { lasting.min(max_running as usize) };
        prop_assert!(load.run_mean_us.is_none() || load.needed >= may_last as i64);
        // More waiting jobs never need fewer workers.
        let more = Seen { ready: ready + 1_000, ..seen }.load();
        prop_assert!(more.needed >= load.needed);
    }
}
