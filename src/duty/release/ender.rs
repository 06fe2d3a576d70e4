//! Releases a job's successors in the transaction that completes the job. So the next job of a chain waits neither for
//! the background worker nor for another commit.
//!
//! Responsible for plain releases: of few attempts whose predecessors have all completed. Not responsible for flows,
//! skips, successors of dead jobs, and attempts that an open transaction blocks. The duty serves these.
//!
//! Invariant: a job is served if this transaction or another one has released all successors that commits had announced
//! to memory before the look. The commit hands over any other job to the duty.

use crate::catalog::pin;
use crate::duty::care::Care;
use crate::duty::release::look::Look;
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
    let Some(_call) = pin::begin_duty(number).filter(|_| awake::is_awake()) else { return Ok(Served::new()) };
    // The commit sees successors that are announced after this moment. Successors announced earlier are visible to the
    // snapshot.
    let Some(adds) = shmem::with_awaited(|awaited, _| awaited.adds()) else { return Ok(Served::new()) };
    let _snapshot = ActiveSnapshot::latest();
    fault!("ender.counted");
    let mut look = Look::by_commit(jobs);
    let mut served = Served::new();
    for &job_id in jobs {
        // The duty will meet the same error and report it. It does not concern this transaction.
        let Ok(left) = look.walk_after(job_id, None) else { break };
        if left.is_none() {
            served.push((job_id, adds));
        }
    }
    fault!("ender.looked");
    look.changes.write(&Care::none())?;
    fault!("ender.written");
    served.retain(|(job_id, _)| !look.changes.again.contains(job_id));
    Ok(served)
}
