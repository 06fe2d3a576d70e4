//! The command line of the soak.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

/// Shown by `soak --help` and after an error.
pub const USAGE: &str = "\
Usage: bench soak [--minutes N] [--rate N] [--only NAME,…] [--no-snapshot] [--charts FOLDER] [--check]

  --minutes    how long pg_queue runs, 0.2 for a try (10); the others run half as long, but at least a minute
  --rate       jobs offered in a second (2000)
  --only       only these: ours, articles, pgq
  --no-snapshot
               nobody keeps a snapshot open: shows what the others are without it
  --charts     draws the jobs done a second over time as an SVG file there
  --check      exit code 1 when a target is missed";

/// How long, how much, and which contenders.
pub struct Options {
    /// Exit code 1 when a target is missed.
    pub check: bool,
    /// How long pg_queue runs.
    pub length: Duration,
    /// Jobs offered in a second.
    pub rate: u32,
    /// Whether a session keeps its snapshot all the time.
    pub has_snapshot: bool,
    /// Where a chart is drawn, if anywhere.
    pub charts: Option<PathBuf>,
    only: Vec<String>,
}

impl Options {
    /// From what follows `soak` on the command line; `None` when only help was asked for.
    pub fn parse(arguments: impl Iterator<Item = std::ffi::OsString>) -> Result<Option<Self>, lexopt::Error> {
        let (mut check, mut minutes, mut rate, mut has_snapshot, mut only) = (false, 10.0, 2_000, true, Vec::new());
        let mut charts = None;
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("check") => check = true,
                Long("no-snapshot") => has_snapshot = false,
                Long("minutes") => minutes = parser.value()?.parse::<f64>()?,
                Long("rate") => rate = parser.value()?.parse::<u32>()?.max(1),
                Long("only") => only.extend(parser.value()?.string()?.split(',').map(str::to_owned)),
                Long("charts") => charts = Some(parser.value()?.into()),
                Long("help") | Short('h') => {
                    println!("{USAGE}");
                    return Ok(None);
                }
                other => return Err(other.unexpected()),
            }
        }
        let length = Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| error.to_string())?;
        if length < SHORTEST {
            return Err(format!("--minutes must be at least {:.1}", SHORTEST.as_secs_f64() / 60.0).into());
        }
        Ok(Some(Self { check, length, rate, has_snapshot, charts, only }))
    }

    /// Whether this contender is to run.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| word == name)
    }

    /// How long those run that are there for the contrast.
    pub fn contrast(&self) -> Duration {
        (self.length / 2).max(self.length.min(Duration::from_secs(60)))
    }
}

/// Less shows nothing at all.
const SHORTEST: Duration = Duration::from_secs(6);
