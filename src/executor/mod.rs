//! The processes that run jobs which are SQL. Each process is connected as one role to one database. It runs the jobs
//! of that role, one after the other, while there are some.
//!
//! | file | what is there |
//! |---|---|
//! | `table` | the slots: which process does what |
//! | `process` | the process: its start, its loop, its end |
//! | `signals` | what interrupts a command |
//! | `job` | one job: its claim, its command, its outcome |
//! | `commits` | which commits of a command are refused |
//! | `settings` | the settings of the session in which it runs |
//!
//! Not responsible for when a process is needed (`duty::dispatch`), nor for running statements (`pg::portal`).
//!
//! Invariant: no job leaves anything in the session for the next one. If the session cannot be cleaned, the process
//! ends.

pub mod commits;
pub mod job;
pub mod process;
pub mod settings;
pub mod signals;
pub mod table;
