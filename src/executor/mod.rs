//! The processes that run jobs which are SQL. Each is connected as one role to one database and runs the jobs of that
//! role, one after the other, for as long as there are some.
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
//! Not here: when a process is needed (`duty::dispatch`), and running statements (`pg::portal`).
//!
//! Invariant: nothing of a job is left in the session when the next one begins. What cannot be cleaned ends the
//! process.

pub mod commits;
pub mod job;
pub mod process;
pub mod settings;
pub mod signals;
pub mod table;
