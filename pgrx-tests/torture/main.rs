//! Tortures pg_queue on throw-away servers and holds every answer against what the pages promise: `make torture`.
//!
//! Clients call all verbs at random, a saboteur ends sessions, processes and servers. Each client writes into a ledger
//! of its own, outside of the database, what it asked for and what was answered; the checkers compare that with what
//! the database says in the end. What the ledger holds is true whatever becomes of the server: that is the invariant
//! everything here keeps.

mod beside;
mod check;
mod errors;
mod faults;
mod flows;
mod held;
mod ledger;
mod manager;
mod options;
mod place;
mod plan;
mod producer;
mod run;
mod session;
mod shared;
mod topics;
mod worker;

use std::process::ExitCode;

use options::Options;

fn main() -> ExitCode {
    if run::run(&Options::read()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
