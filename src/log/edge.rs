//! Edges are notes about a held attempt: one of kind `a` for each predecessor, and one of kind `n` when a predecessor
//! has completed.
//!
//! Responsible for writing and finding them. Not responsible for the release (`job::after`, `duty::release`), nor for
//! other notes (`note`).
//!
//! Invariant: the edges of an attempt lie in its segment. They are written with it, and move with it.

use crate::catalog;
pub use crate::log::note::SEAL;
use crate::log::note::{self, MET, column};
use crate::log::segment::Home;
use crate::pg::row::{NewRows, Row};
use crate::pg::scan::{Key, Scan, Snapshot};
use crate::pg::table::{Entry, Relation};
use crate::pg::time;
use crate::pg::{jsonb, process};
use pg_queue_core::after::Upon;

/// The kind of a note that names a predecessor.
const AFTER: u8 = b'a';
/// The kind of a note that says that a flow is to end. Its members are cancelled before.
const ENDING: u8 = b'e';

/// An edge of a held attempt: to a predecessor, or to its own job for the members of its flow, or to [`SEAL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The held attempt.
    pub id: i64,
    /// The predecessor.
    pub job_id: i64,
    pub upon: Upon,
    /// The lane into which it is released. 0: it ends by itself.
    pub lane: i32,
    /// True if the predecessor has completed once.
    pub is_met: bool,
    /// True if the predecessor is the attempt's own job.
    pub is_own: bool,
    /// True if the first death among the flow's members ends it.
    pub is_fail_fast: bool,
    /// When the attempt is released at the latest, which is its `run_at`. `None`: it has to wait.
    pub until: Option<i64>,
}

impl Edge {
    /// True if the attempt's own time counts for the verdict.
    pub fn heeds_time(&self) -> bool {
        self.upon == Upon::Overdue || self.until.is_some()
    }
}

/// Why and how a flow ends before its members have.
pub struct Ending {
    /// True if running members are ended, too.
    pub is_forced: bool,
    /// The member whose death ends it; `None`: it is cancelled.
    pub dead: Option<i64>,
    /// True if it was not to start any more.
    pub is_expired: bool,
    /// The reason of the cancel, or the error of that member.
    pub reason: Option<String>,
}

/// Inserts a note that a flow is to end. False: as `insert_met`.
pub fn insert_ending(home: Home, id: i64, job_id: i64, ending: &Ending) -> bool {
    let Some(table) = note::open_home(home) else { return false };
    let edge = Edge {
        id,
        job_id,
        upon: Upon::Completed,
        lane: 0,
        is_met: false,
        is_own: false,
        is_fail_fast: false,
        until: None,
    };
    let body = jsonb::of(&serde_json::json!({
        "force": ending.is_forced.then_some("true"), "dead": ending.dead.map(|id| id.to_string()),
        "expired": ending.is_expired.then_some("true"), "reason": ending.reason,
    }));
    let row = column::Row { body, ..row(&edge, ENDING, time::now_us()) };
    insert_row(home.segment, &table, &edge, row);
    true
}

/// Inserts edges of attempts that this transaction has inserted into this segment.
pub fn insert(segment: u8, edges: &[Edge]) {
    let table = Relation::write(catalog::segment(segment).note);
    let now = time::now_us();
    if let [edge] = edges {
        insert_row(segment, &table, edge, row(edge, AFTER, now));
    } else {
        insert_many(segment, &table, edges, now);
    }
    for edge in edges.iter().filter(|edge| edge.is_met) {
        insert_met_into(segment, &table, edge);
    }
}

fn insert_many(segment: u8, table: &Relation, edges: &[Edge], now: i64) {
    let oids = catalog::segment(segment);
    let mut rows = NewRows::new(column::COUNT, edges.len());
    edges.iter().for_each(|edge| rows.add(row(edge, AFTER, now).values()));
    let tids = table.insert(&mut rows);
    let [by_id, by_job] = Relation::write_indexes([oids.note_id, oids.note_job]);
    by_id.insert_entries(table, &tids, false, |n| Some([edges[n].id.into()]));
    by_job.insert_entries(table, &tids, false, |n| Some([edges[n].job_id.into(), edges[n].id.into()]));
}

/// Inserts a note that the predecessor of an edge has completed. Returns false if the attempt's home has another
/// generation now; nothing is inserted then. See `hold::note_where_it_is`.
pub fn insert_met(home: Home, edge: &Edge) -> bool {
    let Some(table) = note::open_home(home) else { return false };
    insert_met_into(home.segment, &table, edge);
    true
}

fn insert_met_into(segment: u8, table: &Relation, edge: &Edge) {
    insert_row(segment, table, edge, row(edge, MET, time::now_us()));
}

fn insert_row(segment: u8, table: &Relation, edge: &Edge, row: column::Row) {
    let oids = catalog::segment(segment);
    let [by_id, by_job] = Relation::write_indexes([oids.note_id, oids.note_job]);
    let entries = &mut [
        Entry { index: &by_id, is_unique: false, key: &mut [edge.id.into()] },
        Entry { index: &by_job, is_unique: false, key: &mut [edge.job_id.into(), edge.id.into()] },
    ];
    table.insert_row(row.values(), entries);
}

