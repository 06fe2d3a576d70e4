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

const USAGE: &str = "\
Usage: drill [--kills N] [--only EVENT]... [--rounds N] [--no-fence] [--patroni DIR] [--keep]

  --kills     how often the primary is killed (5)
  --only      this event alone; several in their order: switchover, kill-server, kill-twice, kill-both, kill-patroni,
              cut-off, cut-off-from-all, freeze
  --rounds    how often all the events befall, one round after the other (1)
  --patroni   the folder with Patroni's Python package; without, the system's
  --no-fence  Patroni starts beside the server that it left behind, as without the unit's ExecStartPre: under Patroni 3.0
              jobs are lost
  --keep      the servers' folders stay";

/// What to do.
pub struct Options {
    kills: usize,
    only: Vec<events::Event>,
    rounds: usize,
    patroni: Option<PathBuf>,
    no_fence: bool,
    keep: bool,
}

fn options() -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut options = Options { kills: 5, only: Vec::new(), rounds: 1, patroni: None, no_fence: false, keep: false };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("kills") => options.kills = parser.value()?.parse()?,
            Long("only") => options.only.push(parser.value()?.parse()?),
            Long("rounds") => options.rounds = parser.value()?.parse()?,
            Long("patroni") => options.patroni = Some(parser.value()?.into()),
            Long("no-fence") => options.no_fence = true,
            Long("keep") => options.keep = true,
            Long("help") | Short('h') => {
                println!("{USAGE}");
                return Ok(None);
            }
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drill: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if let Some(code) = place::in_namespaces(options.keep) {
        return code;
    }
    let place = place::Place::make(options.patroni.as_deref());
    if events::drill(&place, &options) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
