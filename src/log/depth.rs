//! Counts the attempts of each lane by state: by the counters in memory, and by the logs for the states that these
//! lack.

use std::collections::HashSet;

use pg_queue_core::frontier::{Rank, Ready};

use crate::catalog;
use crate::log::attempt::{LAST_ERROR, RUN_AT};
use crate::log::lane_counts::{Lane, LaneCounts};
use crate::log::reader::Reader;
use crate::log::tables::{self, Tables};
use crate::pg::scan::{Key, Scan, Snapshot};
use crate::pg::{memory, process, snapshot, time, transaction};
use crate::shmem::here;
use crate::shmem::ledger::Ledger;
use crate::{guc, shmem};

/// How many rows are read at most for the oldest ready job of a lane.
const MAX_ROWS: usize = 10_000;

impl Tables {
    /// Returns whether another transaction has claimed or moved the attempt.
    fn is_claimed_by_other(&self, id: i64) -> bool {
        let mut scan = self.claims().scan(&[Key::eq_i64(1, id)], Snapshot::Statement);
        scan.next().is_some() && !scan.is_own()
    }
}

/// The claimed attempts of a segment. The first thousand are looked up in the index, later ones in a list.
struct Claimed<'a> {
    tables: &'a Tables,
    asked: u32,
    ids: Option<HashSet<i64>>,
}

impl<'a> Claimed<'a> {
    /// After this many lookups the claims are listed, unless their table has more than the maximum of blocks.
    const LOOKUPS_BEFORE_LIST: u32 = 1_000;
    const MAX_LISTED_BLOCKS: u32 = 16_384;

    fn of(tables: &'a Tables) -> Self {
        Self { tables, asked: 0, ids: None }
    }

    fn has(&mut self, id: i64) -> bool {
        self.asked = self.asked.saturating_add(1);
        // A list would not distinguish this transaction's claims from others.
        if self.asked == Self::LOOKUPS_BEFORE_LIST
            && !transaction::has_xid()
            && self.tables.claims().table().blocks() <= Self::MAX_LISTED_BLOCKS
        {
            self.ids = Some(self.tables.claims().table().backwards().map(|row| row.i64(0)).collect());
        }
        self.ids.as_ref().map_or_else(|| self.tables.is_claimed_by_other(id), |ids| ids.contains(&id))
    }
}

/// The wanted slow counts. Each takes time in proportion to the number of such jobs.
#[derive(Clone, Copy, Default)]
pub struct Wanted {
    /// Jobs that are not due.
    pub future: bool,
    /// A time, as `timestamptz`: jobs that are due up to then are counted as due soon. Takes `future`.
    pub soon: i64,
    /// Dead jobs.
    pub dead: bool,
}

/// Returns the counts of memory, completed from the logs. `None`: memory does not know them. Must not run on a standby.
pub fn known(wanted: Wanted) -> Option<LaneCounts> {
    // The tables are opened before the snapshot is taken, so that none of them is emptied meanwhile.
    let mut tables = Tables::open_all(tables::ALL);
    let number = here::number();
    // The snapshot and the counters are of the same moment, because memory learns nothing while its lock is held.
    let mut found = memory::list(shmem::counters());
    let (_snapshot, is_known) = snapshot::ActiveSnapshot::take(|take| {
        shmem::with_counters(|counters| {
            take(&mut []);
            found.extend(counters.of(number).map(|(lane, counter)| (lane, Lane::of(*counter))));
        })
    });
    is_known?;
    let mut lane_counts = LaneCounts(found.into_iter().collect());
    let catalog = catalog::pinned();
    let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
    tables.retain(|t| ledger.is_inhabited(t.home.segment) && !t.is_empty());
    tables.iter().for_each(Tables::open_indexes);
    let now = time::now_us();
    if wanted.future {
        add_future(&tables, &mut lane_counts, now, wanted.soon);
    }
    if wanted.dead {
        lane_counts.add_dead(&ledger);
    }
    let mut ready = memory::list(usize::try_from(guc::MAX_READY.get()).unwrap_or(0));
    for (&lane, found) in &mut lane_counts.0 {
        if found.counter.counts.waiting > found.scheduled + found.retrying {
            ready.clear();
            let position = shmem::with(|shared| {
                shared.frontier.each_ready(number, lane, |entry| {
                    if ready.len() < ready.capacity() {
                        ready.push(entry);
                    }
                })
            });
            let mut oldest = Oldest { lane, now, since: None, looked: 0 };
            oldest.among(&ready, &tables);
            oldest.behind(position.unwrap_or(Rank::MIN).max(found.counter.floor), &tables);
            found.oldest = oldest.since;
        }
    }
    Some(lane_counts)
}

