//! Prints a soak while it goes on, and what came of it: the first minute against the last, and what must never have
//! happened.

use crate::soak::soaked::{Soaked, Window};
use crate::statistics::quantile;
use crate::targets::{Target, at_least, at_most};

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
        window.cost.cpu_seconds * 1e3 / jobs,
        window.cost.wal_bytes as f64 / jobs,
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

/// A minute, or what there is of it in a short run.
#[derive(Clone, Copy)]
struct Span {
    /// Jobs ended in a second.
    rate: f64,
    /// Claims, milliseconds.
    p50: f64,
    /// Claims, milliseconds.
    p99: f64,
    /// Seconds of server CPU per 1,000 jobs.
    cpu: f64,
    /// Bytes of WAL per job.
    wal: f64,
}

impl Span {
    fn of(windows: &[Window]) -> Self {
        let sum = |figure: fn(&Window) -> f64| windows.iter().map(figure).sum::<f64>();
        let claims: Vec<f64> = windows.iter().flat_map(|window| window.claims.iter().copied()).collect();
        let jobs = sum(|window| window.done as f64);
        Self {
            rate: jobs / sum(|window| window.seconds),
            p50: quantile(&claims, 0.5),
            p99: quantile(&claims, 0.99),
            cpu: sum(|window| window.cost.cpu_seconds) * 1e3 / jobs,
            wal: sum(|window| window.cost.wal_bytes as f64) / jobs,
        }
    }
}

impl Soaked {
    /// The first minute after a warm-up, and the last; shorter, and apart, in a short run.
    fn ends(&self) -> (Span, Span) {
        let windows = &self.windows;
        let warm_up = (windows.len() / 20).max(1);
        let minute = windows.iter().take_while(|window| window.end.as_secs_f64() < 60.5).count();
        let count = minute.min(windows.len().saturating_sub(warm_up) / 2).max(1);
        (Span::of(&windows[warm_up..warm_up + count]), Span::of(&windows[windows.len() - count..]))
    }

    /// The most dead rows in the logs that were counted at once; estimated where they could not be counted.
    fn dead(&self) -> i64 {
        self.windows.iter().filter_map(|window| window.dead).max().unwrap_or_else(|| self.dead_estimated())
    }

    /// The most that the statistics have ever told. They forget what was pruned by the way.
    fn dead_estimated(&self) -> i64 {
        self.windows.iter().map(|window| window.sizes.dead).max().unwrap_or(0)
    }

    /// The largest size of the logs in the last third of the run over that in the second.
    fn growth(&self) -> f64 {
        let largest = |windows: &[Window]| windows.iter().map(|window| window.sizes.logs).max().unwrap_or(0) as f64;
        let third = self.windows.len() / 3;
        largest(&self.windows[2 * third..]) / largest(&self.windows[third..2 * third])
    }
}

/// Growth of the logs that is none: the ring is never filled to the same height.
const LEVEL: f64 = 1.15;

/// What pg_queue must reach; `rate` is what is offered.
pub fn judge(soaked: &Soaked, rate: u32) -> Vec<Target> {
    let (first, last) = soaked.ends();
    let overdue = soaked.windows.last().map_or(0, |window| window.overdue);
    let targets = [
        ("done per second, last minute / first", last.rate / first.rate, at_least(0.98)),
        ("jobs overdue at the end", overdue as f64, at_most(f64::from(rate))),
        ("jobs never done", soaked.missing as f64, at_most(0.0)),
        ("jobs done twice", soaked.twice as f64, at_most(0.0)),
        ("dead rows in the logs", soaked.dead().max(soaked.dead_estimated()) as f64, at_most(0.0)),
        ("size of the logs, last third / second", soaked.growth(), at_most(LEVEL)),
        ("claim p50, last minute / first", last.p50 / first.p50, at_most(1.5)),
        ("claim p99, last minute / first", last.p99 / first.p99, at_most(1.5)),
    ];
    targets.into_iter().flat_map(|(what, value, bound)| Target::new(what, &[value], bound)).collect()
}
