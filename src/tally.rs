//! Whether the tallies of an instance can be relied on, and what a commit adds to them.
//!
//! ```text
//! Unknown --recount begins--> Counting --recount merges--> Known
//!    ^                           |                           |
//!    +----------doubt------------+----------doubt------------+
//! ```
//!
//! A recount begins in one hold of the frontier's lock: it empties the tallies and takes a snapshot. A commit
//! becomes visible before its callback takes the lock. So a callback that finds the state *Counting* belongs to a
//! transaction which the snapshot sees, and then the recount has it and the callback adds nothing; or to one
//! which it does not see, and then the recount has nothing of it and the callback adds everything.
//!
//! *Doubt* is for what no callback tells: after a start, foreign writes, prepared transactions. Until the next
//! recount is done, whoever asks counts the rows.

use std::cell::Cell;

use pg_queue_core::frontier::Rank;
use pg_queue_core::id;
use pg_queue_core::tally::{Event, Tallies, Tally};

use crate::shmem::{self, Instance, Shared};
use crate::sys;
use crate::transaction::Step;

/// What is known of the tallies.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// Nothing.
    #[default]
    Unknown = 0,
    /// What a snapshot does not see; somebody is counting what it sees.
    Counting,
    /// All.
    Known,
}

/// An instance's part of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting {
    state: State,
    /// Counts the doubts, so that a recount which has begun before one is void.
    doubts: u64,
    /// There are more lanes than tallies: it is of no use to count.
    is_full: bool,
    /// A transaction that has enqueued was prepared, and may have to be committed yet.
    has_prepared: bool,
    /// Not before this monotonic time is it counted anew.
    next_at: i64,
    /// What the recount's snapshot sees; the rest is in `Shared::horizons`.
    pub xmin: u32,
    /// See `xmin`.
    pub xmax: u32,
    /// See `xmin`.
    pub in_progress: u32,
}

impl Counting {
    /// Whether the tallies say what the logs say.
    pub fn is_known(&self) -> bool {
        self.state == State::Known
    }

    /// Whether there are more lanes than tallies, so that nobody counts.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// When, on the monotonic clock, somebody should count anew.
    pub fn count_at(&self) -> i64 {
        if self.state == State::Unknown && !self.is_full { self.next_at } else { i64::MAX }
    }
}

/// Something has happened that no callback tells of.
pub fn doubt(instance: &mut Instance) {
    let counting = &mut instance.counting;
    counting.state = State::Unknown;
    counting.doubts += 1;
}

/// A transaction that has enqueued was prepared.
pub fn prepared(instance: &mut Instance) {
    instance.counting.has_prepared = true;
}

/// COMMIT PREPARED or ROLLBACK PREPARED has run.
pub fn prepared_ended(instance: &mut Instance) {
    if instance.counting.has_prepared {
        doubt(instance);
    }
}

/// No transaction that has enqueued is known to be prepared; whoever says so looks then whether there is one.
pub fn forget_prepared(number: u32) {
    shmem::with_instance(number, |_, instance| instance.counting.has_prepared = false);
}

thread_local! {
    /// The instance that this session is counting.
    static COUNTING: Cell<u32> = const { Cell::new(0) };
}

/// This process ends, by an error that runs no destructors: what it has begun is void.
pub fn abandon(instances: &mut [Instance]) {
    let number = COUNTING.take();
    if let Some(instance) = instances.iter_mut().find(|i| number != 0 && i.number == number)
        && instance.counting.state == State::Counting
    {
        doubt(instance);
    }
}

/// A recount under way; dropped before its end it is void.
pub struct Recount {
    number: u32,
    doubts: u64,
}

impl Recount {
    /// Empties the tallies and takes the snapshot by which the logs are to be read; `None`: somebody else is
    /// counting. The transaction has written nothing.
    pub fn begin(number: u32) -> Option<(sys::ActiveSnapshot, Self)> {
        let (snapshot, doubts) = sys::ActiveSnapshot::take(|take| {
            shmem::with(|shared| {
                let Shared { instances, tallies, horizons, .. } = shared;
                let slot = instances.iter().position(|i| number != 0 && i.number == number)?;
                if instances[slot].counting.state == State::Counting {
                    return None;
                }
                let share = Shared::horizon_share(instances.len(), horizons, slot);
                let seen = take(share);
                // There is a place for every process and every prepared transaction.
                if seen.in_progress > share.len() {
                    instances[slot].counting.next_at = i64::MAX;
                    return None;
                }
                tallies.forget_instance(number);
                let counting = &mut instances[slot].counting;
                counting.state = State::Counting;
                (counting.xmin, counting.xmax, counting.in_progress) = (seen.xmin, seen.xmax, seen.in_progress as u32);
                COUNTING.set(number);
                Some(counting.doubts)
            })
        });
        doubts.map(|doubts| (snapshot, Self { number, doubts }))
    }

