//! `queue.enqueue_sql`: checks a command, as far as possible without running it, and enqueues it.
//!
//! Not responsible for what makes a payload a command (`api::command`), for inserting (`job::enqueue`), nor for running
//! it (`executor::job`).

use pgrx::pg_sys::Datum;

use crate::api::command::Command;
use crate::api::{enqueue, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::run_as;
use crate::error::Result;
use crate::job::enqueue::{By, produce};
use crate::job::given::{Given, Positions};
use crate::job::options::Options;
use crate::pg::function::Call;
use crate::pg::time;
use crate::worker::absence;

sql_function!(pg_queue_enqueue_sql, pg_finfo_pg_queue_enqueue_sql => enqueue_sql);

/// `queue.enqueue_sql(queue_name, command, arguments, autocommit, settings, result_rows, …)`: returns the job's id.
///
/// Errors: 42601 if the command is not SQL, 55000 if the queue does not run commands, 22023 if another argument is
/// invalid.
fn enqueue_sql(call: &Call) -> Result<Option<Datum>> {
    let queue = enqueue::target(call)?;
    let run_as = run_as::of_command(&queue)?;
    let command = Command {
        text: call.need(args::enqueue_sql::COMMAND)?,
        arguments: call.json(args::enqueue_sql::ARGUMENTS)?,
        is_autocommit: call.get(args::enqueue_sql::AUTOCOMMIT).unwrap_or(false),
        settings: call.json(args::enqueue_sql::SETTINGS)?,
        result_rows: call.get(args::enqueue_sql::RESULT_ROWS).unwrap_or(0),
    };
    let payload = command.payload()?;
    let now = time::now_us();
    let given = Given::of_call(call, &const { Positions::of(args::enqueue_sql::NAMES) })?;
    let options = Options { run_as, ..given.check(Some(&queue), now)? };
    absence::warn();
    let made = produce(&queue, &[(payload, options)], now, By::Producer)?;
    Ok(made.ids.first().map(|&job_id| job_id.into()))
}
