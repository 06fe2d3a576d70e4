//! Jobs that wait for their time, before the first attempt or after a failure, the earliest time first. The walk reads
//! the index by time, which holds the jobs of all queues.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::log::attempt::LAST_ERROR;
use crate::log::listing::walk::{Found, JobState, Opened, SNAPSHOT, Walk, Wanted, Where, pair};
use crate::log::tables::Tables;
use crate::pg::scan::{Key, Scan};
use crate::pg::{process, time};

/// A segment's index.
struct Source<'a> {
    name: String,
    tables: &'a Tables,
    scan: Scan<'a>,
    /// An earlier walk has read the rows of the first time up to this place.
    passed: Option<(i64, i64)>,
    head: Option<Head>,
    taken: Option<(i64, i64)>,
}

struct Head {
    run_at: i64,
    place: (i64, i64),
    id: i64,
    job_id: i64,
    lane: i32,
    has_error: bool,
}

impl Source<'_> {
    fn advance(&mut self, from: i64) {
        self.head = None;
        while let Some(tid) = self.scan.next() {
            let (block, offset) = tid.parts();
            let place = (i64::from(block), i64::from(offset));
            let (values, nulls) = self.scan.columns(LAST_ERROR + 1);
            let run_at = values[7].value() as i64;
            // Entries with the same time are ordered by place.
            if run_at == from && self.passed.is_some_and(|passed| place <= passed) {
                process::check_for_interrupts();
                continue;
            }
            let (id, job_id, lane) = (values[0].value() as i64, values[1].value() as i64, values[3].value() as i32);
            self.head = Some(Head { run_at, place, id, job_id, lane, has_error: !nulls[LAST_ERROR] });
            return;
        }
    }
}

/// The walk over jobs that wait for their time.
pub struct Future<'a> {
    wanted: &'a Wanted<'a>,
    sources: Vec<Source<'a>>,
    from: i64,
    /// The time of the last row that was taken.
    at: i64,
}

impl<'a> Future<'a> {
    pub fn new(wanted: &'a Wanted<'a>, opened: &'a Opened, beyond: Option<&Value>) -> Self {
        let now = time::now_us();
        let at = beyond.and_then(|beyond| beyond.get("run_at")).and_then(Value::as_i64);
        let from = at.map_or(now, |at| at.max(now));
        let passed = beyond.and_then(|beyond| beyond.get("at")).filter(|_| at == Some(from));
        let mut sources = Vec::new();
        for tables in opened.segments.iter().filter(|tables| opened.ledger.is_inhabited(tables.home.segment)) {
            let name = format!("s{}", opened.ledger.word(tables.home.segment).generation());
            let passed = pair(passed.and_then(|passed| passed.get(&name)));
            let scan = tables.attempt.scan(tables.by_run_at(), &[Key::not_before(1, from)], SNAPSHOT);
            let mut source = Source { name, tables, scan, passed, head: None, taken: passed };
            source.advance(from);
            sources.push(source);
        }
        Self { wanted, sources, from, at: from }
    }
}

impl Walk for Future<'_> {
    fn next(&mut self) -> Option<Option<Found>> {
        process::check_for_interrupts();
        let with_head = self.sources.iter().enumerate().filter_map(|(n, s)| Some((s.head.as_ref()?.run_at, n)));
        let (run_at, n) = with_head.min()?;
        if run_at != self.at {
            self.at = run_at;
            self.sources.iter_mut().for_each(|source| source.taken = None);
        }
        let source = &mut self.sources[n];
        let head = source.head.take()?;
        source.taken = Some(head.place);
        source.advance(self.from);
        let is_it = head.has_error == (self.wanted.state == JobState::Retrying)
            && self.wanted.has(head.lane)
            && !self.wanted.queue.is_held(head.lane)
            && source.tables.claims().find(head.id, SNAPSHOT).is_none();
        let place = Where::Segment(source.tables.home.segment);
        Some(is_it.then_some(Found { id: head.id, job_id: head.job_id, place }))
    }

    fn here(&self) -> Value {
        let of = |source: &Source<'_>| Some((source.name.clone(), json!([source.taken?.0, source.taken?.1])));
        let at: BTreeMap<String, Value> = self.sources.iter().filter_map(of).collect();
        json!({ "run_at": self.at, "at": at })
    }
}
