//! The `note` log: what must survive a crash about a running attempt, and which ended attempts were
//! given a successor later.

use pgrx::pg_sys::Datum;

use crate::instance::Catalog;
use crate::log::table::{Key, NewRows, Relation, Row, Snapshot};
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
    /// The ended attempt got a successor by hand; at most one such note per attempt.
    Successor,
}

impl Kind {
    fn char(self) -> u8 {
        match self {
            Self::Progress => b'p',
            Self::CancelRequested => b'c',
            Self::Lease => b'l',
            Self::Successor => b'n',
        }
    }
}

/// Inserts a note. False: the attempt has a successor already, or is being given one; nothing is inserted.
pub fn insert(catalog: &Catalog, segment: u8, id: i64, kind: Kind, lease: Option<i64>, body: Option<Datum>) -> bool {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::write(oids.note);
    let mut rows = NewRows::new(column::COUNT, 1);
    rows.add::<{ column::COUNT }>([
        Some(id.into()),
        Some(sys::now_us().into()),
        Some(Datum::from(kind.char() as i8)),
        lease.map(Datum::from),
        body,
    ]);
    let tids = table.insert(&mut rows);
    let key = |_| Some([Datum::from(id)]);
    Relation::write_index(oids.note_id).insert_entries(&table, &tids, false, key);
    if kind == Kind::Successor {
        let taken = Relation::write_index(oids.note_successor).insert_entries(&table, &tids, true, key);
        taken.iter().for_each(|&n| table.take_back(tids[n]));
        return taken.is_empty();
    }
    true
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

/// Reads all notes of an attempt.
pub fn summary(catalog: &Catalog, segment: u8, id: i64) -> Summary {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.note);
    let index = Relation::read_index(oids.note_id);
    let mut summary = Summary::default();
    let mut scan = table.scan(&index, &[Key::eq_i64(1, id)], Snapshot::Now);
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
