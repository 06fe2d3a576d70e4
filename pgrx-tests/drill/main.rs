//! The failover drill: three servers under Patroni, primaries that are switched over, killed and cut off, and clients
//! that continue all the time. Run it by `make drill`; `docs/failover.md` has the configuration and the results.
//!
//! The clients write each answer into a [`ledger`] outside of any database. At the end [`judge`] compares it with the
//! last primary. The drill believes nothing else.

mod event;
mod events;
mod judge;
mod ledger;
mod load;
mod log;
mod node;
mod options;
mod place;

use std::process::ExitCode;

use clap::Parser as _;
use options::Options;

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(code) = place::in_namespaces(options.keep) {
        return code;
    }
    let place = place::Place::make(options.patroni.as_deref());
    if events::drill(&place, &options) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