/// Counts the attempts that are due after `now`, and those of them that are due up to `soon`.
fn add_future(tables: &[Tables], lane_counts: &mut LaneCounts, now: i64, soon: i64) {
    let mut n = 0_u32;
    for tables in tables {
        let mut claimed = Claimed::of(tables);
        let mut scan = tables.attempt.scan(tables.by_run_at(), &[Key::after(1, now)], Snapshot::Statement);
        while scan.next().is_some() {
            n += 1;
            if n.is_multiple_of(1024) {
                process::check_for_interrupts();
            }
            let (values, nulls) = scan.columns(LAST_ERROR + 1);
            let (id, lane, has_error) = (values[0].value() as i64, values[3].value() as i32, !nulls[LAST_ERROR]);
            let run_at = values[RUN_AT].value() as i64;
            if claimed.has(id) || scan.is_own() {
                continue;
            }
            // A missing lane was dropped.
            if let Some(found) = lane_counts.0.get_mut(&lane) {
                let count = if has_error { &mut found.retrying } else { &mut found.scheduled };
                *count += 1;
                found.due_soon += i64::from(run_at <= soon);
            }
        }
    }
}

/// The search for the oldest ready attempt of a lane. Within a priority jobs are in the order in which they were
/// enqueued, and no job is ready before it was enqueued. So the search in a priority ends with the first job that is
/// not older.
struct Oldest {
    lane: i32,
    now: i64,
    since: Option<i64>,
    looked: usize,
}

impl Oldest {
    /// Considers an attempt. Returns false if the later attempts of its priority are not older.
    fn consider(&mut self, enqueued_at: i64, run_at: Option<i64>, is_claimed: impl FnOnce() -> bool) -> bool {
        self.looked += 1;
        if self.since.is_some_and(|since| enqueued_at >= since) || self.looked > MAX_ROWS {
            return false;
        }
        if run_at.is_none_or(|at| at <= self.now) && !is_claimed() {
            let since = run_at.unwrap_or(enqueued_at);
            self.since = Some(self.since.map_or(since, |oldest| oldest.min(since)));
        }
        true
    }

    /// Considers the attempts that memory has in `ready`.
    fn among(&mut self, ready: &[Ready], tables: &[Tables]) {
        let mut reader = Reader::new();
        let mut done = None;
        for entry in ready {
            if done == Some(entry.rank.priority) {
                continue;
            }
            let Some(attempt) = reader.fetch(entry) else { continue };
            let home = tables.iter().find(|t| t.home.segment == attempt.home.segment);
            let is_claimed = || home.is_none_or(|tables| tables.is_claimed_by_other(attempt.id()));
            if !self.consider(attempt.enqueued_at(), attempt.run_at(), is_claimed) {
                done = Some(entry.rank.priority);
            }
        }
    }

    /// Considers the attempts that rank behind a position.
    fn behind(&mut self, position: Rank, tables: &[Tables]) {
        for tables in tables {
            let mut at = position;
            loop {
                let rest = [Key::eq_i32(1, self.lane), Key::eq_i32(2, at.priority), Key::gt_i64(3, at.job_id)];
                let mut scan = tables.attempt.scan(tables.by_lane(), &rest, Snapshot::Statement);
                while scan.next().is_some() && self.consider_row(tables, &mut scan) {}
                let next = [Key::eq_i32(1, self.lane), Key::gt_i32(2, at.priority)];
                let mut scan = tables.attempt.scan(tables.by_lane(), &next, Snapshot::Statement);
                if self.looked > MAX_ROWS || scan.next().is_none() {
                    break;
                }
                at = Rank { priority: scan.columns(5).0[4].value() as i32, job_id: i64::MIN };
            }
            process::check_for_interrupts();
        }
    }

    fn consider_row(&mut self, tables: &Tables, scan: &mut Scan<'_>) -> bool {
        let (values, nulls) = scan.columns(8);
        let int = |n: usize| values[n].value() as i64;
        let (id, enqueued_at, run_at) = (int(0), int(2), (!nulls[7]).then(|| int(7)));
        let is_own = scan.is_own();
        self.consider(enqueued_at, run_at, || is_own || tables.is_claimed_by_other(id))
    }
}
