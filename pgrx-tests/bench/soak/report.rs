//! Reports a soak: prints it while it runs and at the end, compares the first minute with the last, and checks that no
//! job was lost or done twice.

use std::time::Duration;

use crate::drive::Sample;
use crate::server::Cost;
use crate::soak::load::RATE;
use crate::soak::storage::Sizes;
use crate::statistics::quantile;
use crate::table::{Column, Table};
use crate::targets::{Target, at_least, at_most};

/// The results of a run.
pub struct Soaked {
    /// The first observation is from before any job, the last one from when the last job was sent.
    pub looks: Vec<Look>,
    /// Jobs that should have ended and have not, some seconds after the last job was sent.
    pub missing: i64,
    /// Jobs that ended twice.
    pub twice: u64,
    /// The number of transactions that began while the snapshot was open, if there was one.
    pub snapshot_age: Option<i64>,
}

/// An observation.
pub struct Look {
    pub at: Duration,
    /// Jobs sent.
    pub sent: u64,
    /// Jobs ended.
    pub done: u64,
    /// Jobs that should have ended at this moment and have not.
    pub overdue: i64,
    /// The durations of the claims since the last observation, in milliseconds.
    pub claims: Vec<f64>,
    /// CPU time of the server without the observing session.
    pub cost: Cost,
    /// The sizes on disk.
    pub sizes: Sizes,
}

/// Two observations and what happened between them: a window, or a minute.
struct Span<'a>(&'a [Look]);

impl Span<'_> {
    fn ends(&self) -> (&Look, &Look) {
        (&self.0[0], &self.0[self.0.len() - 1])
    }

    fn sample(&self) -> Sample {
        let (first, last) = self.ends();
        Sample {
            jobs: last.done - first.done,
            seconds: (last.at - first.at).as_secs_f64(),
            cost: last.cost.since(first.cost),
        }
    }

    /// The duration of a claim, in milliseconds.
    fn claim(&self, share: f64) -> f64 {
        quantile(&self.0[1..].iter().flat_map(|look| look.claims.iter().copied()).collect::<Vec<_>>(), share)
    }
}

/// The columns of a run's table, and their figures for a window.
type Figure = fn(&Span) -> f64;
const FIGURES: [(Column, Figure); 13] = [
    (("s", 4, 0), |span| span.ends().1.at.as_secs_f64()),
    (("sent/s", 8, 0), |span| (span.ends().1.sent - span.ends().0.sent) as f64 / span.sample().seconds),
    (("done/s", 8, 0), |span| span.sample().rate()),
    (("overdue", 9, 0), |span| span.ends().1.overdue as f64),
    (("claim p50", 11, 2), |span| span.claim(0.5)),
    (("p99 ms", 8, 2), |span| span.claim(0.99)),
    (("dead est.", 10, 0), |span| span.ends().1.sizes.dead),
    (("counted", 9, 0), |span| span.ends().1.sizes.counted),
    (("logs MB", 10, 1), |span| span.ends().1.sizes.logs),
    (("history MB", 12, 1), |span| span.ends().1.sizes.history),
    (("all MB", 9, 1), |span| span.ends().1.sizes.all),
    (("CPU s/1,000", 12, 4), |span| span.sample().cpu()),
    (("WAL B/job", 11, 0), |span| span.sample().wal()),
];

/// The table of a run.
pub fn table() -> Table {
    Table::begin(2, &FIGURES.map(|(column, _)| column))
}

/// Prints the last observation.
pub fn print_last(table: &Table, looks: &[Look]) {
    let window = Span(&looks[looks.len() - 2..]);
    table.row("", &FIGURES.map(|(_, figure)| figure(&window)));
}

/// Prints other findings of a run.
pub fn print_end(soaked: &Soaked, (all, others): (f64, f64)) {
    let age = soaked.snapshot_age.map(|age| format!("the open snapshot was {age} transactions old"));
    let age = age.unwrap_or("no snapshot was kept open".into());
    println!("  {age}; other processes used {:.0} % of the machine", 100.0 * others / all.max(0.01));
}

