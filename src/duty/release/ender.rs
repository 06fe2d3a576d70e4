//! Releases in the transaction that completes a job what is after it, so that the next job of a chain waits neither for
//! the background worker nor for another commit.
//!
//! Responsible for plain releases, a few: of attempts that are after jobs which have all completed. Flows, skips and
//! what is after a death are left to the duty, and so is whatever an open transaction is in the way of.
//!
//! Invariant: a job is served if all that is after it, as far as commits had told memory before the look, is released
//! by this transaction or was by another. Any other is handed over to the duty by the commit.

use crate::catalog;
use crate::duty::release::batch::Batch;
use crate::error::Result;
use crate::pg::fault::fault;
use crate::pg::snapshot::ActiveSnapshot;
use crate::shmem::{self, awake};
use crate::transaction::awaited_ends::Served;

/// Releases what is after these jobs of an instance, which the open transaction completes, and returns which of them
/// are served. Called before the commit.
pub fn release(number: u32, jobs: &[i64]) -> Result<Served> {
    let Some(catalog) = catalog::of_duty(number).filter(|_| awake::is_awake(number)) else { return Ok(Served::new()) };
    // What is told from here on is told anew to the commit; what was told before can be seen.
    let Some(adds) = shmem::with_awaited(number, |awaited, _| awaited.adds()) else { return Ok(Served::new()) };
    let _snapshot = ActiveSnapshot::latest();
    fault!("ender.counted");
    let mut batch = Batch::of_ender(&catalog, jobs);
    let mut served = Served::new();
    for &job_id in jobs {
        // The duty meets the same error, and reports it: it is none of this transaction's.
        let Ok(left) = batch.walk_after(job_id, None) else { break };
        if left.is_none() {
            served.push((job_id, adds));
        }
    }
    fault!("ender.looked");
    batch.write()?;
    fault!("ender.written");
    served.retain(|(job_id, _)| !batch.again.contains(job_id));
    Ok(served)
}
