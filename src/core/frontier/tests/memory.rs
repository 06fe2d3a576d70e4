//! The frontier's memory in the models.
//!
//! Invariant: it is no larger than a model asks for, so that every bound is met.

use crate::frontier::index::Bucket;
use crate::frontier::*;

/// The sizes of its arrays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    pub lanes: usize,
    /// The number of entries of `ready` for each lane.
    pub ready: usize,
    pub running: usize,
    pub sessions: usize,
    pub gates: usize,
    pub groups: usize,
    /// Slots for attempts that were read ahead.
    pub ahead: usize,
    /// Records of groups' starts.
    pub rates: usize,
    /// Nodes for older starts.
    pub starts: usize,
    /// Retrying groups.
    pub retrying: usize,
}

#[derive(Clone)]
pub struct Memory {
    pub head: Head,
    pub lanes: Vec<Lane>,
    pub lane_index: Vec<Bucket>,
    pub ready: Vec<Ready>,
    pub running: Vec<Running>,
    pub running_index: Vec<Bucket>,
    pub sessions: Vec<Session>,
    pub gates: Vec<Gate>,
    pub groups: Vec<Group>,
    pub group_index: Vec<Bucket>,
    pub ahead: Vec<Ahead>,
    pub rates: Vec<Rate>,
    pub rate_index: Vec<Bucket>,
    pub starts: Vec<Starts>,
    pub retrying: Vec<Retrying>,
    pub retrying_index: Vec<Bucket>,
}

impl Memory {
    /// Makes empty memory.
    pub fn new(sizes: Sizes) -> Self {
        let buckets = |slots| vec![Bucket::default(); index::buckets_for(slots)];
        Self {
            head: Head::default(),
            lanes: vec![Lane::default(); sizes.lanes],
            lane_index: buckets(sizes.lanes),
            ready: vec![Ready::default(); sizes.ready * sizes.lanes],
            running: vec![Running::default(); sizes.running],
            running_index: buckets(sizes.running.max(32)),
            sessions: vec![Session::default(); sizes.sessions],
            gates: vec![Gate::default(); sizes.gates],
            groups: vec![Group::default(); sizes.groups],
            group_index: buckets(sizes.groups),
            ahead: vec![Ahead::default(); sizes.ahead],
            rates: vec![Rate::default(); sizes.rates],
            rate_index: buckets(sizes.rates),
            starts: vec![Starts::default(); sizes.starts],
            retrying: vec![Retrying::default(); sizes.retrying],
            retrying_index: buckets(sizes.retrying),
        }
    }

    /// Makes a frontier that uses this memory.
    pub fn frontier(&mut self) -> Frontier<'_> {
        Frontier::over(Arrays {
            head: &mut self.head,
            lanes: &mut self.lanes,
            lane_index: &mut self.lane_index,
            ready: &mut self.ready,
            running: &mut self.running,
            running_index: &mut self.running_index,
            sessions: &mut self.sessions,
            gates: &mut self.gates,
            groups: &mut self.groups,
            group_index: &mut self.group_index,
            ahead: &mut self.ahead,
            rates: &mut self.rates,
            rate_index: &mut self.rate_index,
            starts: &mut self.starts,
            retrying: &mut self.retrying,
            retrying_index: &mut self.retrying_index,
        })
    }
}
