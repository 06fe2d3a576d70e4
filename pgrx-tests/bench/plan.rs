//! What is measured: cells, in each of which contenders do the same work and can be compared. They take turns,
//! round by round, so that whatever disturbs the machine disturbs all of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::contender::{Articles, Contender, Floor, Loop, Ours, Work};
use crate::drive::{Sample, drive};
use crate::options::Options;
use crate::server::Server;
use crate::{Result, delayed};

/// The contenders. Each has its own server.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Who {
    /// pg_queue, a queue with default settings.
    Ours,
    /// The same, but nothing of ended jobs is kept.
    Unkept,
    /// pg_queue, each claim completing the job before.
    Loop,
    /// The raw inserts.
    Floor,
    /// SKIP LOCKED with a backlog, as ANALYZE leaves it.
    Articles,
    /// SKIP LOCKED with a backlog, its index scan forced.
    ArticlesIndex,
    /// pg_queue that never reclaims a segment.
    Still,
    /// pg_queue whose small segments are reclaimed all the time, and everything is kept in history.
    Turning,
    /// The same, but nothing is kept.
    TurningUnkept,
    /// pg_queue with few jobs waiting.
    Shallow,
    /// pg_queue with many jobs waiting.
    Deep,
    /// pg_queue with very many jobs due next year.
    Far,
    /// pg_queue, each job with a text of its own among its headers: what the next ones are held against.
    Plain,
    /// The same in a queue with `max_running`, which is never reached.
    Limited,
    /// The same in a queue with `rate_limit`, which is never reached.
    Rated,
    /// The text is the job's group, one of a few thousand, in a queue with `rate_limit_per_group`, which is never reached.
    GroupsRated,
    /// The text is the job's group, of which one runs at a time.
    Grouped,
    /// The same in strict order.
    Strict,
}

/// Groups whose starts are counted at once, all of them within the period of a second.
const RATED_GROUPS: u32 = 3_000;
/// Jobs that wait in the articles' table.
const BACKLOG: usize = 200_000;
/// Jobs that wait in a shallow queue.
const SHALLOW: usize = 1_000;
/// Jobs that wait in a deep queue.
const DEEP: usize = 1_000_000;

impl Who {
    /// As it is called in results and in `--only`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Unkept => "ours-retention-0",
            Self::Loop => "loop",
            Self::Floor => "floor",
            Self::Articles => "articles",
            Self::ArticlesIndex => "articles-index",
            Self::Still => "still",
            Self::Turning => "turning",
            Self::TurningUnkept => "turning-retention-0",
            Self::Shallow => "shallow",
            Self::Deep => "deep",
            Self::Far => "far",
            Self::Plain => "plain",
            Self::Limited => "max-running",
            Self::Rated => "rate-limit",
            Self::GroupsRated => "rate-per-group",
            Self::Grouped => "groups",
            Self::Strict => "strict-order",
        }
    }

    fn set_up(self, options: &Options) -> Result<Box<dyn Contender>> {
        const DEFAULTS: &str = "if_not_exists => false";
        const UNKEPT: &str = "retention => '0', dead_retention => '0'";
        /// A segment is full within a turn.
        const TURNING: &str = "pg_queue.segment_rows = 5000\npg_queue.reclaim_delay = 0";
        eprintln!("setting up {}", self.name());
        let ours = |options| Ours::new(Server::with_extension()?, options);
        Ok(match self {
            Self::Ours => Box::new(ours(DEFAULTS)?),
            Self::Unkept => Box::new(ours(UNKEPT)?),
            Self::Loop => Box::new(Loop(ours(DEFAULTS)?)),
            Self::Floor => Box::new(Floor::new(Server::plain())?),
            Self::Articles => Box::new(Articles::new(Server::plain(), BACKLOG, false)?),
            Self::ArticlesIndex => Box::new(Articles::new(Server::plain(), BACKLOG, true)?),
            Self::Still => Box::new(Ours::new(Server::with_settings("pg_queue.reclaim = off")?, DEFAULTS)?),
            Self::Turning => Box::new(Ours::new(Server::with_settings(TURNING)?, DEFAULTS)?),
            Self::TurningUnkept => Box::new(Ours::new(Server::with_settings(TURNING)?, UNKEPT)?),
            Self::Plain => Box::new(ours(DEFAULTS)?.marking("headers", None)?),
            Self::Limited => Box::new(ours("max_running => 10000")?.marking("headers", None)?),
            Self::Rated => Box::new(ours("rate_limit => 1000000000")?.marking("headers", None)?),
            Self::GroupsRated => {
                Box::new(ours("rate_limit_per_group => 1000000000")?.marking("group_key", Some(RATED_GROUPS))?)
            }
            Self::Grouped => Box::new(ours("max_running_per_group => 1")?.marking("group_key", None)?),
            Self::Strict => Box::new(ours("strict_order => true")?.marking("group_key", None)?),
            Self::Shallow => Box::new(ours(DEFAULTS)?.fill(SHALLOW)?),
            Self::Far => Box::new(delayed::with_far(if options.quick { delayed::FAR / 5 } else { delayed::FAR }, "")?),
            Self::Deep => Box::new(ours(DEFAULTS)?.fill(if options.quick { DEEP / 5 } else { DEEP })?),
        })
    }
}

