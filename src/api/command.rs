//! A command as producers give it, and the payload that is made of it. These verbs take one: `queue.enqueue_sql`, a job
//! of `queue.enqueue_batch`, a task of a flow, `queue.enqueue_flow`, `queue.schedule`.
//!
//! Responsible for checking a command without running it. Not responsible for the roles that may write one
//! (`catalog::run_as`), nor for running it (`executor::job`).

use pgrx::pg_sys::Datum;

use crate::api::executors;
use crate::error::{Error, Result};
use crate::executor::job::MAX_RESULT_ROWS;
use crate::pg::{jsonb, portal, stored_json};

/// A command.
pub struct Command {
    pub text: String,
    /// The values of `$1`, `$2` and so on, as a JSON array.
    pub arguments: Option<Datum>,
    /// Whether each of several statements is a transaction of its own.
    pub is_autocommit: bool,
    /// Settings of its session, as a JSON object.
    pub settings: Option<Datum>,
    /// How many rows of its answer the job's result keeps.
    pub result_rows: i32,
}

impl Command {
    /// Returns the command of a call that has a payload, too: the payload's fields are the arguments and settings of
    /// the command.
    ///
    /// Errors: 22023 for another payload.
    pub fn beside(text: String, payload: Option<Datum>) -> Result<Self> {
        let mut command = Self { text, arguments: None, is_autocommit: false, settings: None, result_rows: 0 };
        let Some(payload) = payload else { return Ok(command) };
        let hint = "Beside a command it may have: arguments, autocommit, settings, result_rows.";
        if !jsonb::is_object(payload) {
            return Err(Error::invalid("the payload of a command must be an object").hint(hint));
        }
        for (name, value) in jsonb::fields(payload) {
            let wrong = |wanted: &str| Error::invalid(format!("field \"{name}\" of the payload must be {wanted}"));
            match name.as_str() {
                "arguments" | "autocommit" | "settings" | "result_rows" if value.is_null() => {}
                "arguments" => command.arguments = Some(value.datum()),
                "autocommit" => command.is_autocommit = value.as_bool().ok_or_else(|| wrong("a boolean"))?,
                "settings" => command.settings = Some(value.datum()),
                "result_rows" => command.result_rows = value.as_i32().ok_or_else(|| wrong("an integer"))?,
                _ => {
                    return Err(
                        Error::invalid(format!("unknown field \"{name}\" in the payload of a command")).hint(hint)
                    );
                }
            }
        }
        Ok(command)
    }

    /// Checks the command, and returns it as the payload of a job.
    ///
    /// Errors: 42601 when it is not SQL, 22023 when the other fields are wrong.
    pub fn payload(&self) -> Result<Datum> {
        let text =
            std::ffi::CString::new(self.text.as_str()).map_err(|_| Error::internal("a text holds a zero character"))?;
        let statements = portal::parse(&text)?;
        if let Some(arguments) = self.arguments {
            let Some(values) = jsonb::elements(arguments) else {
                return Err(Error::invalid("arguments must be a JSON array")
                    .hint("Its elements are the values of $1, $2 and so on."));
            };
            if statements > 1 && !values.is_empty() {
                return Err(
                    Error::invalid("arguments need a command of one statement").detail(format!("It has {statements}."))
                );
            }
        }
        if let Some(settings) = self.settings {
            executors::check_settings(settings)?;
        }
        if !u64::try_from(self.result_rows).is_ok_and(|rows| rows <= MAX_RESULT_ROWS) {
            return Err(Error::invalid(format!("result_rows must be between 0 and {MAX_RESULT_ROWS}"))
                .detail(format!("It is {}.", self.result_rows)));
        }
        let mut payload = serde_json::json!({ "command": self.text });
        if self.is_autocommit {
            payload["autocommit"] = true.into();
        }
        if self.result_rows > 0 {
            payload["result_rows"] = self.result_rows.into();
        }
        let mut payload = jsonb::of(&payload)
            .ok_or_else(|| Error::invalid("the command holds a character that jsonb cannot hold"))?;
        // The values are passed through unchanged, so no number loses a digit.
        for (name, value) in [("arguments", self.arguments), ("settings", self.settings)] {
            if let Some(field) = value.and_then(|value| jsonb::object_of(name, Some(value))) {
                payload = jsonb::merged(payload, field);
            }
        }
        stored_json::check(payload, "the command")?;
        Ok(payload)
    }
}
