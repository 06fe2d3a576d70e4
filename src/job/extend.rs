//! Extends leases. It changes shared memory and writes nothing, unless the lease becomes longer than before. In that
//! case a note records the lease, so that a crash does not shorten it.
//!
//! Not responsible for the end of a lease (`duty::expire`).
//!
//! Invariant: an extension is not transactional. A rollback does not shorten the lease.

use pg_queue_core::frontier::State;

use crate::catalog::permission::Rights;
use crate::job::held::Refusal;
use crate::job::hold;
use crate::log::note::Note;
use crate::pg::{process, time};
use crate::shmem::{self, here};
use crate::transaction::{self, Step};

/// Extends one lease. Returns the wall time at which the lease ends now, and whether a cancellation of the job was
/// requested. `lease`: microseconds; `None`: as long as before.
pub fn extend(id: i64, lease: Option<i64>, rights: &Rights) -> std::result::Result<(i64, bool), Refusal> {
    let held = hold::check_claimed(id, rights)?;
    let mut entry = held.entry;
    let own = transaction::lease_of(id).unwrap_or(entry.lease);
    let lease = lease.unwrap_or(own);
    let known = transaction::lease_of(id).unwrap_or(entry.longest);
    let is_longer = lease > known;
    if is_longer {
        hold::write_note(id, held.home, Note::Lease(lease))?;
        transaction::record(Step::Lengthened { id, lease, deadline: i64::MIN });
    }
    if transaction::lease_of(id).is_some() {
        // This transaction has claimed the attempt: the lease starts with the commit.
        transaction::set_lease(id, lease);
        return Ok((time::now_us().saturating_add(lease), entry.cancel != 0));
    }
    loop {
        process::check_for_interrupts();
        let expires_at = time::now_us().saturating_add(lease);
        let deadline = time::monotonic_us().saturating_add(lease);
        let mut worker = None;
        let extended = shmem::with_instance(|frontier, instance| {
            worker = instance.worker.wake_by(deadline);
            frontier.running.extend(&mut instance.deadlines, here::number(), id, 0, deadline)
        });
        if let Some(latch) = worker {
            shmem::wake_latch(latch);
        }
        if let Some(entry) = extended.flatten() {
            return Ok((expires_at, entry.cancel != 0));
        }
        // A session has begun to end the attempt since it was checked. Or memory has no room for the attempt, so no
        // deadline ends it.
        let is_known = entry.state != State::Free;
        entry = hold::check_claimed(id, rights)?.entry;
        if !is_known && entry.state == State::Free {
            if is_longer {
                // A session that finds room for the attempt before the commit does not see the note.
                transaction::record(Step::Lengthened { id, lease, deadline });
            }
            return Ok((expires_at, entry.cancel != 0));
        }
    }
}
