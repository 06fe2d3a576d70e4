//! The `attempt` log: one row says that a job may be run.

use pg_queue_core::frontier::{Rank, Ready};
use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::call::Interval;
use crate::dropping;
use crate::error::Result;
use crate::instance::{Catalog, Segment};
use crate::log::table::{Key, NewRows, Relation, Row, Snapshot, Tid};
use crate::transaction::{self, Step};

/// Columns, counted from 0; `sql/schema/tables.sql` says what they mean.
mod column {
    pub const ID: usize = 0;
    pub const JOB_ID: usize = 1;
    pub const ENQUEUED_AT: usize = 2;
    pub const LANE: usize = 3;
    pub const PRIORITY: usize = 4;
    pub const ATTEMPT: usize = 5;
    pub const MAX_ATTEMPTS: usize = 6;
    pub const RUN_AT: usize = 7;
    pub const PAYLOAD_OF: usize = 8;
    pub const PAYLOAD: usize = 9;
    pub const LEASE: usize = 10;
    pub const HEADERS: usize = 11;
    pub const GROUP_KEY: usize = 12;
    pub const UNIQUE_KEY: usize = 13;
    pub const VERSION: usize = 14;
    pub const LAST_ERROR: usize = 15;
    pub const PROGRESS: usize = 16;
    pub const COUNT: usize = 17;
}

/// A payload larger than this is referred to by the next attempt, not copied. Bytes as stored.
const REFER_ABOVE: usize = 1024;

/// An attempt to be inserted.
#[derive(Clone, Copy)]
pub struct New {
    pub id: i64,
    pub job_id: i64,
    /// `timestamptz` of the enqueue.
    pub enqueued_at: i64,
    pub lane: i32,
    pub priority: i32,
    /// The number this run will have, from 1.
    pub attempt: i32,
    /// `None`: as the queue says.
    pub max_attempts: Option<i32>,
    /// `None`: at once.
    pub run_at: Option<i64>,
    pub payload_of: Option<i64>,
    pub payload: Option<Datum>,
    pub lease: Option<Interval>,
    pub headers: Option<Datum>,
    pub group_key: Option<Datum>,
    pub unique_key: Option<Datum>,
    pub version: Option<i64>,
    pub last_error: Option<Datum>,
    pub progress: Option<Datum>,
}

impl New {
    /// Whether it is not its job's first attempt.
    fn is_later(&self) -> bool {
        id::count(self.id) != id::count(self.job_id)
    }

    /// In the order of the columns.
    fn row(&self) -> [Option<Datum>; column::COUNT] {
        [
            Some(self.id.into()),
            Some(self.job_id.into()),
            Some(self.enqueued_at.into()),
            Some(self.lane.into()),
            Some(self.priority.into()),
            Some(self.attempt.into()),
            self.max_attempts.map(Datum::from),
            self.run_at.map(Datum::from),
            self.payload_of.map(Datum::from),
            self.payload,
            self.lease.map(Interval::datum),
            self.headers,
            self.group_key,
            self.unique_key,
            self.version.map(Datum::from),
            self.last_error,
            self.progress,
        ]
    }
}

/// Inserts attempts into a segment and remembers to tell the frontier at commit.
///
/// Errors: 55006 when a lane's queue is being dropped.
pub fn insert(catalog: &Catalog, segment: u8, attempts: &[New]) -> Result<()> {
    if let Some(first) = attempts.first() {
        dropping::watch(catalog, first.lane)?;
    }
    let oids = &catalog.segments[segment as usize];
    let table = Relation::write(oids.attempt);
    let mut rows = NewRows::new(column::COUNT, attempts.len());
    attempts.iter().for_each(|new| rows.add(new.row()));
    let tids = table.insert(&mut rows);
    // One index after the other: neighbours in an index stay in the cache.
    Relation::write_index(oids.attempt_pkey)
        .insert_entries(&table, &tids, false, |n| Some([Datum::from(attempts[n].id)]));
    Relation::write_index(oids.attempt_lane).insert_entries(&table, &tids, false, |n| {
        let new = &attempts[n];
        Some([Datum::from(new.lane), Datum::from(new.priority), Datum::from(new.job_id)])
    });
    // The conditions of the partial indexes are those of their definitions.
    if attempts.iter().any(|new| new.run_at.is_some()) {
        Relation::write_index(oids.attempt_run_at)
            .insert_entries(&table, &tids, false, |n| attempts[n].run_at.map(|at| [Datum::from(at)]));
    }
    if attempts.iter().any(New::is_later) {
        Relation::write_index(oids.attempt_job).insert_entries(&table, &tids, false, |n| {
            attempts[n].is_later().then(|| [Datum::from(attempts[n].job_id)])
        });
    }
    if attempts.iter().any(|new| new.group_key.is_some()) {
        Relation::write_index(oids.attempt_group).insert_entries(&table, &tids, false, |n| {
            attempts[n].group_key.map(|key| [attempts[n].lane.into(), key, attempts[n].job_id.into()])
        });
    }
    if attempts.iter().any(|new| new.unique_key.is_some()) {
        Relation::write_index(oids.attempt_unique)
            .insert_entries(&table, &tids, false, |n| attempts[n].unique_key.map(|key| [key, attempts[n].lane.into()]));
    }
    transaction::remember_all(
        catalog.number,
        attempts.iter().zip(&tids).map(|(new, tid)| {
            let rank = Rank { priority: new.priority, job_id: new.job_id };
            let ready = Ready { rank, id: new.id, place: tid.place(segment) };
            Step::Enqueued { lane: new.lane, ready, run_at: new.run_at.unwrap_or(0) }
        }),
    );
    Ok(())
}

