//! Hands out counts for ids: from a block in shared memory, so that ids ascend in the order of the calls;
//! the blocks come from a sequence.
//!
//! Invariant: no count is handed out twice, whatever crashes. A block is used only after the sequence's
//! WAL record is flushed; a promoted standby, which may lack the last records, jumps ahead first.

use pgrx::pg_sys;

use crate::error::{self, Error, Result};
use crate::instance::Catalog;
use crate::log::table::{Entry, Key, Relation, Snapshot};
use crate::{guc, shmem, sys};
use pg_queue_core::id;

/// The sequence's increment: counts per block, one flush per block.
const BLOCK: i64 = 8192;
/// Further behind than any session could be that was overtaken by others.
const FAR: i64 = 65_536 * BLOCK;
/// Blocks skipped after a promotion: 2^28 counts, half an hour of lag at 150,000 jobs a second.
const JUMP: i64 = (1 << 28) / BLOCK;

/// Calls `each` with `count` fresh counts, ascending.
///
/// Errors: 54000 when the counts of this node are used up, 42704 when the extension was dropped since the session
/// last heard of it.
pub fn take(catalog: &Catalog, count: usize, mut each: impl FnMut(i64)) -> Result<()> {
    let mut wanted = count as i64;
    while wanted > 0 {
        let range = shmem::with_instance(catalog.number, |_, instance| {
            let n = wanted.min(instance.id_limit - instance.id_next);
            let from = instance.id_next;
            instance.id_next += n;
            (from, n, instance.id_limit == 0)
        });
        let Some((from, n, first)) = range else {
            return Err(Error::new(error::UNDEFINED, "extension \"pg_queue\" was dropped"));
        };
        (from..from + n).for_each(&mut each);
        wanted -= n;
        if wanted > 0 {
            if first {
                follow_timeline(catalog);
            }
            next_block(catalog)?;
        }
    }
    Ok(())
}

/// The last count of the block that begins with this value of the sequence.
pub fn last_of_block(first: i64) -> i64 {
    // 0: the sequence has not been used.
    if first == 0 { 0 } else { first + BLOCK - 1 }
}

/// The node's bits of every id made here.
pub fn node() -> i64 {
    i64::from(guc::NODE_ID.get())
}

fn nextval(sequence: pg_sys::Oid) -> i64 {
    // SAFETY: raises when the sequence is gone or used up; permission is the verb's business. pgrx's
    // guard turns the error into an unwinding.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| sys::raw::nextval_internal(sequence, false)) }
}

fn next_block(catalog: &Catalog) -> Result<()> {
    let from = nextval(catalog.id_seq);
    if from + BLOCK > id::MAX_COUNT {
        return Err(Error::new(error::TOO_LARGE, "no job ids are left on this node")
            .hint("Give the server another pg_queue.node_id and restart the sequence queue.id_seq."));
    }
    sys::flush_log();
    shmem::with_instance(catalog.number, |_, instance| {
        // Of two sessions that came here together the later block wins; the other's is never used. A block far
        // behind means that the sequence was set back on purpose, for another node number.
        if from >= instance.id_limit || from + FAR < instance.id_limit {
            instance.id_next = from;
            instance.id_limit = from + BLOCK;
        }
    });
    Ok(())
}

/// After a promotion the sequence may be behind what the old primary handed out: on a timeline that is
/// not yet on record, jump first. The record is a row, written by whoever comes first; should he roll
/// back, the next start jumps once more, which costs numbers and nothing else.
fn follow_timeline(catalog: &Catalog) {
    // SAFETY: reads shared memory; not in recovery, verbs that write refuse that before.
    #[cfg(not(feature = "pg14"))]
    let timeline = unsafe { pg_sys::GetWALInsertionTimeLine() } as i32;
    // SAFETY: a plain global.
    #[cfg(feature = "pg14")]
    let timeline = unsafe { pg_sys::ThisTimeLineID } as i32;
    let table = Relation::write(catalog.timeline);
    let index = Relation::write_index(catalog.timeline_idx);
    let system = sys::system_identifier();
    let mut scan = table.scan(&index, &[Key::eq_i32(1, timeline)], Snapshot::Now);
    while scan.next().is_some() {
        if scan.row().i64(1) == system {
            return;
        }
    }
    drop(scan);
    for _ in 0..JUMP {
        nextval(catalog.id_seq);
    }
    let row = [Some(timeline.into()), Some(system.into()), Some(sys::now_us().into())];
    table.insert_row(row, &mut [Entry { index: &index, is_unique: false, key: &mut [timeline.into()] }]);
}