/// Contenders that do the same.
pub struct Cell {
    /// As it is called in results and in `--only`.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    clients: usize,
    work: Work,
    who: &'static [Who],
}

const SINGLE: Work = Work { batch: 1, is_durable: false };
const BATCH: Work = Work { batch: 100, is_durable: false };

const FEATURES: &[Who] = &[Who::Plain, Who::Limited, Who::Rated, Who::GroupsRated, Who::Grouped, Who::Strict];

const CELLS: &[Cell] = &[
    Cell {
        name: "single",
        title: "one job per transaction, 4 clients",
        clients: 4,
        work: SINGLE,
        who: &[Who::Ours, Who::Floor, Who::Unkept, Who::Articles, Who::ArticlesIndex, Who::Loop],
    },
    Cell {
        name: "batch-2",
        title: "100 jobs per transaction, 2 clients",
        clients: 2,
        work: BATCH,
        who: &[Who::Ours, Who::Floor, Who::Unkept],
    },
    Cell {
        name: "batch-4",
        title: "100 jobs per transaction, 4 clients",
        clients: 4,
        work: BATCH,
        who: &[Who::Ours, Who::Floor, Who::Unkept, Who::ArticlesIndex],
    },
    Cell {
        name: "durable-single",
        title: "one job per transaction, 4 clients, synchronous_commit = on",
        clients: 4,
        work: Work { is_durable: true, ..SINGLE },
        who: &[Who::Ours, Who::Floor, Who::ArticlesIndex],
    },
    Cell {
        name: "durable-batch",
        title: "100 jobs per transaction, 4 clients, synchronous_commit = on",
        clients: 4,
        work: Work { is_durable: true, ..BATCH },
        who: &[Who::Ours, Who::Floor],
    },
    Cell {
        name: "reclaim-single",
        title: "segments that stay, or are reclaimed with and without history; one job per transaction, 4 clients",
        clients: 4,
        work: SINGLE,
        who: &[Who::Still, Who::Turning, Who::TurningUnkept],
    },
    Cell {
        name: "reclaim-batch",
        title: "segments that stay, or are reclaimed with and without history; 100 jobs per transaction, 4 clients",
        clients: 4,
        work: BATCH,
        who: &[Who::Still, Who::Turning, Who::TurningUnkept],
    },
    Cell {
        name: "features-single",
        title: "what is paid for a feature that is used, one job per transaction, 4 clients",
        clients: 4,
        work: SINGLE,
        who: FEATURES,
    },
    Cell {
        name: "features-batch",
        title: "what is paid for a feature that is used, 100 jobs per transaction, 4 clients",
        clients: 4,
        work: BATCH,
        who: FEATURES,
    },
    Cell {
        name: "depth-single",
        title: "1,000 and 1,000,000 jobs waiting (--quick: 200,000), one job per transaction, 4 clients",
        clients: 4,
        work: SINGLE,
        who: &[Who::Shallow, Who::Deep],
    },
    Cell {
        name: "depth-batch",
        title: "1,000 and 1,000,000 jobs waiting (--quick: 200,000), 100 jobs per transaction, 4 clients",
        clients: 4,
        work: BATCH,
        who: &[Who::Shallow, Who::Deep],
    },
    Cell {
        name: "delayed-far-single",
        title: "no and 1,000,000 jobs due next year (--quick: 200,000), one job per transaction, 4 clients",
        clients: 4,
        work: SINGLE,
        who: &[Who::Ours, Who::Far],
    },
    Cell {
        name: "delayed-far-batch",
        title: "no and 1,000,000 jobs due next year (--quick: 200,000), 100 jobs per transaction, 4 clients",
        clients: 4,
        work: BATCH,
        who: &[Who::Ours, Who::Far],
    },
];

