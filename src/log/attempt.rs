//! The `attempt` log: one row says that a job may be run.

use std::ops::Deref;

use pg_queue_core::frontier::{Place, Rank, Ready};
use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::catalog::run_as::RunAs;
use crate::catalog::tables::{attempt as columns, history};
use crate::catalog::{self, drops, queue};
use crate::error::Result;
use crate::log::parked;
use crate::log::segment::{Home, Target};
use crate::pg::datum::{self, text};
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

/// An attempt to insert.
pub use columns::Row as New;

impl New {
    /// Returns a row with nothing but its ids and a time. Its lane is 0, as for rows that are no attempts.
    pub fn blank(id: i64, job_id: i64, enqueued_at: i64) -> Self {
        Self { id, job_id, enqueued_at, ..Self::BLANK }
    }

    /// Returns an attempt of history as a template for the next attempt. The datums are valid as long as the row.
    pub fn of_past(past: &history::Row) -> Self {
        Self {
            lane: past.lane,
            priority: past.priority,
            attempt: past.attempt,
            max_attempts: past.max_attempts,
            payload: past.payload,
            lease: past.lease,
            headers: past.headers,
            group_hash: past.group_key.map(group_hash),
            group_key: past.group_key,
            unique_key: past.unique_key,
            version: past.version,
            last_error: past.last_error,
            progress: past.progress,
            flow: past.flow,
            task: past.task,
            after: past.after,
            upon: past.upon,
            steps: past.steps,
            run_as: past.run_as,
            run_as_id: past.run_as_id,
            own_flow: past.own_flow,
            timing: past.timing,
            ..Self::blank(past.id, past.job_id, past.enqueued_at)
        }
    }

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
        self.group_hash.is_some() && self.attempt > 1
    }
}

/// Inserts attempts into a segment, and records the steps by which the commit tells the frontier. Rows that hold only a
/// payload come first, and are no attempts.
///
/// Errors: 55006 when a lane's queue is being dropped.
pub fn insert(target: &Target, attempts: &[New]) -> Result<()> {
    let mut watched = 0;
    for new in attempts {
        if new.lane != watched {
            drops::watch(new.lane)?;
            watched = new.lane;
        }
    }
    append(target, attempts, false);
    Ok(())
}

/// As `insert`, into lanes that `drops::admits` has admitted.
pub fn insert_admitted(target: &Target, attempts: &[New]) {
    append(target, attempts, false);
}

/// Inserts attempts that have moved here, and records the steps by which the commit tells the frontier.
pub fn append_moved(target: &Target, attempts: &[New]) {
    append(target, attempts, true);
}

/// Returns whether an attempt is its job's first. It has its job's count; or its job has an id of another server, and
/// the first attempt says of itself that its own call gave the payload. A later attempt never has its own number there.
fn is_first(id: i64, job_id: i64, asked: Option<i64>) -> bool {
    id::count(id) == id::count(job_id) || asked == Some(id & !id::JOB_NIBBLE)
}

fn append(target: &Target, attempts: &[New], has_moved: bool) {
    let of_fair = with_groups(attempts);
    let attempts = of_fair.as_deref().unwrap_or(attempts);
    let tids = insert_quietly(target, attempts);
    let segment = target.home.segment;
    // It is not known whether moved attempts were parked. With fair shares, all that are due will be.
    let has_fair = of_fair.is_some();
    let is_parked = |new: &New| has_moved || has_fair && new.run_at.is_none() && queue::is_known_as_fair(new.lane);
    let is_indexed = |new: &New| new.group_hash.is_some() && is_parked(new);
    if attempts.iter().any(is_indexed) {
        parked::fill_new(segment, &target.table, &tids, |n| {
            let new = &attempts[n];
            let group = new.group_hash.filter(|_| is_parked(new))?;
            Some((new.lane, group, new.priority, new.job_id))
        });
    }
    transaction::record_all(attempts.iter().zip(&tids).filter(|(new, _)| new.lane != 0).map(|(new, tid)| {
        let rank = Rank { priority: new.priority, job_id: new.job_id };
        let place = Place { is_indexed: is_indexed(new), ..tid.place(segment) };
        let ready = Ready { rank, id: new.id, place, group: new.group_hash.unwrap_or(0) };
        let is_retry = new.may_hold_group();
        let is_first = is_first(new.id, new.job_id, new.asked);
        Step::Enqueued { lane: new.lane, ready, run_at: new.run_at.unwrap_or(0), has_moved, is_retry, is_first }
    }));
    if let Some(at) = attempts.iter().filter_map(New::expires_at).min() {
        transaction::record(ExpiryStep::Waits { at });
    }
}

