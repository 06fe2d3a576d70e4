//! Refills a lane's `ready` from its index, when less than half of it is left: by one claimer, in order,
//! over all segments, leaving out what is claimed or not yet due.
//!
//! The protocol is the frontier's (`src/core/frontier`): the flag goes up first, then the logs are read
//! with snapshots taken later, then P is set and the flag falls in one step. The guard lowers the flag on
//! every way out.

use pg_queue_core::frontier::{Rank, Ready};
use pgrx::pg_sys::Oid;

use crate::error::{self, Error, Result};
use crate::instance::{Catalog, Segment};
use crate::log::attempt::Attempt;
use crate::log::claim;
use crate::log::parked::{self, Filled, Parked};
use crate::log::table::{Key, Relation, Scan, Snapshot};
use crate::segment::{self, Home};
use crate::{shmem, sys};

/// Candidates handed over in one hold of the lock.
const CHUNK: usize = 128;
/// Rows looked at in one refill, so that a walk over finished or future jobs does not keep others waiting. Fewer where
/// tests run, so that they meet the end of it.
const MOST: usize = if cfg!(debug_assertions) { 2_000 } else { 100_000 };

struct Flag<'a> {
    catalog: &'a Catalog,
    lane: i32,
    session: u32,
}

impl Flag<'_> {
    fn push(&self, found: &mut Vec<Ready>, read_to: Rank) -> bool {
        let (number, lane) = (self.catalog.number, self.lane);
        let filled = self.index(found);
        let more = shmem::with_instance(number, |frontier, instance| {
            if filled.is_some_and(|filled| !filled.is_current(frontier, instance)) {
                found.iter_mut().for_each(|entry| entry.place.is_indexed = false);
            }
            frontier.refill_push(number, lane, self.session, found, read_to)
        });
        found.clear();
        more.unwrap_or(false)
    }

    /// Makes and marks the entries of those that are to be parked.
    fn index(&self, found: &mut [Ready]) -> Option<Filled> {
        if found.iter().all(|entry| entry.group == 0) {
            return None;
        }
        let (number, lane) = (self.catalog.number, self.lane);
        shmem::with(|shared| {
            for entry in found.iter_mut() {
                entry.place.is_indexed = shared.frontier.needs_index(number, lane, entry);
            }
        });
        let marked = found.iter().filter(|entry| entry.place.is_indexed);
        marked.clone().next().is_some().then(|| parked::fill(self.catalog, lane, marked))
    }
}

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        let (number, lane) = (self.catalog.number, self.lane);
        shmem::with(|shared| shared.frontier.refill_end(number, lane, self.session));
        while let Some(waiter) = shmem::with(|shared| shared.frontier.refill_wake(number, lane)) {
            shmem::wake(waiter);
        }
        if let Some(next) = shmem::with(|shared| shared.frontier.pass_on(number, lane)) {
            shmem::wake(next);
        }
    }
}

/// What is read in the order of rank: the waiting attempts of a lane, or of one of its groups.
#[derive(Clone, Copy)]
pub enum Order {
    /// The lane.
    Lane(i32),
    /// The lane, and the hash of the group.
    Group(i32, i64),
}

impl Order {
    fn index(self, oids: &Segment) -> Oid {
        match self {
            Self::Lane(_) => oids.attempt_lane,
            Self::Group(..) => oids.parked_index,
        }
    }

    /// The conditions for all of it, and then more on the columns of the rank, the priority being the first.
    fn keys(self, of_rank: impl FnOnce(i16) -> Vec<Key>) -> Vec<Key> {
        let (mut keys, priority) = match self {
            Self::Lane(lane) => (vec![Key::eq_i32(1, lane)], 2),
            Self::Group(lane, group) => (vec![Key::eq_i32(1, lane), Key::eq_i64(2, group)], 3),
        };
        keys.extend(of_rank(priority));
        keys
    }
}

/// A segment's tables, open to read.
pub struct Tables {
    pub home: Home,
    pub attempt: Relation,
    pub index: Relation,
    claim: Relation,
    claim_pkey: Relation,
}

impl Tables {
    /// Whether somebody claims an attempt, and whether that is committed. One that is on the move this moment is not
    /// claimed: its copy cannot be seen yet, and others must not overtake it. Who takes it goes after it.
    pub fn claim_of(&self, id: i64) -> Option<bool> {
        let mut scan = self.claim.scan(&self.claim_pkey, &[Key::eq_i64(1, id)], Snapshot::Dirty);
        scan.next()?;
        (!claim::is_moving(&mut scan)).then(|| !scan.is_in_progress())
    }

