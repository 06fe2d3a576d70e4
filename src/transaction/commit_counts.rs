//! The numbers that a commit adds to the counters of lanes. They are summed up while the steps are settled, and entered
//! once for each lane.
//!
//! Responsible for which step counts as which event, and for whether a recount has counted it already. Not responsible
//! for the counters themselves (`pg_queue_core::counter`), nor for recounts (`shmem::recount`).

use pg_queue_core::counter::{Counter, Counters, Event};
use pg_queue_core::minutes::MINUTE_US;

use crate::pg::time;
use crate::shmem::counting::State;
use crate::shmem::{Instance, Shared};
use crate::transaction::steps::{QueueStep, Step};

/// The sum over the steps of a commit, one lane at a time. It lives within one hold of the lock.
pub struct CommitCounts {
    xid: u64,
    instance: u32,
    lane: i32,
    /// True if the entered events count: the last recount's snapshot does not see the transaction.
    counts: bool,
    counter: Counter,
    /// The number of an instance that has no room for another counter; 0: none.
    full: u32,
}

impl CommitCounts {
    /// Returns an empty sum for the commit of the transaction with this id.
    pub fn open(xid: u64) -> Self {
        Self { xid, instance: 0, lane: 0, counts: false, counter: Counter::NONE, full: 0 }
    }

    /// Enters a step of the instance in this slot. `busy_us`: how long the attempt had run that the step ends.
    pub fn enter(
        &mut self,
        instances: &[Instance],
        slot: usize,
        horizons: &[u32],
        counters: &mut Counters<'_>,
        step: Step,
        busy_us: i64,
    ) {
        let (lane, event) = match step {
            Step::Enqueued { lane, has_moved: false, is_first, .. } => (lane, Event::Enqueued { is_first }),
            Step::Taken { lane, .. } => (lane, Event::Claimed),
            Step::EndedUnrun { lane, .. } => (lane, Event::EndedUnrun(1)),
            Step::Purged { lane, count } => (lane, Event::EndedUnrun(count)),
            Step::EndCounted { lane, end } => (lane, Event::Told(end)),
            Step::Ending { lane, end: Some(end), .. } => (lane, Event::Ended(end)),
            Step::Queue(QueueStep::Dropped { lane }) => {
                self.post(counters);
                counters.forget(instances[slot].number, lane);
                return;
            }
            _ => return,
        };
        let instance = &instances[slot];
        if (self.instance, self.lane) != (instance.number, lane) {
            self.post(counters);
            (self.instance, self.lane) = (instance.number, lane);
            self.counts = match instance.counting.state {
                State::Unknown => false,
                State::Counting | State::Known => !Shared::horizon(instances, horizons, slot).sees(self.xid),
            };
        }
        if self.counts {
            self.counter.counts.record(event);
            self.counter.busy_us = self.counter.busy_us.saturating_add(busy_us);
            if let Step::Taken { started_at, .. } = step {
                self.counter.claimed_at = self.counter.claimed_at.max(started_at);
            }
            if let Step::Enqueued { ready, .. } = step {
                self.counter.lower(ready.rank);
            }
        }
    }

    fn post(&mut self, counters: &mut Counters<'_>) {
        let counter = std::mem::replace(&mut self.counter, Counter::NONE);
        if counter == Counter::NONE {
            return;
        }
        // A lane's first jobs may be claimed before the commit that brought them is counted. If the lane was dropped
        // meanwhile, the counter stays until the next recount.
        let minute = time::transaction_end_us() / MINUTE_US;
        if !counters.add(self.instance, self.lane, &counter, minute) {
            self.full = self.instance;
        }
    }

    /// Adds the sum to the counters. If an instance had no room for a counter, its counters are given up.
    pub fn close(mut self, instances: &mut [Instance], counters: &mut Counters<'_>) {
        self.post(counters);
        if let Some(instance) = instances.iter_mut().find(|i| self.full != 0 && i.number == self.full) {
            instance.give_up_counting();
        }
    }
}
