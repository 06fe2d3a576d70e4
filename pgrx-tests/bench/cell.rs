//! What a cell is.

use crate::bench::Bench;
use crate::contender::Work;
use crate::error::Result;

/// Something that is measured. Contenders in it do the same work and can be compared.
pub struct Cell {
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    pub when: When,
    pub measure: Measure,
}

/// When a cell runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Unless other cells are named.
    Always,
    /// Only if it is named, as it takes minutes or disk.
    Named,
    /// Only if it is named, and then no other cell.
    Alone,
}

/// How it is measured.
pub enum Measure {
    /// So many clients of each contender do the work, in turns. The first contender that `runner::BASES` lists is what
    /// the others are held against.
    Turns { clients: usize, work: Work, who: &'static [&'static str] },
    /// By code that prints its figures.
    Own(fn(&mut Bench) -> Result<()>),
}