    /// Also by an open transaction: should that roll back, it gives the attempt back by itself.
    fn is_claimed(&self, id: i64) -> bool {
        self.claim_of(id).is_some()
    }
}

/// A walk over a segment's claims beside the candidates, whose ids mostly ascend: cheaper than a look-up for
/// each. A claim made behind its back is in `running`, or its entry dies when somebody takes it.
struct Claims<'a> {
    tables: &'a Tables,
    scan: Option<Scan<'a>>,
    /// From `from` to `head` there is no claim but `head`'s, if that is not `MAX`.
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

    /// Whether the attempt is claimed, as `Tables::is_claimed`.
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
            self.scan = Some(self.tables.claim.scan(&self.tables.claim_pkey, &[Key::ge_i64(1, id)], Snapshot::Dirty));
            self.step();
        }
        self.from = id;
        id == self.head
    }
}

/// Opens the segments in which attempts may live and that hold anything.
pub fn open_tables(catalog: &Catalog, order: Order) -> Vec<Tables> {
    segment::inhabited(catalog)
        .filter_map(|segment| {
            let oids = &catalog.segments[segment as usize];
            let attempt = Relation::read(oids.attempt);
            (attempt.blocks() > 0).then(|| Tables {
                home: Home::now(catalog, segment),
                attempt,
                index: Relation::read_index(order.index(oids)),
                claim: Relation::read(oids.claim),
                claim_pkey: Relation::read_index(oids.claim_pkey),
            })
        })
        .collect()
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
}

