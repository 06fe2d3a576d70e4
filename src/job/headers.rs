//! Checks the form of the headers that a producer gives. They mean nothing to the extension.

use pgrx::pg_sys::Datum;

use crate::error::{Error, Result};
use crate::pg::jsonb;

/// Checks the headers of jobs or events.
///
/// Errors: 22023 unless they are an object.
pub fn check(headers: Option<Datum>) -> Result<()> {
    if headers.is_some_and(|headers| !jsonb::is_object(headers)) {
        return Err(Error::invalid("headers must be a JSON object")
            .hint("For instance: headers => '{\"trace\": \"b7ad6b71\"}'. Leave headers out if there are none."));
    }
    Ok(())
}
