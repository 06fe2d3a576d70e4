//! Which extension instance this session talks to: its tables' oids (kept until the catalogs change) and
//! its slot in shared memory (found by database and extension oid, so that DROP and CREATE of either
//! never meet old state).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pg_queue_core::id::SEGMENTS;
use pgrx::pg_guard;
use pgrx::pg_sys;
use pgrx::pg_sys::Oid;

use crate::error::{self, Error, Result};
use crate::late::Late;
use crate::shmem::{self, Filling, Instance, Schedules, Shared};
use crate::{guc, sys, transaction};

/// The tables and indexes of one segment.
#[derive(Clone, Copy)]
pub struct Segment {
    pub attempt: Oid,
    pub attempt_pkey: Oid,
    pub attempt_lane: Oid,
    pub attempt_run_at: Oid,
    pub attempt_job: Oid,
    pub attempt_holder: Oid,
    pub attempt_unique: Oid,
    /// The empty table that the index of groups belongs to; invalid under the SQL of 0.1.0.
    pub parked: Oid,
    /// See `log::parked`.
    pub parked_index: Oid,
    pub claim: Oid,
    pub claim_pkey: Oid,
    pub outcome: Oid,
    pub outcome_pkey: Oid,
    pub outcome_dead: Oid,
    pub note: Oid,
    pub note_id: Oid,
    pub note_rerun: Oid,
}

impl Segment {
    /// All tables, in the order in which they are emptied: later versions may only add to the end.
    pub fn tables(&self) -> impl Iterator<Item = Oid> {
        let tables = [self.attempt, self.claim, self.outcome, self.note, self.parked];
        tables.into_iter().filter(|&table| table != Oid::INVALID)
    }

    fn indexes(&self) -> [Oid; 12] {
        [
            self.attempt_pkey,
            self.attempt_lane,
            self.attempt_run_at,
            self.attempt_job,
            self.attempt_holder,
            self.attempt_unique,
            self.parked_index,
            self.claim_pkey,
            self.outcome_pkey,
            self.outcome_dead,
            self.note_id,
            self.note_rerun,
        ]
    }
}

/// What a session knows of the instance.
pub struct Catalog {
    /// The instance's number in shared memory.
    pub number: u32,
    /// Its slot there.
    pub slot: usize,
    /// `queue.queue` and its index by name.
    pub queue: Oid,
    /// See `queue`.
    pub queue_name: Oid,
    /// `queue.queue` by id.
    pub queue_pkey: Oid,
    /// `queue.lane` and its key.
    pub lane: Oid,
    /// See `lane`.
    pub lane_pkey: Oid,
    /// `queue.lane` by queue.
    pub lane_queue: Oid,
    /// The sequence that ids are counted by.
    pub id_seq: Oid,
    /// The timelines that ids were handed out on, and the index.
    pub timeline: Oid,
    /// See `timeline`.
    pub timeline_idx: Oid,
    /// What the segments are doing, and its key.
    pub segment_log: Oid,
    /// See `segment_log`.
    pub segment_log_pkey: Oid,
    /// Which ended attempts were given a successor by hand, and its key.
    pub successor: Oid,
    /// See `successor`.
    pub successor_pkey: Oid,
    /// The parent of what is kept of ended attempts.
    pub history: Oid,
    /// The minutes of reclaimed segments, and their index.
    pub rollup: Oid,
    /// See `rollup`.
    pub rollup_minute: Oid,
    /// What reclaimed segments came to, and the index.
    pub total: Oid,
    /// See `total`.
    pub total_lane: Oid,
    /// The two halves of what is remembered of unique keys, and their indexes.
    pub memory: [Oid; 2],
    /// See `memory`.
    pub memory_key: [Oid; 2],
    /// `queue.schedule`, its key, and its indexes by name and by queue.
    pub schedule: Oid,
    /// See `schedule`.
    pub schedule_pkey: Oid,
    /// See `schedule`.
    pub schedule_name: Oid,
    /// See `schedule`.
    pub schedule_queue: Oid,
    /// The two halves of the log of firings, each a table and its key.
    pub firing: [(Oid, Oid); 2],
    /// Who restores, and the index.
    pub restoring: Oid,
    /// See `restoring`.
    pub restoring_idx: Oid,
    /// All segments.
    pub segments: [Segment; SEGMENTS],
}

