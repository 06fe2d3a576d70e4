//! Reads the waiting attempts of a lane or a group in the order of rank, merged over all segments, without attempts
//! that are claimed or not due.
//!
//! Invariant: an attempt that is claimed during the walk is in `running`, or its entry is dropped when a session takes
//! it.

use pg_queue_core::frontier::{Rank, Ready};

use crate::catalog;
use crate::catalog::tables::attempt as column;
use crate::error::Result;
use crate::log::attempt::Attempt;
use crate::log::claim;
use crate::log::parked::{self, COLUMNS};
use crate::log::segment::{self, Home};
use crate::log::tables::Tables;
use crate::pg::memory;
use crate::pg::process;
use crate::pg::row::Columns;
use crate::pg::scan::{Entries, Key, Scan, Snapshot};
use crate::pg::table::Relation;

/// A walk over the parked attempts of a segment, in the order of the index.
pub struct Parked<'a> {
    table: &'a Relation,
    entries: Entries<'a>,
    home: Home,
    /// A lower bound of the table's blocks.
    blocks: u32,
    /// The last found attempt, because its entry may exist twice.
    last: i64,
}

impl<'a> Parked<'a> {
    /// Begins with the first entry that meets the conditions.
    pub fn begin(table: &'a Relation, index: &'a Relation, keys: &[Key], home: Home) -> Self {
        Self { table, entries: Entries::begin(table, index, keys), home, blocks: table.blocks(), last: 0 }
    }

    /// Returns the next attempt that exists and matches its entry. Attempts of this transaction are left out.
    pub fn next(&mut self) -> Option<Attempt> {
        loop {
            let (tid, key) = self.entries.next::<COLUMNS>()?;
            let Some(row) = self.table.fetch_if_there(tid, &mut self.blocks, self.home.generation) else { continue };
            let attempt = Attempt::new(row, self.home);
            let Ready { rank, id, group, .. } = attempt.ready();
            let is_it = parked::datums((attempt.lane(), group, rank.priority, rank.job_id)) == key;
            if is_it && id != self.last && !attempt.is_own() {
                self.last = id;
                return Some(attempt);
            }
        }
    }
}

/// What to read in the order of rank: the waiting attempts of a lane, or of one of its groups.
#[derive(Clone, Copy)]
pub enum Order {
    /// The lane.
    Lane(i32),
    /// The lane and the hash of the group.
    Group(i32, i64),
}

impl Order {
    /// Returns the conditions for all of it, followed by conditions on the columns of the rank, of which the priority
    /// is the first.
    fn keys(self, of_rank: impl FnOnce(i16) -> Vec<Key>) -> Vec<Key> {
        let (mut keys, priority) = match self {
            Self::Lane(lane) => (vec![Key::eq_i32(1, lane)], 2),
            Self::Group(lane, group) => (vec![Key::eq_i32(1, lane), Key::eq_i64(2, group)], 3),
        };
        keys.extend(of_rank(priority));
        keys
    }
}

impl Tables {
    /// Returns whether an attempt is claimed, and whether the claim is committed. A moving attempt is not claimed: its
    /// copy cannot be seen yet, and other attempts must not overtake it. A session that takes it follows it.
    pub fn claim_of(&self, id: i64) -> Option<bool> {
        let mut scan = self.claims().scan(&[Key::eq_i64(1, id)], Snapshot::Dirty);
        scan.next()?;
        (!claim::is_moving(&mut scan)).then(|| !scan.is_in_progress())
    }

    /// Claims of open transactions count, too: a rollback gives the attempt back.
    fn is_claimed(&self, id: i64) -> bool {
        self.claim_of(id).is_some()
    }
}

/// A walk over a segment's claims beside the candidates. The ids mostly ascend, so the walk is cheaper than a look-up
/// for each.
struct Claims<'a> {
    tables: &'a Tables,
    scan: Option<Scan<'a>>,
    /// Between `from` and `head` there is no claim except that of `head`, if `head` is not `MAX`.
    from: i64,
    head: i64,
}

impl<'a> Claims<'a> {
    fn new(tables: &'a Tables) -> Self {
        Self { tables, scan: None, from: i64::MAX, head: i64::MIN }
    }

    fn step(&mut self) {
        let Some(scan) = &mut self.scan else {
            self.head = i64::MAX;
            return;
        };
        self.head = loop {
            match scan.next() {
                None => break i64::MAX,
                Some(_) if claim::is_moving(scan) => {}
                Some(_) => break scan.columns(1).0[0].value() as i64,
            }
        };
    }

