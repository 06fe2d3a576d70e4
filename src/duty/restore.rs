//! After a restore: looks whether it is over, and if so adopts what is in the tables. While it lasts no other
//! duty is done. See `dormant`.

use crate::duty::Duty;
use crate::{dormant, instance};

/// The duty.
pub const DUTY: Duty = Duty { name: "restore", is_due: dormant::should_look, run };

fn run(number: u32) -> i64 {
    let Some(catalog) = instance::of_duty(number) else { return 0 };
    crate::transaction::register();
    match dormant::end_if_over(&catalog) {
        Ok(is_over) => i64::from(is_over),
        Err(error) => error.report(),
    }
}
