//! The table `queue_internal.successor`: ended attempts whose job was retried by hand (`queue.retry`), each with the
//! next attempt.
//!
//! Responsible for the rows. Not responsible for the retry (`job::retry`).
//!
//! Invariant: the key ensures that two callers make one attempt. The table is not part of the segments, because an
//! ended attempt may be in history.

use crate::catalog::{self, spi};
use crate::error::Result;
use crate::log::segment;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::{Entry, Relation};
use crate::pg::time;

/// Columns: id, next_id, retried_at.
const COLUMNS: usize = 3;

/// Inserts the row with the next attempt. If there is a row, or another session is inserting one, inserts nothing and
/// returns false.
pub fn insert(id: i64, next_id: i64) -> bool {
    let catalog = catalog::pinned();
    let table = Relation::write(catalog.successor);
    let pkey = Relation::write_index(catalog.successor_pkey);
    let row: [_; COLUMNS] = [Some(id.into()), Some(next_id.into()), Some(time::now_us().into())];
    table.insert_row(row, &mut [Entry { index: &pkey, is_unique: true, key: &mut [id.into()] }]).is_some()
}

/// Returns all attempts that were retried.
pub fn all() -> Vec<i64> {
    let catalog = catalog::pinned();
    let table = Relation::read(catalog.successor);
    let pkey = Relation::read_index(catalog.successor_pkey);
    let mut scan = table.scan(&pkey, &[], Snapshot::Now);
    std::iter::from_fn(|| scan.next().map(|_| scan.columns(1).0[0].value() as i64)).collect()
}

/// Looks up whether ended attempts were retried. It keeps the table open for many lookups.
pub struct Reader {
    table: Relation,
    pkey: Relation,
    snapshot: Snapshot,
}

impl Reader {
    /// Opens the table.
    pub fn open(snapshot: Snapshot) -> Self {
        let catalog = catalog::pinned();
        Self { table: Relation::read(catalog.successor), pkey: Relation::read_index(catalog.successor_pkey), snapshot }
    }

    /// Returns whether this attempt was retried.
    pub fn has(&self, id: i64) -> bool {
        self.table.blocks() > 0 && self.table.scan(&self.pkey, &[Key::eq_i64(1, id)], self.snapshot).next().is_some()
    }
}

/// Deletes the rows of a segment's attempts that history does not have, before the segment is emptied. No session adds
/// such a row meanwhile, because that takes a lock on the outcomes.
pub fn forget(segment: u8) -> Result<()> {
    if Relation::read(catalog::pinned().successor).blocks() == 0 || !segment::plannable().contains(&segment) {
        return Ok(());
    }
    spi::run(
        &format!(
            "DELETE FROM queue_internal.successor AS s USING queue_internal.attempt_{segment} AS a,
                queue_internal.outcome_{segment} AS o
             WHERE a.id OPERATOR(pg_catalog.=) s.id AND o.id OPERATOR(pg_catalog.=) s.id
               -- Not one that went elsewhere before it ended.
               AND o.outcome OPERATOR(pg_catalog.<>) 'm' AND NOT EXISTS (
                 SELECT FROM queue_internal.history AS h WHERE h.job_id OPERATOR(pg_catalog.=) a.job_id
                 AND h.id OPERATOR(pg_catalog.=) a.id)"
        ),
        &[],
    )?;
    Ok(())
}
