//! The drill of a failover: three servers under Patroni, primaries that are switched over, killed and cut off, and clients
//! that go on all the while. `make drill`; `docs/operations.md` has the configuration and what came of it.
//!
//! The clients write into a [`ledger`] what they were told, outside of any database. At the end [`judge`] holds it against
//! what the last primary has: that is all the drill believes.

mod events;
mod judge;
mod ledger;
mod load;
mod log;
mod node;
mod place;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Fails over: three servers under Patroni, whose primaries are killed and cut off under load.
#[derive(Parser)]
#[command(name = "drill")]
pub struct Options {
    /// How often the primary is killed
    #[arg(long, value_name = "N", default_value_t = 5)]
    kills: usize,
    /// This event alone; several in their order
    #[arg(long, value_name = "EVENT")]
    only: Vec<events::Event>,
    /// How often all the events befall, one round after the other
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: usize,
    /// The folder with Patroni's Python package; without, the system's
    #[arg(long, value_name = "DIR")]
    patroni: Option<PathBuf>,
    /// Patroni starts beside the server that it left behind, as without the unit's ExecStartPre: under Patroni 3.0 jobs are lost
    #[arg(long)]
    no_fence: bool,
    /// The servers' folders stay
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(code) = place::in_namespaces(options.keep) {
        return code;
    }
    let place = place::Place::make(options.patroni.as_deref());
    if events::drill(&place, &options) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
