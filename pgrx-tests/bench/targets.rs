//! Targets, which must be reached, and goals, which should be.

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

/// A required bound.
#[derive(Clone, Copy)]
pub struct Bound {
    value: f64,
    is_upper: bool,
    /// A goal, which may be missed.
    is_goal: bool,
}

pub const fn at_least(value: f64) -> Bound {
    Bound { value, is_upper: false, is_goal: false }
}

pub const fn at_most(value: f64) -> Bound {
    Bound { value, is_upper: true, is_goal: false }
}

impl Bound {
    /// Adds a goal.
    pub const fn goal(self) -> Self {
        Self { is_goal: true, ..self }
    }
}

impl Target {
    /// Adds a target, unless there are no values.
    pub fn new(what: impl Into<String>, values: &[f64], bound: Bound) -> Option<Self> {
        let range = (quantile(values, 0.0), quantile(values, 1.0));
        (!values.is_empty()).then(|| Self { what: what.into(), value: median(values), range, bound })
    }

    /// Returns true if the median is within the bound, or if it is a goal.
    pub fn is_met(&self) -> bool {
        self.bound.is_goal || self.is_reached()
    }

    fn is_reached(&self) -> bool {
        if self.bound.is_upper { self.value <= self.bound.value } else { self.value >= self.bound.value }
    }
}

/// Prints a line for each target. A missed goal does not count as a failure.
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
