//! The extension's instance that this session uses: the oids of its tables, which are kept until the catalogs change,
//! and its slot in shared memory. The slot is found by the oids of database and extension, so that DROP and CREATE of
//! either never meet old state.
//!
//! Responsible for the list of the extension's tables and indexes, for reading their oids, and for naming to
//! `pg::relcache` those to be told of. Not responsible for the rows in the logs (`log`), nor for how a table is opened
//! (`pg::table`).
//!
//! Invariant: what a session knows is no older than the last change of a table or an index that it was told of.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::rc::Rc;

use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys::Oid;

use crate::error::{self, Error, Result};
use crate::pg::shape::{SHAPES, Shape};
use crate::pg::{relcache, syscache};

pub mod arguments;
pub mod declared;
pub mod drops;
pub mod dump;
pub mod grants;
pub mod ids;
pub mod instance;
pub mod noted;
pub mod objects;
pub mod permission;
pub mod procedure;
pub mod queue;
pub mod rights;
pub mod rows;
pub mod run_as;
pub mod schedule;
pub mod spi;
pub mod tables;
pub mod topic;
pub mod triggers;
pub mod unlogged;

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
    /// By flow.
    pub attempt_flow: Oid,
    /// By the time by which they must start.
    pub attempt_start_by: Oid,
    /// The empty table that the index of groups belongs to.
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
    /// By predecessor.
    pub note_job: Oid,
}

impl Segment {
    /// Returns all tables, in the order in which they are emptied: later versions may only add to the end.
    pub fn tables(&self) -> impl Iterator<Item = Oid> {
        [self.attempt, self.claim, self.outcome, self.note, self.parked].into_iter()
    }

    fn indexes(&self) -> [Oid; 15] {
        [
            self.attempt_pkey,
            self.attempt_lane,
            self.attempt_run_at,
            self.attempt_job,
            self.attempt_holder,
            self.attempt_unique,
            self.attempt_flow,
            self.attempt_start_by,
            self.parked_index,
            self.claim_pkey,
            self.outcome_pkey,
            self.outcome_dead,
            self.note_id,
            self.note_rerun,
            self.note_job,
        ]
    }
}

/// What a session knows of the instance.
pub struct Catalog {
    /// The instance's number in shared memory.
    pub number: u32,
    /// Its slot there.
    pub slot: usize,
    /// `queue_internal.queue` and its index by name.
    pub queue: Oid,
    /// See `queue`.
    pub queue_name: Oid,
    /// `queue_internal.queue` by id.
    pub queue_pkey: Oid,
    /// `queue_internal.lane` and its key.
    pub lane: Oid,
    /// See `lane`.
    pub lane_pkey: Oid,
    /// `queue_internal.lane` by queue.
    pub lane_queue: Oid,
    /// `queue_internal.permission` and its key.
    pub permission: Oid,
    /// See `permission`.
    pub permission_pkey: Oid,
    /// The sequence that ids are counted by.
    pub id_seq: Oid,
    /// The timelines on which ids were handed out, and the index.
    pub timeline: Oid,
    /// See `timeline`.
    pub timeline_idx: Oid,
    /// The log of the segments' states, and its key.
    pub segment_log: Oid,
    /// See `segment_log`.
    pub segment_log_pkey: Oid,
    /// The ended attempts that were retried by hand, and the key.
    pub successor: Oid,
    /// See `successor`.
    pub successor_pkey: Oid,
    /// The parent of the tables that keep ended attempts.
    pub history: Oid,
    /// The minutes of reclaimed segments, and their index.
    pub rollup: Oid,
    /// See `rollup`.
    pub rollup_minute: Oid,
    /// The sums of reclaimed segments, and the index.
    pub total: Oid,
    /// See `total`.
    pub total_lane: Oid,
    /// The two halves of what is recorded of unique keys (`queue_internal.key_0`, `key_1`), and their indexes.
    pub key: [Oid; 2],
    /// See `key`.
    pub key_index: [Oid; 2],
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
    /// The processes that restore, and the index.
    pub restoring: Oid,
    /// See `restoring`.
    pub restoring_idx: Oid,
    /// All segments.
    pub segments: [Segment; SEGMENTS],
    /// The names by which all of them were found.
    names: BTreeMap<u32, CString>,
}

