//! Claims from several lanes against a naive model.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::memory::{Memory, Sizes};
use crate::frontier::*;

const INSTANCE: u32 = 1;

/// Reads the rest of a lane from its index, as far as memory has room.
fn refill(frontier: &mut Frontier<'_>, lane: i32, waiting: &BTreeMap<Rank, i32>) {
    let Some(after) = frontier.refill_begin(INSTANCE, lane, 0) else { return };
    let behind = waiting.iter().filter(|&(&rank, &of)| of == lane && rank > after);
    let mut found: Vec<Ready> =
        behind.map(|(&rank, _)| Ready { rank, id: rank.job_id * 16, place: Place::default(), group: 0 }).collect();
    frontier.refill_push(INSTANCE, lane, 0, &mut found, Rank::MAX);
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
        let sizes = Sizes { ready: 3, running: 256, lanes: slots, sessions: 1 , ..Sizes::default() };
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
                match frontier.take_to(INSTANCE, lane, Owner { session: 0, pid: 1 }, None, up_to, &mut out[..room]) {
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
