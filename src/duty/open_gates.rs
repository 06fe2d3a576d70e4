//! Opens the gates of rate-limited queues when their time has come: wakes somebody who waits there, and he the next.

use crate::duty::Duty;
use crate::{shmem, sys};

/// The duty.
pub const DUTY: Duty = Duty { name: "open_gates", is_due, run };

fn is_due(_number: u32) -> bool {
    let now = sys::monotonic_us();
    shmem::with(|shared| shared.frontier.next_opening()).is_some_and(|at| at <= now)
}

/// Those of all databases: whoever comes first.
fn run(_number: u32) -> i64 {
    let now = sys::monotonic_us();
    let mut woken = 0;
    while let Some(session) = shmem::with(|shared| shared.frontier.open_gates(now)) {
        shmem::wake(session);
        woken += 1;
    }
    woken
}