impl Catalog {
    /// All its indexes, sorted.
    fn indexes(&self) -> Vec<u32> {
        let mut all = vec![
            self.queue_name,
            self.queue_pkey,
            self.lane_pkey,
            self.lane_queue,
            self.timeline_idx,
            self.segment_log_pkey,
            self.successor_pkey,
            self.rollup_minute,
            self.total_lane,
            self.memory_key[0],
            self.memory_key[1],
            self.schedule_pkey,
            self.schedule_name,
            self.schedule_queue,
            self.firing[0].1,
            self.firing[1].1,
            self.restoring_idx,
        ];
        all.extend(self.segments.iter().flat_map(Segment::indexes));
        sorted(&all)
    }

    /// All its tables that rows are inserted into other than by SQL, sorted.
    fn tables(&self) -> Vec<u32> {
        let mut all = vec![
            self.timeline,
            self.segment_log,
            self.successor,
            self.rollup,
            self.total,
            self.memory[0],
            self.memory[1],
            self.firing[0].0,
            self.firing[1].0,
            self.restoring,
        ];
        let logs = |segment: &Segment| [segment.attempt, segment.claim, segment.outcome, segment.note];
        all.extend(self.segments.iter().flat_map(logs));
        sorted(&all)
    }
}

fn sorted(oids: &[Oid]) -> Vec<u32> {
    let mut sorted: Vec<u32> = oids.iter().map(|oid| oid.to_u32()).collect();
    sorted.sort_unstable();
    sorted
}

