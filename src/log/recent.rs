//! How long attempts have waited and run of late: a sample, read from the ends of the logs, so that it costs the same
//! at any depth.

use std::collections::BTreeMap;

use pg_queue_core::id::SEGMENTS;
use pg_queue_core::rollup::{Life, Times};

use crate::instance::Catalog;
use crate::log::rollup;
use crate::log::table::Snapshot;
use crate::log::walk::Tables;
use crate::segment::Ledger;
use crate::sys;

/// So many claims, and as many ends, are looked at in a segment.
const ROWS: usize = 1_000;

/// The times of a lane.
#[derive(Default)]
pub struct Recent {
    /// How long the attempts claimed since then had been ready.
    pub wait: Times,
    /// How long those that ended since then had run.
    pub run: Times,
}

/// The times of each lane since then, as the calling statement sees them.
pub fn read(catalog: &Catalog, since: i64) -> BTreeMap<i32, Recent> {
    let mut lanes: BTreeMap<i32, Recent> = BTreeMap::new();
    let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
    for segment in (0..SEGMENTS as u8).filter(|&segment| ledger.word(segment).state().is_inhabited()) {
        let tables = Tables::open(catalog, segment);
        let [claimed, ended] = tables.newest(ROWS, since);
        let life = |id: i64| {
            sys::check_for_interrupts();
            let trace = tables.walk(id - 1, Snapshot::Statement).next().filter(|trace| trace.attempt.id() == id)?;
            rollup::life(&trace)
        };
        let length = |from: Option<i64>, to: Option<i64>| {
            let to = to.filter(|&to| to >= since)?;
            u64::try_from(to.saturating_sub(from?).max(0)).ok()
        };
        for Life { lane, ready_at, claimed_at, .. } in claimed.into_iter().filter_map(life) {
            if let Some(us) = length(ready_at, claimed_at) {
                lanes.entry(lane).or_default().wait.record(us);
            }
        }
        for Life { lane, claimed_at, ended_at, .. } in ended.into_iter().filter_map(life) {
            if let Some(us) = length(claimed_at, ended_at) {
                lanes.entry(lane).or_default().run.record(us);
            }
        }
    }
    lanes
}