impl Catalog {
    /// Returns all its indexes, sorted by oid.
    fn indexes(&self) -> Vec<relcache::Index> {
        let mut all = vec![
            self.queue_name,
            self.queue_pkey,
            self.lane_pkey,
            self.lane_queue,
            self.permission_pkey,
            self.timeline_idx,
            self.segment_log_pkey,
            self.successor_pkey,
            self.rollup_minute,
            self.total_lane,
            self.key_index[0],
            self.key_index[1],
            self.schedule_pkey,
            self.schedule_name,
            self.schedule_queue,
            self.firing[0].1,
            self.firing[1].1,
            self.restoring_idx,
        ];
        all.extend(self.segments.iter().flat_map(Segment::indexes));
        let all = sorted(&all);
        let is_index = |(oid, _): &(&u32, _)| all.binary_search(oid).is_ok();
        self.names.iter().filter(is_index).map(|(oid, name)| (*oid, name.clone())).collect()
    }

    /// Returns all its tables into which rows are inserted other than by SQL, sorted by oid.
    fn tables(&self) -> Vec<u32> {
        let mut all = vec![
            self.timeline,
            self.segment_log,
            self.successor,
            self.rollup,
            self.total,
            self.key[0],
            self.key[1],
            self.firing[0].0,
            self.firing[1].0,
            self.restoring,
        ];
        let logs = |segment: &Segment| [segment.attempt, segment.claim, segment.outcome, segment.note];
        all.extend(self.segments.iter().flat_map(logs));
        sorted(&all)
    }

    /// Returns whether rows are inserted into this table, or into its indexes, other than by SQL.
    pub fn is_written_directly(&self, table: Oid) -> bool {
        self.tables().binary_search(&table.to_u32()).is_ok()
            || self.segments.iter().any(|segment| segment.parked == table)
            || self.history == table
            || syscache::children(self.history).contains(&table)
    }
}

fn sorted(oids: &[Oid]) -> Vec<u32> {
    let mut sorted: Vec<u32> = oids.iter().map(|oid| oid.to_u32()).collect();
    sorted.sort_unstable();
    sorted
}

thread_local! {
    static CATALOG: RefCell<Option<Rc<Catalog>>> = const { RefCell::new(None) };
}

/// Returns whether this is one of the extension's tables into which rows are inserted other than by SQL.
pub fn is_written_directly(table: Oid) -> bool {
    current().is_ok_and(|catalog| catalog.is_written_directly(table))
}

/// Returns the instance of this database. If the session was told of a change, it is read anew.
///
/// Errors: 42704 when the extension is not installed, 53400 when shared memory has no slot for this database, 55000
/// when the extension's SQL is of another version than the library.
pub fn current() -> Result<Rc<Catalog>> {
    if !relcache::is_stale()
        && !relcache::has_lost_index()
        && let Some(catalog) = CATALOG.with_borrow(Clone::clone)
    {
        return Ok(catalog);
    }
    let catalog = Rc::new(read_unchanged()?);
    let [first, ..] = &catalog.segments;
    relcache::watch([catalog.queue, first.attempt, first.note], catalog.tables(), catalog.indexes());
    watch_shapes(&catalog);
    CATALOG.set(Some(Rc::clone(&catalog)));
    relcache::forget_queues();
    Ok(catalog)
}

/// Reads the catalog until nothing changes meanwhile: a message that arrives in the middle must not be forgotten,
/// because it is not sent again. If something changes all the time, the catalog is read again at the next use.
fn read_unchanged() -> Result<Catalog> {
    /// How often it is read in one call.
    const READS: usize = 4;
    let read = || -> Result<Catalog> {
        relcache::begin();
        let catalog = read_catalog()?;
        relcache::end();
        Ok(catalog)
    };
    let mut catalog = read()?;
    for _ in 1..READS {
        if !relcache::is_stale() {
            break;
        }
        catalog = read()?;
    }
    Ok(catalog)
}

