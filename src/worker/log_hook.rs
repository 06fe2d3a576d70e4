//! Adds advice to the errors of Postgres that newcomers meet: a call of schema `queue` that does not fit, a literal of another type, a
//! view that there is not, a role without the privilege, a database without the extension.
//!
//! Responsible for the hook. Not responsible for what a call may have meant (`core::calls`), nor for which privilege gives access to
//! what (`catalog::grants`). Postgres calls the hook for each message that goes to the log, before that goes to the client. So there is
//! no hint where errors are not logged (`log_min_messages`).
//!
//! Invariant: only these errors are changed, and nothing of them but the hint. Nothing here reads a catalog: the error may come from
//! anywhere.

use std::ffi::{CStr, CString, c_char};
use std::sync::LazyLock;

use pg_queue_core::calls::{self, Function};
use pgrx::{pg_guard, pg_sys};

use crate::catalog::declared::SCRIPT;
use crate::catalog::grants;
use crate::pg::{client, session};
use crate::shmem;

static mut PREVIOUS: pg_sys::emit_log_hook_type = None;

static FUNCTIONS: LazyLock<Vec<Function<'static>>> = LazyLock::new(|| calls::functions(SCRIPT));
static VIEWS: LazyLock<Vec<&'static str>> = LazyLock::new(|| calls::views(SCRIPT));

/// Installs the hook; called once, while preloading.
pub fn install() {
    // SAFETY: the postmaster, single-threaded, while it loads libraries: hooks are chained as Postgres documents.
    unsafe {
        PREVIOUS = pg_sys::emit_log_hook;
        pg_sys::emit_log_hook = Some(on_message);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_message(message: *mut pg_sys::ErrorData) {
    // SAFETY: Postgres hands over a message whose texts are C strings or null. It is the session's own, so it may be
    // changed; the hint lies in the memory of the other texts.
    unsafe {
        if let Some(hint) = advice(&*message).and_then(|hint| CString::new(hint).ok()) {
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

/// The hint for a message. `None`: it stays as it is.
///
/// # Safety
/// Its texts are C strings or null.
unsafe fn advice(message: &pg_sys::ErrorData) -> Option<String> {
    if message.elevel != pgrx::PgLogLevel::ERROR as i32 {
        return None;
    }
    // SAFETY: the caller's promise. The first is what the message is made from, whatever language it is in.
    let (template, said) = unsafe { (text(message.message_id), text(message.message)) };
    let statement = || unsafe { Statement::of(message) };
    match template {
        "schema \"%s\" does not exist" => {
            (words(said).any(|word| word == "queue") && !is_here()).then(|| NOT_HERE.to_owned())
        }
        "relation \"%s.%s\" does not exist" | "relation \"%s\" does not exist" => {
            let name = words(said).find_map(|word| word.strip_prefix("queue."))?;
            if VIEWS.contains(&name) {
                return (!is_here()).then(|| NOT_HERE.to_owned());
            }
            let meant = calls::nearest(name, VIEWS.iter().copied()).filter(|_| is_here())?;
            Some(format!("There is no view queue.{name}; there is queue.{meant}."))
        }
        _ if !is_here() => None,
        "function %s does not exist" | "procedure %s does not exist" => calls::advice(call_in(said)?, &FUNCTIONS),
        "malformed array literal: \"%s\""
        | "invalid input syntax for type %s"
        | "invalid input syntax for type %s: \"%s\"" => calls::advice_on_literal(&statement()?.place()?, &FUNCTIONS),
        "%s at or near \"%s\"" => {
            let statement = statement()?;
            let (word, rest) = statement.rest()?.split_once(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
            // The argument of that name need not be the only thing wrong, but it is what the parser met first.
            rest.trim_start().trim_start_matches('=').starts_with('>').then_some(())?;
            calls::advice_on_word(&statement.place()?, word, &FUNCTIONS)
        }
        "%s at or near \"%s\" of jsonpath input" | "%s at end of jsonpath input" => {
            let place = statement()?.place()?;
            place.function.starts_with("queue.").then(|| {
                "Write a path into the event, for instance '$.payload.total > 1000'; it has topic, key, headers and payload."
                    .to_owned()
            })
        }
        "permission denied for schema %s" if words(said).any(|word| word == "queue") => {
            let statement = statement();
            let call = statement.as_ref().and_then(|statement| calls::first_call(statement.text));
            let known =
                call.and_then(|(name, queue)| grants::advice(name, queue.as_deref(), client::login().as_deref()));
            known.or_else(|| {
                Some(
                    "Nothing of the queues was granted to this role. A role that manages a queue can run SELECT queue.grant('QUEUE', \
                     'ROLE', 'produce'), or 'consume', 'observe', 'manage'; '*' instead of the queue stands for all. No other GRANT is \
                     needed."
                        .to_owned(),
                )
            })
        }
        "permission denied for function %s"
        | "permission denied for procedure %s"
        | "permission denied for view %s" => {
            let statement = statement();
            let call = statement.as_ref().and_then(|statement| calls::first_call(statement.text));
            words(said).find_map(|word| {
                let queue = call.as_ref().filter(|(name, _)| *name == word).and_then(|(_, queue)| queue.as_deref());
                grants::advice(word, queue, client::login().as_deref())
            })
        }
        _ => None,
    }
}

/// What is said where schema `queue` is missing.
const NOT_HERE: &str =
    "This database has no queues: run CREATE EXTENSION pg_queue in it, or connect to the database that has them.";

/// The statement that an error comes from, and where in it.
struct Statement<'a> {
    text: &'a str,
    /// The byte that the error points at. `None`: it points at none.
    at: Option<usize>,
}

impl<'a> Statement<'a> {
    /// Returns the one that a function runs, if the error comes from there, or else the client's.
    ///
    /// # Safety
    /// The texts of the message are C strings or null, and so is that of the session's statement.
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
        (!text.is_empty()).then_some(Self { text, at })
    }

    fn place(&self) -> Option<calls::Place<'a>> {
        calls::enclosing(self.text, self.at?)
    }

    /// The text from the place on.
    fn rest(&self) -> Option<&'a str> {
        self.text.get(self.at?..)
    }
}

/// The names in a message, with their schemas; some languages put them into quotes.
fn words(said: &str) -> impl Iterator<Item = &str> {
    said.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.')).filter(|word| !word.is_empty())
}

/// The call in a message: `queue.enqueue(unknown, delay => integer)`.
fn call_in(said: &str) -> Option<&str> {
    let open = said.find('(')?;
    let begin =
        said[..open].rfind(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.')).map_or(0, |at| at + 1);
    said[begin..].rfind(')').map(|end| &said[begin..=begin + end])
}

/// Whether this database has the extension. The error comes from Postgres, so this session holds no lock of ours.
fn is_here() -> bool {
    let database = session::database();
    shmem::with(|shared| shared.instances.iter().any(|instance| instance.number != 0 && instance.database == database))
}
