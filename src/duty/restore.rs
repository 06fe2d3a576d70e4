//! Checks whether a restore is over, and then adopts the contents of the tables. While a restore lasts, no other duty
//! is due (`Duty::is_due`).
//!
//! Not responsible for noticing and ending a restore (`restore`, `shmem::restore`).

use crate::duty::{Duty, RESTORE, Work};
use crate::error::Result;
use crate::restore;

/// The duty.
pub const DUTY: Duty = Duty {
    name: RESTORE,
    is_due: Some(restore::should_look),
    next_at: |memory| memory.instance.restore.look_at(),
    work: Work::Own(run),
};

fn run() -> Result<i64> {
    crate::transaction::register();
    restore::end_if_over().map(i64::from)
}
