//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

/// Shown by `--help` and after an error.
pub const USAGE: &str = "\
Usage: bench [--quick] [--only NAME,…] [--seconds N] [--rounds N] [--charts FOLDER] [--check]

  --quick      short rounds: a look, not a measurement
  --only       only what begins with one of these: batch, single/ours, depth, wake, direct, …; after, ahead, cluster (by itself), keys, looks, sql-runs, sql-cron and topics are left out else
  --seconds    how long each contender runs in each round (0.7)
  --rounds     how often each has its turn; the results are medians over the rounds (11)
  --charts     draws rates, CPU, WAL and wake-ups as SVG files there
  --check      exit code 1 when a target is missed";

/// What to measure, and how thoroughly.
pub struct Options {
    /// Fewer and shorter rounds, a smaller backlog.
    pub quick: bool,
    /// Exit code 1 when a target is missed.
    pub check: bool,
    /// Length of one turn.
    pub turn: Duration,
    /// Turns of each contender.
    pub rounds: usize,
    /// Where charts are drawn, if anywhere.
    pub charts: Option<PathBuf>,
    only: Vec<String>,
}

impl Options {
    /// From the command line; `None` when only help was asked for.
    pub fn parse() -> Result<Option<Self>, lexopt::Error> {
        let (mut quick, mut check, mut only, mut seconds, mut rounds) = (false, false, Vec::new(), None, None);
        let mut charts = None;
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("quick") => quick = true,
                Long("check") => check = true,
                Long("only") => only.extend(parser.value()?.string()?.split(',').map(str::to_owned)),
                Long("seconds") => seconds = Some(parser.value()?.parse::<f64>()?),
                Long("rounds") => rounds = Some(parser.value()?.parse::<usize>()?.max(1)),
                Long("charts") => charts = Some(parser.value()?.into()),
                Long("help") | Short('h') => {
                    println!("{USAGE}");
                    return Ok(None);
                }
                other => return Err(other.unexpected()),
            }
        }
        let seconds = seconds.unwrap_or(if quick { 0.3 } else { 0.7 });
        let turn = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
        Ok(Some(Self { quick, check, turn, rounds: rounds.unwrap_or(if quick { 3 } else { 11 }), charts, only }))
    }

    /// Whether what has this name is named.
    pub fn asks_for(&self, name: &str) -> bool {
        !self.only.is_empty() && self.wants(name)
    }

    /// Whether what has this name is to be measured.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| name.starts_with(word.as_str()))
    }
}
