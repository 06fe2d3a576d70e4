//! What a contact of the bridge needs besides SQL (`bridge/sql/connections.sql`).
//!
//! Responsible for the limit of time. Not responsible for what is asked of a source.
//!
//! Invariant: a command that has taken too long has failed.

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::spi;
use crate::error::{self, Error, Result};
use crate::pg::function::{Call, VOID};
use crate::pg::parameter::Parameter;
use crate::pg::time_limit::{self, Over};

sql_function!(pg_queue_bridge_within, pg_finfo_pg_queue_bridge_within => within, api::run_unpinned);

/// `queue_bridge.within(patience, command, arguments)`: runs a command that connects to a source. dblink heeds the
/// setting `connect_timeout` on 15 only, and CREATE SUBSCRIPTION on no major.
///
/// Errors: 08001 after `patience`, with dblink's message; those of the command.
fn within(call: &Call) -> Result<Option<Datum>> {
    let command = call.need(args::bridge_within::COMMAND)?;
    let arguments: Vec<Parameter> =
        call.get(args::bridge_within::ARGUMENTS).unwrap_or_default().into_iter().map(Parameter::from).collect();
    let run = || spi::run_as_user(&command, &arguments);
    let Some(patience) = call.get(args::bridge_within::PATIENCE) else { return run().map(|()| Some(VOID)) };
    match time_limit::within(patience.us(), run) {
        Ok(result) => result.map(|()| Some(VOID)),
        Err(Over) => Err(Error::new(error::NO_CONNECTION, "could not establish connection")
            .detail(format!("There was no answer within {}.", patience.text()))),
    }
}
