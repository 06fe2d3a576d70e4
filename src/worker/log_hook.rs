//! Adds hints to errors of Postgres that name an object of pg_queue: a call that does not fit, an unknown function or
//! view, a missing privilege, a database without the extension.
//!
//! Responsible for the hook. Not responsible for guessing what a call meant (`core::advice`), nor for which privilege
//! gives access to what (`catalog::grants`). Postgres calls the hook for each message that it logs, before it sends the
//! message to the client. So errors that are not logged (`log_min_messages`) get no hint.
//!
//! Invariant: only these errors are changed, and only their hint. Nothing here reads a catalog or a statement, as the
//! error may come from anywhere.

use std::ffi::{CStr, CString, c_char};

use pg_queue_core::advice;
use pgrx::{pg_guard, pg_sys};

use crate::catalog::arguments::SIGNATURES;
use crate::catalog::grants;
use crate::catalog::objects::{Kind, OBJECTS};
use crate::pg::{client, session};
use crate::shmem;

static mut PREVIOUS: pg_sys::emit_log_hook_type = None;

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
    let names = |name: &str| words(said).any(|word| word == name);
    let hint = match template {
        "schema \"%s\" does not exist" if names("queue") => return (!is_here()).then(|| NOT_HERE.to_owned()),
        "schema \"%s\" already exists" if names("queue") && !is_here() => {
            "The schema of pg_queue is called queue and cannot be another. To install it rename or drop yours: \
                ALTER SCHEMA queue RENAME TO another_name."
        }
        "relation \"%s.%s\" does not exist" | "relation \"%s\" does not exist" => return on_relation(said),
        _ if !is_here() => return None,
        "permission denied for schema %s" if names("queue_internal") => {
            "The objects of queue_internal are for the extension: use the functions and views of schema queue."
        }
        "permission denied for schema %s" if names("queue") => {
            "This role has no privileges on queues. A role that manages a queue can run SELECT queue.grant('QUEUE', \
                'ROLE', 'produce'), or 'consume', 'observe', 'manage'; '*' instead of the queue means all queues. \
                No other GRANT is needed."
        }
        "function %s does not exist" | "procedure %s does not exist" => return on_call(said),
        "%s at or near \"%s\"" if said.ends_with("\"queue\"") => {
            "Call a function with SELECT queue.enqueue(…), in PL/pgSQL with PERFORM queue.enqueue(…) or SELECT … INTO."
        }
        "permission denied for function %s"
        | "permission denied for procedure %s"
        | "permission denied for view %s" => {
            return words(said).find_map(|word| grants::advice(word, client::login().as_deref()));
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

const NOT_HERE: &str =
    "This database has no queues: run CREATE EXTENSION pg_queue in it, or connect to the database that has them.";

/// Returns the names of what is of this kind.
fn named(kind: Kind) -> Vec<&'static str> {
    OBJECTS.iter().filter(|object| object.1 == kind).map(|object| object.2).collect()
}

/// Returns the hint for a relation that does not exist.
fn on_relation(said: &str) -> Option<String> {
    let views = named(Kind::View);
    let Some(name) = words(said).find_map(|word| word.strip_prefix("queue.")) else {
        let view = words(said).find(|word| views.contains(word)).filter(|_| is_here())?;
        return Some(format!("It is in schema queue: write queue.{view}."));
    };
    if !is_here() {
        return views.contains(&name).then(|| NOT_HERE.to_owned());
    }
    if named(Kind::Routine).contains(&name) {
        return Some(format!("queue.{name} is a function: write queue.{name}(…)."));
    }
    Some(match advice::nearest(name, views.into_iter()) {
        Some(meant) => format!("There is no view queue.{name}; there is queue.{meant}."),
        None => "A queue is no table: its jobs are in queue.jobs, by queue_name.".to_owned(),
    })
}

/// Returns the hint for a call in a message, as in `queue.enqueue(unknown, delay => integer)`.
fn on_call(said: &str) -> Option<String> {
    let (before, given) = said.split_once('(')?;
    let (given, _) = given.rsplit_once(')')?;
    let name = words(before).last()?;
    let functions = named(Kind::Routine);
    let Some(name) = name.strip_prefix("queue.") else {
        return functions.contains(&name).then(|| format!("It is in schema queue: write queue.{name}(…)."));
    };
    if named(Kind::View).contains(&name) {
        return Some(format!("queue.{name} is a view: SELECT * FROM queue.{name}."));
    }
    if !functions.contains(&name) {
        return Some(advice::on_function(name, &functions));
    }
    advice::on_arguments(SIGNATURES.iter().find(|function| function.name == name)?, given)
}

/// Returns the names in a message, with their schemas. Some languages put names into quotes.
fn words(said: &str) -> impl Iterator<Item = &str> {
    said.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.')).filter(|word| !word.is_empty())
}

/// True if this database has the extension. The error comes from Postgres, so this session holds no lock of ours.
fn is_here() -> bool {
    let database = session::database();
    shmem::with(|shared| shared.instances.iter().any(|instance| instance.number != 0 && instance.database == database))
}
