//! What is said on the command line.

use lexopt::prelude::*;
use queue_tests::random;

pub const USAGE: &str = "Usage: torture [--minutes N] [--seed N] [--only WORD,…] [--without WORD,…]

  --minutes N      how long it works before everything is checked (10; 0.5 is half a minute)
  --seed N         plans of clients and faults are made from it; without, the clock's, and it is printed
  --without WORD   leaves out: crashes, promotions, beside, topics, or a queue by its name; several with commas
  --only WORD      the work goes to these queues alone";

#[derive(Debug)]
pub struct Options {
    pub minutes: f64,
    pub seed: u64,
    pub without: Vec<String>,
    pub only: Vec<String>,
}

impl Options {
    /// `None`: only help was asked for.
    pub fn parse() -> Result<Option<Self>, lexopt::Error> {
        let mut options = Self { minutes: 10.0, seed: 0, without: Vec::new(), only: Vec::new() };
        let mut seed = None;
        let mut parser = lexopt::Parser::from_env();
        let words = |value: std::ffi::OsString| -> Result<Vec<String>, lexopt::Error> {
            Ok(value.string()?.split(',').map(str::to_owned).collect())
        };
        while let Some(argument) = parser.next()? {
            match argument {
                Long("minutes") => options.minutes = parser.value()?.parse()?,
                Long("seed") => seed = Some(parser.value()?.parse()?),
                Long("without") => options.without.extend(words(parser.value()?)?),
                Long("only") => options.only.extend(words(parser.value()?)?),
                Long("help") => {
                    println!("{USAGE}");
                    return Ok(None);
                }
                _ => return Err(argument.unexpected()),
            }
        }
        options.seed = seed.unwrap_or_else(|| random::seed("torture"));
        Ok(Some(options))
    }

    /// Whether this kind of trouble, or this queue, is a part of the run.
    pub fn has(&self, word: &str) -> bool {
        !self.without.iter().any(|without| without == word)
    }
}
