//! Jobs that are ready, or held, in the order in which they would run. The walk reads the ready attempts in memory, and
//! then the index by rank.

use std::collections::VecDeque;

use pg_queue_core::frontier::{Rank, Ready};
use serde_json::{Value, json};

use crate::log::listing::walk::{Found, JobState, Opened, Walk, Wanted, Where, is_job, pair};
use crate::log::tables::Tables;
use crate::log::waiting::{Order, Waiting};
use crate::pg::memory;
use crate::pg::time;
use crate::shmem::here;
use crate::{guc, shmem};

/// The walk over ready or held jobs, lane by lane.
pub struct Ranked<'a> {
    wanted: &'a Wanted<'a>,
    tables: &'a [Tables],
    lanes: Vec<i32>,
    /// The index of the current lane in `lanes`.
    nth: usize,
    /// The rank in the current lane up to which all jobs were read.
    at: Rank,
    memory: VecDeque<Ready>,
    index: Option<Waiting<'a>>,
}

impl<'a> Ranked<'a> {
    pub fn new(wanted: &'a Wanted<'a>, opened: &'a Opened, beyond: Option<&Value>) -> Self {
        let queue = wanted.queue;
        let is_held = wanted.state == JobState::Held;
        let mut lanes: Vec<i32> = queue.living_lanes().iter().copied().filter(|&lane| wanted.has(lane)).collect();
        lanes.retain(|&lane| queue.is_held(lane) == is_held);
        let lane = beyond.and_then(|beyond| beyond.get("lane")).and_then(Value::as_i64);
        let nth = lanes.iter().position(|&known| Some(i64::from(known)) == lane);
        let at = pair(beyond.and_then(|beyond| beyond.get("at"))).filter(|_| nth.is_some());
        let rank = |(priority, job_id): (i64, i64)| Rank { priority: priority.try_into().unwrap_or(i32::MAX), job_id };
        let mut walk = Self {
            wanted,
            tables: &opened.segments,
            lanes,
            nth: nth.unwrap_or(0),
            at: at.map_or(Rank::MIN, rank),
            memory: VecDeque::new(),
            index: None,
        };
        walk.begin();
        walk
    }

    /// Begins with the current lane, behind `at`.
    fn begin(&mut self) {
        let Some(&lane) = self.lanes.get(self.nth) else { return };
        let number = here::number();
        let floor = shmem::with_counters(|counters| counters.get(number, lane).map(|found| found.floor));
        let mut from = self.at.max(floor.flatten().unwrap_or(Rank::MIN));
        // Attempts that wait for others of their group are not ready, and may lie before the position.
        if self.wanted.state == JobState::Ready && !self.wanted.queue.has_groups() {
            let mut ready = memory::list(usize::try_from(guc::MAX_READY.get()).unwrap_or(0));
            let position = shmem::with(|shared| {
                shared.frontier.each_ready(number, lane, |entry| {
                    if ready.len() < ready.capacity() {
                        ready.push(entry);
                    }
                })
            });
            if let Some(position) = position {
                self.memory = ready.into_iter().filter(|entry| entry.rank > self.at).collect();
                from = from.max(position);
            }
        }
        let due_to = if self.wanted.state == JobState::Held { i64::MAX } else { time::now_us() };
        self.index = Some(Waiting::new(self.tables, Order::Lane(lane), from, due_to, i64::MIN));
    }

    fn found(&mut self, ready: Ready) -> Option<Found> {
        self.at = ready.rank;
        let job_id = ready.rank.job_id;
        is_job(job_id).then_some(Found { id: ready.id, job_id, place: Where::Segment(ready.place.segment) })
    }
}

impl Walk for Ranked<'_> {
    fn next(&mut self) -> Option<Option<Found>> {
        if let Some(ready) = self.memory.pop_front() {
            return Some(self.found(ready));
        }
        match self.index.as_mut()?.next() {
            Some(Some(ready)) => Some(self.found(ready)),
            Some(None) => {
                self.at = self.at.max(self.index.as_ref()?.read_to());
                Some(None)
            }
            None => {
                self.nth += 1;
                self.at = Rank::MIN;
                self.index = None;
                self.begin();
                self.index.is_some().then_some(None)
            }
        }
    }

    fn here(&self) -> Value {
        json!({ "lane": self.lanes.get(self.nth), "at": [self.at.priority, self.at.job_id] })
    }
}
