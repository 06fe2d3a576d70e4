//! The first minute against the last, and what must never have happened.

use crate::soak::drive::{Soaked, Window};
use crate::statistics::quantile;
use crate::targets::{Bound, Target};

/// A minute, or what there is of it in a short run.
#[derive(Clone, Copy)]
pub struct Span {
    /// Jobs ended in a second.
    pub rate: f64,
    /// Claims, milliseconds.
    pub p50: f64,
    /// Claims, milliseconds.
    pub p99: f64,
    /// Seconds of server CPU per 1,000 jobs.
    pub cpu: f64,
    /// Bytes of WAL per job.
    pub wal: f64,
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
            cpu: sum(|window| window.cpu_seconds) * 1e3 / jobs,
            wal: sum(|window| window.wal_bytes as f64) / jobs,
        }
    }
}

impl Soaked {
    /// The first minute after a warm-up, and the last; shorter, and apart, in a short run.
    pub fn ends(&self) -> (Span, Span) {
        let windows = &self.windows;
        let warm_up = (windows.len() / 20).max(1);
        let minute = windows.iter().take_while(|window| window.end.as_secs_f64() < 60.5).count();
        let count = minute.min(windows.len().saturating_sub(warm_up) / 2).max(1);
        (Span::of(&windows[warm_up..warm_up + count]), Span::of(&windows[windows.len() - count..]))
    }

    /// The most dead rows in the logs that were counted at once; estimated where they could not be counted.
    pub fn dead(&self) -> i64 {
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
    let target = |what: &str, value: f64, bound| Target {
        what: what.to_owned(),
        value,
        range: (value, value),
        bound,
        is_goal: false,
    };
    vec![
        target("done per second, last minute / first", last.rate / first.rate, Bound::AtLeast(0.98)),
        target("jobs overdue at the end", overdue as f64, Bound::AtMost(f64::from(rate))),
        target("jobs never done", soaked.missing as f64, Bound::AtMost(0.0)),
        target("jobs done twice", soaked.twice as f64, Bound::AtMost(0.0)),
        target("dead rows in the logs", soaked.dead().max(soaked.dead_estimated()) as f64, Bound::AtMost(0.0)),
        target("size of the logs, last third / second", soaked.growth(), Bound::AtMost(LEVEL)),
        target("claim p50, last minute / first", last.p50 / first.p50, Bound::AtMost(1.5)),
        target("claim p99, last minute / first", last.p99 / first.p99, Bound::AtMost(1.5)),
    ]
}
