//! The `attempt` log: one row says that a job may be run.

use pg_queue_core::frontier::{Place, Rank, Ready};
use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::catalog::{Catalog, Segment, drops};
use crate::error::Result;
use crate::log::segment::{self, Home, Target};
use crate::log::{claim, columns, outcome, parked};
use crate::pg::datum::{self, Interval, text};
use crate::pg::row::{NewRows, Row, Tid};
use crate::pg::scan::{Key, Snapshot};
use crate::pg::session;
use crate::pg::table::{Entry, Relation};
use crate::shmem::segments::{OLD, State, Word};
use crate::transaction::{self, Step};

/// The column that is null in attempts that follow no failure, for callers that read rows without `Attempt`.
pub const LAST_ERROR: usize = columns::LAST_ERROR;

/// A payload larger than this is referred to by the next attempt, not copied. Bytes as stored.
const REFER_ABOVE: usize = 1024;

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
}

impl New {
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
        ]
    }
}

/// Inserts attempts into a segment and records the steps by which the commit tells the frontier.
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
        attempts.iter().zip(&tids).map(|(new, tid)| {
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
        lane.insert_entries(table, &tids, false, |n| Some(lane_key(&attempts[n])));
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
        }
    }
}

/// How often to look again for a row that has moved during the search.
const LOOKS: usize = 4;

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

    /// Opens a segment before it reads its generation, which stays the same as long as the segment is open, unless it
    /// was free.
    fn table(&mut self, segment: u8) -> (&Relation, Home) {
        let (catalog, oid) = (self.catalog, self.oids(segment).attempt);
        let table = self.tables[segment as usize].get_or_insert_with(|| Relation::read(oid));
        (table, Home::now(catalog, segment))
    }

    /// The table with its key, which most calls do not need.
    fn keyed(&mut self, segment: u8) -> (&Relation, &Relation, Home) {
        let oid = self.oids(segment).attempt_pkey;
        let (_, home) = self.table(segment);
        self.pkeys[segment as usize].get_or_insert_with(|| Relation::read_index(oid));
        match (&self.tables[segment as usize], &self.pkeys[segment as usize]) {
            (Some(table), Some(pkey)) => (table, pkey, home),
            _ => unreachable!("both were opened above"),
        }
    }

    /// The table with its key and its index by job, opened in the order that `Relation::read_indexes` keeps.
    fn keyed_by_job(&mut self, segment: u8) -> (&Relation, &Relation, Relation, Home) {
        let oids = self.oids(segment);
        self.pkeys[segment as usize] = None;
        let (_, home) = self.table(segment);
        let [pkey, by_job] = Relation::read_indexes([oids.attempt_pkey, oids.attempt_job]);
        let pkey = self.pkeys[segment as usize].insert(pkey);
        match &self.tables[segment as usize] {
            Some(table) => (table, pkey, by_job, home),
            None => unreachable!("it was opened above"),
        }
    }

    /// Returns the attempt of a `Ready`: at its place, or, if the row has moved, by its id. It may have moved from
    /// there a moment ago: an insert about it finds that by its key.
    pub fn fetch(&mut self, ready: &Ready) -> Option<Attempt> {
        if !self.is_of_interest(ready.place.segment) {
            return self.by_id(ready.id);
        }
        let (table, home) = self.table(ready.place.segment);
        match table.fetch(Tid::of(ready.place), home.generation) {
            Some(row) if row.i64(columns::ID) == ready.id && row.i32(columns::LANE) != 0 => Some(Attempt { row, home }),
            _ => self.by_id(ready.id),
        }
    }

    /// As `fetch`, but where it is now if it has moved: a claim in its old place would be in vain, and leave a dead
    /// row.
    pub fn fetch_now(&mut self, ready: &Ready) -> Option<Attempt> {
        let found = self.fetch(ready)?;
        if self.has_moved(&found) { self.by_id(ready.id) } else { Some(found) }
    }

    /// Whether a segment has rows, and indexes that a crash has not left half emptied.
    fn is_whole(&mut self, segment: u8) -> bool {
        // In this order, as no emptying begins under the lock that opening takes.
        self.table(segment).0.blocks() > 0 && segment::word(self.catalog, segment).state() != State::Emptying
    }

    /// The row with this id in a segment: an attempt, its payload only, or the trace of one that moved.
    fn at(&mut self, segment: u8, attempt: i64) -> Option<Attempt> {
        let is_whole = self.is_whole(segment);
        let (table, pkey, home) = self.keyed(segment);
        if !is_whole {
            return None;
        }
        let mut scan = table.scan(pkey, &[Key::eq_i64(1, attempt)], Snapshot::Now);
        scan.next()?;
        Some(Attempt { row: scan.row(), home })
    }

    /// Whether a segment has a row with this id, of whatever kind.
    pub fn has_row(&mut self, segment: u8, attempt: i64) -> bool {
        self.at(segment, attempt).is_some()
    }

    /// The payload in the row of an attempt, also of one that has ended or moved.
    pub fn payload_in(&mut self, holder: i64) -> Option<Attempt> {
        let id::Kind::Attempt(born) = id::kind(holder) else { return None };
        let mut segments = [born, OLD, OLD + 1];
        // A segment that history has is read only if no other has the row: it may be emptied this moment.
        segments.sort_by_key(|&segment| !self.is_of_interest(segment));
        // The trace of a moved attempt may refer to a payload that the attempt has taken along.
        let holds = |attempt: &Attempt| attempt.payload_of().is_none();
        segments.into_iter().find_map(|segment| self.at(segment, holder).filter(holds))
    }

    /// Returns any row of an attempt that says where its payload is, so none that is there for its payload alone.
    pub fn trace(&mut self, attempt: i64) -> Option<Attempt> {
        let id::Kind::Attempt(born) = id::kind(attempt) else { return None };
        let mut segments = [born, OLD, OLD + 1];
        segments.sort_by_key(|&segment| !self.is_of_interest(segment));
        segments.into_iter().find_map(|segment| self.at(segment, attempt).filter(|found| !found.is_payload_only()))
    }

    /// Whether a segment may have attempts that are not in history yet. A segment that history has is not read: no
    /// session must wait for its emptying, nor see what a crash in the middle of that has left.
    fn is_of_interest(&self, segment: u8) -> bool {
        !matches!(segment::word(self.catalog, segment).state(), State::Free | State::Copied | State::Emptying)
    }

    /// The halves of old. If they change during a search, it may have missed an attempt.
    fn old_words(&self) -> [Word; 2] {
        [OLD, OLD + 1].map(|segment| segment::word(self.catalog, segment))
    }

    /// Whether an attempt has moved from where it was found.
    fn has_moved(&self, attempt: &Attempt) -> bool {
        let segment = attempt.home.segment;
        segment::word(self.catalog, segment).state() >= State::Moving
            && (claim::has_moved(self.catalog, segment, attempt.id())
                || outcome::has_moved(self.catalog, segment, attempt.id()))
    }

    /// The attempt with this id, wherever its row is: where it was born, else in one of the halves of old.
    pub fn by_id(&mut self, attempt: i64) -> Option<Attempt> {
        let id::Kind::Attempt(born) = id::kind(attempt) else { return None };
        for _ in 0..LOOKS {
            let (mut moved, words) = (false, self.old_words());
            for segment in [born, OLD, OLD + 1] {
                if !self.is_of_interest(segment) {
                    continue;
                }
                match self.at(segment, attempt) {
                    Some(found) if found.is_payload_only() => {}
                    Some(found) if self.has_moved(&found) => moved = true,
                    Some(found) => return Some(found),
                    None => {}
                }
            }
            if !moved && words == self.old_words() {
                break;
            }
        }
        None
    }

    /// Calls `use_it` with the payload of an attempt. `None` only if the row with it is gone.
    pub fn payload<T>(&mut self, attempt: &Attempt, use_it: impl FnOnce(Option<Datum>) -> T) -> T {
        let Some(holder) = attempt.payload_of() else { return use_it(attempt.own_payload()) };
        // Fetched, since its segment may be emptied as soon as it is closed here.
        let found = self.payload_in(holder);
        use_it(found.as_ref().and_then(Attempt::own_payload).map(datum::fetched))
    }

    /// The ids of all attempts of a job that have rows in the segments.
    pub fn all_ids(&mut self, job_id: i64) -> Vec<i64> {
        let mut ids = Vec::new();
        for segment in 0..id::SEGMENTS as u8 {
            for attempt in self.of_job(segment, job_id, Snapshot::Now) {
                if !ids.contains(&attempt.id()) {
                    ids.push(attempt.id());
                }
            }
        }
        ids
    }

    /// A segment's rows of a job's attempts, payloads only among them.
    pub fn of_job(&mut self, segment: u8, job_id: i64, snapshot: Snapshot) -> Vec<Attempt> {
        if !self.is_whole(segment) {
            return Vec::new();
        }
        let (table, pkey, by_job, home) = self.keyed_by_job(segment);
        let mut found = Vec::new();
        // First attempts share the job's count; one of another segment's birth has moved to old.
        for born in (0..id::SEGMENTS as u8).filter(|&born| born == segment || segment >= OLD) {
            let mut scan = table.scan(pkey, &[Key::eq_i64(1, id::first_attempt(job_id, born))], snapshot);
            if scan.next().is_some() {
                found.push(Attempt { row: scan.row(), home });
            }
        }
        let mut scan = table.scan(&by_job, &[Key::eq_i64(1, job_id)], snapshot);
        while scan.next().is_some() {
            found.push(Attempt { row: scan.row(), home });
        }
        drop(scan);
        found
    }

    /// Returns the newest attempt of a job that was not removed yet, and whether an open transaction is making a newer
    /// one.
    pub fn newest(&mut self, job_id: i64) -> (Option<Attempt>, bool) {
        let mut last = (None, false);
        for _ in 0..LOOKS {
            let words = self.old_words();
            let (newest, in_progress, moved) = self.look_for_newest(job_id);
            let is_behind = moved > newest.as_ref().map_or(0, |found| id::count(found.id()));
            last = (newest, in_progress);
            if !is_behind && words == self.old_words() {
                break;
            }
        }
        last
    }

    /// Also the count of the newest attempt that has moved from where it was seen.
    fn look_for_newest(&mut self, job_id: i64) -> (Option<Attempt>, bool, i64) {
        let (mut newest, mut moved): (Option<Attempt>, i64) = (None, 0);
        // Rows of open transactions, and all others: an attempt among both is not new, but moving.
        let (mut open, mut known): (Vec<i64>, Vec<i64>) = (Vec::new(), Vec::new());
        for segment in 0..id::SEGMENTS as u8 {
            if !self.is_of_interest(segment) {
                continue;
            }
            if self.table(segment).0.blocks() == 0 {
                continue;
            }
            let (table, _, by_job, home) = self.keyed_by_job(segment);
            let mut found = Vec::new();
            {
                let mut scan = table.scan(&by_job, &[Key::eq_i64(1, job_id)], Snapshot::Dirty);
                while scan.next().is_some() {
                    if scan.is_in_progress() {
                        open.push(scan.columns(1).0[columns::ID].value() as i64);
                    } else {
                        found.push(Attempt { row: scan.row(), home });
                    }
                }
            }
            found.extend(self.at(segment, id::first_attempt(job_id, segment)));
            // A first attempt that was born in another segment and moved to old.
            if segment >= OLD {
                let born = (0..id::SEGMENTS as u8).filter(|&born| born != segment);
                for born in born {
                    found.extend(self.at(segment, id::first_attempt(job_id, born)));
                }
            }
            known.extend(found.iter().map(Attempt::id));
            for attempt in found.into_iter().filter(|attempt| !attempt.is_payload_only()) {
                let count = id::count(attempt.id());
                if self.has_moved(&attempt) {
                    moved = moved.max(count);
                } else if newest.as_ref().is_none_or(|known| id::count(known.id()) <= count) {
                    newest = Some(attempt);
                }
            }
        }
        (newest, open.iter().any(|id| !known.contains(id)), moved)
    }
}
