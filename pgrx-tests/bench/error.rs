//! What goes wrong.

/// What goes wrong ends the run: a benchmark that went on would compare apples and pears.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