/// The cells that are wanted, and the servers for them.
pub struct Plan {
    turns: Vec<(&'static Cell, Vec<Who>)>,
    contenders: HashMap<Who, Box<dyn Contender>>,
}

impl Plan {
    /// Sets up all contenders that are wanted.
    pub fn new(options: &Options) -> Result<Self> {
        let is_wanted = |cell: &Cell, who: &Who| options.wants(&format!("{}/{}", cell.name, who.name()));
        let turns: Vec<(&Cell, Vec<Who>)> = CELLS
            .iter()
            .map(|cell| (cell, cell.who.iter().copied().filter(|who| is_wanted(cell, who)).collect::<Vec<_>>()))
            .filter(|(_, who)| !who.is_empty())
            .collect();
        let mut contenders = HashMap::new();
        for &who in turns.iter().flat_map(|(_, who)| who) {
            if let Entry::Vacant(free) = contenders.entry(who) {
                free.insert(who.set_up(options)?);
            }
        }
        Ok(Self { turns, contenders })
    }

    /// Lets them take turns.
    pub fn run(&self, options: &Options) -> Result<Results> {
        let mut results = Results(Vec::new());
        for (cell, who) in &self.turns {
            results.0.push((cell, who.iter().map(|&who| (who, Vec::new())).collect()));
        }
        // A cell's rounds follow each other: else tables that need vacuum would rest while others have their turns in
        // other cells, or suffer from what they did there themselves.
        for (cell, rows) in &mut results.0 {
            for round in 0..options.rounds {
                eprintln!("{}, round {} of {}", cell.name, round + 1, options.rounds);
                // Nobody is always first.
                let count = rows.len();
                for n in 0..count {
                    let (who, samples) = &mut rows[(n + round) % count];
                    let contender = self.contenders[who].as_ref();
                    let sample = drive(contender, cell.work, cell.clients, options.turn);
                    if sample.is_err() {
                        eprintln!(
                            "\n{} failed; the end of its server's log:\n{}",
                            who.name(),
                            contender.server().log_end()
                        );
                    }
                    samples.push(sample?);
                }
            }
        }
        Ok(results)
    }

    /// The first processes of all servers.
    pub fn postmasters(&self) -> Vec<i32> {
        self.contenders.values().map(|contender| contender.server().postmaster()).collect()
    }
}

/// A contender with one sample per round.
pub type Row = (Who, Vec<Sample>);

/// For each cell its contenders.
pub struct Results(pub Vec<(&'static Cell, Vec<Row>)>);

impl Results {
    /// The samples of a contender in a cell; none when it was not measured.
    pub fn samples(&self, cell: &str, who: Who) -> &[Sample] {
        let found =
            self.0.iter().find(|(c, _)| c.name == cell).and_then(|(_, rows)| rows.iter().find(|(w, _)| *w == who));
        found.map_or(&[], |(_, samples)| samples)
    }

    /// A figure of one contender over that of another, round by round.
    pub fn ratios(&self, cell: &str, (one, other): (Who, Who), figure: fn(&Sample) -> f64) -> Vec<f64> {
        let pairs = self.samples(cell, one).iter().zip(self.samples(cell, other));
        pairs.map(|(one, other)| figure(one) / figure(other)).collect()
    }
}
