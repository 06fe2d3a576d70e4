//! Every error that the extension itself raises: SQLSTATE, message, detail, hint.
//!
//! Verbs return `Result<_, Error>`; `call` raises the error outside all Rust frames, because an own
//! SQLSTATE such as QJ001 does not survive a pgrx guard. No error text holds a payload.

/// An error on its way to the client. Its message follows Postgres's style: one line, lower case, no
/// full stop; detail and hint are sentences.
#[derive(Debug, Clone)]
pub struct Error {
    /// SQLSTATE.
    pub code: &'static str,
    /// What went wrong.
    pub message: String,
    /// The facts.
    pub detail: Option<String>,
    /// What to do.
    pub hint: Option<String>,
}

/// Result of everything that can fail in our own words.
pub type Result<T> = std::result::Result<T, Error>;

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
/// active_sql_transaction
pub const IN_TRANSACTION: &str = "25001";
/// insufficient_privilege
pub const DENIED: &str = "42501";
/// undefined_object
pub const UNDEFINED: &str = "42704";
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
/// configuration_limit_exceeded
pub const LIMIT: &str = "53400";
/// program_limit_exceeded
pub const TOO_LARGE: &str = "54000";
/// internal_error
pub const INTERNAL: &str = "XX000";

impl Error {
    /// An error with this SQLSTATE and message.
    #[cold]
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail: None, hint: None }
    }

    /// Adds the facts.
    #[cold]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds what to do.
    #[cold]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A bad argument.
    #[cold]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(INVALID, message)
    }

    /// An argument that may not be NULL.
    #[cold]
    pub fn null(argument: &str) -> Self {
        Self::new(NULL, format!("{argument} cannot be null"))
    }

    /// The library was not preloaded.
    #[cold]
    pub fn not_loaded() -> Self {
        Self::new(WRONG_STATE, "pg_queue is not in shared_preload_libraries")
            .detail("The queue lives in shared memory, which is reserved when the server starts.")
            .hint("Add shared_preload_libraries = 'pg_queue' to postgresql.conf and restart the server.")
    }

    /// Raises the error where no SQL function is there to do it: in callbacks and in the worker. An own
    /// SQLSTATE would not survive; none is raised there.
    pub fn report(self) -> ! {
        self.emit(pgrx::PgLogLevel::ERROR);
        unreachable!("an error was reported")
    }

    /// Writes it to the log as a warning; in a session also to the client.
    pub fn warn(self) {
        self.emit(pgrx::PgLogLevel::WARNING);
    }

    fn emit(self, level: pgrx::PgLogLevel) {
        use pgrx::PgSqlErrorCode as Code;
        let code = match self.code {
            NOT_SUPPORTED => Code::ERRCODE_FEATURE_NOT_SUPPORTED,
            IN_USE => Code::ERRCODE_OBJECT_IN_USE,
            UNDEFINED => Code::ERRCODE_UNDEFINED_OBJECT,
            WRONG_STATE => Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            LIMIT => Code::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            _ => Code::ERRCODE_INTERNAL_ERROR,
        };
        let mut report = pgrx::pg_sys::panic::ErrorReport::new(code, self.message, "pg_queue");
        if let Some(detail) = self.detail {
            report = report.set_detail(detail);
        }
        if let Some(hint) = self.hint {
            report = report.set_hint(hint);
        }
        report.report(level);
    }

    /// "This cannot happen", naming the invariant.
    #[cold]
    pub fn internal(invariant: impl Into<String>) -> Self {
        Self::new(INTERNAL, invariant)
    }
}
