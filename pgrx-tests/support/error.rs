//! The parts of an error that the server reported. They are empty or absent if the server did not report it, as for a
//! lost connection.

use postgres::error::{DbError, SqlState};

/// Returns the SQLSTATE, such as `"22023"`. Empty if the server did not report one.
pub fn code(error: &postgres::Error) -> &str {
    error.code().map_or("", SqlState::code)
}

/// Returns the primary message. Empty if the error is not the server's.
pub fn message(error: &postgres::Error) -> &str {
    error.as_db_error().map_or("", DbError::message)
}

/// Returns the DETAIL field.
pub fn detail(error: &postgres::Error) -> Option<&str> {
    error.as_db_error().and_then(DbError::detail)
}

/// Returns the HINT field.
pub fn hint(error: &postgres::Error) -> Option<&str> {
    error.as_db_error().and_then(DbError::hint)
}

/// Returns the whole error in one line, with the server's message if there is one.
pub fn describe(error: &postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{} {}: {}", said.code().code(), said.message(), said.detail().unwrap_or_default()),
        None => format!("{error:?}"),
    }
}