thread_local! {
    static CATALOG: RefCell<Option<Rc<Catalog>>> = const { RefCell::new(None) };
    /// Counts changes of the queue table that this session was told of.
    static QUEUE_CHANGES: Cell<u64> = const { Cell::new(0) };
    static STALE: Cell<bool> = const { Cell::new(true) };
    /// Whether this session was told anything since it began to read the catalog.
    static HAS_NEWS: Cell<bool> = const { Cell::new(false) };
    static WATCHED: Cell<[Oid; 2]> = const { Cell::new([Oid::INVALID; 2]) };
    /// The indexes of the catalog, sorted.
    static INDEXES: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    /// Its tables, sorted.
    static TABLES: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    /// Tables without other indexes, and after how many messages that was seen, by the last bits of their oids.
    static PLAIN: [Cell<(u32, u64)>; PLACES] = const { [const { Cell::new((0, 0)) }; PLACES] };
    /// Counts what this session was told of tables and indexes.
    static MESSAGES: Cell<u64> = const { Cell::new(1) };
    /// Those of which this session was told something.
    static SUSPECTS: RefCell<Vec<Oid>> = const { RefCell::new(Vec::new()) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// How many tables are remembered to be without other indexes: more than a database has of ours.
const PLACES: usize = 64;

/// Told by Postgres when a table's definition changes, and by `queue::changed` when a queue's settings do.
#[pg_guard]
unsafe extern "C-unwind" fn on_relcache(_arg: pg_sys::Datum, relation: Oid) {
    HAS_NEWS.set(true);
    MESSAGES.set(MESSAGES.get() + 1);
    let [queue, attempt] = WATCHED.get();
    if relation == Oid::INVALID || relation == queue {
        QUEUE_CHANGES.set(QUEUE_CHANGES.get() + 1);
    }
    if relation == Oid::INVALID || relation == attempt {
        STALE.set(true);
    }
    // REINDEX CONCURRENTLY puts another index into the place of one. To look is not for here.
    if INDEXES.with_borrow(|indexes| indexes.binary_search(&relation.to_u32()).is_ok()) {
        SUSPECTS.with_borrow_mut(|suspects| {
            if !suspects.contains(&relation) {
                suspects.push(relation);
            }
        });
    }
}

/// Whether an index is one of the catalog's, as this session knows it.
pub fn knows_index(index: Oid) -> bool {
    INDEXES.with_borrow(|indexes| indexes.binary_search(&index.to_u32()).is_ok())
}

/// Whether `look` finds that a table of the catalog's has other indexes than those; it is asked once, until this session
/// is told something. Of other tables nobody knows: false.
pub fn has_other_indexes(table: Oid, look: impl FnOnce() -> bool) -> bool {
    let table = table.to_u32();
    PLAIN.with(|plain| {
        let (place, now) = (&plain[table as usize % PLACES], (table, MESSAGES.get()));
        if place.get() == now || TABLES.with_borrow(|tables| tables.binary_search(&table).is_err()) {
            return false;
        }
        let has_others = look();
        if !has_others {
            place.set(now);
        }
        has_others
    })
}

/// Whether an index that this session knows is not what it was.
fn has_lost_index() -> bool {
    let mut has_lost = false;
    // To look may tell more of them.
    while let Some(suspect) = SUSPECTS.with_borrow_mut(Vec::pop) {
        has_lost = has_lost || !sys::is_valid_index(suspect);
    }
    has_lost
}

/// How often this session was told that queues changed.
pub fn queue_changes() -> u64 {
    QUEUE_CHANGES.get()
}

/// What this session knows of queues is not true any more.
pub fn forget_queues() {
    QUEUE_CHANGES.set(QUEUE_CHANGES.get() + 1);
}

/// The instance of this database.
///
/// Errors: 42704 when the extension is not installed, 53400 when shared memory has no slot for this
/// database.
pub fn current() -> Result<Rc<Catalog>> {
    if !STALE.get()
        && !has_lost_index()
        && let Some(catalog) = CATALOG.with_borrow(Clone::clone)
    {
        return Ok(catalog);
    }
    let catalog = Rc::new(read_unchanged()?);
    WATCHED.set([catalog.queue, catalog.segments[0].attempt]);
    INDEXES.set(catalog.indexes());
    TABLES.set(catalog.tables());
    CATALOG.set(Some(Rc::clone(&catalog)));
    QUEUE_CHANGES.set(QUEUE_CHANGES.get() + 1);
    Ok(catalog)
}

/// Reads the catalog until nothing changes meanwhile: what is told in the middle must not be forgotten, for nobody tells
/// it again. Where something changes all the time it is read again the next time.
fn read_unchanged() -> Result<Catalog> {
    /// So often at once.
    const READS: usize = 4;
    let read = || -> Result<Catalog> {
        HAS_NEWS.set(false);
        let catalog = read_catalog()?;
        STALE.set(HAS_NEWS.get());
        Ok(catalog)
    };
    let mut catalog = read()?;
    for _ in 1..READS {
        if !STALE.get() {
            break;
        }
        catalog = read()?;
    }
    Ok(catalog)
}

fn read_catalog() -> Result<Catalog> {
    if !REGISTERED.replace(true) {
        // SAFETY: once per backend; the callback only sets flags.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(on_relcache), pg_sys::Datum::from(0)) };
    }
    let extension = sys::our_extension();
    // SAFETY: a catalog look-up in a transaction; what is missing comes back as invalid.
    let schema = unsafe { pg_sys::get_namespace_oid(c"queue".as_ptr(), true) };
    let Some(extension) = extension.filter(|_| schema != Oid::INVALID) else {
        return Err(Error::new(error::UNDEFINED, "extension \"pg_queue\" is not installed in this database")
            .hint("Run CREATE EXTENSION pg_queue."));
    };
    let oid = |name: String| -> Result<Oid> {
        let c_name = std::ffi::CString::new(name.as_str()).map_err(|_| Error::internal("a name holds a zero byte"))?;
        // SAFETY: a catalog look-up.
        let oid = unsafe { pg_sys::get_relname_relid(c_name.as_ptr(), schema) };
        if oid == Oid::INVALID {
            return Err(Error::new(error::WRONG_STATE, format!("relation \"queue.{name}\" does not exist"))
                .detail("The library and the extension's SQL are of different versions.")
                .hint("Run ALTER EXTENSION pg_queue UPDATE."));
        }
        Ok(oid)
    };
    // SQL of 0.1.0.
    let is_old = oid("parked_0".into()).is_err();
    let segment = |n: usize| -> Result<Segment> {
        Ok(Segment {
            attempt: oid(format!("attempt_{n}"))?,
            attempt_pkey: oid(format!("attempt_{n}_pkey"))?,
            attempt_lane: oid(format!("attempt_{n}_lane_idx"))?,
            attempt_run_at: oid(format!("attempt_{n}_run_at_idx"))?,
            attempt_job: oid(format!("attempt_{n}_job_idx"))?,
            attempt_holder: oid(format!("attempt_{n}_holder_idx"))?,
            attempt_unique: oid(format!("attempt_{n}_unique_idx"))?,
            parked: if is_old { Oid::INVALID } else { oid(format!("parked_{n}"))? },
            parked_index: oid(if is_old { format!("attempt_{n}_group_idx") } else { format!("parked_{n}_idx") })?,
            claim: oid(format!("claim_{n}"))?,
            claim_pkey: oid(format!("claim_{n}_pkey"))?,
            outcome: oid(format!("outcome_{n}"))?,
            outcome_pkey: oid(format!("outcome_{n}_pkey"))?,
            outcome_dead: oid(format!("outcome_{n}_dead_idx"))?,
            note: oid(format!("note_{n}"))?,
            note_id: oid(format!("note_{n}_id_idx"))?,
            note_rerun: oid(format!("note_{n}_rerun_idx"))?,
        })
    };
    let mut segments = [segment(0)?; SEGMENTS];
    for (n, slot) in segments.iter_mut().enumerate().skip(1) {
        *slot = segment(n)?;
    }
    let (number, slot) = enter(extension)?;
    Ok(Catalog {
        number,
        slot,
        segment_log: oid("segment_log".into())?,
        segment_log_pkey: oid("segment_log_pkey".into())?,
        successor: oid("successor".into())?,
        successor_pkey: oid("successor_pkey".into())?,
        history: oid("history".into())?,
        queue: oid("queue".into())?,
        queue_name: oid("queue_queue_name_key".into())?,
        queue_pkey: oid("queue_pkey".into())?,
        lane: oid("lane".into())?,
        lane_pkey: oid("lane_pkey".into())?,
        lane_queue: oid("lane_queue_id_idx".into())?,
        id_seq: oid("id_seq".into())?,
        timeline: oid("timeline".into())?,
        timeline_idx: oid("timeline_timeline_idx".into())?,
        rollup: oid("rollup".into())?,
        rollup_minute: oid("rollup_minute_idx".into())?,
        total: oid("total".into())?,
        total_lane: oid("total_lane_idx".into())?,
        memory: [oid("key_0".into())?, oid("key_1".into())?],
        memory_key: [oid("key_0_key_idx".into())?, oid("key_1_key_idx".into())?],
        schedule: oid("schedule".into())?,
        schedule_pkey: oid("schedule_pkey".into())?,
        schedule_name: oid("schedule_schedule_name_key".into())?,
        schedule_queue: oid("schedule_queue_id_idx".into())?,
        firing: [
            (oid("firing_0".into())?, oid("firing_0_pkey".into())?),
            (oid("firing_1".into())?, oid("firing_1_pkey".into())?),
        ],
        restoring: oid("restoring".into())?,
        restoring_idx: oid("restoring_written_at_idx".into())?,
        segments,
    })
}

/// Finds or makes the instance's slot.
fn enter(extension: Oid) -> Result<(u32, usize)> {
    let database = sys::database();
    let now = sys::now_us();
    let found = shmem::with(|shared| {
        let Shared { frontier, instances, next_instance, tallies, .. } = shared;
        let is_ours = |i: &Instance| i.number != 0 && i.database == database && i.extension == extension;
        if let Some(slot) = instances.iter().position(is_ours) {
            return Some((instances[slot].number, slot));
        }
        // The extension was dropped and created again: what was known of the old one is worthless, unless it was
        // in this transaction, which may be rolled back.
        let is_settled = |i: &&mut Instance| !transaction::is_dropping(i.number);
        for old in instances.iter_mut().filter(|i| i.number != 0 && i.database == database).filter(is_settled) {
            let mut root = old.deadlines;
            frontier.drop_instance(&mut root, old.number);
            tallies.forget_instance(old.number);
            old.number = 0;
        }
        let at = instances.iter().position(|i| i.number == 0)?;
        let slot = &mut instances[at];
        **next_instance += 1;
        *slot = Instance {
            number: **next_instance,
            database,
            extension,
            deadlines: 0,
            id_next: 0,
            id_limit: 0,
            // All that is due by now lies behind its lane's position, which is before everything.
            due_to: now,
            next_due: i64::MIN,
            schedules: Schedules::NOTHING,
            worker_latch: std::ptr::null_mut(),
            worker_pid: 0,
            wakes_at: i64::MAX,
            pulse: Default::default(),
            is_recovered: false,
            dormancy: Default::default(),
            changes: 0,
            drops: 0,
            dropping: [Default::default(); 64],
            notify: [0; 32],
            // Read from the log by whoever is the first to use the instance: see `dormant::learn`.
            words: [0; SEGMENTS],
            open: 0,
            segments: [Filling::default(); SEGMENTS],
            last_entry: 0,
            last_generation: 0,
            far: 0,
            storage_at: i64::MIN,
            counting: Default::default(),
            reruns: Late::NEW,
            cancels: Late::NEW,
            memory_half: 0,
            memory_limit: 0,
            memory_turns: 0,
            memory_is_turning: false,
            parked_files: [[0; 2]; SEGMENTS],
        };
        Some((slot.number, at))
    });
    if let Some((number, _)) = found.filter(|_| transaction::has_dropped()) {
        transaction::remember(number, transaction::Step::InstanceMade);
    }
    found.ok_or_else(|| {
        Error::new(error::LIMIT, "too many databases use pg_queue")
            .detail(format!("Shared memory has room for {} databases.", guc::MAX_DATABASES.get()))
            .hint("Raise pg_queue.max_databases and restart the server.")
    })
}

/// The instance for a duty that was asked to serve this one; `None`: the database has another one now, or none.
pub fn of_duty(number: u32) -> Option<Rc<Catalog>> {
    current().ok().filter(|catalog| catalog.number == number)
}

/// Called by the worker at its start, in a transaction: the instance of this database, `None` when the
/// extension is not installed.
pub fn attach() -> Option<u32> {
    STALE.set(true);
    match current() {
        Ok(catalog) => Some(catalog.number),
        Err(error) if error.code == error::UNDEFINED => None,
        // The worker dies of it, which is logged, and comes back after a growing pause.
        Err(error) => error.report(),
    }
}

/// Frees an instance whose extension or database is gone.
pub fn release(number: u32) {
    loop {
        let woken = shmem::with(|shared| shared.frontier.wake_any_lane(number));
        match woken {
            Some(session) => shmem::wake(session),
            None => break,
        }
    }
    shmem::with(|shared| {
        let Shared { frontier, instances, tallies, .. } = shared;
        if let Some(instance) = instances.iter_mut().find(|i| i.number == number && number != 0) {
            frontier.drop_instance(&mut instance.deadlines, number);
            tallies.forget_instance(number);
            instance.number = 0;
        }
    });
}

/// Called while DROP EXTENSION runs: when that commits, the instance goes.
pub fn extension_dropped(extension: Oid) {
    let database = sys::database();
    let number = shmem::with(|shared| {
        shared
            .instances
            .iter()
            .find(|i| i.number != 0 && i.database == database && i.extension == extension)
            .map(|i| i.number)
    });
    if let Some(number) = number {
        transaction::on_commit_drop_instance(number);
    }
}
