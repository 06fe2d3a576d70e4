//! Jobs that have ended, the latest end first. The walk merges its sources, the outcomes of each segment and each table
//! of history, and reads each of them from its end. Dead jobs have indexes of their own.
//!
//! Sessions that end jobs at the same time may write their rows in another order than the jobs ended. Apart from that,
//! the order is that of the ends.

use std::collections::BTreeMap;

use pg_queue_core::id;
use serde_json::{Value, json};

use crate::log::history::{self, Counting, column};
use crate::log::listing::walk::{Found, JobState, Opened, PastTable, SNAPSHOT, Walk, Wanted, Where, pair};
use crate::log::outcome::{self, Kind, Outcome};
use crate::log::retried;
use crate::log::tables::Tables;
use crate::pg::process;
use crate::pg::row::Row;
use crate::pg::scan::{Backwards, Key, Scan};

/// Where the rows of a source are stored.
#[derive(Clone, Copy)]
enum Origin<'a> {
    Segment(&'a Tables),
    History(&'a PastTable),
}

/// How the rows of a source are read.
enum Rows<'a> {
    Table(Backwards<'a>),
    Index(Scan<'a>),
}

/// The next row of a source.
struct Head {
    row: Row,
    at: (i64, i64),
    outcome: Outcome,
    id: i64,
}

/// One input of the merge.
struct Source<'a> {
    /// Its name in a position. Segments are named by their generation, so that each filling is another source.
    name: String,
    of: Origin<'a>,
    rows: Rows<'a>,
    /// Where the reading begins: rows at or behind this place are skipped.
    before: Option<(i64, i64)>,
    head: Option<Head>,
    /// The place of the last row that was taken.
    taken: Option<(i64, i64)>,
}

impl Source<'_> {
    fn advance(&mut self) {
        self.head = loop {
            let row = match &mut self.rows {
                Rows::Table(rows) => rows.next(),
                Rows::Index(scan) => scan.previous().map(|_| scan.row()),
            };
            let Some(row) = row else { break None };
            let (block, offset) = row.tid().parts();
            let (id, at, outcome) = match (self.of, &self.rows) {
                (Origin::Segment(_), rows) => {
                    let id = row.i64(0);
                    // The index is ordered by id.
                    let at = match rows {
                        Rows::Index(_) => (id, 0),
                        Rows::Table(_) => (i64::from(block), i64::from(offset)),
                    };
                    (id, at, outcome::read(&row))
                }
                (Origin::History(_), _) => {
                    let outcome = Outcome {
                        ended_at: row.i64(column::ENDED_AT),
                        kind: Kind::of(row.char(column::OUTCOME)),
                        next_id: row.get(column::NEXT_ID).map(|d| d.value() as i64),
                    };
                    (row.i64(column::ID), (i64::from(block), i64::from(offset)), outcome)
                }
            };
            if self.before.is_none_or(|before| at < before) {
                break Some(Head { row, at, outcome, id });
            }
            process::check_for_interrupts();
        };
    }
}

/// The walk over ended jobs.
pub struct Ends<'a> {
    wanted: &'a Wanted<'a>,
    sources: Vec<Source<'a>>,
    retried: retried::Reader,
    counting: Counting,
    /// The earliest end of a row that was taken, in this walk or in an earlier one.
    until: Option<i64>,
    /// Positions in sources that have gone.
    gone: BTreeMap<String, Value>,
}

