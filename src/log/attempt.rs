//! The `attempt` log: one row says that a job may be run.

use pg_queue_core::frontier::{Place, Rank, Ready};
use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::catalog::run_as::RunAs;
use crate::catalog::tables::attempt as columns;
use crate::catalog::{Catalog, drops};
use crate::error::Result;
use crate::log::parked;
use crate::log::segment::{Home, Target};
use crate::pg::datum::{self, Interval, text};
use crate::pg::row::{NewRows, Row, Tid};
use crate::pg::session;
use crate::pg::table::{Entry, Relation};
use crate::transaction::{self, Step};

/// The column that is null in attempts that follow no failure, for callers that read rows without `Attempt`.
pub const LAST_ERROR: usize = columns::LAST_ERROR;

/// A payload larger than this is referred to by the next attempt, not copied. Bytes as stored.
pub const REFER_ABOVE: usize = 1024;

/// The hash of a group's key, never 0. It is stored: groups are found by it. Two keys with the same hash are one group:
/// fewer of them run at once than might.
pub fn group_hash(key: Datum) -> i64 {
    match session::hash(&text(key)) {
        0 => 1,
        hash => hash,
    }
}

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
    /// The hash of the group's key, see [`group_hash`]; 0: no group.
    pub group_hash: i64,
    pub payload_of: Option<i64>,
    pub payload: Option<Datum>,
    pub lease: Option<Interval>,
    pub headers: Option<Datum>,
    pub group_key: Option<Datum>,
    /// Whether it gets its entry in the groups' index at once: its queue keeps an order in groups, so each attempt is
    /// parked.
    pub is_parked: bool,
    pub unique_key: Option<Datum>,
    pub version: Option<i64>,
    pub last_error: Option<Datum>,
    pub progress: Option<Datum>,
    /// The number of the call that gave the payload, see `Attempt::asked`. `None`: the call that makes the attempt, or
    /// the job has no key.
    pub asked: Option<i64>,
    /// The job whose flow it is a member of.
    pub flow: Option<i64>,
    /// Its name there.
    pub task: Option<Datum>,
    /// The jobs that it is after, or was, as `bigint[]`; see [`crate::log::edge`].
    pub after: Option<Datum>,
    /// What it waits for, or waited: the letter of an `Upon`.
    pub upon: Option<u8>,
    /// The steps that attempts before this one have done: an object with a field for each.
    pub steps: Option<Datum>,
    /// As whom it runs: the role that wrote the payload. `None`: it was written for a queue without an executor.
    pub run_as: Option<RunAs>,
    /// What makes it a flow: an object with the fields `runs` and `fail_fast`.
    pub own_flow: Option<Datum>,
}

impl New {
    /// A row that holds a payload which several jobs have. It is of no job that there is.
    pub fn payload_alone(id: i64, job_id: i64, now: i64, payload: Datum) -> Self {
        Self {
            id,
            job_id,
            enqueued_at: now,
            lane: 0,
            priority: 0,
            attempt: 0,
            max_attempts: None,
            run_at: None,
            group_hash: 0,
            payload_of: None,
            payload: Some(payload),
            lease: None,
            headers: None,
            group_key: None,
            is_parked: false,
            unique_key: None,
            version: None,
            last_error: None,
            progress: None,
            asked: None,
            flow: None,
            task: None,
            after: None,
            upon: None,
            steps: None,
            run_as: None,
            own_flow: None,
        }
    }

    /// Whether it is not its job's first attempt.
    fn is_later(&self) -> bool {
        id::count(self.id) != id::count(self.job_id)
    }

    /// Whether other attempts of its group may have to wait for it although it is not running.
    fn may_hold_group(&self) -> bool {
        self.group_hash != 0 && self.attempt > 1
    }