/// Over the index of the lane, or over that of its groups.
enum Walk<'a> {
    Lane(Scan<'a>),
    Group(Parked<'a>),
}

impl<'a> Walk<'a> {
    fn begin(tables: &'a Tables, order: Order, keys: &[Key]) -> Self {
        match order {
            Order::Lane(_) => Self::Lane(tables.attempt.scan(&tables.index, keys, Snapshot::Now)),
            Order::Group(..) => Self::Group(Parked::begin(&tables.attempt, &tables.index, keys, tables.home)),
        }
    }

    /// The next one. What this transaction has added is nobody's yet; its commit will push it.
    fn next(&mut self, segment: u8) -> Option<Candidate> {
        let scan = match self {
            Self::Lane(scan) => scan,
            Self::Group(parked) => {
                let attempt = parked.next()?;
                let mut ready = attempt.ready();
                ready.place.is_indexed = true;
                return Some(Candidate { ready, run_at: attempt.run_at() });
            }
        };
        let mut tid = scan.next()?;
        while scan.is_own() {
            tid = scan.next()?;
        }
        // id, job_id, enqueued_at, lane, priority, attempt, max_attempts, run_at, group_hash
        let (values, nulls) = scan.columns(9);
        let rank = Rank { priority: values[4].value() as i32, job_id: values[1].value() as i64 };
        let group = if nulls[8] { 0 } else { values[8].value() as i64 };
        let run_at = (!nulls[7]).then(|| values[7].value() as i64);
        Some(Candidate {
            ready: Ready { rank, id: values[0].value() as i64, place: tid.place(segment), group },
            run_at,
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

/// The waiting attempts behind a position in order, over all segments, leaving out what is claimed or not due.
pub struct Waiting<'a> {
    sources: Vec<Source<'a>>,
    due_to: i64,
    /// Rows looked at.
    pub examined: usize,
}

impl<'a> Waiting<'a> {
    /// Begins behind `after`.
    pub fn new(tables: &'a [Tables], order: Order, after: Rank, due_to: i64) -> Self {
        Self { sources: tables.iter().map(|t| Source::new(t, order, after)).collect(), due_to, examined: 0 }
    }

    /// The next row: `Some(None)` is one that is left out. `None`: that was all.
    pub fn next(&mut self) -> Option<Option<Ready>> {
        let sources = self.sources.iter_mut().filter(|source| source.head.is_some());
        let source = sources.min_by_key(|s| s.head.map_or(Rank::MAX, |head| head.ready.rank))?;
        let candidate = source.head?;
        self.examined += 1;
        if self.examined.is_multiple_of(1024) {
            sys::check_for_interrupts();
        }
        // What falls due later is the business of the cursor over run_at, which pushes it then.
        let is_due = candidate.run_at.is_none_or(|at| at <= self.due_to);
        let is_waiting = is_due && !source.claims.has(candidate.ready.id);
        source.advance();
        Some(is_waiting.then_some(candidate.ready))
    }

    /// Up to where everything was looked at. Attempts of one job rank alike, so that is before the next row.
    pub fn read_to(&self) -> Rank {
        self.sources.iter().filter_map(|s| s.head).map(|head| head.ready.rank.before()).min().unwrap_or(Rank::MAX)
    }
}

/// Refills the lane if nobody else is doing so and its index may have more. Takes no lock that anyone
/// waits for; reads only.
///
/// Errors: 42704 when the extension was dropped since the session last heard of it.
pub fn refill(catalog: &Catalog, lane: i32) -> Result<()> {
    let session = sys::session();
    let begun = shmem::with_instance(catalog.number, |frontier, instance| {
        frontier.refill_begin(catalog.number, lane, session).map(|after| (after, instance.due_to))
    });
    let Some(begun) = begun else {
        return Err(Error::new(error::UNDEFINED, "extension \"pg_queue\" was dropped"));
    };
    let Some((after, due_to)) = begun else { return Ok(()) };
    let flag = Flag { catalog, lane, session };

    let order = Order::Lane(lane);
    let tables = open_tables(catalog, order);
    let mut waiting = Waiting::new(&tables, order, after, due_to);
    let mut found = Vec::with_capacity(CHUNK);
    loop {
        let Some(next) = waiting.next() else {
            flag.push(&mut found, Rank::MAX);
            break;
        };
        found.extend(next);
        // All attempts of a job rank alike: P has to get past them, or the next refill would begin with the same.
        let is_over = waiting.examined >= MOST && waiting.read_to() > after;
        if found.len() == CHUNK || is_over {
            let has_room = flag.push(&mut found, waiting.read_to());
            if is_over || !has_room {
                break;
            }
        }
    }
    Ok(())
}

/// Puts the first entries of `ready` that have to wait for their groups into the groups' index, so that they can be
/// parked. Under the lane's flag, as a refill.
pub fn index_ready(catalog: &Catalog, lane: i32) {
    /// So many at once: those further back may not have to wait when it is their turn.
    const MOST: usize = 32;
    let (number, session) = (catalog.number, sys::session());
    let mut found = [Ready::default(); MOST];
    let count = shmem::with(|shared| shared.frontier.index_begin(number, lane, session, &mut found));
    let found = &found[..count];
    if found.is_empty() {
        return;
    }
    let _flag = Flag { catalog, lane, session };
    let filled = parked::fill(catalog, lane, found.iter());
    shmem::with_instance(number, |frontier, instance| {
        if filled.is_current(frontier, instance) {
            frontier.indexed(number, lane, found);
        }
    });
}

/// Rows handed to `for_each_waiting`'s caller at once.
const BATCH: usize = 256;

/// Calls `each` with all waiting attempts of a lane, due or not, a batch of one segment at a time.
pub fn for_each_waiting(catalog: &Catalog, lane: i32, mut each: impl FnMut(&[Attempt]) -> Result<()>) -> Result<()> {
    for tables in open_tables(catalog, Order::Lane(lane)) {
        let mut scan = tables.attempt.scan(&tables.index, &[Key::eq_i32(1, lane)], Snapshot::Now);
        let mut batch = Vec::with_capacity(BATCH);
        while scan.next().is_some() {
            let attempt = Attempt::new(scan.row(), tables.home);
            if !tables.is_claimed(attempt.id()) {
                batch.push(attempt);
            }
            if batch.len() == BATCH {
                each(&batch)?;
                batch.clear();
                sys::check_for_interrupts();
            }
        }
        if !batch.is_empty() {
            each(&batch)?;
        }
    }
    Ok(())
}

/// Whether a lane has a job that has not ended; also one that an open transaction is adding, claiming or
/// ending. Told in a sentence.
pub fn any_living(catalog: &Catalog, lane: i32) -> Result<Option<String>> {
    for tables in open_tables(catalog, Order::Lane(lane)) {
        let oids = &catalog.segments[tables.home.segment as usize];
        let outcome = Relation::read(oids.outcome);
        let outcome_pkey = Relation::read_index(oids.outcome_pkey);
        let mut scan = tables.attempt.scan(&tables.index, &[Key::eq_i32(1, lane)], Snapshot::Dirty);
        while scan.next().is_some() {
            let id = scan.columns(1).0[0].value() as i64;
            if scan.is_in_progress() {
                return Ok(Some("A transaction that has not ended yet is adding jobs.".into()));
            }
            let mut ended = outcome.scan(&outcome_pkey, &[Key::eq_i64(1, id)], Snapshot::Now);
            // What has moved is looked at where it is now, which comes later.
            if ended.next().is_none() && !claim::has_moved(catalog, tables.home.segment, id) {
                return Ok(Some(format!("One of them is attempt {id}.")));
            }
            sys::check_for_interrupts();
        }
    }
    Ok(None)
}
