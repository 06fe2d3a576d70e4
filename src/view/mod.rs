//! The SQL functions behind the views, and others that only read, one file for each view or family. They read logs and
//! memory, and may read anything below them.
//!
//! Not responsible for the functions that change something (`api`), nor for the checks of the doctor (`doctor`).
//!
//! Invariant: nothing here writes a row or changes what memory knows of jobs.

pub mod attempts;
pub mod current_job;
pub mod doctor;
pub mod error_groups;
pub mod firings;
pub mod groups;
pub mod inputs;
pub mod list;
pub mod load;
pub mod running;
pub mod stats;
pub mod steps;
pub mod text_length;
pub mod throughput;
