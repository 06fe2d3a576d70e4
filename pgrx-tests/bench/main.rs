//! Measures pg_queue against others, in one run and in turns: the raw inserts below it (the floor), the table with SKIP
//! LOCKED that articles recommend, and peers. Run it by `make bench`; `docs/benchmark.md` explains the output. With
//! `soak` as the first word it soaks contenders instead (`soak/`, `make soak`).
//!
//! Read first: `cells` (what is measured), `contender` (who takes part), `drive` (how clients run), `runner`.
//! Statements and set-ups are in `sql/`.

mod bench;
mod cells;
mod chart;
mod charts;
mod client;
mod contender;
mod cores;
mod cpu;
mod drive;
mod error;
mod latency;
mod options;
mod queues;
mod runner;
mod server;
mod shares;
mod soak;
mod statistics;
mod table;
mod targets;

use std::process::ExitCode;

use clap::Parser;
use options::{Options, Other};

fn main() -> ExitCode {
    let options = Options::parse();
    let (reached, check) = match &options.other {
        Some(Other::Soak(options)) => (soak::run(options), options.report.check),
        None => (runner::run(&options), options.report.check),
    };
    match reached {
        Ok(is_reached) if is_reached || !check => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            // The server's message: the driver's own text for it is only "db error".
            let said = error.downcast_ref().map_or_else(|| error.to_string(), queue_tests::error::describe);
            eprintln!("\nbench: {said}");
            ExitCode::from(2)
        }
    }
}
