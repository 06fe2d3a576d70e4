//! How long attempts have recently waited and run. A sample, read from the ends of the logs, so that its cost does not
//! depend on their size.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pg_queue_core::rollup::{Life, Times};

use crate::catalog;
use crate::log::rollup;
use crate::log::tables::{self, Tables};
use crate::pg::process;
use crate::pg::scan::Snapshot;
use crate::shmem::ledger::Ledger;

/// How many claims, and how many outcomes, are sampled.
const MAX_SAMPLED_ROWS: usize = 1_000;

/// The times of a lane.
#[derive(Default)]
pub struct Recent {
    /// For how long the claimed attempts had been ready.
    pub wait: Times,
    /// For how long the ended attempts had run.
    pub run: Times,
}

/// Returns the times of each lane since `since`, as the calling statement sees them.
pub fn read(since: i64) -> BTreeMap<i32, Recent> {
    let catalog = catalog::pinned();
    let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
    let segments = Tables::open_all(tables::ALL.filter(|&segment| ledger.is_inhabited(segment)));
    let (mut claimed, mut ended) = (Vec::new(), Vec::new());
    for tables in &segments {
        let [claims, ends] = tables.newest(MAX_SAMPLED_ROWS, since);
        claimed.extend(claims.into_iter().map(|(at, id)| (at, id, tables)));
        ended.extend(ends.into_iter().map(|(at, id)| (at, id, tables)));
    }
    let mut lanes: BTreeMap<i32, Recent> = BTreeMap::new();
    for Life { lane, ready_at, claimed_at, .. } in lives(claimed) {
        if let Some(us) = length(ready_at, claimed_at) {
            lanes.entry(lane).or_default().wait.record(us);
        }
    }
    for Life { lane, claimed_at, ended_at, .. } in lives(ended) {
        if let Some(us) = length(claimed_at, ended_at) {
            lanes.entry(lane).or_default().run.record(us);
        }
    }
    lanes
}

/// Returns what the logs say about the latest of these attempts.
fn lives(mut newest: Vec<(i64, i64, &Tables)>) -> impl Iterator<Item = Life> {
    newest.sort_unstable_by_key(|(at, ..)| Reverse(*at));
    newest.truncate(MAX_SAMPLED_ROWS);
    newest.into_iter().filter_map(|(_, id, tables)| {
        process::check_for_interrupts();
        let mut walk = tables.walk(id - 1, Snapshot::Statement)?;
        rollup::life(&walk.next().filter(|trace| trace.attempt.id() == id)?)
    })
}

/// Returns the microseconds between two times. If the clock was set back, returns 0.
fn length(from: Option<i64>, to: Option<i64>) -> Option<u64> {
    u64::try_from(to?.saturating_sub(from?).max(0)).ok()
}
