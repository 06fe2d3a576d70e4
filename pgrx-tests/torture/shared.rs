//! The state that all threads of a run share.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use queue_tests::random::Random;

use crate::ledger::{Micros, now};
use crate::options::Options;
use crate::place::Place;
use crate::plan::{Kind, QUEUES};

/// More findings than this are counted and not shown.
pub const SHOWN: usize = 40;

/// The state that all threads of a run share.
pub struct Torture {
    pub options: Options,
    pub place: Place,
    pub is_over: AtomicBool,
    pub is_drained: AtomicBool,
    /// About how many jobs wait, including uncommitted ones.
    pub waiting: AtomicI64,
    /// Jobs of all queues that managers may change.
    pub jobs: Mutex<VecDeque<(usize, i64)>>,
    /// Flows to which members may be added.
    pub flows: Mutex<VecDeque<i64>>,
    pub findings: Mutex<Vec<String>>,
    /// The times in which the server lost its memory, from before its end until after its next start.
    pub crashes: Mutex<Vec<(Micros, Micros)>>,
    /// The times in which another server took over.
    pub promotions: Mutex<Vec<(Micros, Micros)>>,
}

impl Torture {
    /// True if faults, producers and managers have ended.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// True if all jobs have ended.
    pub fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Relaxed)
    }

    /// True if clients must make no more mistakes.
    pub fn is_calm(&self) -> bool {
        self.is_over()
    }

    pub fn waiting(&self) -> i64 {
        self.waiting.load(Ordering::Relaxed)
    }

    pub fn add_waiting(&self, count: i64) {
        self.waiting.fetch_add(count, Ordering::Relaxed);
    }

    /// Stores the number of waiting jobs that the server counts.
    pub fn set_waiting(&self, count: i64) {
        self.waiting.store(count, Ordering::Relaxed);
    }

    pub fn find(&self, what: String) {
        let mut findings = self.findings.lock().unwrap();
        if findings.len() < SHOWN {
            eprintln!("FOUND {}", short(&what));
        }
        findings.push(what);
    }

    /// Notes that the server lost its memory between `from` and now.
    pub fn note_crash(&self, from: Micros) {
        self.crashes.lock().unwrap().push((from, now()));
    }

    /// Notes that another server took over between `from` and now.
    pub fn note_promotion(&self, from: Micros) {
        self.promotions.lock().unwrap().push((from, now()));
    }

    /// Returns a queue of a wanted kind that is a part of the run.
    pub fn pick(&self, random: &mut Random, is_wanted: impl Fn(Kind) -> bool) -> Option<usize> {
        let is_there = |name: &str| {
            self.options.has(name)
                && (self.options.only.is_empty() || self.options.only.iter().any(|only| only == name))
        };
        let all: Vec<usize> =
            (0..QUEUES.len()).filter(|n| is_wanted(QUEUES[*n].kind) && is_there(QUEUES[*n].name)).collect();
        (!all.is_empty()).then(|| random.one_of(&all))
    }

    pub fn remember(&self, queue: usize, job: i64) {
        let mut jobs = self.jobs.lock().unwrap();
        jobs.push_back((queue, job));
        if jobs.len() > 400 {
            jobs.pop_front();
        }
    }

    pub fn remember_flow(&self, flow: i64) {
        let mut flows = self.flows.lock().unwrap();
        flows.push_back(flow);
        if flows.len() > 20 {
            flows.pop_front();
        }
    }

    pub fn some_flow(&self, random: &mut Random) -> Option<i64> {
        let flows = self.flows.lock().unwrap();
        (!flows.is_empty()).then(|| flows[random.below(flows.len() as u64) as usize])
    }

    pub fn some_job(&self, random: &mut Random) -> Option<(usize, i64)> {
        let jobs = self.jobs.lock().unwrap();
        (!jobs.is_empty()).then(|| jobs[random.below(jobs.len() as u64) as usize])
    }
}

/// Waits as long as a number decreases, however slowly the machine works.
pub struct Patience {
    wait: Duration,
    least: i64,
    until: Instant,
}

impl Patience {
    pub fn new(wait: Duration) -> Self {
        Self { wait, least: i64::MAX, until: Instant::now() + wait }
    }

    /// Notes the number. Returns true if it has not decreased for the time.
    pub fn is_over(&mut self, left: i64) -> bool {
        let is_less = left < self.least;
        if is_less {
            (self.least, self.until) = (left, Instant::now() + self.wait);
        }
        !is_less && Instant::now() > self.until
    }
}

pub fn short(finding: &str) -> String {
    finding.chars().take(1500).collect()
}