/// An attempt's row.
pub struct Attempt {
    row: Row,
    /// The segment it lies in now.
    pub segment: u8,
}

macro_rules! columns {
    ($($(#[$doc:meta])* $name:ident: $column:ident -> $kind:ty = $get:expr;)*) => {
        $($(#[$doc])* pub fn $name(&self) -> $kind {
            #[allow(clippy::redundant_closure_call, reason = "one form for all columns")]
            ($get)(&self.row, column::$column)
        })*
    };
}

impl Attempt {
    /// A row of the segment's attempts.
    pub fn new(row: Row, segment: u8) -> Self {
        Self { row, segment }
    }

    columns! {
        /// The attempt's id.
        id: ID -> i64 = Row::i64;
        /// The job's id.
        job_id: JOB_ID -> i64 = Row::i64;
        /// When the job was enqueued.
        enqueued_at: ENQUEUED_AT -> i64 = Row::i64;
        /// The lane.
        lane: LANE -> i32 = Row::i32;
        /// The priority.
        priority: PRIORITY -> i32 = Row::i32;
        /// The number of this run.
        attempt: ATTEMPT -> i32 = Row::i32;
        /// `None`: as the queue says.
        max_attempts: MAX_ATTEMPTS -> Option<i32> = |r: &Row, n| r.get(n).map(|d| d.value() as i32);
        /// `None`: at once.
        run_at: RUN_AT -> Option<i64> = |r: &Row, n| r.get(n).map(|d| d.value() as i64);
        /// The attempt whose row holds the payload.
        payload_of: PAYLOAD_OF -> Option<i64> = |r: &Row, n| r.get(n).map(|d| d.value() as i64);
        /// The payload, when it is in this row.
        own_payload: PAYLOAD -> Option<Datum> = Row::get;
        /// `None`: as the queue says.
        lease: LEASE -> Option<Interval> = |r: &Row, n| r.get(n).map(Interval::read);
        /// The headers.
        headers: HEADERS -> Option<Datum> = Row::get;
        /// The group.
        group_key: GROUP_KEY -> Option<Datum> = Row::get;
        /// The unique key.
        unique_key: UNIQUE_KEY -> Option<Datum> = Row::get;
        /// The version known for the key.
        version: VERSION -> Option<i64> = |r: &Row, n| r.get(n).map(|d| d.value() as i64);
        /// How the last counted attempt failed.
        last_error: LAST_ERROR -> Option<Datum> = Row::get;
        /// What the last attempt had reported.
        progress: PROGRESS -> Option<Datum> = Row::get;
    }

    /// The attempt as the frontier knows it.
    pub fn ready(&self) -> Ready {
        let rank = Rank { priority: self.priority(), job_id: self.job_id() };
        Ready { rank, id: self.id(), place: self.row.tid().place(self.segment) }
    }

    /// The next attempt of the same job: all that is carried over is, the rest is the caller's to change.
    pub fn successor(&self, id: i64) -> New {
        // SAFETY of the size: a varlena's stored length, without fetching what is toasted.
        let large = self.own_payload().is_some_and(|d| stored_size(d) > REFER_ABOVE);
        let payload_of = self.payload_of().or(large.then(|| self.id()));
        New {
            id,
            job_id: self.job_id(),
            enqueued_at: self.enqueued_at(),
            lane: self.lane(),
            priority: self.priority(),
            attempt: self.attempt(),
            max_attempts: self.max_attempts(),
            run_at: None,
            payload_of,
            payload: if payload_of.is_some() { None } else { self.own_payload() },
            lease: self.lease(),
            headers: self.headers(),
            group_key: self.group_key(),
            unique_key: self.unique_key(),
            version: self.version(),
            last_error: self.last_error(),
            progress: self.progress(),
        }
    }
}

fn stored_size(datum: Datum) -> usize {
    // SAFETY: a datum of a variable-length type; looks at its header only.
    unsafe { pgrx::pg_sys::toast_datum_size(datum) }
}

/// Reads attempts; keeps the tables it has opened until it is dropped.
pub struct Reader<'a> {
    catalog: &'a Catalog,
    tables: [Option<Relation>; id::SEGMENTS],
    pkeys: [Option<Relation>; id::SEGMENTS],
}

impl<'a> Reader<'a> {
    /// A reader with nothing open.
    pub fn new(catalog: &'a Catalog) -> Self {
        Self { catalog, tables: std::array::from_fn(|_| None), pkeys: std::array::from_fn(|_| None) }
    }

    fn oids(&self, segment: u8) -> &'a Segment {
        &self.catalog.segments[segment as usize]
    }

    fn table(&mut self, segment: u8) -> &Relation {
        let oid = self.oids(segment).attempt;
        self.tables[segment as usize].get_or_insert_with(|| Relation::read(oid))
    }

    /// The table with its key, which most calls do not need.
    fn keyed(&mut self, segment: u8) -> (&Relation, &Relation) {
        let oids = self.oids(segment);
        let table = self.tables[segment as usize].get_or_insert_with(|| Relation::read(oids.attempt));
        let pkey = self.pkeys[segment as usize].get_or_insert_with(|| Relation::read_index(oids.attempt_pkey));
        (table, pkey)
    }

    /// The attempt that a `Ready` stands for: at its place, or, should the row have moved, by its id.
    pub fn fetch(&mut self, ready: &Ready) -> Option<Attempt> {
        let segment = ready.place.segment;
        let row = self.table(segment).fetch(Tid::of(ready.place));
        match row {
            Some(row) if row.i64(column::ID) == ready.id => Some(Attempt { row, segment }),
            _ => self.by_id(ready.id),
        }
    }

    /// The attempt with this id, wherever its row is.
    pub fn by_id(&mut self, attempt: i64) -> Option<Attempt> {
        let id::Kind::Attempt(born) = id::kind(attempt) else { return None };
        // Where it was born, else in one of the halves of old.
        [born, 8, 9].into_iter().find_map(|segment| {
            let (table, pkey) = self.keyed(segment);
            let mut scan = table.scan(pkey, &[Key::eq_i64(1, attempt)], Snapshot::Now);
            scan.next()?;
            Some(Attempt { row: scan.row(), segment })
        })
    }

    /// The payload of an attempt; `None` only when the row that held it is gone.
    pub fn payload<T>(&mut self, attempt: &Attempt, use_it: impl FnOnce(Option<Datum>) -> T) -> T {
        match attempt.payload_of() {
            None => use_it(attempt.own_payload()),
            Some(holder) => match self.by_id(holder) {
                Some(row) => use_it(row.own_payload()),
                None => use_it(None),
            },
        }
    }

    /// The ids of all attempts of a job.
    pub fn all_ids(&mut self, job_id: i64) -> Vec<i64> {
        let mut ids = Vec::new();
        for segment in 0..id::SEGMENTS as u8 {
            let first = id::first_attempt(job_id, segment);
            if self.by_id(first).is_some() {
                ids.push(first);
            }
            let by_job = Relation::read_index(self.catalog.segments[segment as usize].attempt_job);
            let table = self.table(segment);
            let mut scan = table.scan(&by_job, &[Key::eq_i64(1, job_id)], Snapshot::Now);
            while scan.next().is_some() {
                ids.push(scan.columns(1).0[0].value() as i64);
            }
        }
        ids
    }

    /// The newest attempt of a job, and whether an open transaction is making a newer one.
    pub fn newest(&mut self, job_id: i64) -> Result<(Option<Attempt>, bool)> {
        self.newest_by(job_id, Snapshot::Now, Snapshot::Dirty)
    }

    /// The newest attempt of a job in the eyes of the calling statement, to be joined with what that reads.
    pub fn newest_seen(&mut self, job_id: i64) -> Result<Option<Attempt>> {
        Ok(self.newest_by(job_id, Snapshot::Statement, Snapshot::Statement)?.0)
    }

    /// `first`: how to look for the job's first attempt; `later`: for the others, where those in progress are told.
    fn newest_by(&mut self, job_id: i64, first: Snapshot, later: Snapshot) -> Result<(Option<Attempt>, bool)> {
        let mut newest: Option<Attempt> = None;
        let mut in_progress = false;
        let mut keep = |found: Option<Attempt>| {
            if let Some(found) = found
                && newest.as_ref().is_none_or(|known| id::count(found.id()) > id::count(known.id()))
            {
                newest = Some(found);
            }
        };
        for segment in 0..id::SEGMENTS as u8 {
            let oids = &self.catalog.segments[segment as usize];
            let (table, pkey) = self.keyed(segment);
            if table.blocks() == 0 {
                continue;
            }
            let own = id::first_attempt(job_id, segment);
            let mut scan = table.scan(pkey, &[Key::eq_i64(1, own)], first);
            keep(scan.next().map(|_| Attempt { row: scan.row(), segment }));
            drop(scan);
            // A first attempt that was born in a young segment and moved to old.
            if segment >= 8 {
                for born in 0..8 {
                    let moved = id::first_attempt(job_id, born);
                    let mut scan = table.scan(pkey, &[Key::eq_i64(1, moved)], first);
                    keep(scan.next().map(|_| Attempt { row: scan.row(), segment }));
                }
            }
            let by_job = Relation::read_index(oids.attempt_job);
            let mut scan = table.scan(&by_job, &[Key::eq_i64(1, job_id)], later);
            while scan.next().is_some() {
                if scan.is_in_progress() {
                    in_progress = true;
                } else {
                    keep(Some(Attempt { row: scan.row(), segment }));
                }
            }
        }
        Ok((newest, in_progress))
    }
}