    /// In the order of the columns.
    fn row(&self) -> [Option<Datum>; columns::COUNT] {
        [
            Some(self.id.into()),
            Some(self.job_id.into()),
            Some(self.enqueued_at.into()),
            Some(self.lane.into()),
            Some(self.priority.into()),
            Some(self.attempt.into()),
            self.max_attempts.map(Datum::from),
            self.run_at.map(Datum::from),
            (self.group_hash != 0).then(|| Datum::from(self.group_hash)),
            self.payload_of.map(Datum::from),
            self.payload,
            self.lease.map(Interval::datum),
            self.headers,
            self.group_key,
            self.unique_key,
            self.version.map(Datum::from),
            self.last_error,
            self.progress,
            self.asked.map(Datum::from),
            self.flow.map(Datum::from),
            self.task,
            self.after,
            self.upon.map(|upon| Datum::from(upon as i8)),
            self.steps,
            self.run_as.map(|role| role.name),
            self.run_as.map(|role| Datum::from(role.id)),
            self.own_flow,
        ]
    }
}

/// Inserts attempts into a segment and records the steps by which the commit tells the frontier. Rows that hold a payload alone
/// come first, and are no attempts.
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

fn append(catalog: &Catalog, target: &Target, attempts: &[New], has_moved: bool) {
    let tids = insert_quietly(catalog, target, attempts);
    let segment = target.home.segment;
    // It is not known whether those that have moved were parked.
    let is_indexed = |new: &New| new.group_hash != 0 && (has_moved || new.is_parked);
    if attempts.iter().any(is_indexed) {
        parked::fill_new(catalog, segment, &target.table, &tids, |n| {
            let new = &attempts[n];
            let key = (new.lane, new.group_hash, new.priority, new.job_id);
            is_indexed(new).then_some((key, has_moved || new.attempt > 1))
        });
    }
    transaction::record_all(
        catalog.number,
        attempts.iter().zip(&tids).filter(|(new, _)| new.lane != 0).map(|(new, tid)| {
            let rank = Rank { priority: new.priority, job_id: new.job_id };
            let place = Place { is_indexed: is_indexed(new), ..tid.place(segment) };
            let ready = Ready { rank, id: new.id, place, group: new.group_hash };
            Step::Enqueued { lane: new.lane, ready, run_at: new.run_at.unwrap_or(0), has_moved }
        }),
    );
}

/// Inserts attempts without telling the frontier. Returns where they lie.
pub fn insert_quietly(catalog: &Catalog, target: &Target, attempts: &[New]) -> Vec<Tid> {
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
        // Lanes lie apart there: only neighbours of one lane may go into a leaf together.
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
    if attempts.iter().any(|new| new.flow.is_some()) {
        Relation::write_index(oids.attempt_flow)
            .insert_entries(table, &tids, false, |n| attempts[n].flow.map(|flow| [flow.into(), attempts[n].id.into()]));
    }
    tids
}

/// An attempt's row.
pub struct Attempt {
    row: Row,
    /// Where it was found.
    pub home: Home,
}