/// Prints the contenders side by side, first minute and last.
pub fn print_summary(all: &[(&str, Soaked)]) {
    println!("\nfirst minute and last minute of each run");
    let figures: [(&str, usize, Figure); 5] = [
        ("done/s", 0, |span| span.sample().rate()),
        ("claim p50 ms", 2, |span| span.claim(0.5)),
        ("claim p99 ms", 2, |span| span.claim(0.99)),
        ("CPU s/1,000", 4, |span| span.sample().cpu()),
        ("WAL B/job", 0, |span| span.sample().wal()),
    ];
    let mut columns = figures.map(|(title, digits, _)| [(title, 14, digits), ("last", 9, digits)]).concat();
    columns.extend([("dead rows", 11, 0), ("all MB", 9, 0)]);
    let table = Table::begin(10, &columns);
    for (name, soaked) in all {
        let (first, last) = soaked.minutes();
        let mut row = figures.map(|(.., figure)| [figure(&first), figure(&last)]).concat();
        row.extend([soaked.dead(), last.ends().1.sizes.all]);
        table.row(name, &row);
    }
}

impl Soaked {
    /// Returns the first minute after a warm-up, and the last one. In a short run both are shorter, and do not overlap.
    fn minutes(&self) -> (Span<'_>, Span<'_>) {
        let windows = self.looks.len() - 1;
        let warm_up = (windows / 20).max(1);
        let minute = self.looks[1..].iter().take_while(|look| look.at.as_secs_f64() < 60.5).count();
        let count = minute.min(windows.saturating_sub(warm_up) / 2).max(1);
        (Span(&self.looks[warm_up..=warm_up + count]), Span(&self.looks[windows - count..]))
    }

    /// Returns the largest value of a figure. NaN is ignored.
    fn most(looks: &[Look], figure: fn(&Sizes) -> f64) -> f64 {
        looks.iter().map(|look| figure(&look.sizes)).fold(f64::NAN, f64::max)
    }

    /// Returns the largest number of dead rows in the logs. It is an estimate if they could not be counted.
    fn dead(&self) -> f64 {
        let counted = Self::most(&self.looks, |sizes| sizes.counted);
        if counted.is_nan() { self.dead_estimated() } else { counted }
    }

    /// Returns the largest number that the statistics have reported. They lose rows that were pruned on access.
    fn dead_estimated(&self) -> f64 {
        Self::most(&self.looks, |sizes| sizes.dead)
    }

    /// Returns the largest size of the logs in the last third of the run, divided by that in the second third.
    fn growth(&self) -> f64 {
        let looks = &self.looks[1..];
        let third = looks.len() / 3;
        let [second, last] = [&looks[third..2 * third], &looks[2 * third..]];
        Self::most(last, |sizes| sizes.logs) / Self::most(second, |sizes| sizes.logs)
    }

    /// Returns points: seconds since the start, and the jobs per second in the window that ends there.
    pub fn rates(&self) -> Vec<(f64, f64)> {
        self.looks.windows(2).map(|window| (window[1].at.as_secs_f64(), Span(window).sample().rate())).collect()
    }
}

/// A smaller growth of the logs does not count: the ring is never filled to the same height.
const LEVEL: f64 = 1.15;

/// The targets of pg_queue.
pub fn judge(soaked: &Soaked) -> Vec<Target> {
    let (first, last) = soaked.minutes();
    let claims = |share| last.claim(share) / first.claim(share);
    let targets = [
        ("done per second, last minute / first", last.sample().rate() / first.sample().rate(), at_least(0.98)),
        ("jobs overdue at the end", last.ends().1.overdue as f64, at_most(RATE)),
        ("jobs never done", soaked.missing as f64, at_most(0.0)),
        ("jobs done twice", soaked.twice as f64, at_most(0.0)),
        ("dead rows in the logs", soaked.dead().max(soaked.dead_estimated()), at_most(0.0)),
        ("size of the logs, last third / second", soaked.growth(), at_most(LEVEL)),
        ("claim p50, last minute / first", claims(0.5), at_most(1.5)),
        ("claim p99, last minute / first", claims(0.99), at_most(1.5)),
    ];
    targets.into_iter().flat_map(|(what, value, bound)| Target::new(what, &[value], bound)).collect()
}
