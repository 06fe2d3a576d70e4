//! The types of walks over the jobs in one state: what a walk reads, what it finds, and what it shall find.
//!
//! Not responsible for the walks themselves.

use pg_queue_core::id;
use serde_json::Value;

use crate::catalog;
use crate::catalog::queue::Queue;
use crate::log::attempt::Attempt;
use crate::log::history::{self, Child, Past};
use crate::log::tables::{self, Tables};
use crate::pg::row::Row;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::Relation;
use crate::shmem::ledger::Ledger;

/// Walks see the rows that the calling statement sees. Memory is read as it is now.
pub(super) const SNAPSHOT: Snapshot = Snapshot::Statement;

/// The state of a job, as the views name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobState {
    Running,
    Retrying,
    Scheduled,
    Ready,
    Held,
    Dead,
    Completed,
    Cancelled,
    Skipped,
    Expired,
}

impl JobState {
    /// All states. States that few jobs are in come first.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::Running, "running"),
        (Self::Retrying, "retrying"),
        (Self::Dead, "dead"),
        (Self::Held, "held"),
        (Self::Scheduled, "scheduled"),
        (Self::Skipped, "skipped"),
        (Self::Cancelled, "cancelled"),
        (Self::Expired, "expired"),
        (Self::Ready, "ready"),
        (Self::Completed, "completed"),
    ];

    /// Returns the state of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(state, _)| *state)
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(state, _)| *state == self).map_or("", |(_, name)| name)
    }
}

/// A job that may be in the state.
pub struct Found {
    /// Its newest attempt, as far as the walk knows.
    pub id: i64,
    pub job_id: i64,
    /// Where the attempt is.
    pub place: Where,
}

/// Where an attempt is.
pub enum Where {
    /// In this segment.
    Segment(u8),
    /// In history.
    History(Box<Past>),
}

/// A walk over the candidates for one state.
pub trait Walk {
    /// Reads one more row. `Some(None)` if it is no candidate, `None` if no row is left.
    fn next(&mut self) -> Option<Option<Found>>;

    /// Returns the position behind the last row that was read.
    fn here(&self) -> Value;
}

/// A table of history.
pub struct PastTable {
    pub(super) child: Child,
    pub(super) table: Relation,
    /// Its index of dead jobs.
    pub(super) dead: Option<Relation>,
}

/// Opens the tables of history.
fn open_history() -> Vec<PastTable> {
    let opened = history::children().into_iter().filter_map(|child| {
        let table = history::open(child)?;
        let dead = history::index_of_dead(child).map(Relation::read_index);
        Some(PastTable { child, table, dead })
    });
    opened.collect()
}

/// The open tables that walks read. It outlives each walk.
pub struct Opened {
    /// The segments in which attempts may be read.
    pub(super) segments: Vec<Tables>,
    pub(super) history: Vec<PastTable>,
    pub(super) ledger: Ledger,
}

impl Opened {
    /// Opens segments and history. All are opened before one of them is read, so that none is emptied meanwhile.
    pub fn open() -> Self {
        let catalog = catalog::pinned();
        let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, SNAPSHOT);
        let mut segments = Tables::open_all(tables::ALL.filter(|&segment| ledger.is_read_here(segment)));
        segments.retain(|tables| !tables.is_empty());
        segments.iter().for_each(Tables::open_indexes);
        Self { segments, history: open_history(), ledger }
    }

    /// Returns an attempt with the rows of its claim and of its outcome. `None` if it is not in this segment.
    pub fn attempt(&self, segment: u8, id: i64) -> Option<(Attempt, Option<Row>, Option<Row>)> {
        let tables = self.segments.iter().find(|tables| tables.home.segment == segment)?;
        let mut scan = tables.attempt.scan(tables.by_id(), &[Key::eq_i64(1, id)], SNAPSHOT);
        scan.next()?;
        let attempt = Attempt::new(scan.row(), tables.home);
        Some((attempt, tables.claims().find(id, SNAPSHOT), tables.outcomes().find(id, SNAPSHOT)))
    }
}

/// The jobs that a walk shall find.
pub struct Wanted<'a> {
    pub queue: &'a Queue,
    /// The stage's lane. `None` for all lanes of the queue.
    pub lane: Option<i32>,
    pub state: JobState,
}

impl Wanted<'_> {
    pub(super) fn has(&self, lane: i32) -> bool {
        self.lane.map_or_else(|| self.queue.all_lanes().any(|known| known == lane), |wanted| wanted == lane)
    }
}

/// Reads a pair of numbers from the JSON of a position.
pub(super) fn pair(value: Option<&Value>) -> Option<(i64, i64)> {
    let value = value?;
    Some((value.get(0)?.as_i64()?, value.get(1)?.as_i64()?))
}

/// Returns whether a number can be a job's id. Positions come from callers, and may be invalid.
pub(super) fn is_job(id: i64) -> bool {
    id::kind(id) == id::Kind::Job
}