fn read_catalog() -> Result<Catalog> {
    relcache::listen();
    let extension = syscache::our_extension();
    let (Some(extension), Some(schema)) = (extension, syscache::schema_of_tables()) else {
        return Err(Error::new(error::UNDEFINED, "extension \"pg_queue\" is not installed in this database")
            .hint("Run CREATE EXTENSION pg_queue."));
    };
    let mut names = BTreeMap::new();
    let mut oid = |name: String| -> Result<Oid> {
        let c_name = CString::new(name.as_str()).map_err(|_| Error::internal("a name holds a zero byte"))?;
        let oid = syscache::relation_in(schema, &c_name).ok_or_else(|| {
            Error::new(error::WRONG_STATE, format!("relation \"queue_internal.{name}\" does not exist"))
                .detail("The library and the extension's SQL are of different versions.")
                .hint("Run ALTER EXTENSION pg_queue UPDATE.")
        })?;
        names.insert(oid.to_u32(), c_name);
        Ok(oid)
    };
    let mut segment = |n: usize| -> Result<Segment> {
        Ok(Segment {
            attempt: oid(format!("attempt_{n}"))?,
            attempt_pkey: oid(format!("attempt_{n}_pkey"))?,
            attempt_lane: oid(format!("attempt_{n}_lane_idx"))?,
            attempt_run_at: oid(format!("attempt_{n}_run_at_idx"))?,
            attempt_job: oid(format!("attempt_{n}_job_idx"))?,
            attempt_holder: oid(format!("attempt_{n}_holder_idx"))?,
            attempt_unique: oid(format!("attempt_{n}_unique_idx"))?,
            attempt_flow: oid(format!("attempt_{n}_flow_idx"))?,
            attempt_start_by: oid(format!("attempt_{n}_start_by_idx"))?,
            parked: oid(format!("parked_{n}"))?,
            parked_index: oid(format!("parked_{n}_idx"))?,
            claim: oid(format!("claim_{n}"))?,
            claim_pkey: oid(format!("claim_{n}_pkey"))?,
            outcome: oid(format!("outcome_{n}"))?,
            outcome_pkey: oid(format!("outcome_{n}_pkey"))?,
            outcome_dead: oid(format!("outcome_{n}_dead_idx"))?,
            note: oid(format!("note_{n}"))?,
            note_id: oid(format!("note_{n}_id_idx"))?,
            note_rerun: oid(format!("note_{n}_rerun_idx"))?,
            note_job: oid(format!("note_{n}_job_idx"))?,
        })
    };
    let mut segments = [segment(0)?; SEGMENTS];
    for (n, slot) in segments.iter_mut().enumerate().skip(1) {
        *slot = segment(n)?;
    }
    let (number, slot) = instance::enter(extension)?;
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
        permission: oid("permission".into())?,
        permission_pkey: oid("permission_pkey".into())?,
        id_seq: oid("id_seq".into())?,
        timeline: oid("timeline".into())?,
        timeline_idx: oid("timeline_timeline_idx".into())?,
        rollup: oid("rollup".into())?,
        rollup_minute: oid("rollup_minute_idx".into())?,
        total: oid("total".into())?,
        total_lane: oid("total_lane_idx".into())?,
        key: [oid("key_0".into())?, oid("key_1".into())?],
        key_index: [oid("key_0_key_idx".into())?, oid("key_1_key_idx".into())?],
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
        names,
    })
}

/// Returns the instance for a duty that serves this number. `None`: the database has another instance now, or none.
pub fn of_duty(number: u32) -> Option<Rc<Catalog>> {
    current().ok().filter(|catalog| catalog.number == number)
}

/// Returns the number of this database's instance; `None`: the extension is not installed. Called by the worker at its
/// start, in a transaction. Any other error is raised.
pub fn attach() -> Option<u32> {
    relcache::invalidate();
    match current() {
        Ok(catalog) => Some(catalog.number),
        Err(error) if error.code == error::UNDEFINED => None,
        // The worker dies of the error, which is logged, and comes back after a growing pause.
        Err(error) => error.report(),
    }
}

/// Makes the tables of this catalog those whose columns are checked from now on.
pub fn watch_shapes(catalog: &Catalog) {
    SHAPES.set(shapes(catalog));
}

/// Returns all tables of the catalog with the columns that they should have, sorted by oid.
pub fn shapes(catalog: &Catalog) -> Vec<(u32, Shape)> {
    let [key, other_key] = catalog.key;
    let [firing, other_firing] = catalog.firing.map(|half| half.0);
    let mut all = vec![
        (catalog.timeline, tables::timeline::SHAPE),
        (catalog.segment_log, tables::segment_log::SHAPE),
        (catalog.successor, tables::successor::SHAPE),
        (catalog.rollup, tables::rollup::SHAPE),
        (catalog.total, tables::total::SHAPE),
        (key, tables::key::SHAPE),
        (other_key, tables::key::SHAPE),
        (firing, tables::firing::SHAPE),
        (other_firing, tables::firing::SHAPE),
        (catalog.restoring, tables::restoring::SHAPE),
        (catalog.lane, tables::lane::SHAPE),
        (catalog.queue, tables::queue::SHAPE),
        (catalog.schedule, tables::schedule::SHAPE),
        (catalog.history, tables::history::SHAPE),
    ];
    for oids in &catalog.segments {
        all.extend([
            (oids.attempt, tables::attempt::SHAPE),
            (oids.note, tables::note::SHAPE),
            (oids.parked, tables::parked::SHAPE),
            (oids.claim, tables::claim::SHAPE),
            (oids.outcome, tables::outcome::SHAPE),
        ]);
    }
    let mut all: Vec<(u32, Shape)> = all.into_iter().map(|(table, shape)| (table.to_u32(), shape)).collect();
    all.sort_unstable_by_key(|(table, _)| *table);
    all
}
