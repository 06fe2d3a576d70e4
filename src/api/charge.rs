//! `queue.charge`: a worker says how much of its queue's rates an attempt has used.
//!
//! Not responsible for what that does (`job::cost`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::error::{Error, Result};
use crate::job::cost;
use crate::pg::function::{Call, VOID};

sql_function!(pg_queue_charge, pg_finfo_pg_queue_charge => charge);

/// `queue.charge(id, used)`.
fn charge(call: &Call) -> Result<Option<Datum>> {
    api::writable("charge")?;
    let id = call.need(args::charge::ID)?;
    let used = call.need(args::charge::USED)?;
    let used =
        u32::try_from(used).map_err(|_| Error::invalid("used cannot be negative").detail(format!("It is {used}.")))?;
    cost::charge(id, used)?;
    Ok(Some(VOID))
}