macro_rules! columns {
    ($($(#[$doc:meta])* $name:ident: $column:ident -> $kind:ty = $get:expr;)*) => {
        $($(#[$doc])* pub fn $name(&self) -> $kind {
            #[allow(clippy::redundant_closure_call, reason = "one form for all columns")]
            ($get)(&self.row, columns::$column)
        })*
    };
}

impl Attempt {
    /// A row of a segment's attempts.
    pub fn new(row: Row, home: Home) -> Self {
        Self { row, home }
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
        /// The hash of the group's key; 0: no group.
        group_hash: GROUP_HASH -> i64 = |r: &Row, n| r.get(n).map_or(0, |d| d.value() as i64);
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
        /// The job whose flow it is a member of.
        flow: FLOW -> Option<i64> = |r: &Row, n| r.get(n).map(|d| d.value() as i64);
        /// Its name there.
        task: TASK -> Option<Datum> = Row::get;
        /// The jobs that it is after, or was.
        after: AFTER -> Option<Datum> = Row::get;
        /// What it waits for, or waited.
        upon: UPON -> Option<u8> = |r: &Row, n| r.get(n).map(|d| d.value() as u8);
        /// The steps that attempts before this one have done.
        steps: STEPS -> Option<Datum> = Row::get;
        /// What makes it a flow.
        own_flow: OWN_FLOW -> Option<Datum> = Row::get;
    }

    /// As whom it runs.
    pub fn run_as(&self) -> Option<RunAs> {
        RunAs::read(&self.row, columns::RUN_AS, columns::RUN_AS_ID)
    }

    /// The call under its key that gave the payload: a number that ascends, see `rerun::is_newer`.
    pub fn asked(&self) -> i64 {
        self.row.get(columns::ASKED).map_or_else(|| self.id() & !15, |d| d.value() as i64)
    }

    /// The attempt as the frontier knows it.
    pub fn ready(&self) -> Ready {
        let rank = Rank { priority: self.priority(), job_id: self.job_id() };
        Ready { rank, id: self.id(), place: self.row.tid().place(self.home.segment), group: self.group_hash() }
    }

    /// Whether its payload lies in a row that the jobs of an event share: only a first attempt is made so. What follows it
    /// takes the payload along, so that nothing outside its segment refers to that row.
    pub fn shares_payload(&self) -> bool {
        self.payload_of().is_some() && id::count(self.id()) == id::count(self.job_id())
    }

    /// Whether this transaction has inserted it.
    pub fn is_own(&self) -> bool {
        self.row.is_own()
    }

    /// Whether it is no attempt but the payload of one that has ended, kept for its successors.
    pub fn is_payload_only(&self) -> bool {
        self.lane() == 0
    }

    /// Whether the payload is large enough to be referred to. Of varlenas the stored length counts, so that
    /// nothing toasted is fetched.
    pub fn has_large_payload(&self) -> bool {
        self.own_payload().is_some_and(|d| datum::stored_size(d) > REFER_ABOVE)
    }

    /// Bytes that the payload takes as it is stored.
    pub fn payload_size(&self) -> usize {
        self.own_payload().map_or(0, datum::stored_size)
    }

    /// The payload alone, for attempts that refer to it, when this attempt itself is of no more use.
    pub fn payload_only(&self) -> New {
        New {
            lane: 0,
            attempt: 0,
            run_at: None,
            headers: None,
            group_hash: 0,
            group_key: None,
            unique_key: None,
            last_error: None,
            progress: None,
            flow: None,
            task: None,
            after: None,
            upon: None,
            steps: None,
            run_as: None,
            own_flow: None,
            ..self.copy()
        }
    }

    /// Returns the next attempt of the same job, with all that is carried over; the caller changes the rest.
    pub fn successor(&self, id: i64) -> New {
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

    /// The row as it is, to be inserted elsewhere. The datums are good as long as this attempt.
    pub fn copy(&self) -> New {
        New {
            id: self.id(),
            job_id: self.job_id(),
            enqueued_at: self.enqueued_at(),
            lane: self.lane(),
            priority: self.priority(),
            attempt: self.attempt(),
            max_attempts: self.max_attempts(),
            run_at: self.run_at(),
            payload_of: self.payload_of(),
            payload: self.own_payload(),
            lease: self.lease(),
            headers: self.headers(),
            group_hash: self.group_hash(),
            group_key: self.group_key(),
            is_parked: false,
            unique_key: self.unique_key(),
            version: self.version(),
            last_error: self.last_error(),
            progress: self.progress(),
            asked: self.row.get(columns::ASKED).map(|d| d.value() as i64),
            flow: self.flow(),
            task: self.task(),
            after: self.after(),
            upon: self.upon(),
            steps: self.steps(),
            run_as: self.run_as(),
            own_flow: self.own_flow(),
        }
    }
}
