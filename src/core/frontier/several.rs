//! Several lanes of one queue, from which a claim takes as if they were one: in the order of rank over all of them.
//!
//! The order is exact as long as nothing is pushed meanwhile and memory has room for all the lanes. A lane that another
//! session reads comes last. If there are more lanes than slots, they evict each other, and each has only its own
//! order.

use super::{Frontier, GATE_LANES, Next, Rank};

/// The lanes in which a claim has not yet seen the end.
pub struct Lanes {
    ids: [i32; GATE_LANES],
    len: usize,
    /// How many times a lane may still be read before attempts are taken from others.
    reads: usize,
}

impl Lanes {
    /// Begins with these lanes, at most [`GATE_LANES`].
    pub fn new(lanes: &[i32]) -> Self {
        let mut ids = [0; GATE_LANES];
        let len = lanes.len().min(GATE_LANES);
        ids[..len].copy_from_slice(&lanes[..len]);
        Self { ids, len, reads: 4 * len }
    }

    /// Whether only one lane is left.
    pub fn is_one(&self) -> bool {
        self.len == 1
    }

    /// Leaves out a lane in which there is nothing.
    pub fn done(&mut self, lane: i32) {
        if let Some(at) = self.ids[..self.len].iter().position(|&id| id == lane) {
            self.len -= 1;
            self.ids[at] = self.ids[self.len];
        }
    }

    /// Returns the lane to take from, and the rank up to which to take ([`Frontier::take_to`]), behind which another
    /// lane comes first. `None` if no lane is left.
    pub fn next(&mut self, frontier: &mut Frontier<'_>, instance: u32) -> Option<(i32, Rank)> {
        if let &[lane] = &self.ids[..self.len] {
            return Some((lane, Rank::MAX));
        }
        let mut best: Option<(i32, Rank)> = None;
        let mut up_to = Rank::MAX;
        for &lane in &self.ids[..self.len] {
            let rank = match frontier.next_in(instance, lane) {
                Next::Ready(rank) => rank,
                Next::Unread if self.reads > 0 => {
                    self.reads -= 1;
                    return Some((lane, Rank::MIN));
                }
                Next::Unread | Next::Nothing => Rank::MAX,
            };
            match best {
                Some((_, first)) if first <= rank => up_to = up_to.min(rank),
                _ => {
                    up_to = best.map_or(Rank::MAX, |(_, second)| second);
                    best = Some((lane, rank));
                }
            }
        }
        best.map(|(lane, _)| (lane, up_to))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Place, Ready, Take};
    use super::*;
    use crate::frontier::tests::model::{Memory, Sizes};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const INSTANCE: u32 = 1;

    /// Reads the rest of a lane from its index, as far as there is room.
    fn refill(frontier: &mut Frontier<'_>, lane: i32, waiting: &BTreeMap<Rank, i32>) {
        let Some(after) = frontier.refill_begin(INSTANCE, lane, 0) else { return };
        let behind = waiting.iter().filter(|&(&rank, &of)| of == lane && rank > after);
        let found: Vec<Ready> =
            behind.map(|(&rank, _)| Ready { rank, id: rank.job_id * 16, place: Place::default(), group: 0 }).collect();
        frontier.refill_push(INSTANCE, lane, 0, &found, Rank::MAX);
        frontier.refill_end(INSTANCE, lane, 0);
    }

    proptest! {
        #![proptest_config(crate::cases(256))]

        #[test]
        fn the_order_is_that_of_one_lane(
            jobs in prop::collection::vec((1i32..5, -2i32..3), crate::length(60)),
            wants in prop::collection::vec(1usize..9, 1..8),
            slots in 1usize..7,
        ) {
            let sizes = Sizes { ready: 3, running: 256, lanes: slots, sessions: 1, places: 0, busy_lanes: 0 };
            let mut memory = Memory::new(sizes);
            let mut waiting: BTreeMap<Rank, i32> = BTreeMap::new();
            for (n, &(lane, priority)) in jobs.iter().enumerate() {
                waiting.insert(Rank { priority, job_id: n as i64 + 1 }, lane);
            }
            let mut frontier = memory.frontier();
            for &want in wants.iter().cycle() {
                let mut lanes = Lanes::new(&[1, 2, 3, 4]);
                let mut found = Vec::new();
                while found.len() < want {
                    let Some((lane, up_to)) = lanes.next(&mut frontier, INSTANCE) else { break };
                    let mut out = [Ready::default(); 8];
                    let room = want - found.len();
                    match frontier.take_to(INSTANCE, lane, 0, 1, None, up_to, &mut out[..room]) {
                        Take::Some { taken, .. } => found.extend(out[..taken].iter().map(|ready| (ready.rank, lane))),
                        Take::Refill => refill(&mut frontier, lane, &waiting),
                        Take::Empty => lanes.done(lane),
                        other => prop_assert!(false, "{other:?}"),
                    }
                }
                let first: Vec<(Rank, i32)> = waiting.iter().take(want).map(|(&rank, &lane)| (rank, lane)).collect();
                prop_assert_eq!(found.len(), first.len());
                if slots >= 4 {
                    prop_assert_eq!(&found, &first);
                }
                if found.is_empty() {
                    break;
                }
                for (rank, lane) in found {
                    prop_assert_eq!(waiting.remove(&rank), Some(lane));
                }
            }
            prop_assert!(waiting.is_empty());
        }
    }
}
