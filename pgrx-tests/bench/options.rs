//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Measures pg_queue against others, on throw-away servers.
#[derive(Parser)]
#[command(name = "bench", args_conflicts_with_subcommands = true)]
pub struct Options {
    /// Short rounds: a look, not a measurement
    #[arg(long)]
    quick: bool,
    /// Only what begins with one of these: batch, single/ours, depth, wake, …
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// How long each contender runs in each round [default: 0.7, with --quick 0.3]
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<Duration>,
    /// How often each has its turn; the results are medians over the rounds [default: 11, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    #[command(flatten)]
    pub report: Report,
    #[command(subcommand)]
    pub other: Option<Other>,
}

#[derive(Subcommand)]
pub enum Other {
    /// Offers the same load for minutes, beside an open snapshot
    Soak(Soak),
}

/// How results are shown and judged.
#[derive(Args, Clone)]
pub struct Report {
    /// Draws charts as SVG files there: rates, CPU, WAL and wake-ups; of a soak the jobs done a second over time
    #[arg(long, value_name = "FOLDER")]
    pub charts: Option<PathBuf>,
    /// Exit code 1 when a target is missed
    #[arg(long)]
    pub check: bool,
}

/// The options of a soak: how long, how much, and which contenders.
#[derive(Args)]
pub struct Soak {
    /// How long pg_queue runs, 0.2 for a try; the others run half as long, but at least a minute
    #[arg(long = "minutes", value_name = "N", default_value = "10", value_parser = minutes)]
    pub length: Duration,
    /// Only these: ours, articles, pgq
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Keeps no snapshot open: shows what the others are without it
    #[arg(long)]
    pub no_snapshot: bool,
    #[command(flatten)]
    pub report: Report,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn minutes(text: &str) -> Result<Duration, String> {
    /// With less, the results would say nothing.
    const SHORTEST: Duration = Duration::from_secs(6);
    let minutes = seconds(text)?;
    if minutes * 60 < SHORTEST { Err("it must be at least 0.1".into()) } else { Ok(minutes * 60) }
}

impl Options {
    /// Returns the length of one turn.
    pub fn turn(&self) -> Duration {
        self.seconds.unwrap_or(Duration::from_millis(self.scale(700, 300)))
    }

    /// Returns the number of turns of each contender.
    pub fn rounds(&self) -> usize {
        self.rounds.map_or(self.scale(11, 3), |rounds| rounds as usize)
    }

    /// Returns a number of jobs or repetitions: fewer with `--quick`.
    pub fn scale<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Returns true if this cell is to be measured.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| name.starts_with(word.as_str()))
    }
}

impl Soak {
    /// Returns true if this contender is to run.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| word == name)
    }

    /// Returns how long the contenders other than pg_queue run.
    pub fn contrast(&self) -> Duration {
        (self.length / 2).max(self.length.min(Duration::from_secs(60)))
    }
}
