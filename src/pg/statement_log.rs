//! Writes lines to the server's log for the statements of a command, as for a session: by `log_statement`,
//! `log_duration`, `log_min_duration_statement`, `log_parameter_max_length` and `log_min_error_statement`.
//!
//! Responsible for what `exec_simple_query` and `exec_execute_message` of postgres.c log. Not responsible for running
//! the statements (`portal`).
//!
//! Invariant: the logged text is the one that the caller gave to Postgres as the running command.

use std::ffi::{CStr, CString, c_char, c_int};

use pgrx::PgLogLevel;
use pgrx::pg_sys;

use crate::error::{self, Error};
use crate::pg::{raw, unbound};

/// A statement, or several that are sent together.
pub struct Statement<'a> {
    text: &'a CStr,
    parameters: pg_sys::ParamListInfo,
    was_logged: bool,
}

impl<'a> Statement<'a> {
    /// Logs the statement if `log_statement` says so. `nodes`: the parser's result. `parameters`: null if it has none.
    /// Can raise a cancel.
    pub fn begin(text: &'a CStr, nodes: &[*mut pg_sys::RawStmt], parameters: pg_sys::ParamListInfo) -> Self {
        // SAFETY: a plain global, and nodes of the parser.
        let is_wanted = unsafe {
            let wanted = pg_sys::log_statement as pg_sys::LogStmtLevel::Type;
            wanted >= pg_sys::LogStmtLevel::LOGSTMT_ALL
                || nodes.iter().any(|&node| raw::GetCommandLogLevel(node.cast()) <= wanted)
        };
        let statement = Self { text, parameters, was_logged: is_wanted };
        if is_wanted {
            statement.write(&statement.described(""));
        }
        statement
    }

    /// Logs the statement's duration if a setting says so. Can raise a cancel.
    pub fn end(self) {
        let mut milliseconds: [c_char; 32] = [0; 32];
        // SAFETY: the buffer has the size that the function needs. The function writes a C string.
        let (wanted, took) = unsafe {
            let wanted = raw::check_log_duration(milliseconds.as_mut_ptr(), self.was_logged);
            (wanted, CStr::from_ptr(milliseconds.as_ptr()).to_string_lossy())
        };
        match wanted {
            1 => raw_log(&format!("duration: {took} ms"), None),
            2 => self.write(&self.described(&format!("duration: {took} ms  "))),
            _ => {}
        }
    }

    fn described(&self, before: &str) -> String {
        let kind = if self.parameters.is_null() { "statement" } else { "execute <unnamed>" };
        format!("{before}{kind}: {}", self.text.to_string_lossy())
    }

    /// Logs a message with the parameters, cut as `log_parameter_max_length` says.
    fn write(&self, message: &str) {
        // SAFETY: a plain global. The parameters are null or a list that lives while the statement runs. The text is
        // null or a C string.
        let parameters = unsafe {
            let most = pg_sys::log_parameter_max_length;
            let is_wanted = !self.parameters.is_null() && (*self.parameters).numParams > 0 && most != 0;
            let text = if is_wanted {
                pg_sys::BuildParamLogString(self.parameters, std::ptr::null_mut(), most)
            } else {
                std::ptr::null_mut()
            };
            (!text.is_null() && *text != 0).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        raw_log(message, parameters.map(|text| format!("parameters: {text}")));
    }
}

/// Logs a message of level LOG without the running command.
fn raw_log(message: &str, detail: Option<String>) {
    let c_string = |text: &str| CString::new(text).unwrap_or_default();
    let (message, detail) = (c_string(message), detail.map(|text| c_string(&text)));
    // SAFETY: the calls are those of ereport(). Formats are constant, and arguments are C strings that outlive the
    // calls. An error becomes an unwinding at the guard.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            if !unbound::errstart(PgLogLevel::LOG as c_int, std::ptr::null()) {
                return;
            }
            unbound::errmsg(c"%s".as_ptr(), message.as_ptr());
            if let Some(detail) = &detail {
                unbound::errdetail(c"%s".as_ptr(), detail.as_ptr());
            }
            raw::errhidestmt(true);
            unbound::errfinish(c"pg_queue".as_ptr(), 0, c"".as_ptr());
        });
    }
}

/// Logs the error that has ended a command, with the command, as the main loop of a session does. Called before the
/// abort.
pub fn error(error: &Error) {
    let c_string = |text: &str| CString::new(text.replace('\0', "")).unwrap_or_default();
    let message = c_string(&error.message);
    let detail = error.detail.as_deref().map(c_string);
    let hint = error.hint.as_deref().map(c_string);
    let packed =
        error::characters(error.code).iter().rev().fold(0, |all, c| (all << 6) | ((c_int::from(*c) - 0x30) & 0x3f));
    // SAFETY: as above, but the error is logged and discarded instead of thrown. Interrupts are held off meanwhile.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            pg_sys::InterruptHoldoffCount += 1;
            if unbound::errstart(PgLogLevel::ERROR as c_int, std::ptr::null()) {
                unbound::errcode(packed);
                unbound::errmsg(c"%s".as_ptr(), message.as_ptr());
                if let Some(detail) = &detail {
                    unbound::errdetail(c"%s".as_ptr(), detail.as_ptr());
                }
                if let Some(hint) = &hint {
                    unbound::errhint(c"%s".as_ptr(), hint.as_ptr());
                }
                pg_sys::EmitErrorReport();
                pg_sys::FlushErrorState();
            }
            pg_sys::InterruptHoldoffCount -= 1;
        });
    }
}
