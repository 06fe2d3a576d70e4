//! Held jobs that wait for dead predecessors. They go on only if a user retries the predecessors.
//!
//! Not responsible for other successors of dead jobs (`core::after`): only `upon => 'completed'`, and `any` if no other
//! predecessor lives, leave them held for good. A job that is suspended until a time goes on by itself.

use std::collections::BTreeMap;

use pg_queue_core::after::{Fate, Upon};

use crate::catalog::{self, queue};
use crate::error::Result;
use crate::job::after;
use crate::log::dead;
use crate::log::edge::{Edge, Edges};
use crate::log::history::Dead;
use crate::log::segment;
use crate::log::tables::Tables;
use crate::pg::memory;
use crate::pg::process;
use crate::pg::scan::{Key, Snapshot};
use crate::shmem;
use crate::shmem::ledger::Ledger;

/// How many held jobs are counted at most, so that the count is fast with any number of jobs.
pub const MAX_COUNTED: usize = 10_000;

/// A dead job that blocks held jobs.
pub struct Holder {
    pub dead: Dead,
    /// How many held jobs it blocks, by lane.
    pub held: BTreeMap<i32, i64>,
}

/// Returns the dead jobs that block held jobs. Stops at [`MAX_COUNTED`] held jobs. A held job counts once for each of
/// its dead predecessors.
pub fn find() -> Result<Vec<Holder>> {
    /// Dead jobs looked up in one hold of the lock.
    const LOOKUPS_PER_HOLD: usize = 1_024;
    let mut found = Vec::new();
    if shmem::with_awaited(|awaited, _| awaited.is_quiet()) != Some(false) {
        return Ok(found);
    }
    // Most dead jobs have no successors, and memory can exclude many of them.
    let (mut asked, mut may_hold) = (memory::list(LOOKUPS_PER_HOLD), Vec::new());
    let mut sift = |asked: &mut Vec<Dead>| {
        shmem::with_awaited(|awaited, _| asked.retain(|dead| awaited.may_await(dead.job_id)));
        may_hold.append(asked);
    };
    let catalog = catalog::pinned();
    let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
    dead::each(&ledger, |dead| {
        asked.push(dead);
        if asked.len() == LOOKUPS_PER_HOLD {
            sift(&mut asked);
        }
    });
    sift(&mut asked);
    let segments: Vec<u8> = segment::inhabited().filter(|&n| Edges::open(n).is_some()).collect();
    let mut left = MAX_COUNTED;
    for dead in may_hold {
        process::check_for_interrupts();
        let mut held = BTreeMap::new();
        for &segment in &segments {
            if left == 0 {
                break;
            }
            left -= count(segment, dead.job_id, left, &mut held)?;
        }
        if !held.is_empty() {
            found.push(Holder { dead, held });
        }
        if left == 0 {
            break;
        }
    }
    Ok(found)
}

/// Returns whether the job of one of these edges lives.
fn has_living(edges: &[Edge]) -> Result<bool> {
    for edge in edges {
        if after::fate(edge.job_id)?.fate == Fate::Living {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Counts the held jobs in a segment that a dead job blocks, at most `most`. Returns how many there are.
fn count(segment: u8, job_id: i64, most: usize, held: &mut BTreeMap<i32, i64>) -> Result<usize> {
    let Some(edges) = Edges::open(segment) else { return Ok(0) };
    let mut ids = Vec::new();
    edges.each_after(job_id, 0, |edge| {
        ids.push(edge.id);
        ids.len() < most
    });
    let tables = Tables::open(segment);
    let mut count = 0;
    for id in ids {
        let holds = |edge: &Edge| {
            let is_upon_completion = matches!(edge.upon, Upon::Completed | Upon::Any);
            edge.job_id == job_id && is_upon_completion && !edge.is_met && edge.until.is_none()
        };
        let of_attempt = edges.of(id);
        if tables.claims().find(id, Snapshot::Now).is_some() || !of_attempt.iter().any(holds) {
            continue;
        }
        if of_attempt.iter().any(|edge| edge.upon == Upon::Any) && has_living(&of_attempt)? {
            continue;
        }
        let mut attempt = tables.attempt.scan(tables.by_id(), &[Key::eq_i64(1, id)], Snapshot::Now);
        if attempt.next().is_none() {
            continue;
        }
        let lane = attempt.columns(4).0[3].value() as i32;
        if queue::by_lane(lane)?.is_some_and(|queue| queue.is_held(lane)) {
            *held.entry(lane).or_insert(0) += 1;
            count += 1;
        }
    }
    Ok(count)
}
