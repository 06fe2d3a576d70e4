//! Prints a soak while it goes on, and what came of it.

use crate::soak::drive::{Soaked, Window};
use crate::statistics::quantile;
use crate::targets::{Bound, Target};

const MEGABYTE: f64 = 1e6;

/// Above the lines of a run.
pub fn print_head() {
    println!(
        "{:>6}{:>8}{:>8}{:>9}{:>11}{:>8}{:>10}{:>9}{:>10}{:>12}{:>9}{:>12}{:>11}",
        "s",
        "sent/s",
        "done/s",
        "overdue",
        "claim p50",
        "p99 ms",
        "dead est.",
        "counted",
        "logs MB",
        "history MB",
        "all MB",
        "CPU s/1,000",
        "WAL B/job"
    );
}

/// A line of a run.
pub fn print_window(window: &Window) {
    let per_second = |jobs: u64| jobs as f64 / window.seconds;
    let megabytes = |bytes: i64| bytes as f64 / MEGABYTE;
    let jobs = window.done as f64;
    println!(
        "{:>6.0}{:>8.0}{:>8.0}{:>9}{:>11.2}{:>8.2}{:>10}{:>9}{:>10.1}{:>12.1}{:>9.1}{:>12.4}{:>11.0}",
        window.end.as_secs_f64(),
        per_second(window.sent),
        per_second(window.done),
        window.overdue,
        quantile(&window.claims, 0.5),
        quantile(&window.claims, 0.99),
        window.sizes.dead,
        window.dead.map_or_else(String::new, |dead| dead.to_string()),
        megabytes(window.sizes.logs),
        megabytes(window.sizes.history),
        megabytes(window.sizes.all),
        window.cpu_seconds * 1e3 / jobs,
        window.wal_bytes as f64 / jobs,
    );
}

/// What a run found besides.
pub fn print_end(soaked: &Soaked, others: f64) {
    match soaked.snapshot_age {
        Some(age) => print!("  the open snapshot was {age} transactions old"),
        None => print!("  no snapshot was kept open"),
    }
    println!("; other processes used {others:.0} % of the machine");
}

/// The contenders beside each other, first minute and last.
pub fn print_summary(all: &[(&str, Soaked)]) {
    println!("\nfirst minute -> last minute of each run");
    println!(
        "{:10}{:>16}{:>18}{:>18}{:>20}{:>16}{:>12}{:>10}",
        "", "done/s", "claim p50 ms", "claim p99 ms", "CPU s/1,000", "WAL B/job", "dead rows", "all MB"
    );
    for (name, soaked) in all {
        let (first, last) = soaked.ends();
        let pair = |one: f64, other: f64, digits: usize| format!("{one:.digits$} -> {other:.digits$}");
        println!(
            "  {name:8}{:>16}{:>18}{:>18}{:>20}{:>16}{:>12}{:>10.0}",
            pair(first.rate, last.rate, 0),
            pair(first.p50, last.p50, 2),
            pair(first.p99, last.p99, 2),
            pair(first.cpu, last.cpu, 4),
            pair(first.wal, last.wal, 0),
            soaked.dead(),
            soaked.windows.last().map_or(0.0, |window| window.sizes.all as f64 / MEGABYTE),
        );
    }
}

/// A line per target.
pub fn print_targets(targets: &[Target]) {
    println!("\ntargets of pg_queue");
    for target in targets {
        let word = if target.is_reached() { "PASS" } else { "FAIL" };
        let (relation, bound) = match target.bound {
            Bound::AtLeast(bound) => ("at least", bound),
            Bound::AtMost(bound) => ("at most", bound),
        };
        println!("  {word}  {:40}{:>10.2}  {relation} {bound:.2}", target.what, target.value);
    }
}
