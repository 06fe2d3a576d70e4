//! The facts that are recorded of unique keys beyond the end of their jobs: the newest accepted version, and until when
//! the key is taken. Producers that use `version` or `unique_for` append them. Other producers pay nothing.
//!
//! There are two tables in turn. Rows are only added to the open half. The newest row of a key counts, in whichever
//! half it lies. When the open half has grown, the other half is opened, the rows that still count are copied there,
//! and the old half is emptied (`duty::rotate_keys`). No row is updated or deleted.

use pgrx::pg_sys::Datum;

use crate::catalog;
use crate::catalog::tables::key as column;
use crate::pg::row::{NewRows, Row};
use crate::pg::scan::{Key, Scan, Snapshot};
use crate::pg::table::Relation;
use crate::shmem::words;

/// The recorded facts of a key.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Ascends with each call under the key.
    pub entry: i64,
    pub job_id: i64,
    pub expires_at: i64,
    pub taken_until: Option<i64>,
    pub version: Option<i64>,
}

/// A row to insert.
#[derive(Clone, Copy)]
pub struct New {
    pub queue_id: i32,
    pub key: Datum,
    pub known: Known,
}

impl New {
    fn of(row: column::Row) -> Self {
        let column::Row { entry, job_id, expires_at, queue_id, unique_key, taken_until, version } = row;
        Self { queue_id, key: unique_key, known: Known { entry, job_id, expires_at, taken_until, version } }
    }

    fn row(&self) -> column::Row {
        let Self { queue_id, key, known: Known { entry, job_id, expires_at, taken_until, version } } = *self;
        column::Row { entry, job_id, expires_at, queue_id, unique_key: key, taken_until, version }
    }
}

/// Returns the open half.
pub fn open_half() -> usize {
    (words::key_half() & 1) as usize
}

/// Inserts rows into the open half.
pub fn insert(rows: &[New]) {
    if rows.is_empty() {
        return;
    }
    let catalog = catalog::pinned();
    let (half, table) = loop {
        let half = open_half();
        let table = Relation::write(catalog.halves[half].key);
        // The check is made under the lock. While this session holds it, no rows are copied from that half.
        if open_half() == half {
            break (half, table);
        }
        table.unlock();
    };
    insert_into(half, &table, rows);
}

/// Inserts rows into this half. The caller keeps it open.
pub fn copy(half: usize, rows: &[New]) {
    let catalog = catalog::pinned();
    if !rows.is_empty() {
        insert_into(half, &Relation::write(catalog.halves[half].key), rows);
    }
}

fn insert_into(half: usize, table: &Relation, rows: &[New]) {
    let mut new = NewRows::new(column::COUNT, rows.len());
    for row in rows {
        new.add(row.row().values());
    }
    let tids = table.insert(&mut new);
    let key = |n: usize| Some([rows[n].key, rows[n].queue_id.into(), rows[n].known.entry.into()]);
    let catalog = catalog::pinned();
    Relation::write_index(catalog.halves[half].key_index).insert_entries(table, &tids, false, key);
}

/// Both halves, open to read.
pub struct Keys([Option<(Relation, Relation)>; 2]);

impl Keys {
    /// Opens those that are not empty.
    pub fn open() -> Self {
        let catalog = catalog::pinned();
        // Both are locked before either is read, so that neither is emptied after the other was found empty.
        let tables = catalog.halves.map(|half| Relation::read(half.key));
        let mut halves = catalog.halves.iter();
        Self(tables.map(|table| {
            let half = halves.next().filter(|_| table.blocks() > 0)?;
            Some((table, Relation::read_index(half.key_index)))
        }))
    }

    /// Returns the newest facts of a key. They may have expired.
    pub fn newest(&self, queue_id: i32, key: Datum) -> Option<Known> {
        let halves = self.0.iter().flatten();
        halves.filter_map(|half| newest_in(half, queue_id, key)).max_by_key(|known| known.entry)
    }

    /// Returns the newest row of a key in one half.
    pub fn newest_in(&self, half: usize, queue_id: i32, key: Datum) -> Option<Known> {
        newest_in(self.0[half].as_ref()?, queue_id, key)
    }

    /// Walks over one half, row by row in the order of the keys, beginning with this key.
    pub fn walk(&self, half: usize, from: Option<Datum>) -> Option<Walk<'_>> {
        let (table, index) = self.0[half].as_ref()?;
        let keys: Vec<Key> = from.into_iter().map(|from| Key::ge_text(1, from)).collect();
        Some(Walk(table.scan(index, &keys, Snapshot::Now)))
    }
}

fn newest_in((table, index): &(Relation, Relation), queue_id: i32, key: Datum) -> Option<Known> {
    let mut scan = table.scan(index, &[Key::eq_text(1, key), Key::eq_i32(2, queue_id)], Snapshot::Now);
    scan.previous()?;
    Some(New::of(column::Row::read(&scan.row())).known)
}

/// See `Keys::walk`.
pub struct Walk<'a>(Scan<'a>);

/// A row of the walk.
pub struct Met {
    _row: Row,
    /// What it says. The key is valid as long as this value.
    pub new: New,
}

impl Iterator for Walk<'_> {
    type Item = Met;

    fn next(&mut self) -> Option<Met> {
        self.0.next()?;
        let row = self.0.row();
        Some(Met { new: New::of(column::Row::read(&row)), _row: row })
    }
}
