//! The `note` log: what must survive a crash about a running attempt.

use pgrx::pg_sys::Datum;

use crate::instance::Catalog;
use crate::log::table::{Entry, Key, NewRows, Relation, Row, Snapshot};
use crate::segment::Home;
use crate::sys;

/// Columns that are read, counted from 0: id, noted_at, kind, lease_us, body.
mod column {
    pub const NOTED_AT: usize = 1;
    pub const KIND: usize = 2;
    pub const LEASE_US: usize = 3;
    pub const BODY: usize = 4;
    pub const COUNT: usize = 5;
}

/// What a note says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The worker reported progress: the body.
    Progress,
    /// Somebody asked for the attempt to be cancelled: the body is the reason.
    CancelRequested,
    /// The lease was made longer than the claim's: microseconds.
    Lease,
}

impl Kind {
    fn char(self) -> u8 {
        match self {
            Self::Progress => b'p',
            Self::CancelRequested => b'c',
            Self::Lease => b'l',
        }
    }
}

/// Inserts a note. False: the attempt's home is not what it was; nothing is inserted. See `hold::write_note`.
pub fn insert(catalog: &Catalog, home: Home, id: i64, kind: Kind, lease: Option<i64>, body: Option<Datum>) -> bool {
    let oids = &catalog.segments[home.segment as usize];
    let table = Relation::write(oids.note);
    if !home.is_valid(catalog) {
        table.unlock();
        return false;
    }
    let row: [_; column::COUNT] = [
        Some(id.into()),
        Some(sys::now_us().into()),
        Some(Datum::from(kind.char() as i8)),
        lease.map(Datum::from),
        body,
    ];
    let index = Relation::write_index(oids.note_id);
    table.insert_row(row, &mut [Entry { index: &index, is_unique: false, key: &mut [id.into()] }]);
    true
}

/// Copies notes as they are into a segment.
pub fn copy(catalog: &Catalog, segment: u8, notes: &[Row]) {
    if notes.is_empty() {
        return;
    }
    let oids = &catalog.segments[segment as usize];
    let table = Relation::write(oids.note);
    let mut rows = NewRows::new(column::COUNT, notes.len());
    for row in notes {
        rows.add::<{ column::COUNT }>(std::array::from_fn(|n| row.get(n)));
    }
    let tids = table.insert(&mut rows);
    Relation::write_index(oids.note_id).insert_entries(&table, &tids, false, |n| notes[n].get(0).map(|id| [id]));
}

/// The notes of an attempt; `None` when an open transaction is writing one.
pub fn all_settled(catalog: &Catalog, segment: u8, id: i64) -> Option<Vec<Row>> {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.note);
    if table.blocks() == 0 {
        return Some(Vec::new());
    }
    let index = Relation::read_index(oids.note_id);
    let mut scan = table.scan(&index, &[Key::eq_i64(1, id)], Snapshot::Dirty);
    let mut notes = Vec::new();
    while scan.next().is_some() {
        if scan.is_in_progress() {
            return None;
        }
        notes.push(scan.row());
    }
    Some(notes)
}

/// What the notes of an attempt say together.
#[derive(Default)]
pub struct Summary {
    newest_progress: Option<(i64, Row)>,
    /// Cancellation was asked for.
    pub is_cancel_requested: bool,
    /// The longest lease noted, microseconds.
    pub lease: i64,
}

impl Summary {
    /// The last progress reported.
    pub fn progress(&self) -> Option<Datum> {
        self.newest_progress.as_ref().and_then(|(_, row)| row.get(column::BODY))
    }
}

/// A segment's notes, open for many questions.
pub struct Reader {
    table: Relation,
    index: Relation,
    is_empty: bool,
    snapshot: Snapshot,
}

impl Reader {
    /// Opens them.
    pub fn open(catalog: &Catalog, segment: u8, snapshot: Snapshot) -> Self {
        let oids = &catalog.segments[segment as usize];
        let table = Relation::read(oids.note);
        Self { is_empty: table.blocks() == 0, index: Relation::read_index(oids.note_id), table, snapshot }
    }

    /// Reads all notes of an attempt.
    pub fn summary(&self, id: i64) -> Summary {
        if self.is_empty { Summary::default() } else { summarize(&self.table, &self.index, id, self.snapshot) }
    }
}

/// Reads all notes of an attempt.
pub fn summary(catalog: &Catalog, segment: u8, id: i64) -> Summary {
    Reader::open(catalog, segment, Snapshot::Now).summary(id)
}

fn summarize(table: &Relation, index: &Relation, id: i64, snapshot: Snapshot) -> Summary {
    let mut summary = Summary::default();
    let mut scan = table.scan(index, &[Key::eq_i64(1, id)], snapshot);
    while scan.next().is_some() {
        let row = scan.row();
        match row.char(column::KIND) {
            b'p' => {
                let at = row.i64(column::NOTED_AT);
                if summary.newest_progress.as_ref().is_none_or(|(known, _)| *known <= at) {
                    summary.newest_progress = Some((at, row));
                }
            }
            b'c' => summary.is_cancel_requested = true,
            b'l' => {
                let lease = row.get(column::LEASE_US).map_or(0, |d| d.value() as i64);
                summary.lease = summary.lease.max(lease);
            }
            _ => {}
        }
    }
    summary
}
