//! Releases a job's successors in the transaction that completes the job, so that the next job of a chain waits neither
//! for the background worker nor for another commit.
//!
//! Responsible for a few plain releases: of attempts whose predecessors have all completed. Not responsible for flows,
//! skips, successors of dead jobs, and attempts that an open transaction is in the way of: these are left to the duty.
//!
//! Invariant: a job is served if this transaction or another one has released all its successors that commits had told
//! memory of before the look. The commit hands over any other job to the duty.

use crate::catalog;
use crate::duty::release::batch::Batch;
use crate::error::Result;
use crate::pg::fault::fault;
use crate::pg::snapshot::ActiveSnapshot;
use crate::shmem::{self, awake};
use crate::transaction::awaited_ends::Served;
use crate::transaction::{self, awaited_ends};

/// Releases successors of the jobs that the open transaction completes. Called before each commit.
pub fn before_commit() -> Result<()> {
    if let Some((number, ends)) = awaited_ends::take() {
        let completed = ends.iter().filter(|(id, _)| transaction::completes(*id));
        let jobs: Vec<i64> = completed.map(|(_, job_id)| *job_id).collect();
        if !jobs.is_empty() {
            awaited_ends::set_served(release(number, &jobs)?);
        }
    }
    Ok(())
}

/// Releases the successors of these jobs of an instance. Returns which of the jobs are served.
fn release(number: u32, jobs: &[i64]) -> Result<Served> {
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
