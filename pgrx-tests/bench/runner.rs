//! Runs the selected cells one after the other, and judges their results.

use std::collections::HashMap;

use crate::bench::{Bench, Cell, Measure, Rows, print, samples_of, turn};
use crate::cells;
use crate::charts;
use crate::contender::Work;
use crate::cpu::Noise;
use crate::drive::{Sample, in_turns};
use crate::error::Result;
use crate::options::Options;
use crate::statistics::ratios;
use crate::targets::{self, Bound, Target, at_least, at_most};

/// The contenders of a cell are compared with the first one of these that it has.
const BASES: [&str; 6] = ["floor", "shallow", "still", "plain", "plain-hundreds", "ours"];

/// A target of cells with turns: cells, contenders, base, figure, bound.
type Wanted =
    (&'static [&'static str], &'static [&'static str], &'static str, (&'static str, fn(&Sample) -> f64), Bound);

const BATCHES: &[&str] = &["batch-2", "batch-4"];
const OURS: &[&str] = &["ours", "ours-retention-0"];

/// In the last two cells, contenders differ in their backlog.
const TARGETS: [Wanted; 10] = [
    (&["single"], OURS, "floor", ("rate", Sample::rate), at_least(0.95)),
    (&["single"], OURS, "floor", ("WAL", Sample::wal), at_most(1.1)),
    (BATCHES, OURS, "floor", ("rate", Sample::rate), at_least(1.2)),
    (BATCHES, OURS, "floor", ("WAL", Sample::wal), at_most(0.8)),
    (BATCHES, OURS, "floor", ("WAL", Sample::wal), at_most(0.6).goal()),
    (&["single"], &["loop"], "floor", ("rate", Sample::rate), at_least(1.1)),
    (&["reclaim-batch"], &["turning"], "still", ("CPU", Sample::cpu), at_most(1.35)),
    (&["reclaim-batch"], &["turning-retention-0"], "still", ("CPU", Sample::cpu), at_most(1.15)),
    (&["depth-single", "depth-batch"], &["deep"], "shallow", ("rate", Sample::rate), at_least(0.9)),
    (&["delayed-far-single", "delayed-far-batch"], &["far"], "ours", ("rate", Sample::rate), at_least(0.95)),
];

/// Measures and reports. Returns true if all targets were reached.
pub fn run(options: &Options) -> Result<bool> {
    let mut bench = Bench { options, contenders: HashMap::new(), targets: Vec::new(), noise: (0.0, 0.0) };
    for cell in cells::ALL {
        match cell.measure {
            Measure::Turns { clients, work, who } => bench.turns(cell, clients, work, who)?,
            Measure::Own(measure) if options.wants(cell.name) => {
                println!("\n{}: {}", cell.name, cell.title);
                measure(&mut bench)?;
            }
            Measure::Own(_) => {}
        }
    }
    targets::print(&bench.targets);
    let (all, others) = bench.noise;
    if all > 0.0 {
        println!("\nOther processes used {:.0} % of the machine while contenders took turns.", 100.0 * others / all);
    }
    Ok(bench.targets.iter().all(Target::is_met))
}

impl Bench<'_> {
    /// Contenders take turns in each round, so that a disturbance of the machine hits all of them. The rounds of a cell
    /// follow each other. Otherwise tables that need vacuum would rest during other cells.
    fn turns(&mut self, cell: &Cell, clients: usize, work: Work, who: &[&'static str]) -> Result<()> {
        let is_wanted = |who: &&&str| self.options.wants(&format!("{}/{who}", cell.name));
        let who: Vec<&'static str> = who.iter().filter(is_wanted).copied().collect();
        if who.is_empty() {
            return Ok(());
        }
        for name in &who {
            self.contender(name)?;
        }
        let noise = Noise::begin(self.contenders.values().map(|one| one.server.cluster.postmaster_pid()).collect());
        let samples = in_turns(cell.name, self.options.rounds(), &who, |who| {
            let contender = &self.contenders[who];
            turn(contender, work, clients, self.options).inspect_err(|_| contender.server.print_log_end(who))
        })?;
        let rows: Rows = who.into_iter().zip(samples).collect();
        let (all, others) = noise.seconds();
        self.noise = (self.noise.0 + all, self.noise.1 + others);
        let title = if cell.title.is_empty() { String::new() } else { format!("; {}", cell.title) };
        println!("\n{}: {work}, {clients} clients{title}", cell.name);
        let base = BASES.into_iter().find(|base| !samples_of(&rows, base).is_empty());
        print(&rows, base.unwrap_or_default());
        self.judge(cell.name, &rows);
        charts::of_cell(self.options, cell.name, &rows)
    }

    fn judge(&mut self, cell: &str, rows: &Rows) {
        for (cells, ours, other, (what, figure), bound) in TARGETS {
            for one in ours.iter().filter(|_| cells.contains(&cell)) {
                let ratios = ratios(samples_of(rows, one), samples_of(rows, other), figure);
                self.target(format!("{cell}: {what} {one} / {other}"), &ratios, bound);
            }
        }
        if cell.starts_with("batch-") {
            let rates: Vec<f64> = samples_of(rows, "ours").iter().map(Sample::rate).collect();
            self.target(format!("{cell}: jobs/s of ours"), &rates, at_least(150_000.0).goal());
        }
    }
}
