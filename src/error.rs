//! The errors that the extension itself raises: SQLSTATE, message, detail, hint.
//!
//! Responsible for the type, for the SQLSTATEs, and for errors that several places raise. Not responsible for raising
//! them from an SQL function: `pg::function` does that outside all Rust frames. The extension's own SQLSTATEs, such as
//! QJ001, do not survive a pgrx guard.
//!
//! Invariant: no error text holds a payload.

use std::cell::RefCell;

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::panic::CaughtError;

/// An error on its way to the client. Its message follows Postgres's style: one line, lower case, no full stop; detail
/// and hint are sentences.
#[derive(Debug, Clone)]
pub struct Error {
    /// Its SQLSTATE.
    pub code: &'static str,
    /// What went wrong.
    pub message: String,
    /// The facts; `None` if the message says everything.
    pub detail: Option<String>,
    /// What the user should do; `None` if there is no advice.
    pub hint: Option<String>,
}

thread_local! {
    /// The SQLSTATE and the message of the last error that `Error::report` raised with one of the extension's own
    /// SQLSTATEs.
    static RAISED: RefCell<Option<(&'static str, String)>> = const { RefCell::new(None) };
}

/// Returns the SQLSTATE of a caught error as text.
pub fn state(code: PgSqlErrorCode) -> &'static str {
    thread_local! {
        /// The SQLSTATEs that this process has met. It keeps them until it exits; Postgres has some hundreds.
        static MET: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }
    let packed = code as u32;
    let state: String = (0..5).map(|n| char::from((packed >> (6 * n) & 0x3f) as u8 + b'0')).collect();
    MET.with_borrow_mut(|met| {
        met.iter().find(|known| **known == state).copied().unwrap_or_else(|| {
            met.push(state.leak());
            met[met.len() - 1]
        })
    })
}

/// The result of a function that can fail with an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// successful_completion, the SQLSTATE of a NOTICE.
pub const NOTICE: &str = "00000";
/// warning, the SQLSTATE of a WARNING.
pub const WARNING: &str = "01000";
/// The worker has lost its lease: the attempt has ended, was taken over, or was never claimed.
pub const LOST_LEASE: &str = "QJ001";
/// feature_not_supported
pub const NOT_SUPPORTED: &str = "0A000";
/// invalid_parameter_value
pub const INVALID: &str = "22023";
/// null_value_not_allowed
pub const NULL: &str = "22004";
/// read_only_sql_transaction
pub const READ_ONLY: &str = "25006";
/// out_of_memory
pub const OUT_OF_MEMORY: &str = "53200";
/// query_canceled
pub const CANCELLED: &str = "57014";
/// invalid_transaction_termination
pub const WRONG_COMMAND: &str = "2D000";
/// active_sql_transaction
pub const IN_TRANSACTION: &str = "25001";
/// insufficient_privilege
pub const DENIED: &str = "42501";
/// undefined_object
pub const UNDEFINED: &str = "42704";
/// undefined_function
pub const NO_FUNCTION: &str = "42883";
/// duplicate_object
pub const DUPLICATE: &str = "42710";
/// The transaction's snapshot is too old.
pub const SERIALIZATION: &str = "40001";
/// unique_violation
pub const UNIQUE: &str = "23505";
/// no_data_found
pub const NO_DATA: &str = "P0002";
/// object_not_in_prerequisite_state
pub const WRONG_STATE: &str = "55000";
/// object_in_use
pub const IN_USE: &str = "55006";
/// lock_not_available
pub const LOCKED: &str = "55P03";
/// configuration_limit_exceeded
pub const LIMIT: &str = "53400";
/// program_limit_exceeded
pub const TOO_LARGE: &str = "54000";
/// sqlclient_unable_to_establish_sqlconnection
pub const NO_CONNECTION: &str = "08001";
/// internal_error
pub const INTERNAL: &str = "XX000";

/// Returns the five characters of an SQLSTATE. If the text has another length, returns those of XX000.
pub fn characters(code: &str) -> [u8; 5] {
    code.as_bytes().try_into().unwrap_or(*b"XX000")
}

/// Cuts a part of an error to its longest length, because what a caller has given may stand in it. It goes to the
/// server's log, too.
fn cut(text: impl Into<String>) -> String {
    /// In bytes.
    const LONGEST: usize = 8_000;
    let mut text = text.into();
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push('…');
    }
    text
}

impl Error {
    /// Returns an error with this SQLSTATE and message.
    #[cold]
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: cut(message), detail: None, hint: None }
    }

    /// Converts a caught error of Postgres, or a caught panic.
    #[cold]
    pub fn caught(caught: &CaughtError) -> Self {
        let (CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic { ereport: report, .. }) = caught;
        let own = RAISED.take().filter(|(_, message)| message == report.message());
        Self {
            code: own.map_or_else(|| state(report.sql_error_code()), |(code, _)| code),
            message: report.message().to_owned(),
            detail: report.detail().map(str::to_owned),
            hint: report.hint().map(str::to_owned),
        }
    }

    /// Adds the detail.
    #[cold]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(cut(detail));
        self
    }

    /// Adds the hint.
    #[cold]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(cut(hint));
        self
    }

    /// Returns the error for a bad argument, 22023.
    #[cold]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(INVALID, message)
    }

    /// Returns the error for an argument that may not be NULL, 22004.
    #[cold]
    pub fn null(argument: &str) -> Self {
        let error = Self::new(NULL, format!("{argument} cannot be null"));
        match argument {
            "id" | "ids" => error.hint("A claim that finds no job returns no row: there is no id to use then."),
            _ => error.hint(format!("Give {argument} a value. A variable or parameter of the program may not be set.")),
        }
    }

    /// Returns the error for a server that has not preloaded the library, 55000.
    #[cold]
    pub fn not_loaded() -> Self {
        Self::new(WRONG_STATE, "pg_queue is not in shared_preload_libraries")
            .detail("The queue lives in shared memory, which is reserved when the server starts.")
            .hint("Add shared_preload_libraries = 'pg_queue' to postgresql.conf and restart the server.")
    }

    /// Raises the error where no SQL function can do it: in callbacks and in the worker. The extension's own SQLSTATEs
    /// survive only as far as `Error::caught`. The client and the log would get another SQLSTATE.
    pub fn report(self) -> ! {
        if self.code == LOST_LEASE {
            RAISED.set(Some((self.code, self.message.clone())));
        }
        // Postgres packs each character into six bits, the first character into the lowest ones.
        let packed = self.code.bytes().rev().fold(0, |packed, char| packed << 6 | (i32::from(char) - 48) & 0x3f);
        let code = PgSqlErrorCode::from(packed);
        let mut report = pgrx::pg_sys::panic::ErrorReport::new(code, self.message, "pg_queue");
        if let Some(detail) = self.detail {
            report = report.set_detail(detail);
        }
        if let Some(hint) = self.hint {
            report = report.set_hint(hint);
        }
        report.report(pgrx::PgLogLevel::ERROR);
        unreachable!("an error was reported")
    }

    /// Returns the error for something that cannot happen, XX000. Its message names the invariant.
    #[cold]
    pub fn internal(invariant: impl Into<String>) -> Self {
        Self::new(INTERNAL, invariant)
    }
}
