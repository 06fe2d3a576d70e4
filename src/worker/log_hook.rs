//! Adds advice to errors of Postgres that newcomers meet. Such an error is about a call of schema `queue` that does not
//! fit, a value of another type, or an unknown view or column. Others are about a role without the privilege, or a
//! database without the extension.
//!
//! Responsible for the hook. Not responsible for guessing what a call meant (`core::advice`), nor for which privilege
//! gives access to what (`catalog::grants`). Postgres calls the hook for each message that it logs, before it sends the
//! message to the client. So errors that are not logged (`log_min_messages`) get no hint.
//!
//! Invariant: only these errors are changed, and only their hint. Nothing here reads a catalog, because the error may
//! come from anywhere.

use std::ffi::{CStr, CString, c_char};
use std::sync::LazyLock;

use pg_queue_core::advice;
use pg_queue_core::calls::{self, Function};
use pgrx::{pg_guard, pg_sys};

use crate::catalog::declared::SCRIPT;
use crate::catalog::grants;
use crate::pg::{client, parameter, session};
use crate::shmem;

static mut PREVIOUS: pg_sys::emit_log_hook_type = None;

static FUNCTIONS: LazyLock<Vec<Function<'static>>> = LazyLock::new(|| calls::functions(SCRIPT));
static VIEWS: LazyLock<Vec<&'static str>> = LazyLock::new(|| calls::views(SCRIPT));

