//! What must be reached, and what should be.

use crate::delayed::Delayed;
use crate::drive::Sample;
use crate::plan::{Results, Who};
use crate::statistics::{median, quantile};

/// A figure and its bound.
pub struct Target {
    /// What the figure is.
    pub what: String,
    /// Its median.
    pub value: f64,
    /// The smallest and the largest of the rounds.
    pub range: (f64, f64),
    /// What is asked for.
    pub bound: Bound,
    /// Not a must, but what lies beyond.
    pub is_goal: bool,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn new(what: impl Into<String>, values: &[f64], bound: Bound) -> Option<Self> {
        let range = (quantile(values, 0.0), quantile(values, 1.0));
        (!values.is_empty()).then(|| Self { what: what.into(), value: median(values), range, bound, is_goal: false })
    }

    fn goal(mut self) -> Self {
        self.is_goal = true;
        self
    }

    /// Whether the median is within the bound.
    pub fn is_reached(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.value >= bound,
            Bound::AtMost(bound) => self.value <= bound,
        }
    }
}

/// All targets for which there are results.
pub fn judge(results: &Results, wake: Option<&Vec<f64>>, delayed: &Delayed) -> Vec<Target> {
    use Bound::{AtLeast, AtMost};
    let mut all = Vec::new();
    let mut ratio = |cell: &str, pair: (Who, Who), what: &str, figure: fn(&Sample) -> f64, bound, is_goal| {
        let name = format!("{cell}: {what} {} / {}", pair.0.name(), pair.1.name());
        let target = Target::new(name, &results.ratios(cell, pair, figure), bound);
        all.extend(target.map(|target| if is_goal { target.goal() } else { target }));
    };
    for ours in [Who::Ours, Who::Unkept] {
        ratio("single", (ours, Who::Floor), "rate", Sample::rate, AtLeast(0.95), false);
        ratio("single", (ours, Who::Floor), "WAL", Sample::wal, AtMost(1.1), false);
        for cell in ["batch-2", "batch-4"] {
            ratio(cell, (ours, Who::Floor), "rate", Sample::rate, AtLeast(1.2), false);
            ratio(cell, (ours, Who::Floor), "WAL", Sample::wal, AtMost(0.8), false);
            ratio(cell, (ours, Who::Floor), "WAL", Sample::wal, AtMost(0.6), true);
        }
    }
    ratio("single", (Who::Loop, Who::Floor), "rate", Sample::rate, AtLeast(1.1), false);
    for cell in ["depth-single", "depth-batch"] {
        ratio(cell, (Who::Deep, Who::Shallow), "rate", Sample::rate, AtLeast(0.9), false);
    }
    for cell in ["delayed-far-single", "delayed-far-batch"] {
        ratio(cell, (Who::Far, Who::Ours), "rate", Sample::rate, AtLeast(0.95), false);
    }
    for spread in &delayed.spread {
        let late = quantile(&spread.lateness, 0.99);
        all.extend(Target::new(format!("delayed-due: {}, p99 in ms", spread.way.name), &[late], AtMost(50.0)));
    }
    for burst in &delayed.burst {
        let rounds = burst.delayed.iter().zip(&burst.undelayed);
        let ratios: Vec<f64> = rounds.map(|(delayed, undelayed)| delayed.rate / undelayed.rate).collect();
        let what = format!("delayed-burst: {}, rate delayed / undelayed", burst.way.name);
        all.extend(Target::new(what, &ratios, AtLeast(0.9)));
    }
    if let Some(idle) = &delayed.idle {
        // What a woken worker costs is a tenth of a millisecond; /proc counts finer than that.
        let more = (idle.far.cpu_seconds - idle.none.cpu_seconds) * 1e3 / idle.seconds;
        all.extend(Target::new("delayed-idle: more CPU, ms in a second", &[more], AtMost(0.1)));
        all.extend(Target::new("delayed-idle: transaction ids", &[idle.far.transaction_ids as f64], AtMost(0.0)));
    }
    let wake: Vec<f64> = wake.iter().map(|waits| median(waits) / 1_000.0).collect();
    all.extend(Target::new("wake: p50 in ms", &wake, AtMost(1.0)));
    for cell in ["batch-2", "batch-4"] {
        let rates: Vec<f64> = results.samples(cell, Who::Ours).iter().map(Sample::rate).collect();
        all.extend(Target::new(format!("{cell}: jobs/s of ours"), &rates, AtLeast(150_000.0)).map(Target::goal));
    }
    all
}