    /// Returns whether the attempt is claimed, as `Tables::is_claimed`.
    fn has(&mut self, id: i64) -> bool {
        /// Claims to step over before a new descent is cheaper.
        const STEPS: usize = 16;
        for _ in 0..STEPS {
            if id < self.from || id <= self.head {
                break;
            }
            self.step();
        }
        if id < self.from || id > self.head {
            self.scan = Some(self.tables.claims().scan(&[Key::ge_i64(1, id)], Snapshot::Dirty));
            self.step();
        }
        self.from = id;
        id == self.head
    }
}

/// Opens the segments in which attempts may live, except empty ones.
pub fn open_tables() -> Vec<Tables> {
    let mut tables = Tables::open_all(segment::inhabited());
    tables.retain(|tables| !tables.is_empty());
    tables
}

/// One segment's attempts in order: first the rest of the position's own priority, then the larger ones. Two scans,
/// because no b-tree condition says "(priority, job_id) > (p, j)" without a walk.
struct Source<'a> {
    tables: &'a Tables,
    claims: Claims<'a>,
    walk: Walk<'a>,
    order: Order,
    after: Rank,
    is_second: bool,
    head: Option<Candidate>,
}

#[derive(Clone, Copy)]
struct Candidate {
    ready: Ready,
    run_at: Option<i64>,
    start_by: Option<i64>,
}

/// A walk over the index of the lane, or over the index of groups.
enum Walk<'a> {
    Lane(Scan<'a>),
    Group(Parked<'a>),
}

impl<'a> Walk<'a> {
    fn begin(tables: &'a Tables, order: Order, keys: &[Key]) -> Self {
        match order {
            Order::Lane(_) => Self::Lane(tables.attempt.scan(tables.by_lane(), keys, Snapshot::Now)),
            Order::Group(..) => Self::Group(Parked::begin(&tables.attempt, tables.by_group(), keys, tables.home)),
        }
    }

    /// Returns the next candidate. Attempts of this transaction are left out, because its commit pushes them.
    fn next(&mut self, segment: u8) -> Option<Candidate> {
        let scan = match self {
            Self::Lane(scan) => scan,
            Self::Group(parked) => {
                let attempt = parked.next()?;
                let mut ready = attempt.ready();
                ready.place.is_indexed = true;
                return Some(Candidate { ready, run_at: attempt.run_at(), start_by: attempt.start_by() });
            }
        };
        let mut tid = scan.next()?;
        while scan.is_own() {
            tid = scan.next()?;
        }
        // Most rows are shorter. They are not read to the end.
        let start_by = if scan.width() > column::START_BY { scan.current().get(column::START_BY) } else { None };
        // id, job_id, enqueued_at, lane, priority, attempt, max_attempts, run_at, group_hash
        let (values, nulls) = scan.columns(9);
        let rank = Rank { priority: values[4].value() as i32, job_id: values[1].value() as i64 };
        let group = if nulls[8] { 0 } else { values[8].value() as i64 };
        let run_at = (!nulls[7]).then(|| values[7].value() as i64);
        Some(Candidate {
            ready: Ready { rank, id: values[0].value() as i64, place: tid.place(segment), group },
            run_at,
            start_by: start_by.map(|datum| datum.value() as i64),
        })
    }
}

impl<'a> Source<'a> {
    fn new(tables: &'a Tables, order: Order, after: Rank) -> Self {
        let keys = order.keys(|n| vec![Key::eq_i32(n, after.priority), Key::gt_i64(n + 1, after.job_id)]);
        let walk = Walk::begin(tables, order, &keys);
        let mut source = Self { tables, claims: Claims::new(tables), walk, order, after, is_second: false, head: None };
        source.advance();
        source
    }

    fn advance(&mut self) {
        self.head = self.walk.next(self.tables.home.segment);
        if self.head.is_none() && !self.is_second {
            self.is_second = true;
            let keys = self.order.keys(|n| vec![Key::gt_i32(n, self.after.priority)]);
            self.walk = Walk::begin(self.tables, self.order, &keys);
            self.advance();
        }
    }
}

/// The waiting attempts behind a position in order, over all segments, without attempts that are claimed, not due or
/// expired.
pub struct Waiting<'a> {
    sources: Vec<Source<'a>>,
    due_to: i64,
    expired_to: i64,
    /// How many rows were read.
    pub examined: usize,
}

