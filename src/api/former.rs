//! Functions that only the SQL of former releases has. It exists between the restart with a new library and ALTER
//! EXTENSION UPDATE.
//!
//! Not responsible for functions of that SQL that still work: their own files serve them.
//!
//! Invariant: none of them reads an argument.

use pgrx::pg_sys::Datum;

use crate::api::sql_function;
use crate::error::{self, Error, Result};
use crate::pg::function::Call;

sql_function!(pg_queue_cancel_many, pg_finfo_pg_queue_cancel_many => gone);
sql_function!(pg_queue_retry_many, pg_finfo_pg_queue_retry_many => gone);
sql_function!(pg_queue_reprioritize_many, pg_finfo_pg_queue_reprioritize_many => gone);
sql_function!(pg_queue_retry_dead, pg_finfo_pg_queue_retry_dead => gone);

fn gone(_call: &Call) -> Result<Option<Datum>> {
    Err(Error::new(error::WRONG_STATE, "the SQL of pg_queue in this database is older than the server's library")
        .detail("This function has another form now.")
        .hint("Run ALTER EXTENSION pg_queue UPDATE."))
}
