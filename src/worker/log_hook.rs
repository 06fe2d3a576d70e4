//! Adds a hint to the one error of Postgres that each newcomer meets: a role to which nothing was granted may not even
//! look up what there is in schema `queue`.
//!
//! Responsible for the hook. Postgres calls it for each message that goes to the log, before that goes to the client. So
//! there is no hint where errors are not logged (`log_min_messages`).
//!
//! Invariant: only this error, in a database that has the extension, is changed, and nothing of it but the hint.

use std::ffi::CStr;

use pgrx::{pg_guard, pg_sys};

use crate::pg::session;
use crate::shmem;

static mut PREVIOUS: pg_sys::emit_log_hook_type = None;

/// What the message is made from, whatever language it is in.
const TEMPLATE: &CStr = c"permission denied for schema %s";
const HINT: &CStr = c"Nothing of the queues was granted to this role. A role that manages a queue can run SELECT queue.grant('QUEUE', 'ROLE', 'produce'), or 'consume', 'observe', 'manage'; '*' instead of the queue stands for all. No other GRANT is needed.";

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
        if is_about_the_schema(&*message) && is_here() {
            (*message).hint = pg_sys::MemoryContextStrdup((*message).assoc_context, HINT.as_ptr());
        }
        if let Some(previous) = PREVIOUS {
            previous(message);
        }
    }
}

/// # Safety
/// Its texts are C strings or null.
unsafe fn is_about_the_schema(message: &pg_sys::ErrorData) -> bool {
    if message.elevel != pgrx::PgLogLevel::ERROR as i32 || !message.hint.is_null() || message.message_id.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe {
        // Some languages put the name into quotes.
        let names_it =
            |text: &[u8]| text.split(|c| !c.is_ascii_alphanumeric() && *c != b'_').any(|word| word == b"queue");
        CStr::from_ptr(message.message_id) == TEMPLATE
            && !message.message.is_null()
            && names_it(CStr::from_ptr(message.message).to_bytes())
    }
}

/// Whether this database has the extension. The error comes from the parser, so this session holds no lock of ours.
fn is_here() -> bool {
    let database = session::database();
    shmem::with(|shared| shared.instances.iter().any(|instance| instance.number != 0 && instance.database == database))
}
