//! `queue.check`: rows and memory against each other.
//!
//! Not responsible for the comparisons and repairs (`doctor::audit`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::doctor::audit;
use crate::error::{self, Error, Result};
use crate::pg::datum::text_datum;
use crate::pg::function::Call;
use crate::pg::{session, transaction};
use crate::restore;

sql_function!(pg_queue_check, pg_finfo_pg_queue_check => check);

/// `queue.check(repair)`: returns a row for each fault. NULL is false, as everywhere.
///
/// Errors: 25001 for `repair` at REPEATABLE READ or above, 25006 for `repair` on a standby and in a read-only
/// transaction, 42501 if the current user does not manage every queue, 55000 during a restore, 55006 for `repair` while
/// another transaction writes to the tables by SQL.
fn check(call: &Call) -> Result<Option<Datum>> {
    let repair = call.get(args::check::REPAIR).unwrap_or(false);
    let rows = call.rows()?;
    permission::check_everywhere(Privilege::Manage)?;
    if repair {
        api::on_primary("check(repair => true)")?;
        if transaction::uses_one_snapshot() {
            return Err(Error::new(error::IN_TRANSACTION, "queue.check cannot repair at REPEATABLE READ or above")
                .hint("It would not see what was written since the transaction began."));
        }
    }
    if !session::in_recovery() {
        restore::refuse()?;
    }
    let settings = [(c"search_path", c"pg_catalog, pg_temp"), (c"jit", c"off")];
    session::with_settings(&settings, || {
        let faults = audit::look()?;
        let mended = if repair { audit::mend(&faults)? } else { vec![false; faults.len()] };
        for (fault, is_repaired) in faults.iter().zip(mended) {
            rows.add_options(&[
                Some(text_datum(&fault.name)),
                fault.queue.as_deref().map(text_datum),
                fault.job_id.map(Datum::from),
                fault.attempt_id.map(Datum::from),
                Some(text_datum(&fault.problem)),
                fault.remedy().map(text_datum),
                Some(is_repaired.into()),
            ])?;
        }
        Ok(None)
    })
}
