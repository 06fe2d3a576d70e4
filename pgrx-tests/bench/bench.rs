//! What a cell is, and what cells share: the options, the contenders that have been set up, the targets.
//!
//! Not responsible for which cells there are (`cells`), nor for running them (`runner`).

use std::collections::HashMap;

use crate::contender::{Contender, Payload, Work};
use crate::drive::{self, Sample};
use crate::error::Result;
use crate::options::Options;
use crate::queues;
use crate::statistics::{median, median_of, ratios};
use crate::table::Table;
use crate::targets::{Bound, Target};

/// What cells share.
pub struct Bench<'a> {
    pub options: &'a Options,
    /// The contenders that have been set up.
    pub(crate) contenders: HashMap<&'static str, Contender>,
    pub(crate) targets: Vec<Target>,
    /// Processor seconds of the machine while contenders took turns: all of them, and those that other programs used.
    pub(crate) noise: (f64, f64),
}

/// A cell measures something. Its contenders do the same work and can be compared.
pub struct Cell {
    pub name: &'static str,
    /// Its title. Empty if the name of the work says enough.
    pub title: &'static str,
    pub measure: Measure,
}

/// How it is measured.
pub enum Measure {
    /// This number of clients of each contender do the work, in turns. The other contenders are compared with the first
    /// one that `runner::BASES` lists.
    Turns { clients: usize, work: Work, who: &'static [&'static str] },
    /// A function measures and prints the figures.
    Own(fn(&mut Bench) -> Result<()>),
}

/// Contenders of a cell, each with one sample per round.
pub type Rows = Vec<(&'static str, Vec<Sample>)>;

impl Bench<'_> {
    /// Notes a target, unless there are no values.
    pub fn target(&mut self, what: impl Into<String>, values: &[f64], bound: Bound) {
        self.targets.extend(Target::new(what, values, bound));
    }

    /// Sets a contender up, unless another cell has done so.
    pub fn contender(&mut self, name: &'static str) -> Result<&Contender> {
        if !self.contenders.contains_key(name) {
            self.contenders.insert(name, queues::set_up(name, self.options)?);
        }
        Ok(&self.contenders[name])
    }
}

/// A turn of one contender.
pub fn turn(contender: &Contender, work: Work, clients: usize, options: &Options) -> Result<Sample> {
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let (mut session, payloads) = (contender.session(work)?, vec![Payload::new(); work.batch]);
        tasks.push(drive::warm(move || session.live(&payloads))?);
    }
    drive::drive(&[&contender.server], tasks, options.turn() * work.length)
}

/// Returns the samples of a contender. Empty if it was not measured.
pub fn samples_of<'a>(rows: &'a Rows, who: &str) -> &'a [Sample] {
    rows.iter().find(|(name, _)| *name == who).map_or(&[], |(_, samples)| samples)
}

/// Prints the figures. Behind each stands the median of its ratios to the figures of `base` in the same rounds.
pub fn print(rows: &Rows, base: &str) {
    let columns = [("jobs/s", 14, 0), ("CPU s/1,000", 14, 4), ("WAL B/job", 14, 0)];
    let table = Table::begin(20, &columns.map(|column| [column, ("ratio", 8, 2)]).concat());
    let base = samples_of(rows, base);
    for (who, samples) in rows {
        let both = |figure: fn(&Sample) -> f64| [median_of(samples, figure), median(&ratios(samples, base, figure))];
        table.row(who, &[Sample::rate, Sample::cpu, Sample::wal].map(both).concat());
    }
}
