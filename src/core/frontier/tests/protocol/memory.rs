//! Shared memory, as the protocols use it: the real frontier (`crate::frontier`), and the requests that the worker must
//! serve.
//!
//! Invariant: two memories are equal if they have the same contents, in whatever slots.

use std::hash::{Hash, Hasher};

use super::scenario::Fault;
use crate::frontier::tests::memory::{self, Sizes};
use crate::frontier::{DeadlineRoot, Frontier, Lane, Rank, Running};

/// The number of entries for which `ready` has room.
const READY: usize = 2;
/// The number of requests for which `Missed` has room.
const MISSED: usize = 1;

/// Like `crate::missed::MissedRequests`, with less room.
#[derive(Clone, Debug, Hash, Default, PartialEq, Eq)]
pub struct Missed {
    pub ids: Vec<i64>,
    pub must_scan: bool,
}

impl Missed {
    pub fn add(&mut self, id: i64, fault: Option<Fault>) {
        if self.ids.contains(&id) {
            return;
        }
        if self.ids.len() < MISSED {
            self.ids.push(id);
        } else if fault != Some(Fault::OverflowForgotten) {
            self.must_scan = true;
        }
    }
}

/// Shared memory, as the protocols use it.
#[derive(Clone)]
pub struct Memory {
    frontier: memory::Memory,
    pub root: DeadlineRoot,
    pub cancels: Missed,
    pub is_recovered: bool,
}

impl Memory {
    /// Makes empty memory. `is_first`: no job has come yet. Otherwise the server has crashed.
    pub fn new(is_first: bool, fault: Option<Fault>) -> Self {
        const RUNNING: usize = 8;
        let must_scan = !is_first && fault != Some(Fault::NoScanAfterCrash);
        Self {
            frontier: memory::Memory::new(Sizes {
                lanes: 1,
                ready: READY,
                running: RUNNING,
                sessions: 1,
                ..Sizes::default()
            }),
            root: None,
            cancels: Missed { ids: Vec::new(), must_scan },
            is_recovered: is_first,
        }
    }

    pub fn with<T>(&mut self, f: impl FnOnce(&mut Frontier<'_>, &mut DeadlineRoot) -> T) -> T {
        f(&mut self.frontier.frontier(), &mut self.root)
    }

    pub fn lane(&mut self) -> &mut Lane {
        &mut self.frontier.lanes[0]
    }

    pub fn entry(&self, id: i64) -> Option<Running> {
        self.entries().find(|entry| entry.id == id)
    }

    /// Returns the entries that are taken, running, or being ended.
    pub fn entries(&self) -> impl Iterator<Item = Running> {
        self.frontier.running.iter().copied().filter(|entry| entry.state != crate::frontier::State::Free)
    }

    /// Forgets a request about an entry. Only faults do this.
    pub fn forget_cancel(&mut self, id: i64) {
        self.frontier.running.iter_mut().filter(|entry| entry.id == id).for_each(|entry| entry.cancel = 0);
    }

    fn said(&self) -> impl Hash + std::fmt::Debug + PartialEq {
        let lane = &self.frontier.lanes[0];
        let rank = |rank: Rank| rank.job_id;
        let ready: Vec<(i64, u8)> = (0..lane.len as usize)
            .map(|nth| self.frontier.ready[(lane.head as usize + nth) % self.frontier.ready.len()])
            .map(|entry| (entry.id, entry.place.segment))
            .collect();
        let mut running: Vec<_> = self
            .entries()
            .map(|e| {
                let flags = [e.claimed, e.cancel, e.missed, e.system, e.early, e.push_held, e.timed];
                (e.id, e.state as u8, e.owner, e.place.segment, e.deadline, flags)
            })
            .collect();
        running.sort_unstable();
        let refiller = lane.refiller.map(|session| session.number());
        let marks = (lane.used, refiller, lane.invalidated, lane.goes_on, lane.is_fresh);
        let ranks = [lane.position, lane.read, lane.spill, lane.lenient].map(rank);
        (marks, ranks, ready, running, self.cancels.clone(), self.is_recovered)
    }
}

impl Hash for Memory {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.said().hash(state);
    }
}

impl PartialEq for Memory {
    fn eq(&self, other: &Self) -> bool {
        self.said() == other.said()
    }
}

impl Eq for Memory {}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.said().fmt(f)
    }
}
