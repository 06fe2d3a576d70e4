//! `queue.maintain`: one tick of the background worker, in the foreground.

use pgrx::pg_sys::Datum;

use crate::call::{Call, VOID, sql_function, text_datum};
use crate::error::Result;
use crate::permission::{self, Privilege};
use crate::{api, dormant, duty, instance};

sql_function!(pg_queue_maintain, pg_finfo_pg_queue_maintain => maintain);

/// `queue.maintain()`: each duty and how much it did.
fn maintain(call: &Call) -> Result<Option<Datum>> {
    api::on_primary("maintain")?;
    let rows = call.rows()?;
    let catalog = instance::current()?;
    permission::check_everywhere(&catalog, Privilege::Manage)?;
    dormant::learn(&catalog);
    for duty in duty::ALL {
        let mut did = 0;
        while duty.is_due(catalog.number) {
            match (duty.run)(catalog.number) {
                0 => break,
                some => did += some,
            }
        }
        rows.add(&mut [text_datum(duty.name), did.into()], &mut [false, false])?;
    }
    Ok(None)
}

sql_function!(pg_queue_kick, pg_finfo_pg_queue_kick => kick);

/// `queue.kick()`: the launcher looks at this database once the transaction has committed.
fn kick(_call: &Call) -> Result<Option<Datum>> {
    crate::worker::kick_on_commit();
    Ok(Some(VOID))
}
