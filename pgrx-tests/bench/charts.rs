//! Which charts a run is drawn as. They lie where `--charts` says; those of docs/benchmark.md are of the run that it names.

use std::fs;
use std::path::Path;

use crate::Result;
use crate::chart::{self, Axis, Series};
use crate::drive::Sample;
use crate::plan::{Results, Who};
use crate::soak::Soaked;
use crate::statistics::{median, quantile};

/// The contenders that are drawn, as readers know them.
const SHOWN: [(Who, &str); 5] = [
    (Who::Ours, "pg_queue"),
    (Who::Loop, "pg_queue, loop"),
    (Who::Floor, "three plain inserts"),
    (Who::ArticlesIndex, "articles, best plan"),
    (Who::Articles, "articles"),
];

/// Name of a file, title, title of the axis, what is drawn.
type Figure = (&'static str, &'static str, &'static str, fn(&Sample) -> f64);

const FIGURES: [Figure; 3] = [
    ("rate", "Jobs a second", "enqueued, claimed and completed, a second", Sample::rate),
    ("cpu", "CPU time of the server", "seconds per 1,000 jobs", Sample::cpu),
    ("wal", "WAL", "bytes per job", Sample::wal),
];

/// Draws the cells `single` and `batch-4`, and how long sleeping workers waited, as far as they were measured.
pub fn of_cells(folder: &Path, results: &Results, wake: Option<&[f64]>) -> Result<()> {
    fs::create_dir_all(folder)?;
    for (cell, what) in
        [("single", "one job in a transaction, 4 clients"), ("batch-4", "100 jobs in a transaction, 4 clients")]
    {
        for (file, title, unit, figure) in FIGURES {
            let series: Vec<Series> = SHOWN
                .iter()
                .map(|(who, name)| (*who, *name, results.samples(cell, *who)))
                .filter(|(.., samples)| !samples.is_empty())
                .map(|(who, name, samples)| Series {
                    name,
                    is_ours: matches!(who, Who::Ours | Who::Loop),
                    points: vec![(0.0, median(&samples.iter().map(figure).collect::<Vec<_>>()))],
                })
                .collect();
            if !series.is_empty() {
                let axis = Axis::for_all(unit, series.iter().flat_map(|series| &series.points).map(|point| point.1));
                chart::bars(&folder.join(format!("{cell}-{file}.svg")), &format!("{title}, {what}"), &axis, &series)?;
            }
        }
    }
    if let Some(waits) = wake.filter(|waits| !waits.is_empty()) {
        let milliseconds: Vec<f64> = waits.iter().map(|wait| wait / 1e3).collect();
        // The slowest thousandth is the machine's.
        let axis =
            Axis::for_all("milliseconds from sending a job to having it", [quantile(&milliseconds, 0.999)].into_iter());
        let mut points = chart::shares(&milliseconds);
        points.retain(|point| point.0 <= axis.end);
        let share = Axis { title: "% of jobs", end: 100.0, digits: 0 };
        let series = [Series { name: "a worker that sleeps in queue.claim", is_ours: true, points }];
        chart::lines(&folder.join("wake.svg"), "How soon a sleeping worker has a job", (&axis, &share), &series)?;
    }
    println!("\nCharts are in {}.", folder.display());
    Ok(())
}

/// Draws the jobs done a second, over the time of a soak.
pub fn of_soak(folder: &Path, all: &[(&str, Soaked)], has_snapshot: bool) -> Result<()> {
    fs::create_dir_all(folder)?;
    let name = |who: &str| match who {
        "ours" => "pg_queue",
        "articles" => "articles, best plan",
        _ => "PgQ, plain events",
    };
    let series: Vec<Series> = all
        .iter()
        .map(|(who, soaked)| Series {
            name: name(who),
            is_ours: *who == "ours",
            points: soaked
                .windows
                .iter()
                .map(|window| (window.end.as_secs_f64(), window.done as f64 / window.seconds))
                .collect(),
        })
        .collect();
    let points = || series.iter().flat_map(|series| &series.points);
    let seconds = Axis::for_all("seconds", points().map(|point| point.0));
    let rate = Axis::for_all("jobs done a second", points().map(|point| point.1));
    let title = if has_snapshot {
        "2,000 jobs a second are offered, beside an open snapshot"
    } else {
        "2,000 jobs a second are offered"
    };
    chart::lines(&folder.join("soak.svg"), title, (&seconds, &rate), &series)?;
    println!("\nA chart is in {}.", folder.display());
    Ok(())
}
