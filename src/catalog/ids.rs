//! Hands out counts for ids: from a block in shared memory, so that ids ascend in the order of the calls; the blocks
//! come from a sequence. Also checks which kind an id is of.
//!
//! Not responsible for how a count, a node and a segment make an id: see `pg_queue_core::id`.
//!
//! Invariant: no count is handed out twice, whatever crashes. A block is used only after the sequence's WAL record is
//! flushed; a promoted standby, which may lack the last records, jumps ahead first.

use pg_queue_core::id::{self, Kind};

use crate::catalog;
use crate::error::{self, Error, Result};
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::{Entry, Relation};
use crate::pg::{sequence, session, time, transaction};
use crate::{guc, shmem};

/// Checks that an id names an attempt, and returns the attempt's segment.
///
/// Errors: 22023 for anything else, with a hint when it is a job's id.
pub fn attempt_id(id: i64) -> Result<u8> {
    match id::kind(id) {
        Kind::Attempt(segment) => Ok(segment),
        Kind::Job => Err(Error::invalid(format!("{id} has the form of a job's id, not of an attempt's"))
            .hint("Use the column \"id\" that queue.claim returned, not \"job_id\".")),
        Kind::Neither => Err(Error::invalid(format!("{id} is not the id of an attempt"))
            .hint("Use the column \"id\" that queue.claim returned.")),
    }
}

/// Checks that an id names a job, and returns it.
///
/// Errors: 22023 for anything else, with a hint when it is an attempt's id.
pub fn job_id(id: i64) -> Result<i64> {
    match id::kind(id) {
        Kind::Job => Ok(id),
        Kind::Attempt(_) => Err(Error::invalid(format!("{id} has the form of an attempt's id, not of a job's"))
            .hint("Use the column \"job_id\" that queue.claim returned, or what queue.enqueue returned.")),
        Kind::Neither => Err(Error::invalid(format!("{id} is not the id of a job"))
            .hint("Use what queue.enqueue returned, or the column \"job_id\" of view queue.jobs.")),
    }
}

/// The sequence's increment: how many counts a block has. Each block costs one flush of the WAL.
const BLOCK: i64 = 8192;
/// A distance in counts. No session that was overtaken by others can be this far behind.
const FAR: i64 = 65_536 * BLOCK;
/// How many blocks are skipped after a promotion: 2^28 counts, half an hour of lag at 150,000 jobs a second.
const JUMP: i64 = (1 << 28) / BLOCK;

/// Calls `each` with `count` fresh counts, ascending.
///
/// Errors: 54000 when the counts of this node are used up, 42704 when the extension was dropped since the session last
/// heard of it. Takes the frontier's lock for a moment, once for each block.
pub fn take(count: usize, mut each: impl FnMut(i64)) -> Result<()> {
    let mut wanted = count as i64;
    while wanted > 0 {
        let range = shmem::with_instance(|_, instance| {
            let n = wanted.min(instance.ids.limit - instance.ids.next);
            let from = instance.ids.next;
            instance.ids.next += n;
            (from, n, instance.ids.limit == 0)
        });
        let Some((from, n, first)) = range else {
            return Err(Error::new(error::UNDEFINED, "extension \"pg_queue\" was dropped"));
        };
        (from..from + n).for_each(&mut each);
        wanted -= n;
        if wanted > 0 {
            if first {
                follow_timeline();
            }
            next_block()?;
        }
    }
    Ok(())
}

/// Returns the last count of the block that begins with this value of the sequence.
pub fn last_of_block(first: i64) -> i64 {
    // 0: the sequence has not been used.
    if first == 0 { 0 } else { first + BLOCK - 1 }
}

/// Returns the number of this node, which is in every id made here.
pub fn node() -> i64 {
    i64::from(guc::NODE_ID.get())
}

fn next_block() -> Result<()> {
    let from = sequence::nextval(catalog::pinned().id_seq);
    if from + BLOCK > id::MAX_COUNT {
        return Err(Error::new(error::TOO_LARGE, "no job ids are left on this node")
            .hint("Give the server another pg_queue.node_id and restart the sequence queue_internal.id_seq."));
    }
    transaction::flush_log();
    shmem::with_instance(|_, instance| {
        // If two sessions came here together, the later block wins and the other's is never used. A block far behind
        // means that the sequence was set back on purpose, for another node number.
        if from >= instance.ids.limit || from + FAR < instance.ids.limit {
            instance.ids.next = from;
            instance.ids.limit = from + BLOCK;
        }
    });
    Ok(())
}

/// Jumps ahead if this timeline is not yet on record. After a promotion the sequence may be behind the ids that the old
/// primary has handed out. The record is a row that the first session writes. If its transaction is rolled back, the
/// next start jumps once more, which costs numbers and nothing else.
fn follow_timeline() {
    let timeline = session::timeline();
    let catalog = catalog::pinned();
    let table = Relation::write(catalog.timeline);
    let index = Relation::write_index(catalog.timeline_idx);
    let system = session::system_identifier();
    let mut scan = table.scan(&index, &[Key::eq_i32(1, timeline)], Snapshot::Now);
    while scan.next().is_some() {
        if scan.row().i64(1) == system {
            return;
        }
    }
    drop(scan);
    for _ in 0..JUMP {
        sequence::nextval(catalog.id_seq);
    }
    let row = [Some(timeline.into()), Some(system.into()), Some(time::now_us().into())];
    table.insert_row(row, &mut [Entry { index: &index, is_unique: false, key: &mut [timeline.into()] }]);
}