/// Installs the hook. Called once, while preloading.
pub fn install() {
    // SAFETY: the postmaster, single-threaded, while it loads libraries: hooks are chained as Postgres documents.
    unsafe {
        PREVIOUS = pg_sys::emit_log_hook;
        pg_sys::emit_log_hook = Some(on_message);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_message(message: *mut pg_sys::ErrorData) {
    // SAFETY: Postgres passes a message whose texts are C strings or null. The message belongs to the session, so it
    // may be changed. The hint is allocated in the memory of the other texts.
    unsafe {
        if let Some(hint) = hint(&*message).and_then(|hint| CString::new(hint).ok()) {
            (*message).hint = pg_sys::MemoryContextStrdup((*message).assoc_context, hint.as_ptr());
        }
        if let Some(previous) = PREVIOUS {
            previous(message);
        }
    }
}

/// # Safety
/// `text` is a C string or null.
unsafe fn text<'a>(text: *const c_char) -> &'a str {
    // SAFETY: the caller's promise.
    if text.is_null() { "" } else { unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default() }
}

/// Returns the hint for a message. `None`: the message stays as it is.
///
/// # Safety
/// Its texts are C strings or null.
unsafe fn hint(message: &pg_sys::ErrorData) -> Option<String> {
    if message.elevel != pgrx::PgLogLevel::ERROR as i32 {
        return None;
    }
    // SAFETY: the caller's promise. `message_id` is the text before translation, in any language.
    let (template, said) = unsafe { (text(message.message_id), text(message.message)) };
    let statement = || unsafe { Statement::of(message) };
    match template {
        "schema \"%s\" does not exist" => {
            match words(said).find(|word| ["queue", "pg_queue", "pgmq"].contains(word))? {
                "queue" => (!is_here()).then(|| NOT_HERE.to_owned()),
                _ => is_here()
                    .then(|| "The functions of pg_queue are in schema queue, for instance queue.enqueue.".to_owned()),
            }
        }
        "relation \"%s.%s\" does not exist" | "relation \"%s\" does not exist" => {
            let Some(name) = words(said).find_map(|word| word.strip_prefix("queue.")) else {
                let view = words(said).find(|word| VIEWS.contains(word)).filter(|_| is_here())?;
                return Some(format!("It is in schema queue: write queue.{view}."));
            };
            if VIEWS.contains(&name) {
                return (!is_here()).then(|| NOT_HERE.to_owned());
            }
            if FUNCTIONS.iter().any(|function| function.name == name) {
                return is_here().then(|| format!("queue.{name} is a function: write queue.{name}(…)."));
            }
            is_here().then(|| match advice::nearest(name, VIEWS.iter().copied()) {
                Some(meant) => format!("There is no view queue.{name}; there is queue.{meant}."),
                None => format!(
                    "There is no view queue.{name}; psql's \\dv queue.* lists all. A queue is no table: \
                        its jobs are in queue.jobs, by queue_name."
                ),
            })
        }
        "extension \"%s\" is not available" => {
            let name = said.split('"').nth(1)?;
            let is_ours =
                name == "queue" || advice::nearest(name, ["pg_queue", "pg_queue_cluster"].into_iter()).is_some();
            (is_ours && !name.starts_with("pg_queue"))
                .then(|| "The extension is called pg_queue: CREATE EXTENSION pg_queue.".to_owned())
        }
        "extension \"%s\" must be installed in schema \"%s\"" if said.contains("\"pg_queue\"") => {
            Some(format!("{OWN_SCHEMA} Leave SCHEMA out: CREATE EXTENSION pg_queue."))
        }
        "schema \"%s\" already exists" if said.contains("\"queue\"") => {
            // SAFETY: the caller's promise.
            let client = unsafe { text(pg_sys::debug_query_string) }.to_lowercase();
            (client.contains("extension") && client.contains("pg_queue"))
                .then(|| format!("{OWN_SCHEMA} Rename or drop yours: ALTER SCHEMA queue RENAME TO another_name."))
        }
        "invalid configuration parameter name \"%s\"" | "unrecognized configuration parameter \"%s\""
            if said.contains("pg_queue.") =>
        {
            Some("The settings are listed by SELECT name FROM pg_settings WHERE name LIKE 'pg\\_queue.%'.".to_owned())
        }
        "invalid value for parameter \"%s\": \"%s\"" if said.contains("pg_queue.") && message.hint.is_null() => {
            Some("The allowed values are in pg_settings: vartype, unit, min_val, max_val and enumvals.".to_owned())
        }
        "extension \"%s\" has no update path from version \"%s\" to version \"%s\"" if said.contains("\"pg_queue") => {
            Some(
                "The versions that are installed on this server are in view pg_available_extension_versions."
                    .to_owned(),
            )
        }
        _ if !is_here() => None,
        "function %s does not exist" | "procedure %s does not exist" => {
            advice::on_call(call_in(said)?, &FUNCTIONS, &VIEWS)
        }
        "malformed array literal: \"%s\""
        | "invalid input syntax for type %s"
        | "invalid input syntax for type %s: \"%s\""
        | "date/time field value out of range: \"%s\""
        | "value \"%s\" is out of range for type %s" => {
            let statement = statement()?;
            let place = statement.place()?;
            match statement.at {
                Some(_) => advice::on_literal(&place, &FUNCTIONS),
                None => advice::on_parameter(&place, &FUNCTIONS),
            }
        }
        "unsupported Unicode escape sequence" | "invalid byte sequence for encoding \"%s\": %s" => {
            let place = statement().and_then(|statement| statement.place()).filter(|_| unsafe { is_zero(message) })?;
            place.function.starts_with("queue.").then(|| NO_ZERO.to_owned())
        }
        "%s at or near \"%s\"" => {
            let statement = statement()?;
            let rest = statement.rest()?;
            if let Some(call) = rest.strip_prefix("queue.") {
                let name = words(call).next().filter(|name| FUNCTIONS.iter().any(|function| function.name == *name))?;
                return Some(format!(
                    "Call a function with SELECT queue.{name}(…), in PL/pgSQL with PERFORM queue.{name}(…) or \
                        SELECT … INTO."
                ));
            }
            let (word, rest) = match rest.starts_with("=>") {
                true => (calls::word_before(statement.text.get(..statement.at?)?)?, rest),
                false => rest.split_once(|c: char| !c.is_ascii_alphanumeric() && c != '_')?,
            };
            // That argument may not be the only fault, but it is the one that the parser met first.
            rest.trim_start().trim_start_matches('=').starts_with('>').then_some(())?;
            advice::on_word(&statement.place()?, word, &FUNCTIONS)
        }
        "type \"%s\" does not exist" | "could not find a function named \"%s\"" => {
            let name = words(said).find_map(|word| word.strip_prefix("queue."))?;
            if FUNCTIONS.iter().any(|function| function.name == name) {
                return Some(format!(
                    "queue.{name} is a function: write its arguments in parentheses, SELECT queue.{name}(…)."
                ));
            }
            let meant = advice::nearest(name, FUNCTIONS.iter().map(|function| function.name))?;
            Some(format!("There is no function queue.{name}; there is queue.{meant}."))
        }
        "column \"%s\" does not exist" | "column %s.%s does not exist" => {
            let statement = statement()?;
            let rest = statement.rest()?;
            let is_quoted = rest.starts_with('"');
            let name = match is_quoted {
                true => rest.split('"').nth(1)?,
                false => words(rest).next()?,
            };
            // Postgres folds a name without quotes to lower case.
            let lower = name.to_lowercase();
            let name = if is_quoted { name } else { lower.as_str() };
            let in_call = statement.place().and_then(|place| advice::on_name(&place, name, rest, &FUNCTIONS));
            let name = name.rsplit('.').next().filter(|_| !is_quoted).unwrap_or(name);
            in_call.or_else(|| advice::on_column(statement.text, name, SCRIPT, &FUNCTIONS))
        }
        "column \"%s\" of relation \"%s\" does not exist" => {
            let (name, _) = calls::first_call(statement()?.text, &FUNCTIONS)?;
            words(said).any(|word| word == name).then(|| {
                "Do not write to the tables and views of pg_queue: use functions of schema queue, \
                    such as queue.create, queue.alter and \
                 queue.enqueue."
                    .to_owned()
            })
        }
        "procedure parameter \"%s\" is an output parameter but corresponding argument is not writable" => {
            let statement = statement()?;
            let (name, _) = calls::first_call(statement.text, &FUNCTIONS)?;
            FUNCTIONS.iter().any(|function| function.name == name && function.is_procedure).then(|| match name {
                "wait" => "queue.wait cannot run inside a function or DO: use queue.claim with wait.".to_owned(),
                _ => format!("CALL queue.{name} on its own: it cannot run inside a function or DO."),
            })
        }
        "\"%s\" is not a table" | "cannot create index on relation \"%s\"" => {
            let name = words(said).find(|word| VIEWS.contains(word))?;
            let statement = statement()?;
            statement.text.contains(&format!("queue.{name}")).then(|| {
                format!(
                    "queue.{name} is a view. queue.purge empties a queue; queue.job and queue.search \
                    find jobs by index."
                )
            })
        }
        "%s at or near \"%s\" of jsonpath input" | "%s at end of jsonpath input" => {
            advice::on_path(&statement()?.place()?).map(str::to_owned)
        }
        "permission denied for schema %s" if words(said).any(|word| word == "queue_internal") => Some(
            "The objects of queue_internal are for the extension: use the functions and views of schema queue."
                .to_owned(),
        ),
        "permission denied for schema %s" if words(said).any(|word| word == "queue") => {
            let statement = statement();
            let call = statement.as_ref().and_then(|statement| calls::first_call(statement.text, &FUNCTIONS));
            let known =
                call.and_then(|(name, queue)| grants::advice(name, queue.as_deref(), client::login().as_deref()));
            known.or_else(|| {
                Some(
                    "This role has no privileges on queues. A role that manages a queue can run \
                        SELECT queue.grant('QUEUE', \
                     'ROLE', 'produce'), or 'consume', 'observe', 'manage'; \
                     '*' instead of the queue means all queues. No other GRANT is \
                     needed."
                        .to_owned(),
                )
            })
        }
        "permission denied for function %s"
        | "permission denied for procedure %s"
        | "permission denied for view %s" => {
            let statement = statement();
            let call = statement.as_ref().and_then(|statement| calls::first_call(statement.text, &FUNCTIONS));
            let bound = statement.as_ref().and_then(|statement| {
                parameter::of_statement(statement.text, calls::queue_parameter(statement.text, &FUNCTIONS)?)
            });
            words(said).find_map(|word| {
                let call = call.as_ref().filter(|(name, _)| *name == word);
                let queue = call.and_then(|(_, queue)| queue.as_deref().or(bound.as_deref()));
                grants::advice(word, queue, client::login().as_deref())
            })
        }
        _ => None,
    }
}

/// Which schema the extension has.
const OWN_SCHEMA: &str = "The schema of pg_queue is called queue and cannot be another.";
/// The hint for a zero character.
const NO_ZERO: &str = "Postgres cannot store the character U+0000 in a text or in jsonb: remove it before the call.";

/// The hint if schema `queue` is missing.
const NOT_HERE: &str =
    "This database has no queues: run CREATE EXTENSION pg_queue in it, or connect to the database that has them.";

/// The statement that caused an error, and the place in it.
struct Statement<'a> {
    text: &'a str,
    /// The byte that the error points at. `None`: it points at no byte.
    at: Option<usize>,
    /// The number of the parameter whose value is wrong. `None`: the error is not about a parameter.
    parameter: Option<usize>,
}

impl<'a> Statement<'a> {
    /// Returns the statement that a function runs, if the error comes from there, or else the client's statement.
    ///
    /// # Safety
    /// The texts of the message and the session's statement are C strings or null.
    unsafe fn of(message: &'a pg_sys::ErrorData) -> Option<Self> {
        let is_internal = !message.internalquery.is_null();
        // SAFETY: the caller's promise.
        let (text, place) = unsafe {
            if is_internal {
                (text(message.internalquery), message.internalpos)
            } else {
                (text(pg_sys::debug_query_string), message.cursorpos)
            }
        };
        // Postgres counts characters, from 1.
        let at = usize::try_from(place).ok().filter(|&place| place > 0);
        let at = at.and_then(|place| text.char_indices().map(|(at, _)| at).nth(place - 1));
        // SAFETY: the caller's promise.
        let parameter = parameter_in(unsafe { text_of_context(message) }).filter(|_| !is_internal && at.is_none());
        (!text.is_empty()).then_some(Self { text, at, parameter })
    }

    fn place(&self) -> Option<calls::Place<'a>> {
        match self.at {
            Some(at) => calls::enclosing(self.text, at),
            None => calls::place_of_parameter(self.text, self.parameter?),
        }
    }

    /// Returns the text that begins at the place.
    fn rest(&self) -> Option<&'a str> {
        self.text.get(self.at?..)
    }
}

