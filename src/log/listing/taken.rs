//! Jobs that run. On a primary the walk reads memory, the oldest attempt first. On a standby, and shortly after a
//! start, it reads the logs of claims from their ends, the latest claim first.

use std::collections::BTreeMap;
use std::vec;

use pg_queue_core::frontier::Running;
use serde_json::{Value, json};

use crate::log::claim;
use crate::log::listing::walk::{Found, Opened, SNAPSHOT, Walk, Wanted, Where, pair};
use crate::log::tables::Tables;
use crate::pg::row::Row;
use crate::pg::scan::{Backwards, Key};
use crate::pg::{process, session};
use crate::shmem;

/// Begins a walk over running jobs.
pub fn walk<'a>(wanted: &'a Wanted<'a>, opened: &'a Opened, beyond: Option<&Value>) -> Box<dyn Walk + 'a> {
    // Shortly after a start, memory does not know yet which jobs run.
    let is_known = shmem::with_instance(|_, instance| instance.is_recovered()).unwrap_or(false);
    if session::in_recovery() || !is_known {
        return Box::new(Claims::new(wanted, opened, beyond));
    }
    let after = beyond.and_then(|beyond| beyond.get("id")).and_then(Value::as_i64).unwrap_or(i64::MIN);
    let entries = shmem::each_running();
    let is_it = |entry: &Running| wanted.has(entry.lane) && entry.claimed != 0 && entry.id >> 4 > after >> 4;
    let mut found: Vec<(i64, Found)> = entries
        .filter(is_it)
        .map(|entry| {
            let place = Where::Segment(entry.place.segment);
            (entry.id >> 4, Found { id: entry.id, job_id: entry.rank.job_id, place })
        })
        .collect();
    found.sort_unstable_by_key(|(key, _)| *key);
    let found: Vec<Found> = found.into_iter().map(|(_, found)| found).collect();
    Box::new(Taken { found: found.into_iter(), at: after })
}

/// The walk over memory.
struct Taken {
    found: vec::IntoIter<Found>,
    at: i64,
}

impl Walk for Taken {
    fn next(&mut self) -> Option<Option<Found>> {
        let found = self.found.next()?;
        self.at = found.id;
        Some(Some(found))
    }

    fn here(&self) -> Value {
        json!({ "id": self.at })
    }
}

/// The claims of one segment.
struct Source<'a> {
    name: String,
    tables: &'a Tables,
    rows: Backwards<'a>,
    before: Option<(i64, i64)>,
    head: Option<Row>,
    taken: Option<(i64, i64)>,
}

fn place(row: &Row) -> (i64, i64) {
    let (block, offset) = row.tid().parts();
    (i64::from(block), i64::from(offset))
}

impl Source<'_> {
    fn advance(&mut self) {
        self.head = self.rows.by_ref().find(|row| self.before.is_none_or(|before| place(row) < before));
    }
}

/// The walk over the logs of claims.
struct Claims<'a> {
    wanted: &'a Wanted<'a>,
    sources: Vec<Source<'a>>,
}

impl<'a> Claims<'a> {
    fn new(wanted: &'a Wanted<'a>, opened: &'a Opened, beyond: Option<&Value>) -> Self {
        let known = beyond.and_then(|beyond| beyond.get("at"));
        let mut sources = Vec::new();
        for tables in opened.segments.iter().filter(|tables| opened.ledger.is_inhabited(tables.home.segment)) {
            let name = format!("s{}", opened.ledger.word(tables.home.segment).generation());
            let before = pair(known.and_then(|known| known.get(&name)));
            let rows = tables.claims().table().backwards_from(before.and_then(|(block, _)| block.try_into().ok()));
            let mut source = Source { name, tables, rows, before, head: None, taken: before };
            source.advance();
            sources.push(source);
        }
        Self { wanted, sources }
    }
}

impl Walk for Claims<'_> {
    fn next(&mut self) -> Option<Option<Found>> {
        process::check_for_interrupts();
        let source = self.sources.iter_mut().max_by_key(|source| source.head.as_ref().map(|row| row.i64(1)))?;
        let row = source.head.take()?;
        source.advance();
        source.taken = Some(place(&row));
        let (id, tables) = (row.i64(0), source.tables);
        let is_claim = matches!(claim::read(&row).kind, claim::Kind::Worker | claim::Kind::Bound);
        if !is_claim || tables.outcomes().find(id, SNAPSHOT).is_some() {
            return Some(None);
        }
        let mut scan = tables.attempt.scan(tables.by_id(), &[Key::eq_i64(1, id)], SNAPSHOT);
        if scan.next().is_none() {
            return Some(None);
        }
        let (values, _) = scan.columns(4);
        let (job_id, lane) = (values[1].value() as i64, values[3].value() as i32);
        let place = Where::Segment(tables.home.segment);
        Some(self.wanted.has(lane).then_some(Found { id, job_id, place }))
    }

    fn here(&self) -> Value {
        let of = |source: &Source<'_>| Some((source.name.clone(), json!([source.taken?.0, source.taken?.1])));
        let at: BTreeMap<String, Value> = self.sources.iter().filter_map(of).collect();
        json!({ "at": at })
    }
}
