//! What must be reached, and what should be.

use crate::statistics::{median, quantile};

/// A figure and its bound.
pub struct Target {
    pub what: String,
    /// The median of the rounds.
    value: f64,
    /// The smallest and the largest of the rounds.
    range: (f64, f64),
    bound: Bound,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Bound {
    value: f64,
    is_upper: bool,
    /// A goal may be missed.
    is_goal: bool,
}

pub const fn at_least(value: f64) -> Bound {
    Bound { value, is_upper: false, is_goal: false }
}

pub const fn at_most(value: f64) -> Bound {
    Bound { value, is_upper: true, is_goal: false }
}

impl Bound {
    /// Not a must, but what lies beyond.
    pub const fn goal(self) -> Self {
        Self { is_goal: true, ..self }
    }
}

impl Target {
    /// A target, unless there are no values.
    pub fn new(what: impl Into<String>, values: &[f64], bound: Bound) -> Option<Self> {
        let range = (quantile(values, 0.0), quantile(values, 1.0));
        (!values.is_empty()).then(|| Self { what: what.into(), value: median(values), range, bound })
    }

    /// True if the median is within the bound, or need not be.
    pub fn is_met(&self) -> bool {
        self.bound.is_goal || self.is_reached()
    }

    fn is_reached(&self) -> bool {
        if self.bound.is_upper { self.value <= self.bound.value } else { self.value >= self.bound.value }
    }
}

/// Prints a line for each target: goals are not counted as failures.
pub fn print(targets: &[Target]) {
    if targets.is_empty() {
        return;
    }
    println!("\ntargets: median [smallest, largest of the rounds]");
    for target in targets {
        let word = match (target.is_reached(), target.bound.is_goal) {
            (true, _) => "PASS",
            (false, false) => "FAIL",
            (false, true) => "goal",
        };
        let (relation, bound) = (if target.bound.is_upper { "at most" } else { "at least" }, target.bound.value);
        let digits = if bound < 100.0 { 2 } else { 0 };
        println!(
            "  {word}  {:46}{:>9.digits$}  {relation} {bound:.digits$}  [{:.digits$}, {:.digits$}]",
            target.what, target.value, target.range.0, target.range.1,
        );
    }
}