impl<'a> Ends<'a> {
    pub fn new(wanted: &'a Wanted<'a>, opened: &'a Opened, beyond: Option<&Value>) -> Self {
        let known = beyond.and_then(|beyond| beyond.get("at"));
        let before = |name: &str| pair(known.and_then(|known| known.get(name)));
        let is_dead = wanted.state == JobState::Dead;
        let mut sources = Vec::new();
        for tables in &opened.segments {
            let outcomes = tables.outcomes().table();
            if outcomes.blocks() == 0 {
                continue;
            }
            let name = format!("s{}", opened.ledger.word(tables.home.segment).generation());
            let before = before(&name);
            let rows = if is_dead {
                let key = before.map(|(id, _)| Key::lt_i64(1, id));
                Rows::Index(outcomes.scan(tables.dead(), key.as_slice(), SNAPSHOT))
            } else {
                Rows::Table(outcomes.backwards_from(before.and_then(|(block, _)| u32::try_from(block).ok())))
            };
            sources.push(Source { name, of: Origin::Segment(tables), rows, before, head: None, taken: before });
        }
        for past in &opened.history {
            let oid = u32::from(past.child.table);
            match (&past.dead, is_dead) {
                (Some(index), true) => {
                    for lane in wanted.queue.all_lanes().filter(|&lane| wanted.has(lane)) {
                        let name = format!("h{oid}.{lane}");
                        let before = before(&name);
                        let rows = Rows::Index(past.table.scan(index, &[Key::eq_i32(1, lane)], SNAPSHOT));
                        sources.push(Source {
                            name,
                            of: Origin::History(past),
                            rows,
                            before,
                            head: None,
                            taken: before,
                        });
                    }
                }
                _ => {
                    let name = format!("h{oid}");
                    let before = before(&name);
                    let block = before.and_then(|(block, _)| u32::try_from(block).ok());
                    let rows = Rows::Table(past.table.backwards_from(block));
                    sources.push(Source { name, of: Origin::History(past), rows, before, head: None, taken: before });
                }
            }
        }
        sources.iter_mut().for_each(Source::advance);
        let until = beyond.and_then(|beyond| beyond.get("until")).and_then(Value::as_i64);
        let mut walk = Self {
            wanted,
            sources,
            retried: retried::Reader::open(SNAPSHOT),
            counting: Counting::of(&opened.ledger),
            until,
            gone: BTreeMap::new(),
        };
        if let Some(known) = known.and_then(Value::as_object) {
            let is_gone = |name: &String| !walk.sources.iter().any(|source| source.name == *name);
            walk.gone = known.iter().filter(|(name, _)| is_gone(name)).map(|(k, v)| (k.clone(), v.clone())).collect();
        }
        walk
    }

    fn found(&self, of: Origin<'_>, head: Head) -> Option<Found> {
        let Head { row, outcome, id, .. } = head;
        let is_it = match self.wanted.state {
            JobState::Completed => outcome.kind == Kind::Completed,
            JobState::Cancelled => outcome.kind == Kind::Cancelled,
            JobState::Skipped => outcome.kind == Kind::Skipped,
            JobState::Expired => outcome.kind == Kind::Expired,
            _ => outcome.is_death(),
        };
        if !is_it || outcome.next_id.is_some() || self.retried.has(id) {
            return None;
        }
        match of {
            Origin::Segment(tables) => {
                let mut scan = tables.attempt.scan(tables.by_id(), &[Key::eq_i64(1, id)], SNAPSHOT);
                scan.next()?;
                let (values, _) = scan.columns(4);
                let (job_id, lane) = (values[1].value() as i64, values[3].value() as i32);
                let place = Where::Segment(tables.home.segment);
                self.wanted.has(lane).then_some(Found { id, job_id, place })
            }
            Origin::History(past) => {
                let counts = self.counting.has(row.i64(column::GENERATION));
                if !counts || !self.wanted.has(row.i32(column::LANE)) {
                    return None;
                }
                let job_id = row.i64(column::JOB_ID);
                Some(Found { id, job_id, place: Where::History(Box::new(history::past(past.child, row)?)) })
            }
        }
    }
}

impl Walk for Ends<'_> {
    fn next(&mut self) -> Option<Option<Found>> {
        let (n, head) = loop {
            process::check_for_interrupts();
            let key =
                |source: &Source<'_>| source.head.as_ref().map(|head| (head.outcome.ended_at, id::count(head.id)));
            let n = (0..self.sources.len()).max_by_key(|&n| key(&self.sources[n]))?;
            let source = &mut self.sources[n];
            let head = source.head.take()?;
            source.advance();
            // A source may have appeared since the last page, as when a segment is copied to history. Its rows that are
            // later than the shown ones are skipped.
            if source.taken.is_some() || self.until.is_none_or(|until| head.outcome.ended_at <= until) {
                break (n, head);
            }
        };
        let source = &mut self.sources[n];
        source.taken = Some(head.at);
        let ended_at = head.outcome.ended_at;
        self.until = Some(self.until.map_or(ended_at, |until| until.min(ended_at)));
        let of = source.of;
        Some(self.found(of, head))
    }

    fn here(&self) -> Value {
        let mut at: BTreeMap<String, Value> = self.gone.clone();
        for source in &self.sources {
            if let Some((a, b)) = source.taken {
                at.insert(source.name.clone(), json!([a, b]));
            }
        }
        json!({ "until": self.until, "at": at })
    }
}