impl<'a> Waiting<'a> {
    /// Begins behind `after`. Attempts that had to start by `expired_to` are left out.
    pub fn new(tables: &'a [Tables], order: Order, after: Rank, due_to: i64, expired_to: i64) -> Self {
        let sources = tables.iter().map(|t| Source::new(t, order, after)).collect();
        Self { sources, due_to, expired_to, examined: 0 }
    }

    /// Returns the next attempt. `Some(None)`: a row that is left out. `None`: there are no more rows.
    pub fn next(&mut self) -> Option<Option<Ready>> {
        let sources = self.sources.iter_mut().filter(|source| source.head.is_some());
        let source = sources.min_by_key(|s| s.head.map_or(Rank::MAX, |head| head.ready.rank))?;
        let candidate = source.head?;
        self.examined += 1;
        if self.examined.is_multiple_of(1024) {
            process::check_for_interrupts();
        }
        // The cursor over run_at pushes attempts that fall due later.
        let is_due = candidate.run_at.is_none_or(|at| at <= self.due_to);
        let has_expired = candidate.start_by.is_some_and(|at| at <= self.expired_to);
        let is_waiting = is_due && !has_expired && !source.claims.has(candidate.ready.id);
        source.advance();
        Some(is_waiting.then_some(candidate.ready))
    }

    /// Returns the rank up to which everything was read. It is before the next row, because attempts of one job have
    /// the same rank.
    pub fn read_to(&self) -> Rank {
        self.sources.iter().filter_map(|s| s.head).map(|head| head.ready.rank.before()).min().unwrap_or(Rank::MAX)
    }
}

/// Calls `each` with the group and the id of all attempts of a lane in one segment that may hold up their group in
/// strict order: they have a number above 1 and are not claimed, or their claim may be rolled back. An attempt that has
/// moved counts, because its new place may have been read before.
pub fn for_each_retry(tables: &Tables, lane: i32, mut each: impl FnMut(i64, i64)) {
    let index = Relation::read_index(catalog::segment(tables.home.segment).attempt_holder);
    let mut scan = tables.attempt.scan(&index, &[Key::eq_i32(1, lane)], Snapshot::Now);
    let mut examined = 0usize;
    while scan.next().is_some() {
        let attempt = Attempt::new(scan.row(), tables.home);
        if tables.claim_of(attempt.id()) != Some(true) || tables.claims().has_moved(attempt.id()) {
            each(attempt.group(), attempt.id());
        }
        examined += 1;
        if examined.is_multiple_of(1024) {
            process::check_for_interrupts();
        }
    }
}

/// Rows in one call of `for_each_waiting`'s `each`.
const ROWS_PER_BATCH: usize = 256;

/// Calls `each` with all waiting attempts of a lane, due or not, in batches of one segment.
pub fn for_each_waiting(lane: i32, mut each: impl FnMut(&[Attempt]) -> Result<()>) -> Result<()> {
    for tables in open_tables() {
        let mut scan = tables.attempt.scan(tables.by_lane(), &[Key::eq_i32(1, lane)], Snapshot::Now);
        let mut batch = memory::list(ROWS_PER_BATCH);
        while scan.next().is_some() {
            let attempt = Attempt::new(scan.row(), tables.home);
            if !tables.is_claimed(attempt.id()) {
                batch.push(attempt);
            }
            if batch.len() == ROWS_PER_BATCH {
                each(&batch)?;
                batch.clear();
                process::check_for_interrupts();
            }
        }
        if !batch.is_empty() {
            each(&batch)?;
        }
    }
    Ok(())
}

/// Returns a sentence if a lane has a living job for which `matters` is true. A job that an open transaction is adding,
/// claiming or ending counts, too.
pub fn any_living(lane: i32, matters: &dyn Fn(&Attempt) -> bool) -> Result<Option<String>> {
    for tables in open_tables() {
        let mut scan = tables.attempt.scan(tables.by_lane(), &[Key::eq_i32(1, lane)], Snapshot::Dirty);
        while scan.next().is_some() {
            let attempt = Attempt::new(scan.row(), tables.home);
            if !matters(&attempt) {
                continue;
            }
            let (id, job_id) = (attempt.id(), attempt.job_id());
            if scan.is_in_progress() {
                return Ok(Some("A transaction that has not ended yet is adding jobs.".into()));
            }
            let has_ended = tables.outcomes().find(id, Snapshot::Now).is_some();
            // A moved attempt is read in its new segment, which comes later.
            if !has_ended && !tables.claims().has_moved(id) {
                return Ok(Some(format!("One of them is job {job_id}.")));
            }
            process::check_for_interrupts();
        }
    }
    Ok(None)
}
