//! `queue.enqueue_sql`: enqueues a command, checked as far as that can be without running it.
//!
//! Not here: inserting (`job::enqueue`), and what a payload means when it runs (`executor::job`).

use pgrx::pg_sys::Datum;
use serde_json::{Map, Value};

use crate::api::{enqueue, executors, sql_function};
use crate::catalog::queue::Executor;
use crate::error::{self, Error, Result};
use crate::executor::job::MOST_ROWS;
use crate::job::enqueue::produce;
use crate::job::options::Options;
use crate::pg::function::Call;
use crate::pg::{jsonb, portal, time};

sql_function!(pg_queue_enqueue_sql, pg_finfo_pg_queue_enqueue_sql => enqueue_sql);

/// `queue.enqueue_sql(queue_name, command, arguments, autocommit, settings, result_rows, …)`: returns the job's id.
///
/// Errors: 42601 where the command is no SQL, 55000 if the queue runs no commands, 22023 where the rest makes no sense.
fn enqueue_sql(call: &Call) -> Result<Option<Datum>> {
    let (catalog, queue) = enqueue::target(call)?;
    if !matches!(queue.executor, Some(Executor::Sql)) {
        return Err(Error::new(error::WRONG_STATE, format!("queue \"{}\" runs no commands", queue.name))
            .hint("Use a queue with executor => 'sql'; others take payloads, by queue.enqueue."));
    }
    let command = call.required("command", call.text(1))?;
    let text =
        std::ffi::CString::new(command.as_str()).map_err(|_| Error::internal("a text holds a zero character"))?;
    let statements = portal::parse(&text)?;
    let mut payload = Map::new();
    payload.insert("command".into(), command.into());
    if let Some(arguments) = call.datum(2) {
        let arguments: Value = serde_json::from_str(&jsonb::text(arguments)).unwrap_or(Value::Null);
        if !arguments.is_array() {
            return Err(Error::invalid("arguments must be a JSON array")
                .hint("Its elements are the values of $1, $2 and so on."));
        }
        if statements > 1 && arguments != Value::Array(Vec::new()) {
            return Err(
                Error::invalid("arguments need a command of one statement").detail(format!("It has {statements}."))
            );
        }
    }
    if call.bool(3).unwrap_or(false) {
        payload.insert("autocommit".into(), true.into());
    }
    if let Some(settings) = call.datum(4) {
        executors::check_settings(settings)?;
    }
    let rows = call.i32(5).unwrap_or(0);
    if !u64::try_from(rows).is_ok_and(|rows| rows <= MOST_ROWS) {
        return Err(
            Error::invalid(format!("result_rows must be between 0 and {MOST_ROWS}")).detail(format!("It is {rows}."))
        );
    }
    if rows > 0 {
        payload.insert("result_rows".into(), rows.into());
    }
    let now = time::now_us();
    let options = Options::of(call, 6, &queue, now)?;
    // The values pass through as they are: no number loses a digit.
    let mut text = Value::Object(payload).to_string();
    for (name, n) in [("arguments", 2), ("settings", 4)] {
        if let Some(value) = call.datum(n) {
            text.pop();
            text.push_str(&format!(", \"{name}\": {}}}", jsonb::text(value)));
        }
    }
    let payload =
        jsonb::of_text(&text).ok_or_else(|| Error::invalid("the command holds a character that jsonb cannot hold"))?;
    let job_ids = produce(&catalog, &queue, &[(payload, options)], now)?;
    Ok(job_ids.first().map(|&job_id| job_id.into()))
}
