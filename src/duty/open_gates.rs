//! Opens the gates of rate-limited queues in time: wakes a session that waits there, which wakes the next one.
//!
//! Not responsible for when a gate opens (the frontier in `core` decides that), nor for other limits (`job::limits`).

use crate::duty::{Duty, Memory, Work};
use crate::error::Result;
use crate::pg::time;
use crate::shmem;

/// The duty.
pub const DUTY: Duty = Duty { name: "open_gates", is_due: None, next_at, work: Work::Own(run) };

fn next_at(memory: &Memory<'_, '_>) -> i64 {
    memory.frontier.next_opening().unwrap_or(i64::MAX)
}

/// Opens the gates of all databases. So the first worker that looks does it for all workers.
fn run() -> Result<i64> {
    let now = time::monotonic_us();
    let mut woken = 0;
    while let Some(session) = shmem::with(|shared| shared.frontier.open_gates(now)) {
        shmem::wake(session);
        woken += 1;
    }
    Ok(woken)
}
