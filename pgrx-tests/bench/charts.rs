//! Decides which charts a run is drawn as. They go into the folder of `--charts`. The charts in docs/benchmark.md are
//! from the run that the page names.

use std::fs;
use std::path::Path;

use crate::bench::{Rows, samples_of};
use crate::chart;
use crate::drive::Sample;
use crate::error::Result;
use crate::options::Options;
use crate::soak::report::Soaked;
use crate::statistics::{median_of, quantile};

/// The contenders that are drawn, as readers know them.
const SHOWN: [(&str, &str); 5] = [
    ("ours", "pg_queue"),
    ("loop", "pg_queue, loop"),
    ("floor", "three plain inserts"),
    ("articles-index", "articles, best plan"),
    ("articles", "articles"),
];

/// Name of a file, title, title of the axis, what is drawn.
type Figure = (&'static str, &'static str, &'static str, fn(&Sample) -> f64);

const FIGURES: [Figure; 3] = [
    ("rate", "Jobs a second", "enqueued, claimed and completed, a second", Sample::rate),
    ("cpu", "CPU time of the server", "seconds per 1,000 jobs", Sample::cpu),
    ("wal", "WAL", "bytes per job", Sample::wal),
];

fn begin(folder: &Path) -> Result<()> {
    println!("\nCharts are in {}.", folder.display());
    Ok(fs::create_dir_all(folder)?)
}

/// Draws the cells `single` and `batch-4`.
pub fn of_cell(options: &Options, cell: &str, rows: &Rows) -> Result<()> {
    let what = match cell {
        "single" => "one job in a transaction, 4 clients",
        "batch-4" => "100 jobs in a transaction, 4 clients",
        _ => return Ok(()),
    };
    let Some(folder) = &options.report.charts else { return Ok(()) };
    begin(folder)?;
    for (file, title, unit, figure) in FIGURES {
        let shown = SHOWN.iter().map(|(who, name)| (*name, samples_of(rows, who)));
        let shown = shown.filter(|(_, samples)| !samples.is_empty());
        let bars: Vec<_> = shown.map(|(name, samples)| (name, median_of(samples, figure))).collect();
        if !bars.is_empty() {
            chart::bars(&folder.join(format!("{cell}-{file}.svg")), &format!("{title}, {what}"), unit, &bars)?;
        }
    }
    Ok(())
}

/// Draws how long sleeping workers waited, microseconds.
pub fn of_wake(options: &Options, waits: &[f64]) -> Result<()> {
    let Some(folder) = &options.report.charts else { return Ok(()) };
    begin(folder)?;
    // The machine causes the slowest thousandth.
    let point = |n: i32| (quantile(waits, f64::from(n) / 1e3) / 1e3, f64::from(n) / 10.0);
    let lines = [("a worker that sleeps in queue.claim", (0..1_000).map(point).collect())];
    let axes = ["milliseconds from sending a job to having it", "% of jobs"];
    chart::lines(&folder.join("wake.svg"), "How soon a sleeping worker has a job", axes, &lines)
}

/// Draws what share of the started jobs each tenant has, over time.
pub fn of_shares(options: &Options, lines: &[(&str, Vec<(f64, f64)>)]) -> Result<()> {
    let Some(folder) = &options.report.charts else { return Ok(()) };
    begin(folder)?;
    chart::lines(&folder.join("shares.svg"), "Tenants share by weight", ["seconds", "% of the jobs started"], lines)
}

/// Draws the jobs done a second, over the time of a soak.
pub fn of_soak(folder: &Path, all: &[(&str, Soaked)], has_snapshot: bool) -> Result<()> {
    begin(folder)?;
    let name = |who: &str| match who {
        "ours" => "pg_queue",
        "articles" => "articles, best plan",
        _ => "PgQ, plain events",
    };
    let lines: Vec<_> = all.iter().map(|(who, soaked)| (name(who), soaked.rates())).collect();
    let beside = if has_snapshot { ", beside an open snapshot" } else { "" };
    let title = format!("2,000 jobs a second are offered{beside}");
    chart::lines(&folder.join("soak.svg"), &title, ["seconds", "jobs done a second"], &lines)
}
