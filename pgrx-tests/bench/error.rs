//! Errors.

/// An error ends the run: a benchmark that went on would compare different things.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
