//! Opens the gates of rate-limited queues when their time has come: wakes a session that waits there, which wakes the
//! next.
//!
//! Not here: when a gate opens (the frontier in `core` decides that), and what else a gate limits (`job::limits`).

use crate::duty::{Duty, Memory};
use crate::pg::time;
use crate::shmem;

/// The duty.
pub const DUTY: Duty = Duty { name: "open_gates", is_due: None, next_at, run };

fn next_at(memory: &Memory<'_, '_>) -> i64 {
    memory.frontier.next_opening().unwrap_or(i64::MAX)
}

/// Opens the gates of all databases: the first worker to look does it for all workers.
fn run(_number: u32) -> i64 {
    let now = time::monotonic_us();
    let mut woken = 0;
    while let Some(session) = shmem::with(|shared| shared.frontier.open_gates(now)) {
        shmem::wake(session);
        woken += 1;
    }
    woken
}