    /// Adds what was counted; from now on the tallies are known. False: there was a doubt meanwhile, or there are too
    /// many lanes. Not to be counted again for so many microseconds.
    pub fn end(self, counted: impl Iterator<Item = (i32, Tally)>, pause: i64) -> bool {
        let at = sys::monotonic_us().saturating_add(pause);
        let is_known = shmem::with(|shared| {
            let Shared { instances, tallies, .. } = shared;
            let instance = instances.iter_mut().find(|i| i.number == self.number)?;
            instance.counting.next_at = at;
            if instance.counting.doubts != self.doubts {
                return None;
            }
            for (lane, tally) in counted {
                let Some(known) = tallies.find_or_make(self.number, lane) else {
                    give_up(instance);
                    return None;
                };
                known.add(&tally);
            }
            instance.counting.state = State::Known;
            Some(())
        });
        is_known.is_some()
    }
}

impl Drop for Recount {
    fn drop(&mut self) {
        COUNTING.set(0);
        shmem::with_instance(self.number, |_, instance| {
            if instance.counting.state == State::Counting {
                doubt(instance);
            }
        });
    }
}

/// There are more lanes than tallies.
fn give_up(instance: &mut Instance) {
    doubt(instance);
    instance.counting.is_full = true;
}

/// Adds up what the steps of a commit count for, a lane's at once. One hold of the lock long.
pub struct Books {
    xid: u32,
    instance: u32,
    lane: i32,
    /// What is entered now counts; during a recount, only if that does not see it.
    counts: bool,
    is_counting: bool,
    tally: Tally,
    /// An instance without room for a tally.
    full: u32,
}

impl Books {
    /// For the commit of this transaction.
    pub fn open(xid: u32) -> Self {
        Self { xid, instance: 0, lane: 0, counts: false, is_counting: false, tally: Tally::NONE, full: 0 }
    }

    /// Enters a step of the instance in this slot.
    pub fn enter(
        &mut self,
        instances: &[Instance],
        slot: usize,
        horizons: &[u32],
        tallies: &mut Tallies<'_>,
        step: Step,
    ) {
        let (lane, event) = match step {
            Step::Enqueued { lane, ready, has_moved: false, .. } => {
                (lane, Event::Enqueued { is_first: id::count(ready.id) == id::count(ready.rank.job_id) })
            }
            Step::Taken { lane, .. } => (lane, Event::Claimed),
            Step::Ended { lane, .. } => (lane, Event::EndedUnrun(1)),
            Step::Purged { lane, count } => (lane, Event::EndedUnrun(count)),
            Step::Ending { lane, end, .. } | Step::EndingUnknown { lane, end, .. } => (lane, Event::Ended(end)),
            Step::LaneDropped { lane } => {
                self.post(tallies);
                tallies.forget(instances[slot].number, lane);
                return;
            }
            _ => return,
        };
        let instance = &instances[slot];
        if (self.instance, self.lane) != (instance.number, lane) {
            self.post(tallies);
            (self.instance, self.lane) = (instance.number, lane);
            self.is_counting = instance.counting.state == State::Counting;
            self.counts = match instance.counting.state {
                State::Unknown => false,
                State::Counting => !Shared::horizon(instances, horizons, slot).sees(self.xid),
                State::Known => true,
            };
        }
        if self.counts {
            self.tally.counts.record(event);
            if event == Event::Claimed {
                self.tally.claimed_at = sys::now_us();
            }
            if let Step::Enqueued { ready, .. } = step {
                self.tally.lower(ready.rank);
            }
        }
    }

    fn post(&mut self, tallies: &mut Tallies<'_>) {
        let tally = std::mem::replace(&mut self.tally, Tally::NONE);
        if tally == Tally::NONE {
            return;
        }
        // A lane whose first job comes, or that the recount will come to. Any other was dropped.
        if tally.floor < Rank::MAX || self.is_counting {
            match tallies.find_or_make(self.instance, self.lane) {
                Some(known) => known.add(&tally),
                None => self.full = self.instance,
            }
        } else if let Some(known) = tallies.find(self.instance, self.lane) {
            known.add(&tally);
        }
    }

    /// Adds what was entered to the tallies.
    pub fn close(mut self, instances: &mut [Instance], tallies: &mut Tallies<'_>) {
        self.post(tallies);
        if let Some(instance) = instances.iter_mut().find(|i| self.full != 0 && i.number == self.full) {
            give_up(instance);
        }
    }
}