/// Returns the attempts with a group for each. With fair shares, jobs without a key are the group of the empty key.
/// `None`: no attempt is of a queue with fair shares.
fn with_groups(attempts: &[New]) -> Option<Vec<New>> {
    if !attempts.iter().any(|new| queue::is_known_as_fair(new.lane)) {
        return None;
    }
    let keyless = group_hash(datum::text_datum(""));
    Some(memory::collect(attempts.iter().map(|new| {
        let group_hash = new.group_hash.or_else(|| queue::is_known_as_fair(new.lane).then_some(keyless));
        New { group_hash, ..*new }
    })))
}

/// Inserts attempts without telling the frontier. Returns their places.
pub fn insert_quietly(target: &Target, attempts: &[New]) -> Vec<Tid> {
    /// At most this many rows are formed at a time: a caller decides how many there are.
    const MAX_ROWS: usize = 10_000;
    if attempts.len() <= MAX_ROWS {
        return insert_some(target, attempts);
    }
    memory::collect(attempts.chunks(MAX_ROWS).flat_map(|some| insert_some(target, some)))
}

fn insert_some(target: &Target, attempts: &[New]) -> Vec<Tid> {
    if attempts.is_empty() {
        return Vec::new();
    }
    let oids = catalog::segment(target.home.segment);
    let table = &target.table;
    let [pkey, lane] = Relation::write_indexes([oids.attempt_pkey, oids.attempt_lane]);
    let lane_key = |new: &New| [Datum::from(new.lane), Datum::from(new.priority), Datum::from(new.job_id)];
    let tids = if let [new] = attempts {
        let entries = &mut [
            Entry { index: &pkey, is_unique: false, key: &mut [new.id.into()] },
            Entry { index: &lane, is_unique: false, key: &mut lane_key(new) },
        ];
        Vec::from_iter(table.insert_row(new.values(), entries))
    } else {
        let mut rows = NewRows::new(columns::COUNT, attempts.len());
        attempts.iter().for_each(|new| rows.add(new.values()));
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
            attempts[n]
                .group_hash
                .filter(|_| attempts[n].may_hold_group())
                .map(|group| [attempts[n].lane.into(), group.into()])
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
    row: columns::Lazy<R>,
    /// The home in which it was found.
    pub home: Home,
}

/// A copy of an attempt's row.
pub type Attempt = AttemptOf<Row>;

/// Its columns.
impl<R> Deref for AttemptOf<R> {
    type Target = columns::Lazy<R>;

    fn deref(&self) -> &Self::Target {
        &self.row
    }
}

impl<R: Columns> AttemptOf<R> {
    /// Returns the attempt of a row.
    pub fn new(row: R, home: Home) -> Self {
        Self { row: columns::Lazy(row), home }
    }

    /// Returns a copy of the row, to be inserted in another segment. The datums are valid as long as this attempt.
    pub fn copy(&self) -> New {
        New::read(&self.row.0)
    }

    /// Returns the hash of the group's key. 0: no group.
    pub fn group(&self) -> i64 {
        self.group_hash().unwrap_or(0)
    }

    /// Returns the role that has written the payload, as which it runs. `None`: it was written for a queue without an
    /// executor.
    pub fn writer(&self) -> Option<RunAs> {
        RunAs::of(self.run_as(), self.run_as_id())
    }

    /// Returns the number of the call under its key that gave the payload. The numbers ascend, see `rerun::is_newer`.
    pub fn call(&self) -> i64 {
        self.asked().unwrap_or_else(|| self.id() & !15)
    }

    /// Returns whether its payload lies in a row that the jobs of an event share. Only a first attempt is made so. A
    /// next attempt takes the payload along, so that nothing outside the segment refers to that row.
    pub fn shares_payload(&self) -> bool {
        self.payload_of().is_some() && self.is_first()
    }

    /// Returns whether it is its job's first attempt.
    pub fn is_first(&self) -> bool {
        is_first(self.id(), self.job_id(), self.asked())
    }

    /// Returns whether the row is no attempt but the payload of an ended one, which is kept for later attempts.
    pub fn is_payload_only(&self) -> bool {
        self.lane() == 0
    }

    /// Returns whether the payload is large enough to be referred to. The stored length counts, so that nothing is
    /// detoasted.
    pub fn has_large_payload(&self) -> bool {
        self.payload().is_some_and(|d| datum::stored_size(d) > REFER_ABOVE)
    }

    /// Returns the stored bytes of the payload.
    pub fn payload_size(&self) -> usize {
        self.payload().map_or(0, datum::stored_size)
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
            asked: self.unique_key().map(|_| self.call()),
            payload_of,
            payload: if payload_of.is_some() { None } else { self.payload() },
            ..self.copy()
        }
    }
}

impl Attempt {
    /// Returns the attempt as the frontier knows it.
    pub fn ready(&self) -> Ready {
        let rank = Rank { priority: self.priority(), job_id: self.job_id() };
        Ready { rank, id: self.id(), place: self.row.0.tid().place(self.home.segment), group: self.group() }
    }

    /// Returns whether this transaction has inserted it.
    pub fn is_own(&self) -> bool {
        self.row.0.is_own()
    }
}