fn row(edge: &Edge, kind: u8, noted_at: i64) -> column::Row {
    column::Row {
        id: edge.id,
        noted_at,
        kind,
        job_id: Some(edge.job_id),
        lane: Some(edge.lane),
        upon: Some(edge.upon.char()),
        priority: edge.is_own.then(|| i32::from(edge.is_fail_fast)),
        run_at: edge.until,
        ..column::Row::BLANK
    }
}

/// A segment's edges, open to read.
pub struct Edges {
    table: Relation,
    by_id: Relation,
    by_job: Relation,
}

impl Edges {
    /// Opens them. `None`: there are none.
    pub fn open(segment: u8) -> Option<Self> {
        let oids = catalog::segment(segment);
        let table = Relation::read(oids.note);
        if table.blocks() == 0 {
            return None;
        }
        let [by_id, by_job] = Relation::read_indexes([oids.note_id, oids.note_job]);
        Some(Self { table, by_id, by_job })
    }

    /// Returns the edges of an attempt.
    pub fn of(&self, attempt: i64) -> Vec<Edge> {
        let mut scan = self.table.scan(&self.by_id, &[Key::eq_i64(1, attempt)], Snapshot::Now);
        let (mut edges, mut met): (Vec<Edge>, Vec<i64>) = (Vec::new(), Vec::new());
        while scan.next().is_some() {
            match read(&mut scan) {
                (AFTER, edge) => edges.push(edge),
                (MET, edge) => met.push(edge.job_id),
                _ => {}
            }
        }
        edges.iter_mut().for_each(|edge| edge.is_met = met.contains(&edge.job_id));
        edges
    }

    /// Returns the rows of an attempt's edges, including met ones, to be copied. `None` if an open transaction is
    /// writing one.
    pub fn rows_settled(&self, attempt: i64) -> Option<Vec<Row>> {
        let mut scan = self.table.scan(&self.by_id, &[Key::eq_i64(1, attempt)], Snapshot::Dirty);
        let mut rows = Vec::new();
        while scan.next().is_some() {
            if scan.is_in_progress() {
                return None;
            }
            if matches!(read(&mut scan).0, AFTER | MET | ENDING) {
                rows.push(scan.row());
            }
        }
        Some(rows)
    }

    /// Returns whether an open transaction is writing a note about an attempt. An attempt that replaces it would not
    /// get that note.
    pub fn is_being_noted(&self, attempt: i64) -> bool {
        self.rows_settled(attempt).is_none()
    }

    /// Returns how a flow is to end before its members have ended. `None`: it is not.
    pub fn ending_of(&self, attempt: i64) -> Option<Ending> {
        let mut scan = self.table.scan(&self.by_id, &[Key::eq_i64(1, attempt)], Snapshot::Now);
        let mut ending: Option<Ending> = None;
        while scan.next().is_some() {
            if read(&mut scan).0 != ENDING {
                continue;
            }
            let row = scan.row();
            let Some(body) = row.get(column::BODY) else { continue };
            let was_forced = ending.as_ref().is_some_and(|known| known.is_forced);
            ending = Some(Ending {
                is_forced: was_forced || jsonb::text_field(body, "force").is_some(),
                dead: jsonb::text_field(body, "dead").and_then(|id| id.parse().ok()),
                is_expired: jsonb::text_field(body, "expired").is_some(),
                reason: jsonb::text_field(body, "reason"),
            });
        }
        ending
    }

    /// Calls `f` with the edges of attempts that are after a job, in the order of the attempts' ids, beginning behind
    /// `after`, until it returns false. `is_met` is not set.
    pub fn each_after(&self, job_id: i64, after: i64, mut f: impl FnMut(Edge) -> bool) {
        let keys = [Key::eq_i64(1, job_id), Key::gt_i64(2, after)];
        let mut scan = self.table.scan(&self.by_job, &keys, Snapshot::Now);
        while scan.next().is_some() {
            if let (AFTER, edge) = read(&mut scan)
                && !f(edge)
            {
                break;
            }
        }
    }

    /// Calls `f` with each edge, in the order of the predecessors. `is_met` is not set.
    pub fn each(&self, mut f: impl FnMut(Edge)) {
        let mut scan = self.table.scan(&self.by_job, &[], Snapshot::Now);
        for n in 1_u32.. {
            if scan.next().is_none() {
                break;
            }
            if let (AFTER, edge) = read(&mut scan) {
                f(edge);
            }
            if n.is_multiple_of(1024) {
                process::check_for_interrupts();
            }
        }
    }
}

fn read(scan: &mut Scan<'_>) -> (u8, Edge) {
    let row = column::Row::read(&scan.columns(column::COUNT));
    let edge = Edge {
        id: row.id,
        job_id: row.job_id.unwrap_or(0),
        upon: Upon::of(row.upon.unwrap_or(0)),
        lane: row.lane.unwrap_or(0),
        is_met: false,
        is_own: row.priority.is_some(),
        is_fail_fast: row.priority.is_some_and(|fail_fast| fail_fast != 0),
        until: row.run_at,
    };
    (row.kind, edge)
}

/// Returns the same edges for the job's next attempt, which has this id and time. Without a time the attempt is due.
pub fn carried(edges: &[Edge], id: i64, run_at: Option<i64>) -> Vec<Edge> {
    edges.iter().map(|edge| Edge { id, until: edge.until.map(|at| run_at.unwrap_or(at)), ..*edge }).collect()
}
