//! The drill of a failover: three servers under Patroni, primaries that are switched over, killed and cut off, and
//! clients that go on all the while. `make drill`; `docs/failover.md` has the configuration and what came of it.
//!
//! The clients write into a [`ledger`] what they were told, outside of any database. At the end [`judge`] holds it
//! against what the last primary has: that is all the drill believes.

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
