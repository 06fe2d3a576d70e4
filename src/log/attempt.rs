//! The `attempt` log: one row says that a job may be run.

use pg_queue_core::frontier::{Place, Rank, Ready};
use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::catalog::run_as::RunAs;
use crate::catalog::tables::{attempt as columns, history};
use crate::catalog::{Catalog, drops};
use crate::error::Result;
use crate::log::parked;
use crate::log::segment::{Home, Target};
use crate::pg::datum::{self, Interval, text};
use crate::pg::memory;
use crate::pg::row::{Columns, NewRows, Row, Tid};
use crate::pg::session;
use crate::pg::table::{Entry, Relation};
use crate::transaction::{self, ExpiryStep, Step};

/// The column of the last error, for callers that read rows without `Attempt`. It is null in attempts that follow no
/// failure.
pub const LAST_ERROR: usize = columns::LAST_ERROR;
/// The number of the column `run_at`.
pub const RUN_AT: usize = columns::RUN_AT;

/// If a payload has more stored bytes than this, the next attempt refers to it and does not copy it.
pub const REFER_ABOVE: usize = 1024;

/// Returns the hash of a group's key, never 0. It is stored, and groups are found by it. Two keys with the same hash
/// are one group, so fewer of their jobs run at the same time than could.
pub fn group_hash(key: Datum) -> i64 {
    match session::hash(&text(key)) {
        0 => 1,
        hash => hash,
    }
}

/// A value as a row stores it.
pub trait Stored {
    /// Reads a column of a row.
    fn read(row: &impl Columns, n: usize) -> Self;
    /// Returns it as it is written. `None`: NULL.
    fn datum(self) -> Option<Datum>;
}

macro_rules! stored {
    (|$row:ident, $n:ident| $($kind:ty: $read:expr, $datum:expr;)*) => {
        $(impl Stored for $kind {
            #[inline]
            fn read($row: &impl Columns, $n: usize) -> Self {
                $read
            }
            #[inline]
            fn datum(self) -> Option<Datum> {
                #[allow(clippy::redundant_closure_call, reason = "one form for all kinds")]
                ($datum)(self)
            }
        })*
    };
}

stored! { |row, n|
    i64: row.i64(n), |value: i64| Some(value.into());
    i32: row.i32(n), |value: i32| Some(value.into());
    Option<i32>: row.get(n).map(|d| d.value() as i32), |value: Option<i32>| value.map(Datum::from);
    Option<i64>: row.get(n).map(|d| d.value() as i64), |value: Option<i64>| value.map(Datum::from);
    Option<u8>: row.get(n).map(|d| d.value() as u8), |value: Option<u8>| value.map(|v| Datum::from(v as i8));
    Option<Interval>: row.get(n).map(Interval::read), |value: Option<Interval>| value.map(Interval::datum);
    Option<Datum>: row.get(n), |value| value;
}

