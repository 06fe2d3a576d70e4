//! Checks whether a restore is over, and then adopts the contents of the tables. While a restore lasts, no other duty
//! is due (`Duty::is_due`).
//!
//! Not responsible for noticing and ending a restore (`restore`, `shmem::restore`).

use crate::catalog;
use crate::duty::{Duty, RESTORE};
use crate::restore;

/// The duty.
pub const DUTY: Duty = Duty {
    name: RESTORE,
    is_due: Some(restore::should_look),
    next_at: |memory| memory.instance.restore.look_at(),
    run,
};

fn run(number: u32) -> i64 {
    let Some(catalog) = catalog::of_duty(number) else { return 0 };
    crate::transaction::register();
    match restore::end_if_over(&catalog) {
        Ok(is_over) => i64::from(is_over),
        Err(error) => error.report(),
    }
}
