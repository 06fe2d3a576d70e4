//! The parts of an error that the server reported. They are empty or absent if the server did not report it, as for a
//! lost connection.

use postgres::error::{DbError, SqlState};

/// The SQLSTATE, such as `"22023"`; `""` if the server did not report one.
pub fn code(error: &postgres::Error) -> &str {
    error.code().map_or("", SqlState::code)
}

/// The primary message; `""` if the error is not the server's.
pub fn message(error: &postgres::Error) -> &str {
    error.as_db_error().map_or("", DbError::message)
}

/// The DETAIL field.
pub fn detail(error: &postgres::Error) -> Option<&str> {
    error.as_db_error().and_then(DbError::detail)
}

/// The HINT field.
pub fn hint(error: &postgres::Error) -> Option<&str> {
    error.as_db_error().and_then(DbError::hint)
}

/// The whole error in one line, with the server's words if there are any.
pub fn describe(error: &postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{} {}: {}", said.code().code(), said.message(), said.detail().unwrap_or_default()),
        None => format!("{error:?}"),
    }
}
