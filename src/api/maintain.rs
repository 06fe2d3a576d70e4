//! `queue.maintain`: one tick of the background worker, in the foreground. Also `queue_internal.kick`, which wakes the
//! launcher.
//!
//! Not responsible for the duties (`duty`), nor for the worker's own loop (`worker::database`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::permission::{self, Privilege};
use crate::duty::all;
use crate::error::Result;
use crate::pg::datum::text_datum;
use crate::pg::function::{Call, VOID};
use crate::pg::time;
use crate::worker;
use crate::{restore, shmem};

sql_function!(pg_queue_maintain, pg_finfo_pg_queue_maintain => maintain);

/// `queue.maintain()`: runs each duty until it has nothing to do. Returns a row for each: its name and how much it did.
fn maintain(call: &Call) -> Result<Option<Datum>> {
    api::on_primary("maintain")?;
    let rows = call.rows()?;
    permission::check_everywhere(Privilege::Manage)?;
    restore::learn();
    shmem::with_instance(|_, instance| instance.worker.maintained_at = time::monotonic_us());
    for duty in all::ALL {
        let mut did = 0;
        while duty.is_due() {
            match duty.run() {
                0 => break,
                some => did += some,
            }
        }
        rows.add(&mut [text_datum(duty.name), did.into()], &mut [false, false])?;
    }
    Ok(None)
}

sql_function!(pg_queue_kick, pg_finfo_pg_queue_kick => kick, api::run_unpinned);

/// `queue_internal.kick()`: lets the launcher check this database once the transaction has committed. Warns if it will
/// most likely start no worker.
fn kick(_call: &Call) -> Result<Option<Datum>> {
    worker::kick_on_commit();
    worker::absence::warn_at_creation()?;
    Ok(Some(VOID))
}