/// Returns true if the message is about a zero character.
///
/// # Safety
/// Its texts are C strings or null.
unsafe fn is_zero(message: &pg_sys::ErrorData) -> bool {
    // SAFETY: the caller's promise.
    let (said, detail) = unsafe { (text(message.message), text(message.detail)) };
    said.ends_with(" 0x00") || detail.contains("\\u0000")
}

/// # Safety
/// The context of the message is a C string or null.
unsafe fn text_of_context(message: &pg_sys::ErrorData) -> &str {
    // SAFETY: the caller's promise.
    unsafe { text(message.context) }
}

/// Returns the number of the parameter that a context names, as in `unnamed portal parameter $2 = '…'`. The value comes
/// after the number and may hold anything.
fn parameter_in(context: &str) -> Option<usize> {
    let line = context.lines().find(|line| line.contains(" $"))?;
    let digits = &line[line.find(" $")? + 2..];
    digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())].parse().ok()
}

/// Returns the names in a message, with their schemas. Some languages put names into quotes.
fn words(said: &str) -> impl Iterator<Item = &str> {
    said.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.')).filter(|word| !word.is_empty())
}

/// Returns the call in a message, as in `queue.enqueue(unknown, delay => integer)`.
fn call_in(said: &str) -> Option<&str> {
    let open = said.find('(')?;
    let begin =
        said[..open].rfind(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.')).map_or(0, |at| at + 1);
    said[begin..].rfind(')').map(|end| &said[begin..=begin + end])
}

/// True if this database has the extension. The error comes from Postgres, so this session holds no lock of ours.
fn is_here() -> bool {
    let database = session::database();
    shmem::with(|shared| shared.instances.iter().any(|instance| instance.number != 0 && instance.database == database))
}
