//! Measures pg_queue against two others, in one run and in turns: the raw inserts below it (the floor) and the
//! table with SKIP LOCKED that articles recommend. `make bench`; `docs/benchmark.md` says how to read the answer.
//! With `soak` as its first word it does something else, in `soak/`: `make soak`.

mod after;
mod ahead;
mod chart;
mod charts;
mod client;
mod cluster;
mod contender;
mod cpu;
mod cron;
mod delayed;
mod direct;
mod drive;
mod keys;
mod looks;
mod options;
mod plan;
mod report;
mod server;
mod simulation;
mod soak;
mod sql;
mod statistics;
mod targets;
mod topics;
mod wake;
mod wal;

use std::process::ExitCode;

use options::Options;

/// What goes wrong ends the run: a benchmark that went on would compare apples and pears.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == "soak") {
        let options = soak::options::Options::parse(std::env::args_os().skip(2));
        return start(options, soak::options::USAGE, |options| options.check, soak::run);
    }
    if let (Some("simulate"), Some(path)) = (std::env::args().nth(1).as_deref(), std::env::args().nth(2)) {
        let drawn = simulation::draw(&cluster::MEASURED).and_then(|svg| Ok(std::fs::write(path, svg)?));
        return drawn.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    start(Options::parse(), options::USAGE, |options| options.check, run)
}

/// Does what the options ask for, if they ask for anything; the exit code tells how it went.
fn start<O>(
    options: std::result::Result<Option<O>, lexopt::Error>,
    usage: &str,
    check: fn(&O) -> bool,
    run: fn(&O) -> Result<bool>,
) -> ExitCode {
    let options = match options {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}\n\n{usage}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(is_reached) if is_reached || !check(&options) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("\nbench: {error}");
            // The driver says "db error", and what the server said is its cause.
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("  {error}");
                cause = error.source();
            }
            ExitCode::from(2)
        }
    }
}

/// Measures and reports. Whether all targets were reached.
fn run(options: &Options) -> Result<bool> {
    if options.asks_for(cluster::NAME) {
        return cluster::measure(options);
    }
    let plan = plan::Plan::new(options)?;
    let noise = cpu::Noise::begin(plan.postmasters());
    let results = plan.run(options)?;
    let others = noise.percent();
    report::print_cells(&results);
    let wake = if options.wants(wake::NAME) { Some(wake::measure(options)?) } else { None };
    wake.iter().for_each(|waits| report::print_wake(waits));
    if options.wants(direct::NAME) {
        report::print_direct(&direct::measure(options)?);
    }
    let delayed = delayed::measure(options)?;
    report::print_delayed(&delayed);
    if options.asks_for(looks::NAME) {
        looks::print(&looks::measure(options)?);
    }
    if options.asks_for(after::NAME) {
        after::measure(options)?;
    }
    if options.asks_for(ahead::NAME) {
        ahead::measure(options)?;
    }
    if options.asks_for(keys::NAME) {
        keys::print(&keys::measure(options)?);
    }
    if options.asks_for(sql::NAME) {
        sql::measure(options)?;
    }
    topics::measure(options)?;
    if options.asks_for(cron::NAME) {
        cron::measure()?;
    }
    if let Some(folder) = &options.charts {
        charts::of_cells(folder, &results, wake.as_deref())?;
    }
    let targets = targets::judge(&results, wake.as_ref(), &delayed);
    report::print_targets(&targets);
    println!("\nOther processes used {others:.0} % of the machine while contenders took turns.");
    Ok(targets.iter().all(|target| target.is_goal || target.is_reached()))
}
