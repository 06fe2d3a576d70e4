//! The stand-in for the client of a background process. It keeps the newest notices and warnings and drops everything
//! else. It buffers nothing, so no output ever makes the process wait.
//!
//! Functions of Postgres and of its modules read the connection of a session (`MyProcPort`), and some do so without
//! checking that it exists. So the process gets a connection without encryption and without an address: `ssl_is_used()`
//! is false, `inet_client_addr()` is NULL.
//!
//! Responsible for the client's place. Not responsible for what becomes of the notices (`executor`).
//!
//! Invariant: nothing here raises: Postgres calls it in the middle of reporting an error.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int};

use pgrx::pg_sys;

use crate::pg::unbound::{FrontendProtocol, PQcommMethods, Port, PqCommMethods, ProtocolVersion};

/// At most this many notices are kept.
const MAX_NOTICES: usize = 20;
/// Each notice is cut to this many characters.
const MAX_NOTICE_CHARS: usize = 1000;

/// Version 3.0 of the protocol, in which messages are written.
const PROTOCOL: ProtocolVersion = 3 << 16;

static METHODS: PQcommMethods = PQcommMethods {
    comm_reset: nothing,
    flush: done,
    flush_if_writable: done,
    is_send_pending: no,
    putmessage: put,
    putmessage_noblock: put_noblock,
};

unsafe extern "C-unwind" fn nothing() {}
unsafe extern "C-unwind" fn done() -> c_int {
    0
}
unsafe extern "C-unwind" fn no() -> bool {
    false
}
unsafe extern "C-unwind" fn put(kind: c_char, text: *const c_char, length: usize) -> c_int {
    if kind as u8 == b'N' && !text.is_null() {
        // SAFETY: Postgres passes a message of `length` bytes.
        keep_notice(unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) });
    }
    0
}
unsafe extern "C-unwind" fn put_noblock(kind: c_char, text: *const c_char, length: usize) {
    // SAFETY: as above.
    unsafe { put(kind, text, length) };
}

thread_local! {
    static NOTICES: RefCell<VecDeque<String>> = const { RefCell::new(VecDeque::new()) };
}

/// Keeps a notice. The message is a list of fields: a letter and a text each, with a zero byte at the end.
fn keep_notice(message: &[u8]) {
    let field = |wanted: u8| {
        let mut fields = message.split(|&byte| byte == 0);
        let found = fields.find(|field| field.first() == Some(&wanted))?;
        Some(String::from_utf8_lossy(&found[1..]).into_owned())
    };
    let (Some(severity), Some(text)) = (field(b'S'), field(b'M')) else { return };
    let text: String = format!("{severity}: {text}").chars().take(MAX_NOTICE_CHARS).collect();
    let _ = NOTICES.try_with(|notices| {
        if let Ok(mut notices) = notices.try_borrow_mut() {
            if notices.len() == MAX_NOTICES {
                notices.pop_front();
            }
            notices.push_back(text);
        }
    });
}

/// More bytes than a Port has in any major.
const MAX_PORT_BYTES: usize = 4096;

/// True if this process has no client of its own.
pub fn is_stand_in() -> bool {
    // SAFETY: a plain global of this backend. Only addresses are compared.
    unsafe { std::ptr::eq(PqCommMethods, &raw const METHODS) }
}

/// Takes the place of this process's client, for the rest of its life. The log shows these names.
pub fn stand_in(database: &str, user: &str) {
    let copy = |name: &str| {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: copies a C string into memory that lives as long as the process.
        unsafe { pg_sys::MemoryContextStrdup(pg_sys::TopMemoryContext, name.as_ptr()) }
    };
    // SAFETY: these are plain globals of this backend, which has no client. The methods live as long as the library,
    // the port as long as the process. The port is larger than what Postgres reads of it. The address of a local socket
    // has no number, so the system is not asked for one.
    unsafe {
        let port = pg_sys::MemoryContextAllocZero(pg_sys::TopMemoryContext, MAX_PORT_BYTES).cast::<Port>();
        (*port).sock = -1;
        (*port).proto = PROTOCOL;
        (*port).laddr.addr.ss_family = libc::AF_UNIX as pg_sys::sa_family_t;
        (*port).raddr.addr.ss_family = libc::AF_UNIX as pg_sys::sa_family_t;
        (*port).remote_host = copy("");
        (*port).remote_port = copy("");
        (*port).database_name = copy(database);
        (*port).user_name = copy(user);
        pg_sys::MyProcPort = port.cast();
        PqCommMethods = &raw const METHODS;
        FrontendProtocol = PROTOCOL;
        pg_sys::whereToSendOutput = pg_sys::CommandDest::DestRemote;
    }
}

/// Returns the name of the role that has logged in, if the session runs as that role now. `None`: it runs as another
/// role, or the process has no client.
pub fn login() -> Option<String> {
    // SAFETY: plain globals of this backend; the name is a C string that lives as long as the connection.
    unsafe {
        let port = pg_sys::MyProcPort.cast::<Port>();
        let is_login = !port.is_null() && pg_sys::GetUserId() == pg_sys::GetAuthenticatedUserId();
        let name = if is_login { (*port).user_name } else { std::ptr::null() };
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

/// Returns the notices since the last call, oldest first.
pub fn take_notices() -> Vec<String> {
    NOTICES.take().into()
}
