//! `queue.adopt`: the end of a restore, by hand.

use pgrx::pg_sys::Datum;

use crate::call::{Call, VOID, sql_function};
use crate::error::{self, Error, Result};
use crate::permission::{self, Privilege};
use crate::{api, dormant, instance, sys};

sql_function!(pg_queue_adopt, pg_finfo_pg_queue_adopt => adopt);

/// `queue.adopt()`: what is in the tables counts from the commit on.
fn adopt(_call: &Call) -> Result<Option<Datum>> {
    api::on_primary("adopt")?;
    if sys::uses_one_snapshot() {
        return Err(Error::new(error::IN_TRANSACTION, "queue.adopt cannot run at REPEATABLE READ or above")
            .hint("It would not see what was restored since the transaction began."));
    }
    let catalog = instance::current()?;
    permission::check_everywhere(&catalog, Privilege::Manage)?;
    dormant::end_now(&catalog)?;
    Ok(Some(VOID))
}
