//! `queue.check()`: compares all tables and shared memory with each other. A fault is reported if a second look still
//! sees it. Faults that can be mended safely are mended on request.
//!
//! Responsible for the order of the looks, and for mending. Not responsible for the looks themselves (`rows`,
//! `memory`), for the checks of the doctor, which cost milliseconds (`doctor`), nor for showing the faults
//! (`api::check`).
//!
//! Invariant: a comparison locks no session out and keeps no lock. Mending never removes a row by which a job lives.
//! Where the right state is not certain, it does nothing.

pub use fault::Fault;

use crate::catalog::{self, queue, spi};
use crate::error::Result;
use crate::log::reader::Reader;
use crate::log::segment::Home;
use crate::log::{claim, outcome};
use crate::pg::{self, lock, process, session, transaction};
use crate::restore;
use crate::shmem::here;

mod fault;
mod memory;
mod rows;

/// Returns the faults. If the transaction has written, its own rows count, and shared memory is skipped: memory does
/// not know these rows yet.
pub fn look() -> Result<Vec<Fault>> {
    const SECOND_LOOK_AFTER_MS: i64 = 200;
    let mut found = rows::look()?;
    if !session::in_recovery() {
        found.extend(sequences()?);
    }
    if !found.is_empty() {
        process::sleep(SECOND_LOOK_AFTER_MS);
        let again = rows::look()?;
        let sequences = if session::in_recovery() { Vec::new() } else { sequences()? };
        found.retain(|fault| again.contains(fault) || sequences.contains(fault));
    }
    if !session::in_recovery() && !transaction::has_xid() {
        found.extend(memory::look()?);
    }
    Ok(found)
}

/// Finds sequences that would return numbers that are in use.
fn sequences() -> Result<Vec<Fault>> {
    let behind = transaction::look(restore::behind)?;
    Ok(behind.iter().map(|problem| Fault::new("sequence", problem)).collect())
}

/// Mends the faults that can be mended. The commit makes it effective. Returns for each fault whether it is mended.
///
/// Errors: as `restore::end_now`.
pub fn mend(faults: &[Fault]) -> Result<Vec<bool>> {
    let mut mended = pg::memory::list(faults.len());
    for fault in faults {
        mended.push(fault.remedy().is_some() && mend_row(fault)?);
    }
    // Memory may or may not have known the mended rows.
    if mended.contains(&true) {
        restore::end_now()?;
    }
    Ok(mended)
}

/// Mends the row of a fault. Also returns true for faults that need no row changed: `restore::end_now` mends them.
fn mend_row(fault: &Fault) -> Result<bool> {
    let (Some(id), segment) = (fault.attempt_id, fault.segment) else { return Ok(true) };
    if fault.name == "orphan_successor" {
        let sql = "DELETE FROM queue_internal.successor WHERE id = $1";
        return Ok(spi::run(sql, &[id.into()])? > 0);
    }
    let Some(n) = segment else { return Ok(true) };
    // The lock keeps the segment's tables from being emptied.
    lock::lock(catalog::segment(n).attempt, pgrx::pg_sys::RowExclusiveLock);
    if !rows::may_write(n) {
        return Ok(false);
    }
    let delete = |log: &str, condition: &str| -> Result<bool> {
        let sql = format!("DELETE FROM queue_internal.{log}_{n} AS r WHERE r.id = $1 AND {condition}");
        Ok(spi::run(&sql, &[id.into()])? > 0)
    };
    let is_orphan = format!("NOT EXISTS (SELECT FROM queue_internal.attempt_{n} AS a WHERE a.id = r.id)");
    match fault.name.as_str() {
        "orphan_claim" => delete("claim", &is_orphan),
        "orphan_outcome" => delete("outcome", &is_orphan),
        "orphan_note" => delete("note", &is_orphan),
        "lost_move" => Ok(delete("claim", "r.kind = 'm'")? | delete("outcome", "r.outcome = 'm'")?),
        "two_places" => mark_one(id),
        _ => Ok(true),
    }
}

/// Marks an attempt that waits in several segments as moved in all but one. It stays in old, where moved attempts go.
fn mark_one(id: i64) -> Result<bool> {
    let mut places = Vec::new();
    for n in (0..pg_queue_core::id::SEGMENTS as u8).filter(|&n| rows::may_write(n)) {
        let lives = Reader::new().has_row(n, id) && outcome::find(n, id).is_none();
        match claim::find(n, id) {
            None if lives => places.push(n),
            Some(claim) if lives && claim.kind != claim::Kind::Moved => return Ok(false),
            _ => {}
        }
    }
    // Exactly one row stays.
    let Some((_, others)) = places.split_last().filter(|(last, others)| rows::is_old(**last) && !others.is_empty())
    else {
        return Ok(false);
    };
    for &n in others {
        let home = Home::now(n);
        let marked = claim::Writer::open_home(home).and_then(|claims| claims.mark_moved(id));
        if marked.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns faults that can be found without reading all rows, in sentences: of the sequences and of the counts in
/// memory. For the doctor.
pub fn cheap() -> Result<Vec<String>> {
    let mut troubles = restore::behind()?;
    let mut negative = pg::memory::list(crate::shmem::counters());
    crate::shmem::with_counters(|counters| {
        let wrong = counters.of(here::number()).filter(|(_, c)| c.counts.waiting < 0 || c.counts.running < 0);
        negative.extend(wrong.map(|(lane, _)| lane));
    });
    for lane in negative {
        if let Some(queue) = queue::by_lane(lane)? {
            troubles.push(format!("Queue \"{}\" has a negative count of jobs in memory.", queue.name));
        }
    }
    Ok(troubles)
}
