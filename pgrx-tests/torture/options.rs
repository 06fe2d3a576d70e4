//! The options of the command line.

use clap::{Parser, ValueEnum};
use queue_tests::random;

/// Calls everything at once, ends servers, and checks all promises.
#[derive(Debug, Parser)]
#[command(name = "torture")]
pub struct Options {
    /// Minutes of work before everything is checked; 0.5 is half a minute
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    pub minutes: f64,
    /// Seed of the plans of clients and faults; without one, the clock gives it, and it is printed
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Leaves out: crashes, promotions, delays, beside, topics, or a queue by its name; several with commas
    #[arg(long, value_name = "WORD,…", value_delimiter = ',')]
    pub without: Vec<String>,
    /// Uses only these queues
    #[arg(long, value_name = "WORD,…", value_delimiter = ',')]
    pub only: Vec<String>,
    /// A short run for one kind of promises, which the server's tests make
    #[arg(long, value_name = "NAME")]
    pub preset: Option<Preset>,
}

/// A preset. It leaves some faults out, and uses some of the queues.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Preset {
    /// Transactions roll back, and connections end
    Sessions,
    /// Like `sessions`, and the server is ended again and again
    Crashes,
    /// Like `sessions`, in queues with limits
    Limits,
    /// As `sessions`, in queues with unique keys, and with jobs that wait for jobs
    Keys,
}

impl Preset {
    fn without(self) -> &'static [&'static str] {
        match self {
            Self::Crashes => &["promotions", "beside", "topics"],
            Self::Sessions | Self::Limits | Self::Keys => &["crashes", "promotions", "beside", "topics"],
        }
    }

    fn only(self) -> &'static [&'static str] {
        match self {
            Self::Sessions | Self::Crashes => &["plain", "staged", "mortal", "morgue"],
            Self::Limits => &["limited", "rated", "strict"],
            Self::Keys => &["keyed", "versioned", "timed", "chained", "flowing"],
        }
    }
}

impl Options {
    /// Reads the command line. The seed is settled then.
    pub fn read() -> Self {
        let mut options = Self::parse();
        options.seed.get_or_insert_with(|| random::seed("torture"));
        if let Some(preset) = options.preset {
            options.without.extend(preset.without().iter().map(|&word| word.to_owned()));
            options.only.extend(preset.only().iter().map(|&word| word.to_owned()));
        }
        options
    }

    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or_default()
    }

    /// Returns true if this kind of trouble, or this queue, is a part of the run.
    pub fn has(&self, word: &str) -> bool {
        !self.without.iter().any(|without| without == word)
    }
}