/// Makes the row to insert, its reader, and its copies of the list of columns. History keeps the value of a column that
/// is marked `kept`.
macro_rules! row {
    ($($(#[$doc:meta])* $field:ident, $reader:ident: $kind:ty = $column:ident $(, $kept:ident)?;)*) => {
        /// An attempt to insert.
        #[derive(Clone, Copy)]
        pub struct New {
            $($(#[$doc])* pub $field: $kind,)*
            /// The hash of the group's key, see [`group_hash`]; 0: no group.
            pub group_hash: i64,
            /// The role that has written the payload, as which the job runs. `None`: it was written for a queue without
            /// an executor.
            pub run_as: Option<RunAs>,
        }

        /// The hash has one column, the role two.
        const _: () = assert!(
            [$(columns::$column),*].len() + 3 == columns::COUNT,
            "a column is in the table and not in the list"
        );

        impl New {
            /// Returns a row with nothing but its ids and a time. Its lane is 0, as for rows that are no attempts.
            pub fn blank(id: i64, job_id: i64, enqueued_at: i64) -> Self {
                let nothing = Self {
                    $($field: <$kind>::default(),)*
                    group_hash: 0,
                    run_as: None,
                };
                Self { id, job_id, enqueued_at, ..nothing }
            }

            /// Returns the values in the order of the columns.
            fn row(&self) -> [Option<Datum>; columns::COUNT] {
                let mut row = [None; columns::COUNT];
                $(row[columns::$column] = self.$field.datum();)*
                row[columns::GROUP_HASH] = (self.group_hash != 0).then(|| self.group_hash.into());
                row[columns::RUN_AS] = self.run_as.map(|role| role.name);
                row[columns::RUN_AS_ID] = self.run_as.map(|role| role.id.into());
                row
            }

            /// Returns an attempt of history as a template for the next attempt. The datums are valid as long as the
            /// row.
            pub fn of_past(row: &Row) -> Self {
                let [id, job_id, enqueued_at] =
                    [history::ID, history::JOB_ID, history::ENQUEUED_AT].map(|n| row.i64(n));
                Self {
                    $($($kept: <$kind>::read(row, history::$column),)?)*
                    group_hash: row.get(history::GROUP_KEY).map_or(0, group_hash),
                    run_as: RunAs::read(row, history::RUN_AS, history::RUN_AS_ID),
                    ..Self::blank(id, job_id, enqueued_at)
                }
            }
        }

        impl<R: Columns> AttemptOf<R> {
            $($(#[$doc])* pub fn $reader(&self) -> $kind {
                <$kind>::read(&self.row, columns::$column)
            })*

            /// Puts the kept columns into a row of history.
            pub fn keep(&self, past: &mut [Option<Datum>; history::COUNT]) {
                past[history::ID] = Some(self.id().into());
                past[history::JOB_ID] = Some(self.job_id().into());
                past[history::ENQUEUED_AT] = Some(self.enqueued_at().into());
                $($(past[history::$column] = {
                    let _ = stringify!($kept);
                    self.$reader().datum()
                };)?)*
                past[history::RUN_AS] = self.run_as().map(|role| role.name);
                past[history::RUN_AS_ID] = self.run_as().map(|role| role.id.into());
            }

            /// Returns a copy of the row, to be inserted in another segment. The datums are valid as long as this
            /// attempt.
            pub fn copy(&self) -> New {
                New {
                    $($field: self.$reader(),)*
                    group_hash: self.group_hash(),
                    run_as: self.run_as(),
                }
            }
        }
    };
}

row! {
    /// The attempt's id.
    id, id: i64 = ID;
    /// The job's id.
    job_id, job_id: i64 = JOB_ID;
    /// `timestamptz` of the enqueue.
    enqueued_at, enqueued_at: i64 = ENQUEUED_AT;
    /// The lane.
    lane, lane: i32 = LANE, lane;
    /// The priority.
    priority, priority: i32 = PRIORITY, priority;
    /// The number of this run, from 1.
    attempt, attempt: i32 = ATTEMPT, attempt;
    /// `None`: the queue's value.
    max_attempts, max_attempts: Option<i32> = MAX_ATTEMPTS, max_attempts;
    /// `None`: immediately.
    run_at, run_at: Option<i64> = RUN_AT;
    /// The attempt whose row holds the payload.
    payload_of, payload_of: Option<i64> = PAYLOAD_OF;
    /// The payload, when it is in this row.
    payload, own_payload: Option<Datum> = PAYLOAD, payload;
    /// `None`: as the queue says.
    lease, lease: Option<Interval> = LEASE, lease;
    /// The headers.
    headers, headers: Option<Datum> = HEADERS, headers;
    /// The group.
    group_key, group_key: Option<Datum> = GROUP_KEY, group_key;
    /// The unique key.
    unique_key, unique_key: Option<Datum> = UNIQUE_KEY, unique_key;
    /// The version known for the key.
    version, version: Option<i64> = VERSION, version;
    /// How the last counted attempt failed.
    last_error, last_error: Option<Datum> = LAST_ERROR, last_error;
    /// The progress that the last attempt has reported.
    progress, progress: Option<Datum> = PROGRESS, progress;
    /// The number of the call that gave the payload, see [`Attempt::asked`]. `None`: the call that has made the
    /// attempt, or the job has no key.
    asked, stored_asked: Option<i64> = ASKED;
    /// The flow of which the job is a member.
    flow, flow: Option<i64> = FLOW, flow;
    /// The job's name in that flow.
    task, task: Option<Datum> = TASK, task;
    /// The present or former predecessors, as `bigint[]`; see [`crate::log::edge`].
    after, after: Option<Datum> = AFTER, after;
    /// The present or former condition: the letter of an `Upon`.
    upon, upon: Option<u8> = UPON, upon;
    /// The steps that attempts before this one have done: an object with a field for each.
    steps, steps: Option<Datum> = STEPS, steps;
    /// The settings of the job's own flow: see `job::options::OwnFlow`.
    own_flow, own_flow: Option<Datum> = OWN_FLOW, own_flow;
    /// If no worker has claimed it before this `timestamptz`, it expires; see `start_by`. `MAX`: it never does.
    start_by, start_by: Option<i64> = START_BY;
    /// What the producer has said about the job's times: see `job::timing`.
    timing, timing: Option<Datum> = TIMING, timing;
}

impl New {
    /// Returns a row that holds a payload for several jobs. No job has its id.
    pub fn payload_alone(id: i64, job_id: i64, now: i64, payload: Datum) -> Self {
        Self { payload: Some(payload), ..Self::blank(id, job_id, now) }
    }

    /// Returns whether the index by job has it: its own id does not follow from its job's.
    fn is_later(&self) -> bool {
        id::count(self.id) != id::count(self.job_id)
    }

    /// Returns when it expires. `None`: never.
    fn expires_at(&self) -> Option<i64> {
        self.start_by.filter(|&at| at < i64::MAX)
    }

    /// Returns whether other attempts of its group may have to wait for it although it is not running.
    fn may_hold_group(&self) -> bool {
        self.group_hash != 0 && self.attempt > 1
    }
}

/// Inserts attempts into a segment, and records the steps by which the commit tells the frontier. Rows that hold only a
/// payload come first, and are no attempts.
///
/// Errors: 55006 when a lane's queue is being dropped.
pub fn insert(catalog: &Catalog, target: &Target, attempts: &[New]) -> Result<()> {
    let mut watched = 0;
    for new in attempts {
        if new.lane != watched {
            drops::watch(catalog, new.lane)?;
            watched = new.lane;
        }
    }
    append(catalog, target, attempts, false);
    Ok(())
}

/// As `insert`, into lanes that `drops::admits` has admitted.
pub fn insert_admitted(catalog: &Catalog, target: &Target, attempts: &[New]) {
    append(catalog, target, attempts, false);
}

/// Inserts attempts that have moved here, and records the steps by which the commit tells the frontier.
pub fn append_moved(catalog: &Catalog, target: &Target, attempts: &[New]) {
    append(catalog, target, attempts, true);
}

/// Returns whether an attempt is its job's first. It has its job's count; or its job has an id of another server, and
/// the first attempt says of itself that its own call gave the payload. A later attempt never has its own number there.
fn is_first(id: i64, job_id: i64, asked: Option<i64>) -> bool {
    id::count(id) == id::count(job_id) || asked == Some(id & !id::JOB_NIBBLE)
}

fn append(catalog: &Catalog, target: &Target, attempts: &[New], has_moved: bool) {
    let tids = insert_quietly(catalog, target, attempts);
    let segment = target.home.segment;
    // It is not known whether moved attempts were parked.
    let is_indexed = |new: &New| new.group_hash != 0 && has_moved;
    if attempts.iter().any(is_indexed) {
        parked::fill_new(catalog, segment, &target.table, &tids, |n| {
            let new = &attempts[n];
            let key = (new.lane, new.group_hash, new.priority, new.job_id);
            is_indexed(new).then_some(key)
        });
    }
    transaction::record_all(
        catalog.number,
        attempts.iter().zip(&tids).filter(|(new, _)| new.lane != 0).map(|(new, tid)| {
            let rank = Rank { priority: new.priority, job_id: new.job_id };
            let place = Place { is_indexed: is_indexed(new), ..tid.place(segment) };
            let ready = Ready { rank, id: new.id, place, group: new.group_hash };
            let is_retry = new.may_hold_group();
            let is_first = is_first(new.id, new.job_id, new.asked);
            Step::Enqueued { lane: new.lane, ready, run_at: new.run_at.unwrap_or(0), has_moved, is_retry, is_first }
        }),
    );
    if let Some(at) = attempts.iter().filter_map(New::expires_at).min() {
        transaction::record(catalog.number, ExpiryStep::Waits { at });
    }
}

/// Inserts attempts without telling the frontier. Returns their places.
pub fn insert_quietly(catalog: &Catalog, target: &Target, attempts: &[New]) -> Vec<Tid> {
    /// At most this many rows are formed at a time: a caller decides how many there are.
    const MAX_ROWS: usize = 10_000;
    if attempts.len() <= MAX_ROWS {
        return insert_some(catalog, target, attempts);
    }
    memory::collect(attempts.chunks(MAX_ROWS).flat_map(|some| insert_some(catalog, target, some)))
}

fn insert_some(catalog: &Catalog, target: &Target, attempts: &[New]) -> Vec<Tid> {
    if attempts.is_empty() {
        return Vec::new();
    }
    let oids = &catalog.segments[target.home.segment as usize];
    let table = &target.table;
    let [pkey, lane] = Relation::write_indexes([oids.attempt_pkey, oids.attempt_lane]);
    let lane_key = |new: &New| [Datum::from(new.lane), Datum::from(new.priority), Datum::from(new.job_id)];
    let tids = if let [new] = attempts {
        let entries = &mut [
            Entry { index: &pkey, is_unique: false, key: &mut [new.id.into()] },
            Entry { index: &lane, is_unique: false, key: &mut lane_key(new) },
        ];
        Vec::from_iter(table.insert_row(new.row(), entries))
    } else {
        let mut rows = NewRows::new(columns::COUNT, attempts.len());
        attempts.iter().for_each(|new| rows.add(new.row()));
        let tids = table.insert(&mut rows);
        // One index after the other: neighbours in an index stay in the cache.
        pkey.insert_entries(table, &tids, false, |n| Some([Datum::from(attempts[n].id)]));
        // This index is ordered by lane, so only consecutive entries of one lane may go into a leaf together.
        let mut rest = &tids[..];
        for of_lane in attempts.chunk_by(|a, b| a.lane == b.lane) {
            let (here, others) = rest.split_at(of_lane.len());
            lane.insert_entries(table, here, false, |n| Some(lane_key(&of_lane[n])));
            rest = others;
        }
        tids
    };
    // The conditions of the partial indexes are those of their definitions.
    if attempts.iter().any(|new| new.run_at.is_some()) {
        Relation::write_index(oids.attempt_run_at)
            .insert_entries(table, &tids, false, |n| attempts[n].run_at.map(|at| [Datum::from(at)]));
    }
    if attempts.iter().any(New::is_later) {
        Relation::write_index(oids.attempt_job)
            .insert_entries(table, &tids, false, |n| attempts[n].is_later().then(|| [Datum::from(attempts[n].job_id)]));
    }
    if attempts.iter().any(New::may_hold_group) {
        Relation::write_index(oids.attempt_holder).insert_entries(table, &tids, false, |n| {
            attempts[n].may_hold_group().then(|| [attempts[n].lane.into(), attempts[n].group_hash.into()])
        });
    }
    if attempts.iter().any(|new| new.unique_key.is_some()) {
        Relation::write_index(oids.attempt_unique).insert_entries(table, &tids, false, |n| {
            attempts[n].unique_key.map(|key| [key, attempts[n].lane.into(), attempts[n].id.into()])
        });
    }
    if attempts.iter().any(|new| new.expires_at().is_some()) {
        Relation::write_index(oids.attempt_start_by).insert_entries(table, &tids, false, |n| {
            attempts[n].expires_at().map(|at| [at.into(), attempts[n].id.into()])
        });
    }
    if attempts.iter().any(|new| new.flow.is_some()) {
        Relation::write_index(oids.attempt_flow)
            .insert_entries(table, &tids, false, |n| attempts[n].flow.map(|flow| [flow.into(), attempts[n].id.into()]));
    }
    tids
}

/// An attempt's row: a copy, or the row at which a scan is.
pub struct AttemptOf<R> {
    row: R,
    /// The home in which it was found.
    pub home: Home,
}

/// A copy of an attempt's row.
pub type Attempt = AttemptOf<Row>;

impl<R: Columns> AttemptOf<R> {
    /// Returns the attempt of a row.
    pub fn new(row: R, home: Home) -> Self {
        Self { row, home }
    }

    /// Returns the hash of the group's key. 0: no group.
    pub fn group_hash(&self) -> i64 {
        self.row.get(columns::GROUP_HASH).map_or(0, |d| d.value() as i64)
    }

    /// Returns the role as which it runs.
    pub fn run_as(&self) -> Option<RunAs> {
        RunAs::read(&self.row, columns::RUN_AS, columns::RUN_AS_ID)
    }

    /// Returns the number of the call under its key that gave the payload. The numbers ascend, see `rerun::is_newer`.
    pub fn asked(&self) -> i64 {
        self.stored_asked().unwrap_or_else(|| self.id() & !15)
    }

    /// Returns whether its payload lies in a row that the jobs of an event share. Only a first attempt is made so. A
    /// next attempt takes the payload along, so that nothing outside the segment refers to that row.
    pub fn shares_payload(&self) -> bool {
        self.payload_of().is_some() && self.is_first()
    }

    /// Returns whether it is its job's first attempt.
    pub fn is_first(&self) -> bool {
        is_first(self.id(), self.job_id(), self.stored_asked())
    }

    /// Returns whether the row is no attempt but the payload of an ended one, which is kept for later attempts.
    pub fn is_payload_only(&self) -> bool {
        self.lane() == 0
    }

    /// Returns whether the payload is large enough to be referred to. The stored length counts, so that nothing is
    /// detoasted.
    pub fn has_large_payload(&self) -> bool {
        self.own_payload().is_some_and(|d| datum::stored_size(d) > REFER_ABOVE)
    }

    /// Returns the stored bytes of the payload.
    pub fn payload_size(&self) -> usize {
        self.own_payload().map_or(0, datum::stored_size)
    }

    /// Returns a row with only the payload, for attempts that refer to it, when this attempt itself is no longer
    /// needed.
    pub fn payload_only(&self) -> New {
        let all = self.copy();
        New {
            priority: all.priority,
            max_attempts: all.max_attempts,
            payload_of: all.payload_of,
            payload: all.payload,
            lease: all.lease,
            version: all.version,
            asked: all.asked,
            ..New::blank(all.id, all.job_id, all.enqueued_at)
        }
    }

    /// Returns the next attempt of the same job with the values that it keeps. The caller sets the other values.
    pub fn next(&self, id: i64) -> New {
        let payload_of = self.payload_of().or(self.has_large_payload().then(|| self.id()));
        New {
            id,
            run_at: None,
            asked: self.unique_key().map(|_| self.asked()),
            payload_of,
            payload: if payload_of.is_some() { None } else { self.own_payload() },
            ..self.copy()
        }
    }
}

impl Attempt {
    /// Returns the attempt as the frontier knows it.
    pub fn ready(&self) -> Ready {
        let rank = Rank { priority: self.priority(), job_id: self.job_id() };
        Ready { rank, id: self.id(), place: self.row.tid().place(self.home.segment), group: self.group_hash() }
    }

    /// Returns whether this transaction has inserted it.
    pub fn is_own(&self) -> bool {
        self.row.is_own()
    }
}
